"""Random tokens that repeat themselves, and what counting n-grams by hand says of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

Counts = dict[tuple[int, ...], dict[int, int]]

LAX = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}
STRICT = {1: (4, 75), 2: (3, 66), 3: (2, 66), 4: (2, 66)}


def repeating_tokens(count: int, seed: int, kinds: int = 40) -> list[int]:
    """Return tokens of which every third stretch stood before."""
    pick = random.Random(seed)
    tokens: list[int] = []
    while len(tokens) < count:
        if len(tokens) > 60 and pick.random() < 0.3:
            start = pick.randrange(len(tokens) - 30)
            tokens += tokens[start : start + pick.randrange(3, 30)]
        else:
            tokens.append(pick.randrange(pick.choice((6, kinds))))
    return tokens[:count]


def golden_tokens() -> list[int]:
    """Return the stream for which llama.cpp's own counts are known."""
    pick = random.Random(1)
    tokens = [pick.choice([pick.randrange(6), pick.randrange(40)]) for _ in range(3000)]
    for i in range(200, 3000, 7):
        tokens[i - 60 : i - 40] = tokens[i - 180 : i - 160]
    return tokens


def counted(history: Sequence[int], sizes: Sequence[int] = (1, 2, 3, 4)) -> Counts:
    """Return what followed each n-gram of a history, first seen first."""
    counts: Counts = {}
    for i in range(len(history)):
        for size in sizes:
            if size <= i:
                followers = counts.setdefault(tuple(history[i - size : i]), {})
                followers[history[i]] = followers.get(history[i], 0) + 1
    return counts


def drafted(
    history: Sequence[int], count: int, context: Counts, dynamic: Counts, static: Counts
) -> list[int]:
    """Return what llama.cpp's rules draft behind a history, by looking at every follower."""
    tokens = list(history)
    if len(history) < 2:
        return []
    while len(tokens) < len(history) + count:
        beside = static.get(tuple(tokens[-2:]), {})
        choices = [
            _winner(counts.get(tuple(tokens[-size:]), {}), beside, *thresholds[size])
            for counts, thresholds in ((context, LAX), (dynamic, STRICT))
            for size in (4, 3, 2, 1)
            if size <= len(tokens)
        ]
        choices.append(_winner(beside, {}, *LAX[2]))
        found = next((choice for choice in choices if choice is not None), None)
        if found is None:
            break
        tokens.append(found)
    return tokens[len(history) :]


def _winner(
    followers: Mapping[int, int], beside: Mapping[int, int], least: int, percent: int
) -> int | None:
    total = sum(followers.values())
    if total < max(least, 1):
        return None
    places = {token: i for i, token in enumerate(followers)}
    best = max(
        followers,
        key=lambda each: (followers[each] * (100 * beside.get(each, 0) or 1), places[each]),
    )
    return best if 100 * followers[best] >= percent * total else None
