"""What followed the last tokens before: llama.cpp's n-gram caches. Pure.

A cache counts, for n-grams of one to four tokens, the tokens that followed them. Three are asked
in turn for the next token: the *context*, which is the text itself; the *dynamic* one, past texts;
and the *static* one, of pairs of tokens in a large text, which also weighs what the others say.
Formulas and thresholds are those of common/ngram-cache.cpp in llama.cpp. Two differences are meant:

- Where scores are equal, the order of a hash table decides in C++. Here the token that was first
  seen last wins, which is mostly C++'s order too; `Guess.tied` says where it was so.
- A cache may be bounded. Then old n-grams are forgotten; until then it counts as llama.cpp does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

LONGEST = 4
STATIC_SIZE = 2
SIZES = (1, 2, 3, 4)
"""Tokens of the n-grams that context and dynamic caches count; a static one has STATIC_SIZE."""

LAX = ((2, 66), (2, 50), (1, 50), (1, 50))
"""By n-gram size: what must have followed in all, and the winner's least share of it in percent."""
STRICT = ((4, 75), (3, 66), (2, 66), (2, 66))
"""The same for the dynamic cache."""

_VALIDATED = 100  # what a token's count in the static cache weighs

MOST_PAIRS = 1 << 20
"""Pairs of an n-gram and a follower that a cache holds by default."""
NO_BOUND = (1 << 63) - 1

MOST_COUNT = (1 << 31) - 1  # llama.cpp's are int32; a count stays there
_WIDTH = 4  # bytes of a token in an n-gram
_SHIFT = 31  # where the count starts in a lone follower
_TOKEN = (1 << _SHIFT) - 1

Level: TypeAlias = Literal["context", "dynamic", "static"]
Thresholds: TypeAlias = tuple[tuple[int, int], ...]


class NgramGuess(NamedTuple):
    """A drafted token: how often it followed, of how many; from which cache; if others tied."""

    token_id: int
    seen: int
    total: int
    level: Level
    tied: bool


class Followers:
    """The tokens that followed an n-gram, in the order in which they were first seen.

    `best` has the highest count; which of several with that count is not said.
    """

    __slots__ = ("best", "counts", "total")

    def __init__(self, counts: dict[int, int]) -> None:
        self.counts = counts
        self.total = sum(counts.values())
        self.best = max(counts, key=counts.__getitem__)

    def add(self, token_id: int, count: int) -> None:
        """Count a follower `count` times more."""
        before = self.counts.get(token_id, 0)
        after = min(before + count, MOST_COUNT)
        self.counts[token_id] = after
        self.total += after - before
        if after > self.counts[self.best]:
            self.best = token_id


Entry: TypeAlias = int | Followers
"""Most n-grams have one follower. It is kept as an int: its count less one, above the token."""


def _lone(token_id: int, count: int) -> int:
    return (count - 1) << _SHIFT | token_id


def _counts(entry: Entry) -> dict[int, int]:
    """Return the counts by token; those of Followers are its own."""
    if isinstance(entry, int):
        return {entry & _TOKEN: (entry >> _SHIFT) + 1}
    return entry.counts


def _entry(counts: dict[int, int]) -> Entry:
    if len(counts) > 1:
        return Followers(counts)
    ((token_id, count),) = counts.items()
    return _lone(token_id, count)


def pack(token_ids: Iterable[int]) -> bytes:
    """Return tokens as they stand in a cache's n-grams and in its file: four bytes each."""
    return b"".join(token_id.to_bytes(_WIDTH, "little") for token_id in token_ids)


def unpack(ngram: bytes) -> tuple[int, ...]:
    """Return the tokens of an n-gram."""
    starts = range(0, len(ngram), _WIDTH)
    return tuple(int.from_bytes(ngram[at : at + _WIDTH], "little") for at in starts)


class NgramCache:
    """Counts of what followed n-grams. Tokens are in [0, 2^31), n-grams are packed.

    `pair_count` is the number of pairs of an n-gram and a follower. Above `most_pairs` the
    oldest n-grams go that were counted once; the other counts are halved when their turn comes.
    """

    def __init__(self, most_pairs: int = NO_BOUND) -> None:
        self._entries: dict[bytes, Entry] = {}
        self._most = most_pairs
        self.pair_count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, ngram: bytes) -> Entry | None:
        """Return what followed an n-gram."""
        return self._entries.get(ngram)

    def items(self) -> Iterator[tuple[bytes, Mapping[int, int]]]:
        """Yield every n-gram with its counts by token, first seen first."""
        for ngram, entry in self._entries.items():
            yield ngram, _counts(entry)

    def put(self, ngram: bytes, counts: Mapping[int, int]) -> None:
        """Enter an n-gram of 1 to 4 tokens with its counts, each in [1, 2^31); a known one stays.

        This is how llama.cpp reads files, in which no n-gram should stand twice.
        """
        if ngram not in self._entries:
            self._entries[ngram] = _entry(dict(counts))
            self.pair_count += len(counts)
            self._shrink()

    def update(self, history: Sequence[int], new_count: int, sizes: Iterable[int] = SIZES) -> None:
        """Count the last `new_count` tokens of a whole history after what is before each.

        The history must be whole: n-grams across its earlier end are counted too.
        """
        start = max(0, len(history) - new_count)
        self.count(pack(history[max(0, start - LONGEST) : start]), history[start:], sizes)

    def count(self, tail: bytes, token_ids: Iterable[int], sizes: Iterable[int] = SIZES) -> bytes:
        """Count tokens that stand after `tail`, and return the tail that they leave.

        A tail is the last four tokens, packed; fewer where the text has no more.
        """
        widths = sorted(_WIDTH * size for size in sizes)
        entries = self._entries
        for token_id in token_ids:
            for width in widths:
                if width > len(tail):
                    break
                ngram = tail[-width:]
                entry = entries.get(ngram)
                if entry is None:
                    entries[ngram] = token_id
                    self.pair_count += 1
                else:
                    self._add(ngram, entry, token_id, 1)
            tail = (tail + token_id.to_bytes(_WIDTH, "little"))[-_WIDTH * LONGEST :]
            if self.pair_count > self._most:
                self._shrink()
        return tail

    def _add(self, ngram: bytes, entry: Entry, token_id: int, count: int) -> None:
        """Count a follower of an n-gram that is known."""
        if isinstance(entry, Followers):
            before = len(entry.counts)
            entry.add(token_id, count)
            self.pair_count += len(entry.counts) - before
        elif entry & _TOKEN == token_id:
            known = (entry >> _SHIFT) + 1
            self._entries[ngram] = _lone(token_id, min(known + count, MOST_COUNT))
        else:
            self._entries[ngram] = Followers({**_counts(entry), token_id: count})
            self.pair_count += 1

    def merge(self, other: NgramCache) -> None:
        """Add the counts of another cache, which may be bounded otherwise."""
        for ngram, counts in other.items():
            entry = self._entries.get(ngram)
            if entry is None:
                self.put(ngram, counts)
                continue
            for token_id, count in counts.items():
                self._add(ngram, self._entries[ngram], token_id, count)
            self._shrink()

    def _shrink(self) -> None:
        """Come back to the bound. What was counted most lasts longest, as its halves come back."""
        while self.pair_count > self._most:
            # Not one by one: to find the oldest, a dict walks over all that went before. Nor many:
            # 256 take .2 ms, for which texts in flight wait.
            for ngram in list(islice(self._entries, 1 + self._most // 1024)):
                counts = _counts(self._entries.pop(ngram))
                halved = {token_id: count // 2 for token_id, count in counts.items() if count > 1}
                self.pair_count -= len(counts) - len(halved)
                if halved:
                    self._entries[ngram] = _entry(halved)


def pick(
    entry: Entry, static: Entry | None, least: int, percent: int
) -> tuple[int, int, int, bool] | None:
    """Return the follower to draft, its count, that of all, and whether others scored as much.

    A follower scores its count, times 100 times its count in `static` where that knows it. None
    where fewer than `least` followed in all, or the winner has less than `percent` of them.
    """
    if isinstance(entry, int):
        count = (entry >> _SHIFT) + 1
        return (entry & _TOKEN, count, count, False) if count >= least else None
    # No winner has more than the best. Of thousands of followers none has its share, mostly.
    if entry.total < least or 100 * entry.counts[entry.best] < percent * entry.total:
        return None
    winners = _leaders(entry) if static is None else _validated(entry, static)
    tied = len(winners) > 1
    # Looked for only where it matters: an n-gram may have thousands of followers.
    winner = next(filter(winners.__contains__, reversed(entry.counts))) if tied else winners[0]
    count = entry.counts[winner]
    return None if 100 * count < percent * entry.total else (winner, count, entry.total, tied)


def _leaders(entry: Followers) -> list[int]:
    """Return the followers with the highest count, as far as they can have half of all.

    Two can, where there are no others; so the counts of thousands are never looked at.
    """
    counts = entry.counts
    if len(counts) == 2 and 2 * counts[entry.best] == entry.total:
        return list(counts)
    return [entry.best]


def _validated(entry: Followers, static: Entry) -> list[int]:
    """Return the followers with the highest score beside a static cache."""
    counts, known = entry.counts, _counts(static)
    few, many = sorted((counts, known), key=len)
    scores = {each: counts[each] * known[each] * _VALIDATED for each in few if each in many}
    if not scores:
        return _leaders(entry)
    if entry.best not in scores:
        scores[entry.best] = counts[entry.best]  # no other unknown one scores more
    highest = max(scores.values())
    return [each for each, score in scores.items() if score == highest]


class NgramDrafter:
    """Drafts after one text from its own n-grams, past texts' and a large text's.

    The text comes in parts; its last tokens are kept, so that n-grams across parts count. The
    dynamic and the static cache are read only and may be shared; `dynamic.merge(context)` at the
    end lets later texts profit. The static one holds n-grams of two tokens.
    """

    def __init__(
        self,
        dynamic: NgramCache | None = None,
        static: NgramCache | None = None,
        most_pairs: int = MOST_PAIRS,
    ) -> None:
        self.context = NgramCache(most_pairs)
        self._dynamic = dynamic if dynamic is not None else NgramCache()
        self._static = static if static is not None else NgramCache()
        self._tail = b""

    def extend(self, token_ids: Iterable[int]) -> None:
        """Take in what follows in the text: a prompt, or what a round committed."""
        self._tail = self.context.count(self._tail, token_ids)

    def draft(self, count: int, after: Iterable[int] = ()) -> list[NgramGuess]:
        """Return at most `count` tokens that may follow the text, and `after` if there is any.

        Fewer where the caches know no more; none after a text of one token, as in llama.cpp.
        """
        tail = (self._tail + pack(after))[-_WIDTH * LONGEST :]
        guesses: list[NgramGuess] = []
        if len(tail) < _WIDTH * STATIC_SIZE:
            return guesses
        while len(guesses) < count:
            guess = self._next(tail)
            if guess is None:
                break
            guesses.append(guess)
            tail = (tail + guess.token_id.to_bytes(_WIDTH, "little"))[-_WIDTH * LONGEST :]
        return guesses

    def _next(self, tail: bytes) -> NgramGuess | None:
        """Ask the caches in turn, each for the longest n-gram first."""
        static = self._static.find(tail[-_WIDTH * STATIC_SIZE :])
        asked: tuple[tuple[Level, NgramCache, Thresholds], ...] = (
            ("context", self.context, LAX),
            ("dynamic", self._dynamic, STRICT),
        )
        for level, cache, thresholds in asked:
            for size in range(len(tail) // _WIDTH, 0, -1):
                entry = cache.find(tail[-_WIDTH * size :])
                found = None if entry is None else pick(entry, static, *thresholds[size - 1])
                if found:
                    return NgramGuess(*found[:3], level, found[3])
        if static is None:
            return None
        found = pick(static, None, *LAX[STATIC_SIZE - 1])
        return NgramGuess(*found[:3], "static", found[3]) if found else None
