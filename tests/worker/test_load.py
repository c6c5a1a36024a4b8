"""Settings that cannot work on this machine."""

import pytest

from headway.config import CacheConfig
from headway.errors import ConfigError
from headway.ops.contract import KVLayout
from headway.worker.load import new_kv_layers


class FullMachine:
    def new_kv_cache(self, layout: KVLayout) -> None:
        raise MemoryError


def test_a_kv_pool_beyond_the_machines_memory_is_a_setting_to_change() -> None:
    layouts = [KVLayout(1, 16, 4, 16, "bf16")]
    with pytest.raises(ConfigError, match=r"cache\.memory_bytes is 12345.*--kv-memory"):
        new_kv_layers(FullMachine(), layouts, CacheConfig(memory_bytes=12345))  # type: ignore[arg-type]
