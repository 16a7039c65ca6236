"""Prompts that no cache can know: drawn by a seed or of tasks, never the same twice."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import InvalidRequest


def ordinary_tokens(names: Sequence[bytes], special: Collection[int | None]) -> list[int]:
    """Return the ids that a text is made of: no special ones, and none that look like it."""
    return [
        token_id
        for token_id, name in enumerate(names)
        if token_id not in special and not (name.startswith(b"<") and name.endswith(b">"))
    ]


def random_prompts(
    token_ids: Sequence[int], length: int, head: Sequence[int], seed: int
) -> Iterator[list[int]]:
    """Yield prompts of `length` tokens without end: `head`, then random ones of `token_ids`."""
    draw = random.Random(f"prompts {seed}")
    while True:
        yield [*head, *draw.choices(token_ids, k=length - len(head))]


def text_prompts(
    token_ids: Sequence[int], length: int, head: Sequence[int], seed: int
) -> Iterator[list[int]]:
    """Yield pieces of a text in random order, `length` tokens each with `head`.

    They may overlap, but no two begin at the same place. Raises
    InvalidRequest when there are no more.
    """
    size = length - len(head)
    starts = list(range(max(0, len(token_ids) - size + 1)))
    random.Random(f"prompts {seed}").shuffle(starts)
    for start in starts:
        yield [*head, *token_ids[start : start + size]]
    raise InvalidRequest(
        "prompt_file",
        f"has {len(token_ids)} tokens, which is too short for more than {len(starts)} prompts",
    )


@dataclass(frozen=True, slots=True)
class Tasks:
    """Those of a kind in a file that tools/model_making/tasks.py wrote."""

    path: Path
    kind: str

    def read(self) -> list[tuple[list[int], list[int]]]:
        """Return the prompts, and the text that follows each.

        Raises InvalidRequest for another file, or one without such tasks.
        """
        found: dict[str, list[tuple[list[int], list[int]]]] = {}
        try:
            for each in json.loads(self.path.read_text(encoding="utf-8")):
                prompt, text = ([int(i) for i in each[name]] for name in ("prompt", "text"))
                found.setdefault(each["kind"], []).append((prompt, text))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest("tasks", f"{self.path} holds none: {error!r}") from None
        if self.kind not in found:
            raise InvalidRequest("tasks", f"{self.path} has {', '.join(found)}, not {self.kind}")
        return found[self.kind]


def task_prompts(
    tasks: Sequence[tuple[list[int], Sequence[int]]], wanted: int, token_limit: int, context: int
) -> Iterator[list[int]]:
    """Return the prompts of tasks, in their order, at least as many as wanted.

    Raises InvalidRequest where there are fewer, where a text ends before
    `token_limit`, and where it does not fit the context.
    """
    if wanted > len(tasks):
        reason = f"needs {wanted} tasks with those for warming up; the file has {len(tasks)}"
        raise InvalidRequest("prompts", reason)
    for prompt, text in tasks:
        if token_limit > len(text):
            most = f"must be at most {len(text)}, the length of a task's text"
            raise InvalidRequest("tokens", most)
        if len(prompt) + token_limit > context:
            size = f"{len(prompt)} + {token_limit}"
            raise InvalidRequest("tokens", f"{size} do not fit a context of {context}; see --ctx")
    return (prompt for prompt, _ in tasks)
