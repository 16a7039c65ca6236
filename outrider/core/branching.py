"""Which draft tokens to have verified as a tree, and whether a chain is worth more. Pure.

Under `match` and `shared-noise` a token is accepted if the target's own sample says it, so several
candidates after one token need no rule of their own: at most one of them is right. A tree is then
best where its nodes are those most likely to be reached (EAGLE-2's rule, 2406.16858), and worth
what they add less what the target makes in the time of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from outrider.core.control import CLEARLY, Control
from outrider.core.draft_line import ForkedLine, Line
from outrider.core.local_drafters import LocalDrafters
from outrider.core.remote_draft import RemoteDraft
from outrider.core.target_progress import RoundInFlight
from outrider.messages import Form
from outrider.trees import MAX_LEAVES, ROOT, Tree


@dataclass(frozen=True, slots=True)
class Chain:
    """Tokens that may follow the text, and the chance of each if those before it stand."""

    token_ids: Sequence[int]
    chances: Sequence[float]


@dataclass(frozen=True, slots=True)
class Grown:
    """A tree in falling order of `survivals`, the chance of each node that it is accepted.

    `origins` says for each node which chain proposed it, and which of its tokens it is.
    """

    tree: Tree
    survivals: Sequence[float]
    origins: Sequence[tuple[int, int]]


@dataclass(slots=True)
class _Node:
    """A token as the tree is put together."""

    token_id: int
    parent: int
    survival: float
    origin: tuple[int, int]
    left: float = 1.0  # the chance that what follows is none of the nodes that follow already


def grow(chains: Sequence[Chain], most: int, leaf_limit: int = MAX_LEAVES) -> Grown:
    """Return the tree of the nodes most likely to be reached, of all that the chains say.

    The first chain is the best. One that parts from those before it is right where they are not:
    its chance is of what they leave.
    """
    nodes: list[_Node] = []
    roots = _Node(-1, ROOT, 1.0, (-1, -1))
    for number, chain in enumerate(chains):
        _add(nodes, roots, number, chain)
    order = _best_first(nodes, min(most, len(nodes)), leaf_limit)
    places = {ROOT: ROOT} | {node: place for place, node in enumerate(order)}
    return Grown(
        Tree([nodes[i].token_id for i in order], [places[nodes[i].parent] for i in order]),
        [nodes[i].survival for i in order],
        [nodes[i].origin for i in order],
    )


def _add(nodes: list[_Node], root: _Node, number: int, chain: Chain) -> None:
    last = ROOT
    for i, (token_id, chance) in enumerate(zip(chain.token_ids, chain.chances, strict=True)):
        known = next(
            (k for k, n in enumerate(nodes) if n.parent == last and n.token_id == token_id), None
        )
        if known is None:
            before = root if last == ROOT else nodes[last]
            share = chance * before.left
            before.left -= share
            known = len(nodes)
            nodes.append(_Node(token_id, last, before.survival * share, (number, i)))
        last = known


def _best_first(nodes: Sequence[_Node], most: int, leaf_limit: int) -> list[int]:
    """Return the nodes by falling survival, each after its parent, with so many leaves at most."""
    order: list[int] = []
    taken = {ROOT}
    followed: set[int] = set()  # nodes that a taken one follows
    leaves = 1  # the text itself, before anything follows it
    for i in sorted(range(len(nodes)), key=lambda i: (-nodes[i].survival, i)):
        parent = nodes[i].parent
        is_fork = parent in followed
        if len(order) == most:
            break
        if parent not in taken or (is_fork and leaves == leaf_limit):
            continue
        leaves += is_fork
        taken.add(i)
        followed.add(parent)
        order.append(i)
    return order


def best_count(
    survivals: Sequence[float], round_seconds: Callable[[int], float], rate: float
) -> tuple[int, float]:
    """Return how many of the nodes are best verified, and what that is worth, in tokens.

    That is what they add and one more, less what is made in the time at `rate` tokens a second;
    `round_seconds` is the time of a round with so many draft tokens. None of them: a plain round.
    """
    best, worth, tokens = 0, 1.0 - rate * round_seconds(0), 1.0
    for count, survival in enumerate(survivals, 1):
        tokens += survival
        value = tokens - rate * round_seconds(count)
        if value > worth:
            best, worth = count, value
    return best, worth


def as_bytes(chances: Iterable[float]) -> bytes:
    """Return chances as a round carries them: one byte each, in 1/255."""
    return bytes(int(255 * each) for each in chances)


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
    own, length = asked.line, asked.length
    line, forks, others = draft.line_at(length), draft.forks_at(length), local.lines(length)
    lines = [own, line, *(each.line for each in forks), *(each.line for each in others)]
    chains = [
        Chain(round_.draft, _chances(round_.survivals)),
        Chain(line.token_ids, _chances_of(control, line)),
        *(Chain(each.line.token_ids, _chances_of_fork(control, each)) for each in forks),
        *(Chain(each.line.token_ids, each.chances) for each in others),
    ]
    grown = _best(control, chains, len(round_.draft), leaves)
    if grown is not None:
        _put_in_place(asked, grown, lines)


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
    control: Control, chains: Sequence[Chain], chain_count: int, leaf_limit: int
) -> Grown | None:
    """Return the tree that is best verified; None where the chain of so many tokens is as good."""
    rate = max(control.forecast.rate, control.rate)
    seconds = control.round_seconds
    grown = grow(chains, control.speculation.local_n_max, leaf_limit)
    count, worth = best_count(grown.survivals, seconds, rate)
    chain = grow(chains[:1], chain_count).survivals
    least = CLEARLY * (1.0 + sum(chain)) - rate * seconds(chain_count)
    tree = grown.tree.first(count)
    if tree.is_chain or worth < least or not control.costs.table.is_known(count + 1):
        return None
    return Grown(tree, grown.survivals[:count], grown.origins[:count])


def _put_in_place(asked: RoundInFlight, grown: Grown, lines: Sequence[Line]) -> None:
    """Put a tree in place of a round's draft."""
    asked.line = _as_line(grown, lines, asked.draft_source)
    asked.round = replace(
        asked.round,
        draft=list(grown.tree.token_ids),
        parents=list(grown.tree.parents),
        survivals=as_bytes(grown.survivals),
        decode_limit=0,
    )


def _as_line(grown: Grown, lines: Sequence[Line], draft_source: str) -> Line:
    """Return a tree's tokens one after the other, with what is known of each in its own line.

    Confidences and candidates are the draft's, and so only there where all tokens are.
    """
    picked = [(lines[number], i) for number, i in grown.origins]
    sources = [line.sources[i] if line.sources else draft_source for line, i in picked]
    numbers = [line.numbers[i] if line.numbers else 0 for line, i in picked]
    is_drafts = all(each == draft_source for each in sources)
    is_reported = is_drafts and all(line.candidates for line, _ in picked)
    return Line(
        grown.tree.token_ids,
        confidences=[line.confidences[i] for line, i in picked] if is_drafts else (),
        candidates=[line.candidates[i] for line, i in picked] if is_reported else (),
        sources=() if is_drafts else sources,
        numbers=numbers if any(numbers) else (),
    )
