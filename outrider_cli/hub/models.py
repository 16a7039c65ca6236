"""Gives the file of a model that an option names: a path, or a name on Hugging Face.

What is in huggingface_hub's cache is taken from there, without a request; else it is downloaded.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.errors import InvalidConfig
from outrider.extensions import installing
from outrider_cli.hub.names import HubName, choose, quants, read_name
from outrider_cli.phrases import show_size

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

    from outrider_cli.hub.download import RemoteFile

_MEGABYTE = 10**6
_SHA256 = re.compile(r"[0-9a-f]{64}")  # which becomes the name of a file


class _Refused(Exception):
    """Why a model does not come; the message is all that is said."""


@cache
def model_file(option: str, path: Path) -> Path:
    """Return the path of a model's file, of its first part where there are several.

    Within a process a name stands for one file. Raises InvalidConfig with one line.
    """
    name = read_name(option, str(path))
    if name is None:
        return path
    try:
        return _cached(name, usual_alone=True) or _download(name)
    except ModuleNotFoundError as error:
        if error.name not in ("huggingface_hub", "httpx2"):
            raise
        words = f"{name} needs huggingface_hub: {installing('llama')}"
    except _Refused as reason:
        words = str(reason)
    except Exception as error:
        from outrider_cli.hub.refusals import refusal

        words = refusal(name, error)
        if not words:
            raise
    raise InvalidConfig(option, words)


def given_file(option: str, path: Path | None) -> Path | None:
    """Return what `model_file` does, of an option that may be left out."""
    return None if path is None else model_file(option, path)


# --- the cache ---


def _folder(name: HubName) -> Path:
    """Return where the cache keeps a repository, as huggingface_hub's documents say."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{name.repository.replace('/', '--')}"


def _cached(name: HubName, usual_alone: bool = False) -> Path | None:
    """Return the model's file in the cache, None if it or a part of it is not there."""
    folder = _folder(name)
    try:
        commit = (folder / "refs" / "main").read_text().strip()
    except OSError:
        return None
    snapshot = folder / "snapshots" / commit
    paths = (each for each in snapshot.rglob("*.gguf") if each.is_file())
    found = choose((each.relative_to(snapshot).as_posix() for each in paths), name, usual_alone)
    return snapshot / found[0] if found else None


# --- the download ---


def _download(name: HubName) -> Path:
    """Download what the hub has under a name; what is cached will do where it is not reached."""
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        files = _files(name)
    except (OfflineModeIsEnabled, httpx2.TransportError):
        if (found := _cached(name)) is not None:
            return found
        raise
    _make_room(name, files)
    first, *_ = [_fetch(name, each) for each in files]
    return first


def _files(name: HubName) -> Sequence[RepoSibling]:
    """Ask the hub for the files of a model, and where they are."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    from outrider_cli.hub.download import SECONDS

    disable_progress_bars()  # ours are shown
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    api = HfApi(library_name="outrider")
    info: ModelInfo = api.model_info(name.repository, files_metadata=True, timeout=SECONDS)
    known = {each.rfilename: each for each in info.siblings or ()}
    found = choose(known, name)
    if not found:
        raise _Refused(_missing(name, list(known)))
    return [known[each] for each in found]


def _missing(name: HubName, known: Sequence[str]) -> str:
    if not any(each.endswith(".gguf") for each in known):
        return f"{name.repository} has no GGUF file; look for one whose name ends in -GGUF"
    if name.quant and (there := ", ".join(quants(known))):
        return f"{name.repository} has no {name.quant}, or not all of its parts; it has {there}"
    return f"{name.repository} has no {name.file or 'model'}, or not all of its parts"


def _make_room(name: HubName, files: Sequence[RepoSibling]) -> None:
    """Refuse what the disk has no room for, else say what is to come."""
    from outrider_cli.hub.download import missing_bytes
    from outrider_cli.screen import note

    folder = _folder(name).parent
    folder.mkdir(parents=True, exist_ok=True)
    blobs = _folder(name) / "blobs"
    left = sum(missing_bytes(remote, blobs) for each in files if (remote := _remote(name, each)))
    if left > (free := shutil.disk_usage(folder).free):
        room = f"{show_size(left)}, and {folder} has room for {show_size(free)}"
        raise _Refused(f"{name} needs {room}; HF_HOME names another folder")
    if left:
        note(f"downloading {name}, {show_size(left)}, into {folder}")


def _remote(name: HubName, file: RepoSibling) -> RemoteFile | None:
    """Return what is downloaded by us; None for a small file, which huggingface_hub fetches."""
    from huggingface_hub import hf_hub_url

    from outrider_cli.hub.download import RemoteFile

    if file.lfs is None or not _SHA256.fullmatch(file.lfs.sha256):
        return None
    url = hf_hub_url(name.repository, file.rfilename)
    return RemoteFile(url, file.lfs.size, file.lfs.sha256)


def _fetch(name: HubName, file: RepoSibling) -> Path:
    """Put a file into the cache, and return its path there."""
    from huggingface_hub import hf_hub_download

    from outrider_cli.hub.download import download
    from outrider_cli.screen import Progress

    folder = _folder(name)
    lock = folder.parent / ".locks" / folder.name
    with Progress() as progress:
        if (remote := _remote(name, file)) is not None:
            shown = file.rfilename.rpartition("/")[2]
            say = _Shown(shown, remote.size, progress.say)
            download(remote, folder / "blobs", lock / f"{remote.sha256}.lock", say)
        return Path(hf_hub_download(name.repository, file.rfilename))


class _Shown:
    """Shows how much of a file is there, and how fast it comes."""

    def __init__(self, file: str, size: int, say: Callable[[str], None]) -> None:
        self._words = f"downloading {file}"
        self._size = size
        self._say = say
        self._first: tuple[float, int] | None = None  # when it began, with which bytes

    def __call__(self, there: int) -> None:
        now = time.monotonic()
        start, kept = self._first = self._first or (now, there)
        rate = f", {(there - kept) / (now - start) / _MEGABYTE:.0f} MB/s" if now > start else ""
        self._say(f"{self._words}: {there / self._size:.0%} of {show_size(self._size)}{rate}")
