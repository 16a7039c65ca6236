"""Says in one sentence whether drafts pay, for whoever runs them."""

from __future__ import annotations

# A speed-up without an interval this near to 1 is called no difference.
UNSURE = 0.05


def sentence(
    ratio: float, low: float | None = None, high: float | None = None, drafted: bool = True
) -> str:
    """Return what a speed-up over the target alone means, and what to do.

    `low` and `high` bound it; without them a ratio near 1 counts as no difference. `drafted` is
    False where nothing was drafted, since no gain was expected.
    """
    least = ratio - UNSURE if low is None else low
    most = ratio + UNSURE if high is None else high
    shown = times(ratio, low, high)
    if most < 1:
        lost = f"{100 * (1 - ratio):.0f} %"
        return f"Drafts cost {lost} of the speed here: {shown}. Turn them off with --no-draft."
    if not drafted:
        return "This target is too quick for drafts to help; nothing is lost."
    if least > 1:
        return f"Drafts help here: {shown}. Leave them on."
    return f"Drafts make no clear difference here: {shown}."


def times(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """Return a ratio and its interval, with as many digits as it takes to tell them from 1."""
    interval = () if low is None or high is None else (low, high)
    digits = 2 if min(ratio, *interval, 9) < 1.2 else 1
    shown = [f"{each:.{digits}f}".removeprefix("0") for each in (ratio, *interval)]
    return f"{shown[0]} times" + (f" ({shown[1]} to {shown[2]})" if interval else "")
