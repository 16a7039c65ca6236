"""What a benchmark prints, as lines: tables, with intervals where the width has room for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider_bench.figures import Summary, best_peer, paired, rate_ratio
from outrider_bench.records import Block
from outrider_bench.variants import MEASURED, NAMED, PEER, PLAIN
from outrider_cli.intervals import Estimate
from outrider_cli.phrases import plural
from outrider_cli.verdict import sentence, times

if TYPE_CHECKING:
    from outrider_bench.machine import Machine
    from outrider_bench.run import PairResult
    from outrider_bench.settings import Settings

_NOTHING = "-"
_GAP = "  "
_MOST_POSITIONS = 10
_PROCESSES = ("all", "target", "draft", "orchestrator")
"""A peer is one process, so that only `all` is known of it."""


_LEGEND = (
    ("times plain", "over our own tokens/s without drafts in the same repetition"),
    ("times alone", "over what the target's decodes alone would make, unpadded, without messages"),
)
_MORE_LEGEND = (
    ("forecast", "times plain as the controller, which has measured all, expects it in the end"),
    ("formula", "what the papers predict for drafts of that length and acceptance"),
    ("of ceiling", "over the tokens/s if decoding, by target and draft, were all"),
    ("gap", "between tokens; those of one round come at once, with gaps of 0"),
    ("bytes/token", "between the services"),
    ("CPU", "of the processes from the first token on, in steps of 10 ms"),
    ("target ratio", "the target's CPU time over that without drafts"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A block and the figures of its variants."""

    block: Block
    summaries: Sequence[Summary]

    def of(self, variant: str) -> Summary | None:
        """Return the figures of a variant, if it ran."""
        return next((each for each in self.summaries if each.variant == variant), None)


def blocks_away(blocks: Iterable[Measured], role: str) -> list[Measured]:
    """Return what was measured with the draft, or the target, over a slow link."""
    return [
        each for each in blocks if each.block.round_trip_ms is not None and each.block.far == role
    ]


def run_lines(settings: Settings, machine: Machine) -> list[str]:
    """Return what was run, and on what."""
    distribution = settings.sampling
    sampling = (
        "greedy"
        if distribution.greedy
        else f"temperature {distribution.temperature:g}, top-k {distribution.top_k}, "
        f"top-p {distribution.top_p:g}, min-p {distribution.min_p:g}"
    )
    repetitions = plural(settings.repetitions, "repetition")
    return [
        f"run      {repetitions}, {settings.token_limit} tokens after {_prompts(settings)}, "
        f"{sampling}, seed {settings.seed}",
        f"machine  {machine.cpu}, {machine.core_count} cores, {_busyness(machine)}",
        *_cores_lines(settings),
    ]


def _prompts(settings: Settings) -> str:
    if settings.tasks is not None:
        return f"the prompts of {settings.tasks.kind}, {settings.tasks.path.name}"
    return f"{settings.prompt_tokens} of prompt"


def _cores_lines(settings: Settings) -> list[str]:
    """Return which cores each service has to itself, if any."""
    each = [f"{role} on {','.join(map(str, own))}" for role, own in settings.cores.items()]
    return [f"apart    {', '.join(each)}"] if each else []


def _busyness(machine: Machine) -> str:
    loads = (machine.load_before, machine.load_after)
    before, after = (_NOTHING if load is None else f"{load:.2f}" for load in loads)
    share = machine.others_share
    others = "" if share is None else f", others took {100 * share:.0f} %"
    return f"load {before} before and {after} after{others}"


def pair_lines(
    result: PairResult,
    blocks: Sequence[Measured],
    token_limit: int,
    width: int,
    shows_all: bool = False,
) -> list[str]:
    """Return what a pair is, and its tables or the most important of them."""
    here = [each for each in blocks if each.block.round_trip_ms is None]
    lines = [_model_line(role, result) for role in ("target", "draft")]
    if here:
        lines += _block_lines(here[0], width, shows_all)
    if len(here) > 1:
        lines += ["", "users at once: tokens/s of all together, and times plain at the same load"]
        lines += users_table(here, width)
        for measured in here[1:]:
            lines += _peer_lines(measured, width)
    for role in ("draft", "target"):
        if far := blocks_away(blocks, role):
            lines += ["", f"round trip to the {role}: tokens/s, and times alone"]
            lines += distance_table(far, width)
    return lines + early_lines(blocks, token_limit)


def legend_lines(pairs: Iterable[Sequence[Measured]], shows_all: bool) -> list[str]:
    """Return what the columns and the names of the variants mean."""
    ran = {each.variant for blocks in pairs for block in blocks for each in block.summaries}
    entries = [*_LEGEND, *(_MORE_LEGEND if shows_all else ())]
    entries += [(name, variant.about) for name, variant in NAMED.items() if name in ran]
    if any(name.startswith("n=") for name in ran):
        entries.append(("n=4", "4 draft tokens in every round"))
    first = "Medians over the repetitions, with 95 % intervals in brackets (bootstrap)."
    return [first, *(f"{name:<12} {about}" for name, about in entries)]


def verdict_lines(blocks: Sequence[Measured]) -> list[str]:
    """Return whether the default's drafts pay here, the best fixed length, and the peer's best.

    Of the first number of users; nothing where the default or what is without drafts did not run.
    """
    measured = next((each for each in blocks if each.block.round_trip_ms is None), None)
    default = measured.of(MEASURED) if measured else None
    if measured is None or default is None or default.over_plain is None:
        return []
    found = default.over_plain
    words = [sentence(found.value, found.low, found.high, default.acceptance is not None)]
    swept = [each for each in measured.summaries if _is_swept(each) and each.over_plain is not None]
    if swept:
        best = max(swept, key=lambda each: each.over_plain.value if each.over_plain else 0.0)
        words.append(f"The best fixed length is {best.length}: {_times(best.over_plain)}.")
    peer = best_peer(measured.summaries)
    if peer is not None:
        ours, its = (measured.block.of(each.variant) for each in (default, peer))
        over = _times(rate_ratio(paired(ours, its)))
        words.append(f"Against {peer.variant}, the best of its settings: {over}.")
    return words


def _times(estimate: Estimate | None) -> str:
    return _NOTHING if estimate is None else times(estimate.value, estimate.low, estimate.high)


def _model_line(role: str, result: PairResult) -> str:
    model = result.models[role]
    threads = plural(model.thread_count, "thread")
    return f"{role:<7}  {model.name}, {model.weight_byte_count / 1e6:.0f} MB, {threads}"


def _alone_lines(summaries: Sequence[Summary]) -> list[str]:
    """Return what the target makes alone, where it has measured that."""
    known = next((each.alone_rate for each in summaries if each.alone_rate is not None), None)
    if known is None:
        return []
    return [f"alone    {_cell(known, _number(1), True)} tokens/s, the target in llama.cpp"]


def _block_lines(measured: Measured, width: int, shows_all: bool) -> list[str]:
    summaries = measured.summaries
    lines = [*_alone_lines(summaries), "", "speed", *speed_table(summaries, width, shows_all)]
    if any(_is_swept(each) for each in summaries):
        lines += ["", "draft lengths", *length_table(summaries, width)]
    lines += _peer_lines(measured, width)
    if not shows_all:
        return lines
    lines += ["", "latency, ms", *latency_table(summaries, width)]
    lines += ["", "drafts", *draft_table(summaries, width)]
    if any(each.acceptance_by_position for each in summaries):
        lines += ["", "accepted by position in the draft, %", *position_table(summaries)]
    if any(each.cpu_seconds_per_token for each in summaries):
        lines += ["", "CPU, ms a token", *cpu_table(summaries, width)]
    return lines


def _peer_lines(measured: Measured, width: int) -> list[str]:
    """Return our variants over the peer's best, where one ran."""
    best = best_peer(measured.summaries)
    if best is None:
        return []
    users = measured.block.user_count
    among = "" if users == 1 else f", {users} users"
    ours = [each for each in measured.summaries if not each.variant.startswith(PEER)]
    against = measured.block.of(best.variant)
    rows = [
        (each.variant, [rate_ratio(paired(measured.block.of(each.variant), against))])
        for each in ours
    ]
    title = f"tokens/s over those of {best.variant}, the best of its settings{among}"
    return ["", title, *_fitted(("variant", "times"), rows, (_number(2),), width)]


# --- the tables ---

Shown = Callable[[float], str]
"""Writes a figure."""

Row = tuple[str, Sequence[Estimate | None]]
"""A label and its figures."""


def _number(digits: int, scale: float = 1.0) -> Shown:
    return lambda value: f"{scale * value:.{digits}f}"


def speed_table(summaries: Sequence[Summary], width: int, shows_all: bool) -> list[str]:
    """Return how fast the variants are, by measure and, if all is to be shown, by theory."""
    columns: dict[str, Callable[[Summary], Estimate | None]] = {
        "tokens/s": lambda s: s.token_rate,
        "times plain": lambda s: s.over_plain,
        "times alone": lambda s: s.over_alone,
    }
    if shows_all and any(s.forecast is not None for s in summaries):
        columns["forecast"] = lambda s: s.forecast
    if shows_all:
        columns |= {"formula": lambda s: s.formula, "of ceiling": lambda s: s.of_ceiling}
    rows = [(s.variant, [figure(s) for figure in columns.values()]) for s in summaries]
    return _fitted(("variant", *columns), rows, (_number(1), *[_number(2)] * 5), width)


def length_table(summaries: Iterable[Summary], width: int) -> list[str]:
    """Return what each draft length yields."""
    rows = [
        (str(s.length), (s.acceptance, s.tokens_per_round, s.token_rate, s.over_plain))
        for s in summaries
        if s.variant == PLAIN or _is_swept(s)
    ]
    titles = ("draft length", "acceptance", "tokens/round", "tokens/s", "times plain")
    return _fitted(titles, rows, (_number(3), _number(2), _number(1), _number(2)), width)


def _is_swept(summary: Summary) -> bool:
    return summary.variant == f"n={summary.length}"


def latency_table(summaries: Iterable[Summary], width: int) -> list[str]:
    """Return when tokens come."""
    rows = [(s.variant, (s.first_token_seconds, *s.gap_seconds)) for s in summaries]
    titles = ("variant", "first token", "gap p50", "p95", "p99")
    return _fitted(titles, rows, [_number(1, 1e3)] * 4, width)


def draft_table(summaries: Iterable[Summary], width: int) -> list[str]:
    """Return what the drafts were good for."""
    rows = [
        (s.variant, (s.acceptance, s.tokens_per_round, s.wire_bytes_per_token)) for s in summaries
    ]
    titles = ("variant", "acceptance", "tokens/round", "bytes/token")
    return _fitted(titles, rows, (_number(3), _number(2), _number(0)), width)


def position_table(summaries: Iterable[Summary]) -> list[str]:
    """Return how often a draft token was accepted, by its place in the draft."""
    drafted = [each for each in summaries if each.acceptance_by_position]
    most = min(_MOST_POSITIONS, max(len(each.acceptance_by_position) for each in drafted))
    rows = [
        [each.variant, *(_cell(one, _number(0, 100.0)) for one in each.acceptance_by_position)]
        for each in drafted
    ]
    padded = [[*row, *[""] * most][: most + 1] for row in rows]
    return _table(["variant", *(str(i + 1) for i in range(most))], padded)


def cpu_table(summaries: Sequence[Summary], width: int) -> list[str]:
    """Return what the processes took, all together and each, and the target against itself."""
    known = {name for each in summaries for name in each.cpu_seconds_per_token}
    used = [name for name in _PROCESSES if name in known]
    rows = [
        (s.variant, [*(s.cpu_seconds_per_token.get(name) for name in used), s.target_cpu_ratio])
        for s in summaries
    ]
    shown = [*[_number(1, 1e3)] * len(used), _number(2)]
    return _fitted(("variant", *used, "target ratio"), rows, shown, width)


def users_table(blocks: Sequence[Measured], width: int) -> list[str]:
    """Return a row per variant of the last block, and a column per number of users."""
    names = [each.variant for each in blocks[-1].summaries]
    return _widest(
        ["users", *(str(each.block.user_count) for each in blocks)],
        lambda count: [
            [name, *(_over_plain(each.of(name), i < count) for i, each in enumerate(blocks))]
            for name in names
        ],
        width,
    )


def distance_table(blocks: Sequence[Measured], width: int) -> list[str]:
    """Return a row per round trip: asked for, measured, and each variant."""
    names = [each.variant for each in blocks[0].summaries]
    return _widest(
        ["ms", "measured", *names],
        lambda count: [
            [f"{each.block.round_trip_ms:g}", _round_trip(each.block)]
            + [_over_alone(each.of(name), i < count) for i, name in enumerate(names)]
            for each in blocks
        ],
        width,
    )


def _round_trip(block: Block) -> str:
    known = sorted(t.round_trip_seconds for t in block.turns if t.round_trip_seconds is not None)
    return f"{1e3 * known[len(known) // 2]:.1f}" if known else _NOTHING


def _over_alone(summary: Summary | None, interval: bool) -> str:
    return (
        _rate_and_ratio(summary.token_rate, summary.over_alone, interval) if summary else _NOTHING
    )


def _over_plain(summary: Summary | None, interval: bool) -> str:
    return (
        _rate_and_ratio(summary.token_rate, summary.over_plain, interval) if summary else _NOTHING
    )


def _rate_and_ratio(rate: Estimate | None, ratio: Estimate | None, interval: bool) -> str:
    return f"{_cell(rate, _number(1))} {_cell(ratio, _number(2), interval)}"


# --- what to beware of ---


def early_lines(blocks: Iterable[Measured], token_limit: int) -> list[str]:
    """Return a line if texts ended by themselves although others were tried."""
    summaries = [each for measured in blocks for each in measured.summaries]
    short = sum(each.short_count for each in summaries)
    discarded = sum(each.discarded_count for each in summaries)
    lines = [""] if short or discarded else []
    if discarded:
        times = "1 turn was" if discarded == 1 else f"{discarded} turns were"
        lines.append(f"note: {times} taken again since a text ended early")
    if short:
        texts = "1 text" if short == 1 else f"{short} texts"
        lines.append(f"warning: {texts} ended before {token_limit} tokens")
    return lines


def beware_lines(machine: Machine, notes: Sequence[str]) -> list[str]:
    """Return what else a reader should know."""
    found = [f"note: {note}" for note in notes]
    return found + [f"warning: {warning}; measure again" for warning in machine.warnings()]


# --- cells ---


def _fitted(
    titles: Sequence[str], rows: Sequence[Row], shown: Sequence[Shown], width: int
) -> list[str]:
    """Return a table of figures."""
    return _widest(
        titles,
        lambda count: [
            [label, *(_cell(figure, shown[i], i < count) for i, figure in enumerate(figures))]
            for label, figures in rows
        ],
        width,
    )


def _widest(
    titles: Sequence[str], rows: Callable[[int], Sequence[Sequence[str]]], width: int
) -> list[str]:
    """Return a table with the intervals of as many figures, from the left, as fit."""
    for count in range(len(titles), 0, -1):
        lines = _table(titles, rows(count))
        if max(map(len, lines)) <= width:
            return lines
    return _table(titles, rows(0))


def _cell(estimate: Estimate | None, shown: Shown, interval: bool = False) -> str:
    if estimate is None:
        return _NOTHING
    value, low, high = map(shown, (estimate.value, estimate.low, estimate.high))
    has_interval = interval and estimate.low < estimate.high
    return f"{value} [{low}, {high}]" if has_interval else value


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines: the first column to the left, all others to the right."""
    everything = [titles, *rows]
    widths = [max(len(row[i]) for row in everything) for i in range(len(titles))]
    return [
        _GAP.join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in everything
    ]
