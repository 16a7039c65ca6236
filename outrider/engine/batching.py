"""What pays: which rows share a decode, and whether to wait for more. Pure.

Natural batching: the next decode starts when the last one ends, with what is
ready. The one exception is a short wait for the sessions just answered:
without it, in a closed loop, the first to return decodes alone and the
throughput of many users halves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from outrider.costs import KERNEL_ROWS, NOISE, CostTable
from outrider.engine.model import MAX_PADDED, MAX_ROWS_OUT, ModelDescription, Rollback
from outrider.trees import Tree

LEAST_CHUNK = 8
"""Tokens of prompts that a decode takes, also where others wait: reading advances."""


def reads(token_count: int, row_count: int) -> bool:
    """Return whether many of a job's tokens come before its wanted rows, as of a prompt."""
    return token_count - row_count >= LEAST_CHUNK


@dataclass(frozen=True, slots=True)
class Pending:
    """A job's tokens that wait to be decoded; the last `row_count` rows are wanted."""

    token_count: int
    row_count: int

    @property
    def reads(self) -> bool:
        """Whether many tokens come before the wanted rows, as of a prompt."""
        return reads(self.token_count, self.row_count)


@dataclass(frozen=True, slots=True)
class Awaited:
    """A session that was just answered and will likely be back."""

    answer_time: float
    turnaround: float
    row_count: int
    sequence: int
    length: int = 0  # of its text


@dataclass(frozen=True, slots=True)
class Limits:
    """What one decode may carry."""

    rows: int
    rows_out: int
    padded: int = 0  # rows that a session may be padded to beyond what kernels ask for
    is_pool: bool = False  # any rows of any sessions are computed at once
    branches: Sequence[int] = ()  # sequences for leaves of trees; none where there are no trees
    streams: int = 0  # those of [0, streams) may have a row that only fills a decode; 0: none may


def limits_of(model: ModelDescription) -> Limits:
    """Return what a decode of a model may carry."""
    pool = model.layout.is_pool
    can_fill = not pool and model.rollback is Rollback.FULL
    return Limits(
        model.batch_rows,
        MAX_ROWS_OUT,
        MAX_PADDED,
        is_pool=pool,
        branches=model.branch_sequences,
        streams=model.sequence_count if can_fill else 0,
    )


@dataclass(frozen=True, slots=True)
class Offer:
    """A job's rows that must be decoded, and what further ones would gain, never rising."""

    row_count: int
    gains: Sequence[float]
    length: int = 0  # tokens that each of the rows attends to, those before the step


def gains_that_pay(
    offers: Sequence[Offer], limits: Limits, cost: CostTable, padded: Callable[[int], int]
) -> list[int]:
    """Return how many of each job's further rows make the decode's goodput best.

    Goodput is tokens expected per second (TurboSpec, 2406.14066). The rows of
    one draft never gain more than those before them, and all jobs are cut at
    one number of rows, since of streams llama.cpp computes only equal numbers together.
    A job alone in a decode keeps them all: its own controller has weighed them.
    """
    if len(offers) < 2:
        return [len(offer.gains) for offer in offers]
    most = max(padded(offer.row_count + len(offer.gains)) for offer in offers)
    best, best_rate = [0] * len(offers), 0.0
    for limit in range(padded(1), most + 1, padded(1)):
        kept = [min(len(o.gains), max(0, limit - o.row_count)) for o in offers]
        pairs = list(zip(offers, kept, strict=True))
        tokens = sum(1.0 + sum(offer.gains[:count]) for offer, count in pairs)
        rows = [padded(o.row_count + count) for o, count in pairs]
        attended = [(count, o.length) for count, o in zip(rows, offers, strict=True)]
        wide = widths(rows, limits, cost)
        seconds = decode_seconds(wide, limits, cost) + cost.attending(attended)
        rate = tokens / seconds
        if rate >= best_rate:
            best_rate, best = rate, kept
    return best


def nodes_within(trees: Sequence[Tree], spare_count: int) -> list[int]:
    """Return how many of each tree's nodes to decode, so that all find sequences for their leaves.

    Each tree has a sequence of its own; `spare_count` are for all other leaves. The first trees
    take what they need, as their jobs wait longest.
    """
    counts = []
    for tree in trees:
        cut = tree.within(1 + spare_count)
        spare_count -= max(0, len(cut.leaves) - 1)
        counts.append(len(cut))
    return counts


def decode_seconds(row_counts: Sequence[int], limits: Limits, cost: CostTable) -> float:
    """Return the time of a decode of these sessions' rows, of adjacent streams or of a pool."""
    return cost.seconds(sum(row_counts)) if limits.is_pool else split_seconds(row_counts, cost)


def split_seconds(row_counts: Sequence[int], cost: CostTable) -> float:
    """Return the time of a decode of these sessions' rows from streams.

    llama.cpp takes as many rows of each as the shortest has, then continues
    without it (`split_equal`).
    """
    left, seconds = sorted(row_counts), 0.0
    done = 0
    for i, count in enumerate(left):
        seconds += cost.seconds((count - done) * (len(left) - i))
        done = count
    return seconds


def widths(row_counts: Sequence[int], limits: Limits, cost: CostTable) -> list[int]:
    """Return the rows to pad each session to: at least its own, and more where that is cheaper.

    A session alone takes the row count whose kernel is fastest; in a pool the last session does
    so for all. Of several streams, the short ones may be worth padding until all are computed
    together.
    """
    if row_counts and (len(row_counts) == 1 or limits.is_pool):
        *before, last = row_counts
        cheapest = cost.cheapest(sum(row_counts)) - sum(before)
        return [*before, cheapest if cheapest <= limits.padded else last]
    if len(set(row_counts)) == 1:
        return list(row_counts)
    best, least = list(row_counts), split_seconds(row_counts, cost)
    for level in sorted({count for count in row_counts if count <= limits.padded}):
        raised = [max(count, level) for count in row_counts]
        seconds = split_seconds(raised, cost)
        if seconds < least and sum(raised) <= min(limits.rows, limits.rows_out):
            best, least = raised, seconds
    return best


def fits_whole(job: Pending, limits: Limits, padded: Callable[[int], int]) -> bool:
    """Return whether a job that is alone in a decode finishes its tokens, which are no prompt."""
    taken = 0 if job.reads else _take(job, limits.rows, limits.rows_out, padded)
    return taken == job.token_count


def allot(
    pending: Sequence[Pending], read_rows: int, limits: Limits, padded: Callable[[int], int]
) -> list[int]:
    """Return how many tokens of each job join the next decode, oldest job first.

    A job either finishes its tokens, with all its rows, or gives a chunk that
    leaves its wanted rows for later. Jobs that read take `read_rows` together, and leave
    room for all others.
    """
    free, free_out = limits.rows, limits.rows_out
    others = sum(padded(job.token_count) for job in pending if not job.reads)
    taken = []
    for job in pending:
        most = free
        if job.reads:
            most = min(read_rows, max(free - others, min(free, LEAST_CHUNK)))
            most = most if most >= LEAST_CHUNK else 0  # its turn comes
        count = _take(job, most, free_out, padded)
        taken.append(count)
        free -= padded(count)
        if job.reads:
            read_rows -= min(read_rows, padded(count))
        else:
            others -= padded(job.token_count)
        free_out -= _rows_out(job, padded) if count == job.token_count else 0
    return taken


def _rows_out(job: Pending, padded: Callable[[int], int]) -> int:
    """Return the rows of logits a finishing job costs at most, pad rows included."""
    return padded(job.row_count + padded(1) - 1) if job.row_count else 0


def _take(job: Pending, most: int, free_out: int, padded: Callable[[int], int]) -> int:
    if padded(job.token_count) <= most and _rows_out(job, padded) <= free_out:
        return job.token_count
    before_rows = job.token_count - max(job.row_count, 1)
    unit = padded(1)
    return max(0, min(most, before_rows) // unit * unit)


def apart_seconds(rows: Mapping[int, int], cost: CostTable, is_pool: bool = False) -> float:
    """Return the time of a decode of so many rows by sequence.

    Of streams, llama.cpp computes together only those whose numbers follow each other.
    """
    if is_pool:
        return cost.seconds(sum(rows.values()))
    runs: list[list[int]] = []
    before = None
    for sequence in sorted(rows):
        if before is None or sequence != before + 1:
            runs.append([])
        runs[-1].append(rows[sequence])
        before = sequence
    return sum(split_seconds(run, cost) for run in runs)


def fillers(
    sequences: Collection[int], limits: Limits, cost: CostTable, held: Callable[[int], int]
) -> list[int]:
    """Return sequences to decode a row of beside these, which have one each; often none.

    Rows in the gaps between them let llama.cpp compute all streams at once, and some at an end
    fill the last kernel, which takes four rows in less time than three. `held` are the tokens that
    a sequence holds, to which its row attends in vain.
    """
    first, last = min(sequences), max(sequences)
    if len(sequences) < 2 or last >= limits.streams:
        return []
    span = last - first + 1
    count = span
    for more in range(span + 1, -(-span // KERNEL_ROWS) * KERNEL_ROWS + 1):
        count = more if cost.seconds(more) <= cost.seconds(span) else count
    if count == len(sequences):
        return []
    apart = apart_seconds(dict.fromkeys(sequences, 1), cost)
    best: list[int] = []
    # That a full kernel is quicker is not in the table, where no decode takes more than one of more
    # rows: its other rows may attend for a little.
    least = apart * (1.0 - NOISE if span > len(sequences) else 1.0 + NOISE)
    for start in range(max(0, last - count + 1), min(first, limits.streams - count) + 1):
        added = [each for each in range(start, start + count) if each not in sequences]
        seconds = cost.seconds(count) + cost.attending([(1, held(each)) for each in added])
        if seconds < least:
            best, least = added, seconds
    return best


def exchange_to_adjoin(sequences: Collection[int]) -> tuple[int, int] | None:
    """Return two sequences whose exchange brings these nearer to following each other.

    None if they follow each other. Repeated, it moves as few as possible.
    """
    count = len(sequences)

    def missing(start: int) -> list[int]:
        return [s for s in range(start, start + count) if s not in sequences]

    highest = max(0, max(sequences, default=0) - count + 1)
    start = min(range(highest + 1), key=lambda start: len(missing(start)))
    holes = missing(start)
    outside = [s for s in sequences if not start <= s < start + count]
    return (min(outside), holes[0]) if holes else None


def wait_until(
    now: float,
    ready: Mapping[int, int],
    awaited: Sequence[Awaited],
    cost: CostTable,
    is_pool: bool = False,
) -> float:
    """Return the time to wait for more jobs until; `now` or earlier means decode.

    `ready` are the rows of those that could be decoded, by sequence.

    Waits for a session just answered while the engine time that a shared
    decode saves exceeds the expected wait, at most twice its turnaround.
    """
    until = now
    others: dict[int, int] = {}
    for session in sorted(awaited, key=lambda a: a.answer_time + a.turnaround):
        latest = session.answer_time + 2 * session.turnaround
        if latest <= now:
            continue
        others[session.sequence] = session.row_count
        due = session.answer_time + session.turnaround
        wait = (due if due > now else latest) - now
        apart = apart_seconds(ready, cost, is_pool) + apart_seconds(others, cost, is_pool)
        saved = apart - apart_seconds({**others, **ready}, cost, is_pool)
        if 0 < wait < saved:
            until = max(until, min(latest, now + saved))
    return until
