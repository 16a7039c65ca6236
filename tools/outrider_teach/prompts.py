"""What a target is asked to write, so that a head learns from it.

The bundled prompts are drawn from a few hundred kinds: lines in `kinds/`, in three groups. In a
line, `{thing}` stands for one of the words `thing`, `{thing2}` for another of them; what is before
` || ` is the system message. Capital names stand for what is made anew each time: {PASSAGE} and
{DOCS} are texts, {SOURCE} and {BROKEN} functions, {N} to {N3} rising numbers.

A prompt follows from its number and the seed, on one version of Python: some show functions and
documentation of its standard library.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from outrider.errors import InvalidConfig
from outrider_teach import snippets

GROUPS = ("chat", "code", "summary")
OWN = "own"
"""The group of the user's own prompts."""

_KINDS = Path(__file__).parent / "kinds"
_HELD_OUT = 20  # one prompt in so many is never learned from, but judged with
_PASSAGE_CHARACTERS = 1200  # characters of a passage of the user's text, some 300 tokens
_LEAST_CHARACTERS = 200  # characters: what is left of a text is dropped if it has fewer
_SENTENCES = (4, 10)  # sentences of a composed passage
_NUMBERS = {"N": (2, 12), "N2": (13, 95), "N3": (100, 990)}
_SLOT = re.compile(r"\{([A-Za-z_]+\d?)\}")
_LINES = {"chat", "minutes", "notes"}  # passages with a line for each sentence


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked: a chat's messages, or a passage to continue as it is."""

    group: str
    messages: tuple[Mapping[str, Any], ...] = ()
    passage: str = ""

    @property
    def text(self) -> str:
        """All that it says."""
        contents = [str(message.get("content", "")) for message in self.messages]
        return self.passage or "\n".join(contents)


PromptAt = Callable[[int], Prompt]
"""Returns the prompt of a number, from 0."""


def is_held_out(text: str) -> bool:
    """Whether a prompt with this text is for judging heads, and none ever learns from it."""
    return zlib.crc32(text.encode("utf-8", "replace")) % _HELD_OUT == 0


# --- the bundled prompts ---


def bundled(seed: int) -> PromptAt:
    """Return the bundled prompts: the groups take turns, and so do the kinds of each."""

    def prompt(number: int) -> Prompt:
        turn, index = divmod(number, len(GROUPS))
        group = GROUPS[index]
        lines = _lines(group)
        cycle, place = divmod(turn, len(lines))
        order = random.Random(f"{seed} {group} {cycle}").sample(range(len(lines)), len(lines))
        return draw(group, lines[order[place]], random.Random(f"{seed} {number}"))

    return prompt


def draw(group: str, kind: str, chance: random.Random) -> Prompt:
    """Return a prompt of a kind, which is a line as the folder `kinds` has them."""
    filled = _Filler(chance).fill(kind.replace("\\n", "\n"))
    system, separator, question = filled.partition(" || ")
    if not separator:
        return Prompt(group, ({"role": "user", "content": filled},))
    roles = (("system", system), ("user", question))
    return Prompt(group, tuple({"role": role, "content": text} for role, text in roles))


class _Filler:
    """Fills the slots of one prompt: the same name with the same word, another with another."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._used: dict[str, str] = {}

    def fill(self, line: str) -> str:
        return _SLOT.sub(lambda slot: self._word(slot[1]), line)

    def _word(self, name: str) -> str:
        if name in _NUMBERS:
            return str(self._chance.randint(*_NUMBERS[name]))
        kind = name.rstrip("0123456789")
        if kind in _MADE:
            return _MADE[kind](self._chance)
        if name not in self._used:
            taken = set(self._used.values())
            words = [word for word in _words()[kind] if word not in taken]
            self._used[name] = self._chance.choice(words or _words()[kind])
        return self._used[name]


def _passage(chance: random.Random) -> str:
    """Return some sentences of one kind of text, in their order."""
    kind = chance.choice(sorted(_sentences()))
    sentences = _sentences()[kind]
    count = min(chance.randint(*_SENTENCES), len(sentences))
    chosen = sorted(chance.sample(range(1, len(sentences)), count - 1))
    separator = "\n" if kind in _LINES else " "
    return _Filler(chance).fill(separator.join(sentences[each] for each in (0, *chosen)))


_MADE: dict[str, Callable[[random.Random], str]] = {
    "PASSAGE": _passage,
    "DOCS": lambda chance: chance.choice(snippets.documentations()),
    "SOURCE": lambda chance: chance.choice(snippets.functions()),
    "BROKEN": lambda chance: chance.choice(snippets.faults(chance.choice(snippets.functions()))),
}


@cache
def _lines(name: str) -> tuple[str, ...]:
    return tuple((_KINDS / f"{name}.txt").read_text(encoding="utf-8").splitlines())


@cache
def _words() -> dict[str, list[str]]:
    pairs = (line.split(": ", 1) for line in _lines("words"))
    return {name: words.split("; ") for name, words in pairs}


@cache
def _sentences() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in _lines("passages"):
        kind, sentence = line.split(": ", 1)
        found.setdefault(kind, []).append(sentence)
    return found


# --- the user's own ---


def own(prompts: Sequence[Prompt], seed: int) -> PromptAt:
    """Return prompts in an order of the seed, again and again, each time in another one."""
    count = len(prompts)

    @cache
    def order(turn: int) -> list[int]:
        return random.Random(f"{seed} own {turn}").sample(range(count), count)

    def prompt(number: int) -> Prompt:
        turn, place = divmod(number, count)
        return prompts[order(turn)[place]]

    return prompt


def read_texts(paths: Sequence[Path]) -> list[Prompt]:
    """Return the prompts in files, and in all files of folders: `.jsonl` has one in each line.

    Any other file is text, which is cut into passages to continue. Raises InvalidConfig.
    """
    found = []
    for path in paths:
        for file in _files(path):
            read = _read_jsonl if file.suffix == ".jsonl" else _read_passages
            found += list(read(file))
    if not found:
        raise InvalidConfig("texts", f"no prompt in {', '.join(map(str, paths))}")
    return found


def passages(text: str) -> Iterator[str]:
    """Yield a text in pieces that end with a line, where a line is not too long for one."""
    piece = ""
    for line in text.splitlines(keepends=True):
        if piece and len(piece) + len(line) > _PASSAGE_CHARACTERS:
            yield piece
            piece = ""
        piece += line
        while len(piece) > _PASSAGE_CHARACTERS:
            yield piece[:_PASSAGE_CHARACTERS]
            piece = piece[_PASSAGE_CHARACTERS:]
    if len(piece) >= _LEAST_CHARACTERS:
        yield piece


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    inside = sorted(each for each in path.rglob("*") if each.is_file())
    return [each for each in inside if not _is_hidden(each.relative_to(path)) and _is_text(each)]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "__")) for part in path.parts[:-1]) or path.name[0] == "."


def _is_text(path: Path) -> bool:
    """Whether the beginning of a file has no byte that texts have not."""
    with path.open("rb") as file:
        return b"\0" not in file.read(4096)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfig("texts", f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfig("texts", f"{path} is not UTF-8 text") from None


def _read_passages(path: Path) -> Iterator[Prompt]:
    return (Prompt(OWN, passage=each) for each in passages(_read(path)) if each.strip())


def _read_jsonl(path: Path) -> Iterator[Prompt]:
    for number, line in enumerate(_read(path).splitlines(), 1):
        if line.strip():
            yield _read_line(f"{path}, line {number}", line)


def _read_line(where: str, line: str) -> Prompt:
    try:
        match json.loads(line):
            case {"messages": [{}, *_] as messages}:
                return Prompt(OWN, tuple(messages))
            case {"prompt": str(text)} if text:
                return Prompt(OWN, passage=text)
    except ValueError:
        raise InvalidConfig("texts", f"{where}: is not JSON") from None
    raise InvalidConfig("texts", f'{where}: has neither "messages" nor "prompt"')
