"""Reads hf:ORG/REPO[:QUANT], and says which files of a repository it names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from outrider.errors import InvalidConfig

PREFIX = "hf:"
USUAL = ("Q4_K_M", "Q8_0")
"""Taken where no quantisation is named, the first that there is; as llama.cpp's -hf does."""

_NAME = re.compile(
    r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+)|/(?P<file>\S+\.gguf))?", re.ASCII
)
_PART = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_QUANT = re.compile(r"[.-]((?:UD-)?(?:I?Q\d|TQ\d|B?F16|F32|MXFP4|NVFP4)\w*)$", re.IGNORECASE)
_BESIDE = ("mmproj", "imatrix")  # in the names of GGUF files that hold no text model
_HEADS = ("mtp-", "eagle3-", "dflash-", "dspark-")  # before the name of the target of a head


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on Hugging Face: a repository, and at most one of quantisation and file in it."""

    repository: str
    quant: str = ""
    file: str = ""

    def __str__(self) -> str:
        ending = f":{self.quant}" if self.quant else f"/{self.file}" if self.file else ""
        return f"{PREFIX}{self.repository}{ending}"


def read_name(option: str, text: str) -> HubName | None:
    """Return the name that an option holds, None for a path. Raises InvalidConfig."""
    if not text.startswith(PREFIX):
        return None
    found = _NAME.fullmatch(text)
    if found is None or ".." in text:
        forms = "hf:ORG/REPO, hf:ORG/REPO:QUANT or hf:ORG/REPO/FILE.gguf"
        raise InvalidConfig(option, f"{text} is no name on Hugging Face: {forms}")
    return HubName(found["repository"], found["quant"] or "", found["file"] or "")


def choose(files: Iterable[str], name: HubName, usual_alone: bool = False) -> Sequence[str]:
    """Return the files of the model that is meant, its first part first; none without one.

    A file that is a head is taken by its path, or where the repository has no other. With
    `usual_alone`, a name without a quantisation means the first of `USUAL`.
    """
    known = sorted(each for each in files if each.endswith(".gguf"))
    if name.file:
        return _parts(name.file, known) if name.file in known else ()
    models = [each for each in known if not _is(each, _BESIDE + _HEADS)]
    firsts = [each for each in models or known if not _is(each, _BESIDE) and _is_first(each)]
    wanted = [name.quant] if name.quant else USUAL[:1] if usual_alone else USUAL
    for quant in wanted:
        pattern = re.compile(rf"(?<![a-z0-9]){re.escape(quant)}[.-]", re.IGNORECASE)
        for first in firsts:
            if pattern.search(first):
                return _parts(first, known)
    if name.quant or usual_alone or not firsts:
        return ()
    return _parts(firsts[0], known)


def quants(files: Iterable[str]) -> Sequence[str]:
    """Return the quantisations that a repository has, by the names of its files."""
    names = (_whole(each).removesuffix(".gguf") for each in files if each.endswith(".gguf"))
    found = {
        match[1] for name in names if not _is(name, _BESIDE) and (match := _QUANT.search(name))
    }
    return sorted(found)


def _is(path: str, words: Sequence[str]) -> bool:
    file = path.rpartition("/")[2]
    return any(word in file for word in words)


def _is_first(path: str) -> bool:
    part = _PART.fullmatch(path)
    return part is None or int(part["number"]) == 1


def _whole(path: str) -> str:
    part = _PART.fullmatch(path)
    return f"{part['prefix']}.gguf" if part else path


def _parts(path: str, known: Sequence[str]) -> Sequence[str]:
    """Return a file, or all parts of the model that it is a part of; none if one is not there."""
    part = _PART.fullmatch(path)
    names = list(_part_names(part)) if part else [path]
    return names if set(names) <= set(known) else ()


def _part_names(part: re.Match[str]) -> Iterator[str]:
    for number in range(1, int(part["count"]) + 1):
        yield f"{part['prefix']}-{number:05}-of-{part['count']}.gguf"
