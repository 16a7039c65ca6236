"""Prompts that no cache can know: all of one length, drawn by a seed, never the same twice."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

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
