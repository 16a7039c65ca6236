"""Downloads one file of a repository into a cache of Hugging Face, from where it was left.

huggingface_hub begins a file anew after each interruption, and does not look at its checksum.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import httpx2
from huggingface_hub.utils import (
    WeakFileLock,
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

SECONDS = 10.0
"""s; that a server may be silent before a connection counts as broken, as huggingface_hub has it"""

_CHUNK = 1 << 20  # bytes; read and written at once
_TRIES = 5  # broken connections in a row without a byte between them, as huggingface_hub has it
_PAUSE = 1.0  # s; before the next of them
_PARTIAL = 206  # status of an answer that continues

Say: TypeAlias = Callable[[int], None]
"""Gets the bytes that are there of a file."""


class Damaged(Exception):
    """What came is not the file; it was removed."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to download."""

    url: str
    size: int  # bytes
    sha256: str  # hexadecimal; by which the cache calls it, too


def missing_bytes(file: RemoteFile, blobs: Path) -> int:
    """Return the bytes of a file that are not there."""
    if (blobs / file.sha256).exists():
        return 0
    partial = _partial(file, blobs)
    return file.size - (partial.stat().st_size if partial.exists() else 0)


def download(file: RemoteFile, blobs: Path, lock: Path, say: Say) -> None:
    """Put a file into the cache's folder of contents, if it is not there.

    Raises Damaged if the checksum is another one, HfHubHTTPError if the server refuses,
    httpx2.TransportError if it cannot be reached, OSError if nothing can be written.
    """
    for folder in (blobs, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if (blobs / file.sha256).exists():
            return
        partial = _partial(file, blobs)
        partial.touch()
        with partial.open("r+b") as kept:
            content = _Content(kept)
            _complete(file, content, say)
        if content.sha256 != file.sha256:
            partial.unlink()
            raise Damaged
        os.replace(partial, blobs / file.sha256)


def _partial(file: RemoteFile, blobs: Path) -> Path:
    return blobs / f"{file.sha256}.incomplete"


class _Content:
    """What is there of a file, and its checksum so far."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            self._digest.update(chunk)

    @property
    def size(self) -> int:
        """The bytes that are there."""
        return self._file.tell()

    @property
    def sha256(self) -> str:
        """The checksum of all of them, hexadecimal."""
        return self._digest.hexdigest()

    def append(self, chunk: bytes) -> None:
        """Write what comes next."""
        self._file.write(chunk)
        self._digest.update(chunk)

    def empty(self) -> None:
        """Forget what is there."""
        self._file.truncate(self._file.seek(0))
        self._digest = hashlib.sha256()


def _complete(file: RemoteFile, content: _Content, say: Say) -> None:
    """Download what is missing of a file, over several connections where they break."""
    failures = 0
    while (start := content.size) < file.size:
        try:
            _continue(file, content, say)
        except httpx2.TransportError:
            failures = 1 if content.size > start else failures + 1
            if failures == _TRIES:
                raise
            time.sleep(_PAUSE)
        else:
            if content.size == start:  # the next answer would have no byte, too
                break


def _continue(file: RemoteFile, content: _Content, say: Say) -> None:
    """Download what comes after what is there, over one connection."""
    with _answer(file.url, content.size) as response:
        if response.status_code != _PARTIAL:  # from its first byte on
            content.empty()
        for chunk in response.iter_bytes(_CHUNK):
            content.append(chunk)
            say(content.size)
            if content.size > file.size:
                break


@contextmanager
def _answer(url: str, start: int) -> Iterator[httpx2.Response]:
    """Ask for the rest of a file; a token goes to the hub alone, not to where it redirects."""
    headers: Mapping[str, str] = {
        **build_hf_headers(library_name="outrider"),
        "Accept-Encoding": "identity",
        **({"Range": f"bytes={start}-"} if start else {}),
    }
    with get_session().stream("GET", url, headers=headers, timeout=SECONDS) as response:
        if response.is_error:
            response.read()
        hf_raise_for_status(response)
        yield response
