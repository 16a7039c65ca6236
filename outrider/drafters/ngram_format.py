"""llama.cpp's file of an n-gram cache, as bytes. Pure.

It has no head, no version and no order. To the end of the file there stand, all as little-endian
int32: the four tokens of an n-gram, -1 after a shorter one; how many tokens followed it; and of
each the token and its count. llama.cpp ends the process for a file that is damaged, writes in the
byte order of its machine, and reads ids that no vocabulary has.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from outrider.drafters.ngram_cache import LONGEST, NO_BOUND, NgramCache

_HEAD = struct.Struct(f"<{LONGEST}ii")
_NGRAM_BYTES = 4 * LONGEST
_PAIR_BYTES = 8
_PAD = b"\xff" * 4
_REPORTED = 1 << 14  # n-grams between two reports

ANY_TOKEN = 1 << 31
"""A token count that no id of a file reaches."""


class DamagedCache(Exception):
    """The bytes from `offset` on are not what an n-gram cache has there."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"byte {offset}: {reason}")
        self.offset = offset


def ignore(_: int) -> None:
    """Drop a report."""


def decode(
    content: bytes,
    token_count: int = ANY_TOKEN,
    most_pairs: int = NO_BOUND,
    report: Callable[[int], None] = ignore,
) -> NgramCache:
    """Return the cache that a file holds, of a vocabulary of `token_count` tokens.

    What it takes in memory is bounded by the content's own length. Of an n-gram or a follower that
    stands twice the first counts, as in llama.cpp. `report` is called now and then with how many
    bytes are read. Raises DamagedCache.
    """
    cache = NgramCache(most_pairs)
    offset = 0
    while offset < len(content):
        ngram, counts, end = _read_ngram(content, offset, token_count)
        cache.put(ngram, counts)
        if len(cache) % _REPORTED == 0:
            report(end)
        offset = end
    return cache


def _read_ngram(content: bytes, start: int, token_count: int) -> tuple[bytes, dict[int, int], int]:
    """Return the n-gram that starts there, its followers, and where the next one starts."""
    left = len(content) - start
    if left < _HEAD.size:
        raise DamagedCache(start, f"{left} bytes, where an n-gram has at least {_HEAD.size}")
    *tokens, follower_count = _HEAD.unpack_from(content, start)
    size = next((i for i, token_id in enumerate(tokens) if token_id < 0), LONGEST)
    if size == 0 or any(token_id != -1 for token_id in tokens[size:]):
        raise DamagedCache(start, f"no n-gram: {', '.join(map(str, tokens))}")
    for i, token_id in enumerate(tokens[:size]):
        _check_token(start + 4 * i, token_id, token_count)
    first = start + _HEAD.size
    room = (len(content) - first) // _PAIR_BYTES
    if not 1 <= follower_count <= room:
        at = start + _NGRAM_BYTES
        raise DamagedCache(at, f"{follower_count} followers, where 1 to {room} can be")
    counts: dict[int, int] = {}
    pairs = struct.unpack_from(f"<{2 * follower_count}i", content, first)
    for i in range(0, 2 * follower_count, 2):
        token_id, count = pairs[i], pairs[i + 1]
        _check_token(first + 4 * i, token_id, token_count)
        if count < 1:
            raise DamagedCache(first + 4 * i + 4, f"a count of {count}")
        counts.setdefault(token_id, count)
    return content[start : start + 4 * size], counts, first + _PAIR_BYTES * follower_count


def _check_token(offset: int, token_id: int, token_count: int) -> None:
    if not 0 <= token_id < token_count:
        of = f"; the vocabulary has {token_count} tokens" if token_id >= 0 else ""
        raise DamagedCache(offset, f"token {token_id}{of}")


def encode(cache: NgramCache) -> Iterator[bytes]:
    """Yield the parts of the file of a cache, an n-gram each."""
    for ngram, counts in cache.items():
        numbers = [number for pair in counts.items() for number in pair]
        yield ngram + _PAD * (LONGEST - len(ngram) // 4)
        yield struct.pack(f"<i{len(numbers)}i", len(counts), *numbers)
