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
            found = _complete(file, kept, say)
        if found != file.sha256:
            partial.unlink()
            raise Damaged
        os.replace(partial, blobs / file.sha256)


def _partial(file: RemoteFile, blobs: Path) -> Path:
    return blobs / f"{file.sha256}.incomplete"


def _complete(file: RemoteFile, kept: BinaryIO, say: Say) -> str:
    """Download what is missing of a file; return the checksum of all of it."""
    digest = hashlib.sha256()
    while chunk := kept.read(_CHUNK):
        digest.update(chunk)
    failures = 0
    while (start := kept.tell()) < file.size:
        try:
            with _answer(file.url, start) as response:
                if start and response.status_code != _PARTIAL:  # it begins anew
                    kept.truncate(kept.seek(0))
                    digest = hashlib.sha256()
                for chunk in response.iter_bytes(_CHUNK):
                    kept.write(chunk)
                    digest.update(chunk)
                    say(kept.tell())
                    if kept.tell() > file.size:
                        break
        except httpx2.TransportError:
            failures = 1 if kept.tell() > start else failures + 1
            if failures == _TRIES:
                raise
            time.sleep(_PAUSE)
        else:
            if kept.tell() == start:  # an answer without a byte will be no other the next time
                break
    return digest.hexdigest()


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
