"""Rounds whose draft branches, where several lines were asked for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outrider.core.branching import Grown, Guess, as_bytes, best_count, grow
from outrider.core.control import CLEARLY, Control
from outrider.core.draft_line import ForkedLine, Line
from outrider.core.local_drafters import LocalDrafters
from outrider.core.remote_draft import RemoteDraft
from outrider.core.target_progress import RoundInFlight
from outrider.messages import Form
from outrider.speculation import MODEL


def branch(
    asked: RoundInFlight, control: Control, draft: RemoteDraft, local: LocalDrafters
) -> None:
    """Let a round branch to what else is proposed after its text, where that is clearly worth more.

    That is the draft's own line, its runner-up lines, and those of sources without a model. Only
    where the target waits for the next round: while it writes by itself, lines are compared with
    a text that moves.
    """
    round_, leaves = asked.round, control.costs.tree_leaves
    if (control.speculation.n_parallel or 1) < 2 or leaves < 2:
        return
    if round_.continue_count or round_.form is not Form.SAMPLED:
        return
    if not round_.draft or not control.may_be_cut or control.rounds_ahead(len(round_.draft)):
        return
    confidences, candidates = asked.confidences, asked.candidates
    own = Line(round_.draft, confidences, (), candidates, asked.sources, asked.line_numbers)
    length = asked.length
    line, forks, others = draft.line_at(length), draft.forks_at(length), local.lines(length)
    lines = [own, line, *(each.line for each in forks), *(each.line for each in others)]
    guesses = [
        Guess(round_.draft, _chances(round_.survivals)),
        Guess(line.token_ids, _chances_of(control, line)),
        *(Guess(each.line.token_ids, _chances_of_fork(control, each)) for each in forks),
        *(Guess(each.line.token_ids, each.chances) for each in others),
    ]
    grown = _best(control, guesses, len(round_.draft), leaves)
    if grown is not None:
        _ask(asked, grown, lines)


def _chances_of(control: Control, line: Line) -> list[float]:
    return [control.acceptance.chance(each) for each in line.confidences]


def _chances_of_fork(control: Control, forked: ForkedLine) -> list[float]:
    """Return the chances of a runner-up line; where it leaves the other, of what that one leaves.

    How often a draft's first choice of some confidence is right says nothing of its others.
    """
    chances = _chances_of(control, forked.line)
    chances[forked.fork] = forked.share
    return chances


def _chances(survivals: bytes) -> list[float]:
    """Return the chance of each token, if those before it stand."""
    before = (255, *survivals)
    return [each / max(1, last) for each, last in zip(survivals, before, strict=False)]


def _best(
    control: Control, guesses: Sequence[Guess], chain_count: int, leaf_limit: int
) -> Grown | None:
    """Return the tree that is best verified; None where the chain of so many tokens is as good."""
    rate = max(control.forecast.rate, control.rate)
    seconds = control.round_seconds
    grown = grow(guesses, control.speculation.local_n_max, leaf_limit)
    count, worth = best_count(grown.survivals, seconds, rate)
    chain = grow(guesses[:1], chain_count).survivals
    least = CLEARLY * (1.0 + sum(chain)) - rate * seconds(chain_count)
    tree = grown.tree.first(count)
    if tree.is_chain or worth < least or not control.costs.table.is_known(count + 1):
        return None
    return Grown(tree, grown.survivals[:count], grown.origins[:count])


def _ask(asked: RoundInFlight, grown: Grown, lines: Sequence[Line]) -> None:
    """Put a tree in place of a round's draft."""
    line = _as_line(grown, lines)
    asked.sources, asked.line_numbers = line.sources, line.numbers
    asked.confidences, asked.candidates = line.confidences, line.candidates
    asked.round = replace(
        asked.round,
        draft=list(grown.tree.token_ids),
        parents=list(grown.tree.parents),
        survivals=as_bytes(grown.survivals),
        decode_limit=0,
    )


def _as_line(grown: Grown, lines: Sequence[Line]) -> Line:
    """Return a tree's tokens one after the other, with what is known of each in its own line.

    Confidences and candidates are the draft's, and so only there where all tokens are.
    """
    picked = [(lines[number], i) for number, i in grown.origins]
    sources = [line.sources[i] if line.sources else MODEL for line, i in picked]
    numbers = [line.numbers[i] if line.numbers else 0 for line, i in picked]
    is_drafts = all(each == MODEL for each in sources)
    is_reported = is_drafts and all(line.candidates for line, _ in picked)
    return Line(
        grown.tree.token_ids,
        confidences=[line.confidences[i] for line, i in picked] if is_drafts else (),
        candidates=[line.candidates[i] for line, i in picked] if is_reported else (),
        sources=() if is_drafts else sources,
        numbers=numbers if any(numbers) else (),
    )
