"""Prompts that ask for the middle of a text (FIM), in the order of llama.cpp's server. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from outrider.errors import InvalidRequest
from outrider.v1 import common_pb2 as common

LOCAL_TOKENS = 2048
"""tokens; the text around the gap has so many at most, three quarters of them before it, as in
llama-server with its default batch: an editor waits for them to be read."""

_WRITTEN_SHARE = 4  # of the context at most one part in so many is left for what is written

_REPOSITORY = "myproject\n"  # the names that llama-server gives: a request has none
_CURRENT_FILE = "filename\n"
_BETWEEN = "\n\n--- snippet ---\n\n"  # before a file, where no token stands for its name


@dataclass(frozen=True, slots=True)
class File:
    """Another file, or a part of one."""

    text: str
    name: str = "tmp"


@dataclass(frozen=True, slots=True)
class Infill:
    """A text with a gap. `prompt` stands right before it, after the prefix, and is never cut."""

    prefix: str
    suffix: str
    prompt: str = ""
    files: Sequence[File] = ()

    def texts(self) -> list[str]:
        """Return all texts of the prompt, each once, to be tokenized by itself."""
        its = [self.prefix, self.suffix, self.prompt, _REPOSITORY, _CURRENT_FILE, _BETWEEN]
        for file in self.files:
            its += [f"{file.name}\n", file.text]
        return list(dict.fromkeys(its))


Ids = Mapping[str, Sequence[int]]
"""The token ids of each text."""


def room_for(context: int, token_limit: int) -> int:
    """Return how many tokens of the context a prompt may take, with a limit of -1 for none."""
    most = context // _WRITTEN_SHARE
    return context - (most if token_limit < 0 else min(token_limit, most))


def arrange(infill: Infill, vocabulary: common.Vocabulary, ids: Ids, room: int) -> list[int]:
    """Return the ids of the whole prompt, at most `room` but for those of `infill.prompt`.

    The text is cut far from the gap; of the files those that came first are left out. Raises
    InvalidRequest for a vocabulary without the tokens.
    """
    if not vocabulary.HasField("fim_tokens"):
        reason = "this model has no tokens by which it fills in a text (FIM prefix, suffix, middle)"
        raise InvalidRequest("suffix", reason)
    fim = vocabulary.fim_tokens
    bos = [vocabulary.bos_token_id] if vocabulary.adds_bos else []
    head = [*bos, *_named(fim.repository_token_id, ids[_REPOSITORY])]
    current = _named(fim.file_token_id, ids[_CURRENT_FILE])
    gap = _gap(infill, fim, ids, room - len(head) - len(current))
    left = room - len(head) - len(current) - len(gap)
    return [*head, *_latest([*_files(infill, fim, ids)], left), *current, *gap]


def _named(token_id: int, name: Sequence[int]) -> list[int]:
    """Return the token and the name that follows it; nothing where there is no such token."""
    return [token_id, *name] if token_id >= 0 else []


def _gap(infill: Infill, fim: common.FimTokens, ids: Ids, room: int) -> list[int]:
    """Return the text before the gap, and the text after it."""
    quarter = max(0, min(LOCAL_TOKENS, room - 1)) // 4  # less one of the three marks
    prefix, suffix, prompt = ids[infill.prefix], ids[infill.suffix], ids[infill.prompt]
    after = max(0, quarter - 2 - len(prompt))  # the suffix's quarter pays for the other two
    return [
        fim.prefix_token_id,
        *prefix[max(0, len(prefix) - 3 * quarter) :],
        *prompt,
        fim.suffix_token_id,
        *suffix[:after],
        fim.middle_token_id,
    ]


def _files(infill: Infill, fim: common.FimTokens, ids: Ids) -> Iterator[list[int]]:
    for file in infill.files:
        name = _named(fim.file_token_id, ids[f"{file.name}\n"])
        yield [*(name or ids[_BETWEEN]), *ids[file.text]]


def _latest(files: Sequence[list[int]], room: int) -> list[int]:
    """Return the last of the files that fit, in their order: what an editor saw last is last."""
    kept: list[int] = []
    for file in reversed(files):
        if len(kept) + len(file) > room:
            break
        kept = file + kept
    return kept
