"""Twenty prompts of 20 to 600 tokens that the bundled pair has never seen."""

from __future__ import annotations

from pathlib import Path

_TEXT = (Path(__file__).parent / "held_out.txt").read_text()

COUNT = 20
_SHORTEST, _LONGEST = 75, 1700
"""Characters, about 20 and 600 tokens of the bundled vocabulary."""


def held_out_prompts() -> list[str]:
    """Return the prompts, short ones first; they start at line starts, spread over the text."""
    lines = [i + 1 for i, character in enumerate(_TEXT) if character == "\n"]
    starts = [line for line in lines if line + _LONGEST < len(_TEXT)]
    prompts = []
    for i in range(COUNT):
        begin = starts[i * (len(starts) - 1) // (COUNT - 1)]
        length = _SHORTEST + (_LONGEST - _SHORTEST) * i // (COUNT - 1)
        prompts.append(_TEXT[begin : begin + length])
    return prompts
