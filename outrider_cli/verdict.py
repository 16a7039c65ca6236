"""Says in one sentence whether drafts pay, for the one who runs them."""

from __future__ import annotations

UNSURE = 0.05
"""A ratio this near to 1 and without an interval is called no difference: plain runs of one
text of a 1.1B on two cores made 61 to 62.6 tokens/s, but for two of 57.7 and 44.2."""


def sentence(
    ratio: float, low: float | None = None, high: float | None = None, drafted: bool = True
) -> str:
    """Return what a measured speed-up over the target alone means, and what to do.

    `low` and `high` bound it; without them a ratio near 1 counts as no difference. `drafted` is
    False where nothing was drafted, since no gain was expected.
    """
    least = ratio - UNSURE if low is None else low
    most = ratio + UNSURE if high is None else high
    shown = times(ratio, low, high)
    if most < 1:
        return f"Drafts cost {100 * (1 - ratio):.0f} %: {shown}. --no-draft turns them off."
    if not drafted:
        return "Drafts would not save time here, so none were made."
    if least > 1:
        return f"Drafts help here: {shown}. Leave them on."
    return f"Drafts make no clear difference here: {shown}."


def estimate(ratio: float) -> str:
    """Return what one text's speed over an estimate of the target's alone means.

    Other work on the machine slows the text down and not the estimate, so a low ratio is no proof.
    """
    if ratio < 1 - UNSURE:
        return f"Perhaps {times(ratio)} the target alone: try generate --compare."
    if ratio > 1 + UNSURE:
        return f"Drafts help here: about {times(ratio)} the target alone."
    return "Drafts make no clear difference in this text."


def times(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """Return a ratio and its interval, with as many digits as it takes to tell them from 1."""
    interval = () if low is None or high is None else (low, high)
    digits = 2 if min(ratio, *interval, 9) < 1.2 else 1
    shown = [f"{each:.{digits}f}".removeprefix("0") for each in (ratio, *interval)]
    return f"{shown[0]} times" + (f" ({shown[1]} to {shown[2]})" if interval else "")
