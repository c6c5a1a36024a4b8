import os
from pathlib import Path

import pytest

from headway.config import ModelConfig
from headway.errors import ModelError
from headway.model.resolve import find_model, pull_model


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file: from the cache, or pulled once. HEADWAY_TEST_OFFLINE skips instead of pulling."""
    config = ModelConfig(cache_dir=os.environ.get("HEADWAY_CACHE", ""))
    try:
        model = find_model(config.name, config)
        if model is None and os.environ.get("HEADWAY_TEST_OFFLINE"):
            pytest.skip(f"{config.name} is not in the cache, and HEADWAY_TEST_OFFLINE is set")
        return (model or pull_model(config.name, config)).path
    except ModelError as error:
        pytest.skip(f"the default model {config.name} cannot be had: {error}")
