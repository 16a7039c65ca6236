"""Which model this is: a digest of its files, and of the settings that change its logits.

The files are read by several threads while the model loads, and their digest is kept on disk
under what changes when a file does, so that a second start does not read them again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from outrider.engine.kept import KeptFiles
from outrider.errors import InvalidConfig
from outrider.threads import available_threads

_PART_BYTES = 64 * 2**20  # one task of one thread
_BLOCK_BYTES = 2**20
_MOST_THREADS = 8  # memory is no faster
_KEPT = KeptFiles("digests", most=256)


def identity_of(weights: bytes, settings: Sequence[object]) -> bytes:
    """Return the identity of a model with these weights under these settings."""
    return hashlib.sha256(weights + repr(tuple(settings)).encode()).digest()


class FilesDigest:
    """The digest of a model's files, computed in the background from the moment it is made.

    Once left as a context, it reads no further. Raises InvalidConfig for a
    file that cannot be read.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._state, sizes = _state_of(paths)
        # The digest of files in this state; None if it has to be computed.
        self._known = _find_kept(self._state)
        self._pool = ThreadPoolExecutor(min(_MOST_THREADS, available_threads()))
        self._parts: list[Future[bytes]] = []  # digests of parts, in order; none where it is known
        if self._known is None:
            self._parts = [
                self._pool.submit(_digest_part, path, start)
                for path, size in zip(paths, sizes, strict=True)
                for start in range(0, size, _PART_BYTES)
            ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def digest(self) -> bytes:
        """Wait for the digest. Raises InvalidConfig, too, if a file was changed meanwhile."""
        digest = self._known or self._computed()
        if _state_of(self._paths)[0] != self._state:
            raise InvalidConfig("model", f"{self._paths[0]} was changed while it was loaded")
        if self._known is None:
            _KEPT.keep(self._state, digest)
        return digest

    def _computed(self) -> bytes:
        try:
            return hashlib.sha256(b"".join(part.result() for part in self._parts)).digest()
        except OSError as error:
            raise _unreadable(self._paths[0], error) from None


def _find_kept(state: str) -> bytes | None:
    """Return the digest that was kept for files in this state."""
    digest = _KEPT.find(state)
    return digest if digest and len(digest) == hashlib.sha256().digest_size else None


def _state_of(paths: Sequence[Path]) -> tuple[str, list[int]]:
    """Return what is another once one of the files is, and their sizes."""
    try:
        found = [(str(path.resolve()), path.stat()) for path in paths]
    except OSError as error:
        raise _unreadable(paths[0], error) from None
    facts = [(path, s.st_dev, s.st_ino, s.st_mtime_ns, s.st_ctime_ns) for path, s in found]
    sizes = [s.st_size for _, s in found]
    return repr((facts, sizes)), sizes


def _unreadable(path: Path, error: OSError) -> InvalidConfig:
    return InvalidConfig("model", f"{path} cannot be read: {error.strerror}")


def _digest_part(path: Path, start: int) -> bytes:
    """Return the digest of a part of a file, with where it starts."""
    hashed = hashlib.sha256(start.to_bytes(8, "little"))
    with open(path, "rb", buffering=0) as file:
        for at in range(start, start + _PART_BYTES, _BLOCK_BYTES):
            hashed.update(os.pread(file.fileno(), _BLOCK_BYTES, at))
    return hashed.digest()
