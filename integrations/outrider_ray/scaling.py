"""How many drafts there should be: Serve asks, since it sees no calls to them. Pure."""

from __future__ import annotations

from typing import Any

WANTED = "drafts_wanted"
"""What every draft reports: generations in flight, of all orchestrators, over those for a draft."""


def by_generations(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the number of drafts for what is in flight, and no state.

    `context` is Serve's AutoscalingContext. Bounds and delays are Serve's own.
    """
    reported = (context.aggregated_metrics or {}).get(WANTED) or {}
    if not reported:
        return context.target_num_replicas, {}
    return max(1.0, *reported.values()), {}
