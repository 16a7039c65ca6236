"""How far the target is: what it holds, and the rounds that are in flight. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from outrider.core.draft_line import Line
from outrider.messages import Answer, DraftEnd, Round, Rows, Span
from outrider.speculation import MODEL


@dataclass(slots=True)
class RoundInFlight:
    """A round that the target was asked for, or will be, and the line that its draft is of."""

    round: Round
    length: int  # of the text, the committed and the assumed, before its draft
    line: Line  # as long as the draft; its rows are there under `rejection`
    draft_end: DraftEnd = DraftEnd.OFF
    sent_time: float | None = None  # None until there is a stream to send it on
    draft_busy: bool = False  # the draft worked when it was sent
    draft_source: str = MODEL  # the name of what drafted a line that names no sources
    is_waited_for: bool = True  # the target had nothing to do until it came
    is_answered: bool = False  # once at least
    beside: int = 0  # rows of its decode that were of other branches than the one taken

    @property
    def pending(self) -> int:
        """The token that its prefix ends with."""
        return self.round.prefix.token_ids[-1]

    def walked(self, answer: Answer, committed: Sequence[int]) -> Answer:
        """Return an answer as that of a chain, the way that it took through a round's tree.

        From then on the round's draft is that chain: where the way ends before a leaf, with what
        would have come next. Where the target had written on meanwhile, the answer is of what
        stands below the node that the text led to. A chain's answer is what it was, and so is one
        that is no tree's.
        """
        if not self.round.parents or not self.length <= answer.position <= len(committed):
            return answer
        node = self.round.tree.node_after(committed[self.length : answer.position])
        if node is None:
            return answer
        nodes = self.round.tree.below(node)[: answer.drafted]
        tree, samples = self.round.tree.subtree(node).first(answer.drafted), answer.rows.sampled
        if len(tree) < answer.drafted or len(samples) != len(tree) + 1:
            return answer
        line = tree.line(tree.walk(samples).nodes)
        self.keep_nodes([*self.round.tree.path(node), *(nodes[each] for each in line)])
        self.beside = len(tree) - len(line)
        rows = [answer.rows[place : place + 1] for place in (0, *(each + 1 for each in line))]
        return replace(answer, drafted=len(line), rows=Rows.join(rows))

    def keep_nodes(self, nodes: Sequence[int]) -> None:
        """Keep one path of the round's tree as its draft, a chain."""
        asked, self.line = self.round, self.line.picked(nodes)
        survivals = bytes(asked.survivals[node] for node in nodes) if asked.survivals else b""
        draft = list(self.line.token_ids)
        self.round = replace(asked, draft=draft, survivals=survivals, parents=())

    def sources_of(self, length: int, count: int) -> Sequence[str]:
        """Return who proposed `count` draft tokens after a text of `length` tokens."""
        first = length - self.length
        sources = self.line.sources
        return sources[first : first + count] if sources else [self.draft_source] * count

    def draft_of(self, answer: Answer) -> Sequence[int]:
        """Return the draft tokens that were verified for an answer."""
        first = answer.position - self.length
        return self.round.draft[first : first + answer.drafted] if first >= 0 else ()

    def draft_after(self, committed: Sequence[int]) -> Sequence[int]:
        """Return what is left of its draft after a text that has grown; none if it differs."""
        used = len(committed) - self.length
        agrees = list(self.round.draft[:used]) == list(committed[self.length :])
        return self.round.draft[used:] if agrees else ()

    @property
    def finds_target_idle(self) -> bool:
        """Whether its first answer is of a target that waited for it, and did not write on."""
        return self.is_waited_for and not self.is_answered

    def is_overtaken_by(self, line: Sequence[int], limit: int, committed: Sequence[int]) -> bool:
        """Whether another line after the text is worth a message, `limit` tokens a decode.

        It goes further than what is left of this one, or is another. Or it is surer by now, and
        twice as much of it is worth a decode.
        """
        known = list(self.draft_after(committed))
        goes_further = len(known) <= 2 * limit and list(line[: len(known) + 1]) != known
        return goes_further or (len(known) > 0 and 0 < 2 * self.round.decode_limit <= limit)


@dataclass(slots=True)
class TargetProgress:
    """One target, over all its streams.

    Of the rounds in flight those that were sent ahead assume that the ones before them are
    accepted in full, and the pending token of each is what the one before is assumed to add. Any
    other round takes the place of those before it, as soon as the target reads it.
    """

    is_open: bool = False  # there is a stream
    # Tokens of the text that it holds for sure; 0 on a new stream, below the text's length.
    held: int = 0
    round: int = 0  # the number of the newest round, repeats counted; it rises over all streams
    in_flight: list[RoundInFlight] = field(default_factory=list)  # oldest first
    mirostat_mu: float | None = None  # mirostat's state after the text; None is its own start
    continues: bool = False  # it can write by itself; of the newest stream

    @property
    def is_asked(self) -> bool:
        """Whether there is a round that it was sent and that is not over."""
        return self.is_open and any(each.sent_time is not None for each in self.in_flight)

    def open(self, committed: Sequence[int], continues: bool) -> None:
        """Begin with a stream; it may lead to another replica, or to an old cache."""
        self.is_open, self.continues = True, continues
        self.held = 0
        self.ask_again(committed)

    def note_missing(self, held: int, committed: Sequence[int]) -> None:
        """The oldest round found less of the text than it assumed: ask for it with more."""
        self.held = held if held < self.held else 0
        self.ask_again(committed)

    def is_oldest(self, number: int) -> bool:
        """Return whether a round that failed is the oldest in flight, and nothing took its place.

        If not, it is forgotten, and with it those that assumed something of it.
        """
        numbers = [each.round.number for each in self.in_flight]
        if number not in numbers:
            return False
        index = numbers.index(number)
        failed, later = self.in_flight[index], self.in_flight[index + 1 :]
        if later and not later[0].round.is_ahead:
            self.in_flight = later
        elif index and failed.round.is_ahead:
            del self.in_flight[index:]
        else:
            del self.in_flight[:index]
            return True
        return False

    def answered_by(self, number: int) -> RoundInFlight | None:
        """Return the round of an answer; nothing more comes of those before it."""
        for i, each in enumerate(self.in_flight):
            if each.round.number == number:
                del self.in_flight[:i]
                return each
        return None

    def note_length(self, asked: RoundInFlight, length: int) -> None:
        """Note that the answers to a round reach to a text of `length` tokens."""
        if asked in self.in_flight[:1] and length >= asked.round.continue_until:
            del self.in_flight[0]

    def ask_again(self, committed: Sequence[int]) -> None:
        """Ask for the oldest round anew; what was asked after it is forgotten."""
        if self.in_flight:
            oldest = self.in_flight[0]
            if oldest.round.parents:  # a target that did not take it takes a chain
                oldest.keep_nodes(oldest.round.tree.line(()))
            if oldest.length != len(committed):
                oldest = _without_draft(oldest, len(committed))
            oldest.is_waited_for, oldest.is_answered = True, False
            oldest.round = replace(
                oldest.round,
                number=self.next_number(),
                prefix=self.prefix(committed),
                is_ahead=False,
            )
            oldest.sent_time = None
            self.in_flight = [oldest]

    def next_number(self) -> int:
        """Return the number of a round that is asked now."""
        self.round += 1
        return self.round

    def prefix(self, committed: Sequence[int]) -> Span:
        """Return what the target needs of the text before it can verify what follows it."""
        return Span(self.held, committed[self.held :])

    def keep_what_follows(self, is_whole: bool, next_token_id: int) -> None:
        """Drop the rounds sent ahead unless they assumed just what came of the oldest round."""
        for later in self.in_flight[1:2]:
            if later.round.is_ahead and not (is_whole and next_token_id == later.pending):
                del self.in_flight[1:]


def _without_draft(asked: RoundInFlight, length: int) -> RoundInFlight:
    """Return a round that asks only for what follows a text that has grown since."""
    bare = replace(asked.round, draft=(), survivals=b"", decode_limit=0)
    return RoundInFlight(bare, length, Line(), asked.draft_end)
