"""From turns to figures: every figure with its interval over repetitions, ratios paired by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from outrider_bench.records import Block, Turn
from outrider_bench.variants import PEER, PLAIN, SERIAL, Variant
from outrider_cli.intervals import Estimate, draws, estimate_of, median_of

GAP_PERCENTILES = (50.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What one variant did in a block. None stands for what cannot be known of it."""

    variant: str
    length: int | None  # of every draft, where it is fixed
    turn_count: int
    token_count: int
    short_count: int  # texts that ended early
    discarded_count: int  # turns done again because of such a text
    token_rate: Estimate | None  # tokens per second of all users, after the first token
    alone_rate: Estimate | None  # of llama.cpp without messages, as the target measured it
    over_alone: Estimate | None  # the token rate over that of the same repetition; for one user
    over_plain: Estimate | None  # over our own without drafts, of the same repetition
    first_token_seconds: Estimate | None
    gap_seconds: tuple[
        Estimate | None, ...
    ]  # between tokens, see Generated.gaps; at GAP_PERCENTILES
    acceptance: Estimate | None  # accepted over drafted tokens
    acceptance_by_position: tuple[Estimate | None, ...]
    tokens_per_round: Estimate | None  # after the prompt's round
    wire_bytes_per_token: Estimate | None
    cpu_seconds_per_token: Mapping[str, Estimate | None]  # by process, and of "all"
    target_cpu_ratio: Estimate | None  # of the target's CPU time per token, to that without drafts
    formula: Estimate | None  # the ratio that the papers predict; for one user, a fixed length
    ceiling: Estimate | None  # tokens per second if the decodes were all; for one user
    of_ceiling: Estimate | None  # the token rate over that
    forecast: Estimate | None = None  # over plain, as the controller expects it; for one user


def summarize_block(variants: Iterable[Variant], block: Block, token_limit: int) -> list[Summary]:
    """Return the figures of all variants that had a turn in a block, in the order given."""
    ran = {turn.variant for turn in block.turns}
    return [summarize(each, block, token_limit) for each in variants if each.name in ran]


def summarize(variant: Variant, block: Block, token_limit: int) -> Summary:
    """Return the figures of a variant."""
    turns = block.of(variant.name)
    pairs = paired(turns, block.of(PLAIN))
    costs = _draft_costs(block.of(SERIAL) or turns, block.of(PLAIN))
    single = block.user_count == 1
    trials = [trial for turn in turns for trial in turn.trials]
    positions = max((len(trial.drafted_by_position) for trial in trials), default=0)
    processes = sorted({name for turn in turns for name in turn.cpu_seconds})
    gaps = [[gap for trial in turn.trials for gap in trial.gaps] for turn in turns]
    return Summary(
        variant=variant.name,
        length=variant.length,
        turn_count=len(turns),
        token_count=sum(turn.token_count for turn in turns),
        short_count=sum(turn.count_short(token_limit) for turn in turns),
        discarded_count=sum(turn.discarded_count for turn in turns),
        token_rate=median_of(turn.token_rate for turn in turns),
        alone_rate=median_of(plain.alone_rate for _, plain in pairs) if single else None,
        over_alone=median_of(_over_alone(*pair) for pair in pairs) if single else None,
        over_plain=rate_ratio(pairs),
        first_token_seconds=median_of(map(_first_token, turns)),
        gap_seconds=percentiles_of(gaps, GAP_PERCENTILES),
        acceptance=ratio_of((_sum(turn, "accepted"), _sum(turn, "drafted")) for turn in turns),
        acceptance_by_position=tuple(_acceptance_at(turns, i) for i in range(positions)),
        tokens_per_round=ratio_of(map(_tokens_and_rounds, turns)),
        wire_bytes_per_token=ratio_of(map(_bytes_and_tokens, turns)),
        cpu_seconds_per_token={
            name: ratio_of((_cpu(turn, name), turn.later_token_count) for turn in turns)
            for name in (*processes, *(("all",) if processes else ()))
        },
        target_cpu_ratio=median_of(_target_cpu_ratio(*pair) for pair in pairs),
        forecast=median_of(map(_forecast, turns)) if single else None,
        formula=median_of(_formula(variant, turn, costs) for turn in turns) if single else None,
        ceiling=median_of(map(_ceiling, turns)) if single else None,
        of_ceiling=median_of(map(_of_ceiling, turns)) if single else None,
    )


def paired(turns: Sequence[Turn], others: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """Return each turn with the other one of its repetition, where there is one."""
    known = {turn.repetition: turn for turn in others}
    return [(turn, known[turn.repetition]) for turn in turns if turn.repetition in known]


def rate_ratio(pairs: Iterable[tuple[Turn, Turn]]) -> Estimate | None:
    """Return the token rate of the first of each pair over that of the second."""
    return median_of(_over(turn.token_rate, other.token_rate) for turn, other in pairs)


def best_peer(summaries: Iterable[Summary]) -> Summary | None:
    """Return the peer with the highest token rate, with or without drafts."""
    rates = {
        summary.token_rate.value: summary
        for summary in summaries
        if summary.variant.startswith(PEER) and summary.token_rate is not None
    }
    return rates[max(rates)] if rates else None


def predicted_ratio(acceptance: float, length: int, cost: float) -> float:
    """Return the speed-up of serial drafts by Leviathan et al., theorem 3.8.

    `acceptance` is the chance of a draft token whose predecessors were
    accepted, `cost` the draft's time for one token over the target's.
    """
    if acceptance >= 1.0:
        tokens = length + 1.0
    else:
        tokens = (1.0 - acceptance ** (length + 1)) / (1.0 - acceptance)
    return tokens / (cost * length + 1.0)


# --- estimates ---


def ratio_of(pairs: Iterable[tuple[float | None, float]]) -> Estimate | None:
    """Return the sum of the first ones over the sum of the second ones."""
    known = [(above, below) for above, below in pairs if above is not None]
    numbers = np.array(known, dtype=np.float64).reshape(-1, 2)
    if not numbers[:, 1].sum():
        return None
    sums = numbers[draws(len(numbers))].sum(axis=1)
    sums = sums[sums[:, 1] > 0.0]
    above, below = numbers.sum(axis=0)
    return estimate_of(float(above / below), sums[:, 0] / sums[:, 1])


def percentiles_of(
    pools: Iterable[Sequence[float]], shares: Sequence[float]
) -> tuple[Estimate | None, ...]:
    """Return percentiles of all values; each pool is drawn or left as a whole."""
    arrays = [np.asarray(pool) for pool in pools if len(pool)]
    if not arrays:
        return (None,) * len(shares)
    values = np.percentile(np.concatenate(arrays), shares)
    drawn = np.array(
        [
            np.percentile(np.concatenate([arrays[i] for i in row]), shares)
            for row in draws(len(arrays))
        ]
    )
    return tuple(estimate_of(float(value), drawn[:, i]) for i, value in enumerate(values))


# --- of one turn ---


def _sum(turn: Turn, what: str) -> int:
    return sum(getattr(trial, f"{what}_count") for trial in turn.trials)


def _first_token(turn: Turn) -> float | None:
    known = [t.first_token_seconds for t in turn.trials if t.first_token_seconds is not None]
    return float(np.median(known)) if known else None


def _acceptance_at(turns: Sequence[Turn], position: int) -> Estimate | None:
    def count(turn: Turn, name: str) -> int:
        lists = [getattr(trial, f"{name}_by_position") for trial in turn.trials]
        return sum(values[position] for values in lists if position < len(values))

    return ratio_of((count(turn, "accepted"), count(turn, "drafted")) for turn in turns)


def _tokens_and_rounds(turn: Turn) -> tuple[float, float]:
    return _sum(turn, "token") - len(turn.trials), _sum(turn, "round")


def _bytes_and_tokens(turn: Turn) -> tuple[float | None, float]:
    return _total(trial.wire_bytes for trial in turn.trials), turn.token_count


def _cpu(turn: Turn, process: str) -> float | None:
    return sum(turn.cpu_seconds.values()) if process == "all" else turn.cpu_seconds.get(process)


def _target_cpu_ratio(turn: Turn, plain: Turn) -> float | None:
    return _over(
        _over(_cpu(turn, "target"), turn.later_token_count),
        _over(_cpu(plain, "target"), plain.later_token_count),
    )


def _over_alone(turn: Turn, plain: Turn) -> float | None:
    return _over(turn.token_rate, plain.alone_rate)


def _forecast(turn: Turn) -> float | None:
    return turn.trials[-1].forecast_ratio if turn.trials else None


def _ceiling(turn: Turn) -> float | None:
    """Return tokens per round over the decoding of a round, of the target and then the draft.

    Drafts that run ahead of the verification can pass it.
    """
    target = _total(trial.target_seconds for trial in turn.trials)
    draft = _total(trial.draft_seconds for trial in turn.trials)
    return None if target is None else _over(_tokens_and_rounds(turn)[0], target + (draft or 0.0))


def _of_ceiling(turn: Turn) -> float | None:
    return _over(turn.token_rate, _ceiling(turn))


def _formula(variant: Variant, turn: Turn, costs: Mapping[int, float | None]) -> float | None:
    """Return what the papers predict from this turn's acceptance and its repetition's times."""
    chance, cost = _chance(turn), costs.get(turn.repetition)
    if not variant.length or chance is None or cost is None:
        return None
    return predicted_ratio(chance, variant.length, cost)


def _draft_costs(turns: Sequence[Turn], plain: Sequence[Turn]) -> dict[int, float | None]:
    """Return the draft's time for a token over the target's, by repetition.

    Of serial turns, if possible: a draft that runs ahead decodes more than is verified.
    """
    return {
        turn.repetition: _over(
            _over(_total(trial.draft_seconds for trial in turn.trials), _sum(turn, "drafted")),
            _over(_total(trial.target_seconds for trial in other.trials), _sum(other, "round")),
        )
        for turn, other in paired(turns, plain)
    }


def _chance(turn: Turn) -> float | None:
    """Return the acceptance of draft tokens whose predecessors were all accepted."""
    tested = 0
    for trial in turn.trials:
        before = [*trial.drafted_by_position[:1], *trial.accepted_by_position]
        tested += sum(map(min, trial.drafted_by_position, before))
    return _over(_sum(turn, "accepted"), tested)


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
