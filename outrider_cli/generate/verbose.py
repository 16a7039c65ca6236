"""What a round did, as the fixed lines of `generate --verbose`.

    [DRAFT] Token 0: 284 ('The')
    [DRAFT] Token 1: 1108 (' key')
    [SOURCE] suffix 0, model 1
    [VERIFY] Draft: 284 ('The'), Target: 284 ('The')
    [ACCEPT] Token 0 accepted
    [VERIFY] Draft: 1108 (' key'), Target: 2191 (' main')
    [REJECT] Token 1 rejected, using target token
    [ROLLBACK] 1 draft token dropped, 12 tokens kept

`[SOURCE]` says who proposed which tokens, as in `suffix 0 to 5, model 6`; on a terminal each source
has a colour. `[LINE] first 0, runner-up 2 1 to 3` follows where a draft's runner-up lines had a
part in it: the text continued with that one after a wrong token. There each of them has a colour of
its own, underlined, in this line and at its tokens. A fully accepted draft ends with
`[BONUS] Target: ...`, a round without one is `[PLAIN] Target: ...`. Where the request asks for
candidates, `[STOP]` says why drafting stopped and `[TOP]` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from outrider.client import Candidate, Position, RoundReport, Token
from outrider_cli.render import Line, Words, branch_style, source_style

_T = TypeVar("_T")


def round_lines(report: RoundReport) -> Iterator[Line]:
    """Yield the lines of one round."""
    numbers, sources = report.draft_lines, report.sources
    for i, token in enumerate(report.draft):
        style = source_style(sources[i]) if i < len(sources) else ""
        style = branch_style(numbers[i] if i < len(numbers) else 0, style)
        yield [Words(f"[DRAFT] Token {i}: {_shown(token)}", style)]
    if report.draft:
        yield _sources(report)
    if report.draft_lines:
        yield _branches(report)
    for line in _plain_lines(report):
        yield [Words(line)]


def _sources(report: RoundReport) -> Line:
    """Return who proposed which tokens, each source in its own style."""
    words = [Words("[SOURCE] ")]
    for source, which in _runs(report.sources):
        words += [Words(f"{source} {which}", source_style(source)), Words(", ")]
    return words[:-1]


def _branches(report: RoundReport) -> Line:
    """Return which tokens are of which line of the draft, each line in its own style."""
    words = [Words("[LINE] ")]
    for number, which in _runs(report.draft_lines):
        name = f"runner-up {number}" if number else "first"
        words += [Words(f"{name} {which}", branch_style(number)), Words(", ")]
    return words[:-1]


def _runs(names: Sequence[_T]) -> Iterator[tuple[_T, str]]:
    """Yield each run of equal names, as the name and the places: `3`, or `3 to 5`."""
    first = 0
    for name, run in groupby(names):
        last = first + len(list(run)) - 1
        yield name, str(first) if first == last else f"{first} to {last}"
        first = last + 1


def _plain_lines(report: RoundReport) -> Iterator[str]:
    if report.positions:
        yield f"[STOP] {len(report.draft)} drafted: {report.draft_end.value}"
    for i, position in enumerate(report.positions):
        yield f"[TOP] Token {i}: {_candidates(position)}"
    yield from _verdicts(report)


def _verdicts(report: RoundReport) -> Iterator[str]:
    accepted = report.accepted_token_count
    for i, token in enumerate(report.draft[:accepted]):
        yield f"[VERIFY] Draft: {_shown(token)}, Target: {_shown(token)}"
        yield f"[ACCEPT] Token {i} accepted"
    if accepted < len(report.draft):
        rejected, dropped = report.draft[accepted], len(report.draft) - accepted
        yield f"[VERIFY] Draft: {_shown(rejected)}, Target: {_shown(report.target)}"
        yield f"[REJECT] Token {accepted} rejected, using target token"
        noun = "token" if dropped == 1 else "tokens"
        kept = report.committed_token_count + accepted
        yield f"[ROLLBACK] {dropped} draft {noun} dropped, {kept} tokens kept"
    else:
        yield f"[{'BONUS' if report.draft else 'PLAIN'}] Target: {_shown(report.target)}"


def _shown(token: Token) -> str:
    return f"{token.token_id} ({token.text.decode('utf-8', 'replace')!r})"


def _candidates(position: Position) -> str:
    """Return all candidates of a position with p, the target's, and q, the draft's."""
    p, q = _by_token(position.target), _by_token(position.draft)
    tokens = {one.token.token_id: one.token for one in (*position.target, *position.draft)}
    listed = ", ".join(
        f"{_shown(token)} p {_probability(p, token)} q {_probability(q, token)}"
        for token in tokens.values()
    )
    return listed or "-"


def _by_token(candidates: tuple[Candidate, ...]) -> dict[int, float]:
    return {one.token.token_id: one.probability for one in candidates}


def _probability(of: dict[int, float], token: Token) -> str:
    return f"{of[token.token_id]:.3f}" if token.token_id in of else "-"
