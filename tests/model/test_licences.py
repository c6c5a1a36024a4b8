import json
from dataclasses import replace
from pathlib import Path

import pytest

from headway.errors import DigestMismatch, LicenceNotAccepted
from headway.model import wheels
from headway.model.licences import html_to_text, is_accepted, require_acceptance
from headway.model.progress import silent
from headway.model.store import ModelStore
from wheelhouse import TERMS, Wheelhouse


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheelhouse:
    house = Wheelhouse(tmp_path / "wheelhouse")
    monkeypatch.setattr(wheels, "run_pip", house.pip)
    return house


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    (tmp_path / "cache").mkdir()
    return ModelStore(tmp_path / "cache")


def test_a_licence_without_terms_asks_nobody(house, store) -> None:
    require_acceptance(house.entry(), store, False, lambda terms: pytest.fail("asked"), silent)
    assert house.requests == []


def test_without_a_yes_the_error_says_how_to_give_one(house, store) -> None:
    entry = house.entry(terms=True)
    with pytest.raises(LicenceNotAccepted) as caught:
        require_acceptance(entry, store, False, None, silent)
    message = str(caught.value)
    assert "Kind Licence" in message and entry.licence.url in message and "pull tiny --accept-licence" in message
    assert (store.folder("tiny") / "TERMS.html").read_bytes() == TERMS
    assert not is_accepted(entry, store)


def test_the_text_itself_is_shown_and_an_answer_decides(house, store) -> None:
    entry = house.entry(terms=True)
    shown = []

    def refuse(terms) -> bool:
        shown.append(terms.text())
        return False

    with pytest.raises(LicenceNotAccepted):
        require_acceptance(entry, store, True, refuse, silent)
    assert shown == ["Be kind.\n\nAlways."]
    require_acceptance(entry, store, False, lambda terms: True, silent)
    assert is_accepted(entry, store)


def test_acceptance_is_recorded_and_not_asked_for_again(house, store) -> None:
    entry = house.entry(terms=True)
    require_acceptance(entry, store, True, None, silent)
    record = json.loads((store.root / "licences" / "tiny.json").read_text())
    assert (
        record["model"] == "tiny" and record["terms_sha256"] == entry.licence.terms[0].sha256 and record["accepted_at"]
    )
    house.requests.clear()
    require_acceptance(entry, store, False, None, silent)
    assert house.requests == []


def test_other_terms_must_be_accepted_anew(house, store) -> None:
    entry = house.entry(terms=True)
    require_acceptance(entry, store, True, None, silent)
    changed = house.member("tiny-terms", "terms/TERMS.html", b"Be kinder.")
    entry = replace(entry, licence=replace(entry.licence, terms=(changed,)))
    with pytest.raises(LicenceNotAccepted):
        require_acceptance(entry, store, False, None, silent)
    assert (store.folder("tiny") / "TERMS.html").read_bytes() == b"Be kinder."


@pytest.mark.parametrize("junk", ["", "[]", "{}", '{"terms_sha256": null}'])
def test_a_damaged_record_is_no_acceptance(house, store, junk) -> None:
    entry = house.entry(terms=True)
    require_acceptance(entry, store, True, None, silent)
    (store.root / "licences" / "tiny.json").write_text(junk)
    assert not is_accepted(entry, store)


def test_terms_that_are_not_the_pinned_ones_are_never_shown(house, store) -> None:
    entry = house.entry(terms=True)
    house.add("tiny-terms", {"terms/TERMS.html": bytes(len(TERMS))})
    with pytest.raises(DigestMismatch):
        require_acceptance(entry, store, True, lambda terms: pytest.fail("asked"), silent)
    assert not is_accepted(entry, store)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>a</p><p>b <a href='x'>c</a>d</p>", "a\n\nb cd"),
        ("<style>x{}</style><script>var a = '<p>';</script>t", "t"),
        ("out<article>in &amp; <b>bold</b></article>out", "in & bold"),
        ("<p>one\n  line</p>", "one line"),
        ("", ""),
    ],
)
def test_html_becomes_text(page, text) -> None:
    assert html_to_text(page) == text
