"""What is known of a target and of a draft beside it before the first round: as measured."""

from __future__ import annotations

from typing import Protocol

from outrider.core.rates import DraftRates, Mean
from outrider.core.target_costs import Pair, TargetCosts
from outrider.costs import CostTable, Point, RejectionCost
from outrider.descriptions import draft_source, own_source
from outrider.messages import MAX_DRAFT, MAX_LINES, Rule
from outrider.trees import MAX_LEAVES
from outrider.v1 import common_pb2 as common

_TOO_MUCH = 3600.0
"""Seconds of a rejection after which a target reads the whole text again: nothing is drafted."""


class Described(Protocol):
    """A model service that may have described itself."""

    @property
    def model(self) -> common.GetModelResponse | None:
        """The description, once it is known."""

    @property
    def round_trip(self) -> float:
        """Seconds of the newest small call; 0 before the first."""


def process_of(model: common.GetModelResponse) -> bytes:
    """Return what stays the same while the same process hosts the same model."""
    described = common.GetModelResponse()
    described.CopyFrom(model)
    for name in ("activity", "known_vocabulary_keys", "own_draft", *_MEASURED):
        described.ClearField(name)
    return described.SerializeToString(deterministic=True)


_MEASURED = (
    "decode_costs",
    "rough_decode_costs",
    "plain_costs",
    "cache_layout",
    "tree_leaf_limit",
    "checkpoint_milliseconds",
    "restore_milliseconds",
)
"""What a process measures again when nobody waits."""


def measured_of(model: common.GetModelResponse) -> bytes:
    """Return what a process has measured of its model."""
    measured = common.GetModelResponse()
    measured.CopyFrom(model)
    for field_ in model.DESCRIPTOR.fields:
        if field_.name not in _MEASURED:
            measured.ClearField(field_.name)
    return measured.SerializeToString(deterministic=True)


def costs_of_target(target: Described, generation_count: int) -> TargetCosts:
    """Return what is known before the first round: what the target measured at load."""
    costs = TargetCosts(generation_count=generation_count)
    if target.model is not None:
        take_measured_costs(costs, target.model)
        costs.overhead = Mean(target.round_trip)
        costs.continues = target.model.continues
        take_own_draft(costs, target.model)
    return costs


def take_own_draft(costs: TargetCosts, model: common.GetModelResponse) -> None:
    """Begin with the draft in a target's process: what was learned of another is not of this one.

    Texts that are being written end with what they know.
    """
    costs.own, own = None, model.own_draft
    if model.HasField("own_draft"):
        costs.own = DraftRates(
            source=own_source(own),
            token_time=Mean(own.token_milliseconds / 1e3),
            read_time=Mean(own.read_milliseconds / 1e3),
            latency=Mean(0.0),
            most_tokens=own.token_limit or MAX_DRAFT,
        )
        for rule in Rule:
            costs.sources.pop((rule, costs.own.source), None)


def take_measured_costs(costs: TargetCosts, model: common.GetModelResponse) -> None:
    """Go by what a target measured, in place of what it said before; all else stays learned."""
    if points := costs_of(model):
        costs.table = CostTable(points, model.rough_decode_costs)
        alone = model.plain_costs.alone_milliseconds / 1e3
        costs.alone_share = alone / costs.table.seconds(1)
    costs.rejection = _rejection_cost(model)
    costs.tree_leaves = min(MAX_LEAVES, model.tree_leaf_limit)


def _rejection_cost(model: common.GetModelResponse) -> RejectionCost:
    if model.rollback_capability == common.ROLLBACK_CAPABILITY_NONE:
        return RejectionCost(_TOO_MUCH, _TOO_MUCH)
    seconds = model.checkpoint_milliseconds / 1e3, model.restore_milliseconds / 1e3
    return RejectionCost(*seconds, model.snapshot_token_count)


def rates_of_draft(draft: Described) -> DraftRates:
    """Return what is known of a draft before its first round: what it measured at load."""
    rates = DraftRates()
    if draft.model is not None:
        rates.latency, rates.source = Mean(draft.round_trip), draft_source(draft.model)
        take_measured_rates(rates, draft.model)
    return rates


def take_measured_rates(rates: DraftRates, model: common.GetModelResponse) -> None:
    """Go by what a draft measured, but for what was seen of it since."""
    if not (points := costs_of(model)):
        return
    rates.loaded_token_time = points[0].seconds
    if not rates.token_time.count:
        rates.token_time = Mean(points[0].seconds)
    if not rates.read_time.count:
        rates.read_time = Mean(points[-1].seconds / points[-1].rows)
    rates.line_ratios = _line_ratios(model)


def pair_of(
    costs: TargetCosts,
    rates: DraftRates,
    target: common.GetModelResponse | None,
    draft: common.GetModelResponse | None,
) -> Pair:
    """Return a target and a draft beside it, and whether they share their cores."""
    if target is None or draft is None:
        return Pair(costs, rates)
    return Pair(costs, rates, shares_cores(target, draft), _take_turns(target, draft))


def _line_ratios(model: common.GetModelResponse) -> list[float]:
    """Return a token's time while a draft writes 1, 2, ... lines, over one alone."""
    lines, costs = max(1, min(MAX_LINES, model.parallel_line_count)), CostTable(costs_of(model))
    alone = costs.seconds(1)
    return [max(1.0, costs.seconds(n + 1) / alone) for n in range(lines)]


def shares_cores(target: common.GetModelResponse, draft: common.GetModelResponse) -> bool:
    """Return whether a busy draft may slow the target down.

    Not on another machine, nor where both know their cores and those are others.
    """
    if not target.machine_digest or target.machine_digest != draft.machine_digest:
        return False
    both_know = target.cores_digest and draft.cores_digest
    return not both_know or target.cores_digest == draft.cores_digest


def _take_turns(target: common.GetModelResponse, draft: common.GetModelResponse) -> bool:
    """Return whether the two never decode at the same time."""
    together = target.cores_digest and target.cores_digest == draft.cores_digest
    return bool(together) and target.thread_count + draft.thread_count > target.core_count


def costs_of(model: common.GetModelResponse) -> list[Point]:
    return [
        Point(cost.row_count, cost.milliseconds / 1e3, cost.microseconds_per_token / 1e6)
        for cost in model.decode_costs
    ]
