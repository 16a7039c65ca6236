"""Reads and saves the files of n-gram caches. A save that is cut off leaves the old file."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path

from outrider.drafters.ngram_cache import NO_BOUND, NgramCache
from outrider.drafters.ngram_format import ANY_TOKEN, DamagedCache, decode, encode, ignore
from outrider.errors import InvalidConfig, NotFound

_FIELD = "lookup-cache"  # callers know it by the option that named the file
_ABANDONED_SECONDS = 3600.0  # no save takes as long
_PART = ".part"
_BETWEEN_PAUSES = 512  # parts: 256 n-grams, a third of a millisecond


def load_cache(
    path: Path,
    token_count: int = ANY_TOKEN,
    most_pairs: int = NO_BOUND,
    report: Callable[[int], None] = ignore,
) -> NgramCache:
    """Return the cache of a file that llama.cpp or Outrider wrote.

    `token_count` is the size of the vocabulary; `report` is called now and then with how many bytes
    are read. Raises NotFound where there is no file, and InvalidConfig for one that cannot be read
    or is damaged.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidConfig(_FIELD, f"{path} is not a file")
            content = file.read()
    except FileNotFoundError:
        raise NotFound(_FIELD, f"there is no file {path}") from None
    except OSError as error:
        raise InvalidConfig(_FIELD, f"cannot read {path}: {error.strerror}") from None

    try:
        return decode(content, token_count, most_pairs, report)
    except DamagedCache as error:
        raise InvalidConfig(
            _FIELD, f"{path} is damaged, or no cache of this vocabulary: {error}"
        ) from None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # or a pipe is waited for


def save_cache(
    cache: NgramCache, path: Path, mode: int = 0o666, pause: Callable[[], None] | None = None
) -> None:
    """Write a cache in place of a file, in one step: a reader finds the old or the new one.

    A new file gets the permissions `mode` less the umask; a replaced one keeps its own. `pause` is
    called every 256 n-grams, for a thread that would hold up others. Raises InvalidConfig where it
    cannot be written; the old file is then as it was.
    """
    place = Path(os.path.realpath(path))  # a link still points there
    try:
        _replace(cache, place, mode, pause)
    except OSError as error:
        raise InvalidConfig(_FIELD, f"cannot write {path}: {error.strerror}") from None


def _replace(cache: NgramCache, place: Path, mode: int, pause: Callable[[], None] | None) -> None:
    known = _permissions(place)
    _sweep(place)
    part = place.with_name(f".{place.name}.{secrets.token_hex(8)}{_PART}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as file:
            for i, each in enumerate(encode(cache)):
                file.write(each)
                if pause is not None and i % _BETWEEN_PAUSES == 0:
                    pause()
            file.flush()
            if known is not None:
                os.fchmod(file.fileno(), known)
            os.fsync(file.fileno())
        os.replace(part, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # or the name may still mean the old file after a power cut
    finally:
        os.close(folder)


def _permissions(place: Path) -> int | None:
    """Return the permissions of the file, if there is one."""
    try:
        found = place.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found):
        raise InvalidConfig(_FIELD, f"{place} is not a file")
    return stat.S_IMODE(found)


def _sweep(place: Path) -> None:
    """Remove what saves of this file left that were killed."""
    for each in place.parent.iterdir():
        if each.name.startswith(f".{place.name}.") and each.name.endswith(_PART):
            with contextlib.suppress(OSError):
                if time.time() - each.stat().st_mtime > _ABANDONED_SECONDS:
                    each.unlink()
