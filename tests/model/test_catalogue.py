import re
from pathlib import PurePosixPath

import pytest

from headway.config import ModelConfig
from headway.engine.sampling_defaults import NEUTRAL
from headway.model.catalogue import catalogue

ENTRIES = list(catalogue().values())


def test_the_default_model_is_in_the_catalogue() -> None:
    assert ModelConfig().name in catalogue()


def test_the_default_model_needs_no_acceptance() -> None:
    assert catalogue()[ModelConfig().name].licence.terms == ()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_everything_is_pinned_and_adds_up(entry) -> None:
    assert sum(part.size for part in entry.parts) == entry.size
    if len(entry.parts) == 1:
        assert entry.parts[0].sha256 == entry.sha256
    for pinned in (entry, *entry.parts, *entry.licence.terms):
        assert re.fullmatch(r"[0-9a-f]{64}", pinned.sha256)
        assert pinned.size > 0
    assert len({part.sha256 for part in entry.parts}) == len(entry.parts)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_names_are_plain_and_versions_exact(entry) -> None:
    assert re.fullmatch(r"[a-z0-9-]+", entry.name)
    assert PurePosixPath(entry.file).name == entry.file
    for member in (*entry.parts, *entry.licence.terms):
        path = PurePosixPath(member.member)
        assert not path.is_absolute() and ".." not in path.parts
        assert member.file_name == path.name
        assert re.fullmatch(r"[a-z0-9-]+==[0-9]+(\.[0-9]+)+", member.requirement)


def test_recommended_sampling_is_what_a_request_may_ask_for() -> None:
    for entry in catalogue().values():
        assert set(entry.generation_defaults) <= set(NEUTRAL)
    assert catalogue()["smollm2-135m"].generation_defaults == {"temperature": 0.2, "top_p": 0.9}
