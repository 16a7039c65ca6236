"""What drafts are expected to gain here, by what was measured in the trial."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.costs import RejectionCost
from outrider_cli.doctor.checks import Finding
from outrider_cli.doctor.report import judge_gain, judge_head_gain
from outrider_cli.forecasting import best_over_alone, head_pays_from, on_one_machine, too_slow


def forecast(report: dict[str, Any], others_share: float, takes_turns: bool) -> list[Finding]:
    """Return what drafts are expected to gain, where both models were tried together."""
    costs, expected = report.get("costs"), report.get("expected", {})
    if costs is None or expected.get("acceptance") is None:
        return []
    measured = replace(
        on_one_machine(),
        decode_costs=tuple((rows, ms / 1e3) for rows, ms in costs["target_ms"]),
        draft_token_seconds=costs["draft_ms"] / 1e3,
        takes_turns=takes_turns,
    )
    acceptance = expected["acceptance"]
    ratio = best_over_alone(measured, acceptance)
    return [judge_gain(ratio, others_share, too_slow(measured, acceptance))]


def head_forecast(head: dict[str, Any] | None, others_share: float) -> list[Finding]:
    """Return from which acceptance on a head pays, where it was timed with its target."""
    if head is None:
        return []
    costs = [(rows, ms / 1e3) for rows, ms in head["target_ms"]]
    token_seconds, price = head["token_ms"] / 1e3, RejectionCost(*head["price"])
    least = head_pays_from(costs, token_seconds, head["most_tokens"], price)
    return [judge_head_gain(least, others_share)]
