"""How often a draft is right where a target reads a sample of text: acceptance before a start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from draft_service.translators import StringTranslator, TokenTranslator, Translator
from outrider.engine.cache import Session
from outrider.engine.calibrate import quick_costs
from outrider.engine.guesser import guesser
from outrider.engine.job import Lease
from outrider.engine.model import Chunk, Model
from outrider.engine.string_guesser import StringGuesser
from outrider.engine.translating import SAMPLE, sample_ids, shared_mass
from outrider.messages import Rule, SessionParameters
from outrider.sampling import GREEDY
from outrider.translation import LEAST_SHARE, Level, Translation

_PLACES = 32
"""Of the sample, at which the draft is asked."""


@dataclass(frozen=True, slots=True)
class PairForecast:
    """What a pair may be expected to do, by a sample of text."""

    acceptance: float | None
    """The share of places at which the draft's best token is the target's, in [0, 1]; None where
    the target was not loaded."""
    mass: float = 1.0
    """Of the tokens that both have, the smaller of two shares, as `Learned.shared_mass`."""
    level: str = "native"


def costs_of(target: Model, draft: Model) -> dict[str, Any]:
    """Return the milliseconds of decodes, the target's by rows and the draft's for a token."""
    its = [(each.rows, 1e3 * each.seconds) for each in quick_costs(target, perf_counter)]
    return {"target_ms": its, "draft_ms": 1e3 * quick_costs(draft, perf_counter)[0].seconds}


def expect(target: Model, draft: Model, translation: Translation | None) -> PairForecast:
    """Return what a draft does for a target; nobody else uses them, and sequences 0 are emptied.

    Without a translation the two have the same ids.
    """
    ids = sample_ids(target)
    best = _best(target, ids)
    if translation is None:
        pairs = zip(best, _best(draft, ids), strict=True)
        return PairForecast(sum(mine == its for mine, its in pairs) / len(ids))
    mass, level = _share(draft, translation)
    places = range(0, len(ids), max(1, len(ids) // _PLACES))
    lease = Lease(Session(b"", 0.0, sequence=0), draft, draft.describe().context)
    guesses = [_guess(draft, lease, ids[: place + 1], translation, level) for place in places]
    draft.truncate(0, 0)
    right = sum(each == best[place] for each, place in zip(guesses, places, strict=True))
    return PairForecast(right / len(places), mass, _shown(level))


def expect_without_target(draft: Model, translation: Translation) -> PairForecast:
    """Return what can be said of a draft where its target is not loaded: no acceptance."""
    mass, level = _share(draft, translation)
    return PairForecast(None, mass, _shown(level))


def _share(draft: Model, translation: Translation) -> tuple[float, Level]:
    mass = min(translation.covered_share(SAMPLE), shared_mass(draft, translation))
    return mass, Level.TOKENS if mass >= LEAST_SHARE else Level.STRINGS


def _shown(level: Level) -> str:
    return level.name.lower().removesuffix("s")


def _best(model: Model, ids: Sequence[int]) -> list[int]:
    """Return the best token after each of a text's."""
    model.truncate(0, 0)
    [rows] = model.decode([Chunk(0, 0, ids, len(ids))])
    best = [int(row.argmax()) for row in rows]
    model.truncate(0, 0)
    return best


def _guess(
    draft: Model, lease: Lease, text: list[int], translation: Translation, level: Level
) -> int | None:
    """Return the token that a draft takes for the next one of a text; None for none."""
    session = SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=Rule.MATCH,
        sampling=GREEDY,
        seed=0,
        choice=0,
        prompt_count=0,
        token_limit=1,
        vocabulary=len(translation.target.texts),
    )
    translator: Translator
    if level is Level.STRINGS:
        translator = StringTranslator(StringGuesser(draft, session, translation))
    else:
        guess = guesser(draft, session, 1, 0.0, translation)
        translator = TokenTranslator(guess, translation.reader())
    asking, rows = translator.ask(lease, text, len(text), 0, len(text)), None
    try:
        while True:
            step = next(asking) if rows is None else asking.send(rows)
            chunk = Chunk(0, len(lease.held), step.token_ids, step.row_count)
            [rows] = draft.decode([chunk])
            lease.extend(chunk)
    except StopIteration as end:
        return end.value[0].token_id if end.value else None
