"""Tiny wheels, catalogue entries that pin what is in them, and a pip that serves them without a network."""

import hashlib
import random
import shutil
import zipfile
from itertools import pairwise
from pathlib import Path

from headway.model.catalogue import CatalogueEntry, Licence, WheelMember

TERMS = b"<html><head><title>t</title></head>menu<article><p>Be <b>kind</b>.</p><p>Always.</p></article></html>"


def random_bytes(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Wheelhouse:
    """A folder of wheels. ``pip`` stands in for ``headway.model.wheels.run_pip``.

    ``requests`` lists what was asked for; one in ``failures`` answers with that exit status and output instead.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[str] = []
        self.failures: dict[str, tuple[int, str]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, package: str, members: dict[str, bytes], version: str = "1.0") -> Path:
        """A wheel that pip accepts, with ``members`` by their exact names."""
        stem = f"{package.replace('-', '_')}-{version}"
        path = self.folder / f"{stem}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
            archive.writestr(
                f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
            )
            archive.writestr(
                f"{stem}.dist-info/WHEEL",
                "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            archive.writestr(f"{stem}.dist-info/RECORD", "")
        return path

    def member(self, package: str, name: str, data: bytes) -> WheelMember:
        """Adds a wheel that holds ``data`` under ``name``, and pins it."""
        size = self.add(package, {name: data}).stat().st_size
        return WheelMember(package, "1.0", size, name, len(data), sha256(data))

    def entry(
        self, name: str = "tiny", parts: int = 1, part_size: int = 4000, terms: bool = False, content: bytes = b""
    ) -> CatalogueEntry:
        """A pinned model in ``parts`` wheels: ``content``, or random bytes."""
        content = content or b"".join(random_bytes(part_size, seed) for seed in range(parts))
        cuts = [len(content) * i // parts for i in range(parts + 1)]
        data = [content[start:end] for start, end in pairwise(cuts)]
        licence_terms = (self.member(f"{name}-terms", "terms/TERMS.html", TERMS),) if terms else ()
        return CatalogueEntry(
            name=name,
            summary="random bytes",
            source="nowhere",
            revision=f"{name} 1.0",
            file=f"{name}.gguf",
            size=len(content),
            sha256=sha256(content),
            licence=Licence("Kind Licence", "https://example.org/kind", licence_terms),
            parts=tuple(self.member(f"{name}-part{i}", f"data/{name}.part{i}", part) for i, part in enumerate(data)),
        )

    def pip(self, arguments: list[str], folder: Path) -> tuple[int, str]:
        requirement = arguments[-1]
        self.requests.append(requirement)
        if requirement in self.failures:
            return self.failures[requirement]
        package, version = requirement.split("==")
        destination = Path(arguments[arguments.index("--dest") + 1])
        destination.mkdir(parents=True, exist_ok=True)
        for wheel in self.folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"):
            shutil.copy(wheel, destination)
        return 0, ""
