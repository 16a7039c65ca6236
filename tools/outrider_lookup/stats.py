"""How much of a text its own and others' n-grams would have drafted. Pure.

The text is cut into pieces, each a generation of its own whose tokens are known: after every round
the tokens that were right and one more are counted, and after every piece its n-grams are past
text. So does llama-lookup-stats, to the last token: of a text of n whole pieces the last is not
tried, though `n_predict` counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.drafters.ngram_cache import NO_BOUND, NgramCache, NgramDrafter, NgramGuess


@dataclass(slots=True)
class LookupFigures:
    """What llama-lookup-stats prints, by its names; times in seconds.

    `n_tied` of the drafted tokens had an equal, so that llama.cpp may draft another.
    """

    n_input: int
    n_ctx: int
    n_draft: int
    n_drafted: int = 0
    n_accept: int = 0
    n_tied: int = 0
    t_draft_flat: float = 0.0
    t_draft: float = 0.0

    @property
    def n_predict(self) -> int:
        """The tokens of whole pieces."""
        return self.n_input - self.n_input % self.n_ctx

    @property
    def us_per_token(self) -> float | None:
        """Of a drafted token; None where none was drafted."""
        return 1e6 * self.t_draft / self.n_drafted if self.n_drafted else None

    @property
    def tokens_per_second(self) -> float | None:
        """Drafted tokens; None where there are none."""
        return self.n_drafted / self.t_draft if self.n_drafted and self.t_draft else None

    @property
    def accept(self) -> float | None:
        """The share of the drafted tokens that were right, in percent."""
        return 100.0 * self.n_accept / self.n_drafted if self.n_drafted else None


def simulate(
    token_ids: Sequence[int],
    figures: LookupFigures,
    dynamic: NgramCache,
    static: NgramCache,
    clock: Callable[[], float],
    report: Callable[[int], None],
) -> None:
    """Draft a known text; figures and `dynamic` grow. `report` is called with the tokens done."""
    size = figures.n_ctx
    for start in range(0, len(token_ids) - size, size):
        drafter = NgramDrafter(dynamic, static, NO_BOUND)
        for done in _draft_piece(token_ids[start : start + size], drafter, figures, clock):
            report(start + done)
        dynamic.merge(drafter.context)


def _draft_piece(
    piece: Sequence[int],
    drafter: NgramDrafter,
    figures: LookupFigures,
    clock: Callable[[], float],
) -> Iterator[int]:
    """Draft one piece after its first token; yield after every round how far it is."""
    drafter.extend(piece[:1])
    done = 1
    while done < len(piece):
        start = clock()
        guesses = drafter.draft(figures.n_draft)
        accepted = _accepted(guesses, piece, done)
        after = min(done + accepted + 1, len(piece))
        drafter.extend(piece[done:after])
        figures.t_draft += clock() - start
        figures.n_drafted += len(guesses)
        figures.n_accept += accepted
        figures.n_tied += sum(guess.tied for guess in guesses)
        done = after
        yield done


def _accepted(guesses: Sequence[NgramGuess], piece: Sequence[int], start: int) -> int:
    """Return how many guesses are what stands in the piece from there on."""
    pairs = enumerate(zip(guesses, piece[start : start + len(guesses)], strict=False))
    wrong = (i for i, (guess, token_id) in pairs if guess.token_id != token_id)
    return next(wrong, min(len(guesses), len(piece) - start))


def figure_lines(figures: LookupFigures) -> Iterator[str]:
    """Yield the lines of llama-lookup-stats."""
    each, rate = _shown(figures.us_per_token, ".2f"), _shown(figures.tokens_per_second, ".2f")
    yield f"n_draft      = {figures.n_draft}"
    yield f"n_predict    = {figures.n_predict}"
    yield f"n_drafted    = {figures.n_drafted}"
    yield f"t_draft_flat = {1e3 * figures.t_draft_flat:.2f} ms"
    yield (
        f"t_draft      = {1e3 * figures.t_draft:.2f} ms, {each} us per token, "
        f"{rate} tokens per second"
    )
    yield f"n_accept     = {figures.n_accept}"
    yield f"accept       = {_shown(figures.accept, '.3f')}%"


def _shown(number: float | None, form: str) -> str:
    return "n/a" if number is None else format(number, form)


def figure_object(figures: LookupFigures) -> dict[str, Any]:
    """Return the figures for json.dumps; times in milliseconds."""
    return {
        "n_input": figures.n_input,
        "n_ctx": figures.n_ctx,
        "n_draft": figures.n_draft,
        "n_predict": figures.n_predict,
        "n_drafted": figures.n_drafted,
        "t_draft_flat_ms": 1e3 * figures.t_draft_flat,
        "t_draft_ms": 1e3 * figures.t_draft,
        "us_per_token": figures.us_per_token,
        "tokens_per_second": figures.tokens_per_second,
        "n_accept": figures.n_accept,
        "accept_percent": figures.accept,
        "n_tied": figures.n_tied,
    }
