"""Which sources without a model go with a generation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outrider.drafters.prediction import PredictionSource
from outrider.drafters.source import Source
from outrider.drafters.suffix import SuffixSource
from outrider.speculation import Speculation


def sources_of(speculation: Speculation, prediction: Sequence[int]) -> dict[str, Source]:
    """Return the sources for a text that is begun, by name; one proposes for one text only.

    `prediction` are the tokens that the caller expects of it; none where nothing is expected.
    """
    found: dict[str, Source] = {}
    for name in speculation.local_drafters:
        if name == "suffix":
            found[name] = SuffixSource()
        elif name == "prediction" and prediction:
            found[name] = PredictionSource(prediction)
    return found


def sources_behind(before: Mapping[str, Source], fresh: Mapping[str, Source]) -> dict[str, Source]:
    """Return the sources for a text of which the middle is dropped.

    What reads the prompt begins anew with what is left of it; the others go on.
    """
    return {name: source if source.reads_prompt else before[name] for name, source in fresh.items()}
