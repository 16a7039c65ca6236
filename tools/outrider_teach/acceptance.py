"""What a student's drafts are worth on texts that it never learned from, as values, and shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

POSITIONS = 5  # of a draft, that are judged
LENGTH = 3  # tokens of a draft in `accepted`; llama-server's default
_INCHES = (7.0, 4.2)
_DOTS = 150


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of drafts: each figure is between 0 and 1."""

    positions: tuple[float, ...]
    """At each position of a draft, where all before it was accepted."""
    accepted: float
    """Of what is drafted, three tokens at a time."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A student's acceptance on held-out texts."""

    greedy: Acceptance
    sampled: Acceptance
    """At a temperature of .8."""
    tokens: int
    """Of the texts that were read."""

    @property
    def score(self) -> float:
        """What is best: tokens accepted of three, the mean over both ways to write."""
        return (self.greedy.accepted + self.sampled.accepted) / 2

    def as_numbers(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return asdict(self)

    @classmethod
    def of_numbers(cls, found: dict[str, Any]) -> Self:
        """Return the judgement that a checkpoint has kept."""
        greedy, sampled = (
            Acceptance(tuple(found[each]["positions"]), found[each]["accepted"])
            for each in ("greedy", "sampled")
        )
        return cls(greedy, sampled, found["tokens"])


def curve(history: Sequence[tuple[int, Judgement]]) -> list[str]:
    """Return the acceptance at each position, step by step, as lines for a terminal."""
    heads = "  ".join(f"{k + 1:>4}" for k in range(POSITIONS))
    lines = [
        f"{'':7}  {'accepted at position':<{len(heads)}}   of {LENGTH} tokens",
        f"{'step':>7}  {heads}   {'T 0':>5}  {'T 0.8':>5}",
    ]
    for step, judged in history:
        positions = "  ".join(f"{x:.2f}" for x in judged.greedy.positions)
        bar = "#" * round(20 * judged.score)
        lines.append(
            f"{step:>7,}  {positions}   {judged.greedy.accepted:.3f}  "
            f"{judged.sampled.accepted:.3f}  {bar}"
        )
    return lines


def draw_curve(history: Sequence[tuple[int, Judgement]], path: Path) -> bool:
    """Draw the curve as a PNG file; return whether matplotlib is there to do so."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.add_subplot()
    steps = [step for step, _ in history]
    for k in range(POSITIONS):
        points = [judged.greedy.positions[k] for _, judged in history]
        axes.plot(steps, points, label=f"position {k + 1}")
    axes.plot(steps, [j.sampled.accepted for _, j in history], "--", label="T .8, of 3")
    axes.set(xlabel="step", ylabel="held-out acceptance", ylim=(0, 1))
    axes.legend()
    figure.savefig(path, dpi=_DOTS)
    return True
