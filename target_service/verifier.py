"""Decodes a prefix with its draft in one pass and turns the logits into rows. Its one job."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count, islice, takewhile
from operator import eq
from typing import Any

from outrider.core.acceptance import DraftToken, block_samples
from outrider.costs import MOST_REDONE
from outrider.distribution import Distribution, Race, logprobs, most_probable, softmax, winners
from outrider.engine.guesser import Guess, Guesser, guesser
from outrider.engine.hidden_rows import Rows as HiddenRows
from outrider.engine.hidden_rows import pack
from outrider.engine.job import JobSteps, Lease, Step
from outrider.engine.model import Model, Row, Sampler
from outrider.engine.own_draft import DraftAsk, OwnDraft
from outrider.engine.sampler_state import SamplerTracker
from outrider.engine.workers import Work
from outrider.errors import InvalidRequest, RoundSuperseded
from outrider.messages import (
    MAX_DRAFT,
    MAX_SCORES,
    Answer,
    Candidates,
    Form,
    Logprobs,
    OwnTokens,
    Round,
    Rows,
    Rule,
    ServiceTime,
    SessionParameters,
    check_room,
    compose,
)
from outrider.noise import Purpose, uniform
from outrider.row_window import NO_ROWS, RowWindow
from outrider.trees import ROOT, Tree, Walk
from target_service.tree_rounds import tree_after


def _added(draft: Sequence[int], sampled: Sequence[int]) -> list[int]:
    """Return what a round of sampled ids adds to the text: the agreeing draft and one more."""
    if not draft:
        return list(sampled[:1])
    accepted = sum(takewhile(bool, map(eq, draft, sampled)))
    return list(sampled[: accepted + 1])


def _part(round_: Round, used: int, room: int | None = None) -> tuple[Sequence[int], list[float]]:
    """Return the draft tokens for the next decode, and what each of them is expected to add.

    The first `used` of the round's are part of the text by now; `room` is for so many at most.
    """
    if used >= len(round_.draft):
        return (), []
    limit = round_.decode_limit or len(round_.draft)
    part = slice(used, used + (limit if room is None else min(limit, max(0, room))))
    survivals = round_.survivals[part]
    certain = round_.survivals[used - 1] if used and survivals else 255
    return round_.draft[part], [min(1.0, each / max(1, certain)) for each in survivals]


def _used(draft: Sequence[int], used: int, added: Sequence[int]) -> int:
    """Return how many draft tokens the text has once this was added to it; all if they differ."""
    end = used + len(added)
    return end if list(draft[used:end]) == list(added) else len(draft)


def _answer(
    round_: Round,
    position: int,
    draft: Sequence[int],
    guesses: Sequence[Guess],
    rows: Rows,
    spent: ServiceTime,
    hidden: RowWindow,
) -> Answer:
    """Return what a decode answers; its draft is the round's, or of guesses of the engine's own."""
    if not guesses:
        return Answer(round_.number, position, len(draft), rows, (), spent, hidden)
    own = OwnTokens(draft, bytes(guess.confidence for guess in guesses), spent)
    return Answer(round_.number, position, 0, rows, [own], spent, hidden)


def score(
    lease: Lease, token_ids: list[int], top_count: int
) -> Generator[Step, list[Row], list[Logprobs]]:
    """Return what the model says of each next token of a text: one list less than tokens.

    Raises ContextExhausted.
    """
    check_room(len(token_ids), lease.capacity)
    lease.keep(0)
    scores: list[Logprobs] = []
    for first in range(0, len(token_ids), MAX_SCORES):
        part = token_ids[first : first + MAX_SCORES]
        rows = yield Step(part, len(part))
        followers = token_ids[first + 1 : first + 1 + len(part)]
        scores += [
            logprobs(softmax(row), top_count, [token_id])
            for row, token_id in zip(rows, followers, strict=False)
        ]
    return scores


def _run_races(races: Sequence[Sequence[Race]]) -> list[Rows]:
    """Return what is drawn for each of several sessions."""
    drawn = iter(winners([race for its_races in races for race in its_races]))
    return [Rows(sampled=list(islice(drawn, len(its_races)))) for its_races in races]


def _own_guesser(draft: OwnDraft | None, opening: SessionParameters) -> Guesser | None:
    """Return what picks the tokens of the engine's own draft; None where none can or may.

    What a session asks of sampling may not go with the draft's own vocabulary.
    """
    if draft is None:
        return None
    with suppress(InvalidRequest):
        return guesser(draft.model, opening, None, 0.0, draft.translation)
    return None


Emit = Callable[[Answer], None]
"""Takes what one decode answered; its time is the engine's since the answer before it."""

KeptRows = Callable[[int], tuple[int, HiddenRows]]
"""Returns the hidden rows that are kept of a sequence, and the position of the first."""


class Verifier:
    """Verifies the rounds of one session, with its sampler and its noise.

    Raises InvalidRequest for sampling parameters that do not go with the model.
    """

    def __init__(
        self,
        model: Model,
        opening: SessionParameters,
        draft: OwnDraft | None = None,
        kept_rows: KeptRows | None = None,
    ) -> None:
        """`draft` is the engine's own, None where it has none; so are hidden rows."""
        sampler = model.sampler(opening.sampling, opening.seed, opening.choice)
        self._tracker = SamplerTracker(sampler, opening.prompt_count)
        self._plain: Sampler = sampler  # its state is that of an empty text
        self._opening = opening
        self._guess = _own_guesser(draft, opening)
        self._kept_rows = kept_rows
        self._rows_end = 0  # position up to which hidden rows were sent; not beyond what is held
        # The text after the newest answer of sampled ids; empty before the first.
        self._decided: list[int] = []
        self._continued = False  # the newest round allowed to write beyond its own answer
        self._mirostat_mu: float | None = None  # after `_decided`; None without mirostat
        # Whether a sampled row is its token alone, with any text before it.
        self._is_simple = not (
            sampler.has_state
            or sampler.mirostat_mu is not None
            or opening.candidate_count
            or opening.logprobs is not None
        )
        dropped = len(opening.dropped.token_ids)
        self._longest = opening.prompt_count + opening.token_limit - dropped  # text by itself
        self.cached_count: int | None = None
        """Tokens of the first round's prefix that were held; None before it."""

    @property
    def most_held(self) -> int:
        """The tokens that the session may hold: its text, and drafts beyond its end."""
        return self._longest + MAX_DRAFT

    def verify(self, lease: Lease, round_: Round, emit: Emit) -> JobSteps:
        """Emit the rows after the prefix's last token and after each draft token.

        They are fewer where a shared decode left draft tokens out, or where nothing may follow one.
        Then continue with what was sampled, as far as the round allows it, and emit that too; a
        later round of the session takes over between two decodes.

        Raises PositionPastCache and ContextExhausted, and RoundSuperseded for
        a round that was sent ahead and rests on what did not come.
        """
        text, used = self._start(lease, round_)
        if used is None:
            return
        until = min(round_.continue_until, self._longest)
        self._continued = round_.continue_count > 0
        is_tree = bool(round_.parents)
        if is_tree:
            added = yield from self._verify_tree(lease, round_, text, emit)
            if self._is_over(text, added, until, lease.capacity):
                return
            round_, used = replace(round_, draft=(), survivals=b"", parents=()), 0
        check_room(len(text) + len(_part(round_, used)[0]), lease.capacity)
        draft, gains = _part(round_, used, lease.capacity - len(text))
        missing = lease.reconcile([*text, *draft], len(draft) + 1)
        if self.cached_count is None:
            self.cached_count = min(len(lease.held), len(text))
        gives_way = is_tree
        for decode in count():
            guesses: Sequence[Guess] = ()
            # After a rejection some kinds of memory have a few accepted tokens to decode again.
            is_at_end = len(missing) <= (1 + MOST_REDONE if decode else 1)
            if is_at_end and not draft and round_.own_draft.count:
                guesses = yield from self._ask_draft(round_, text, lease.capacity, gives_way)
                draft = [guess.token_id for guess in guesses]
                missing = [*missing, *draft]
            begin = len(text) + len(draft) - len(missing)
            drawn = [DraftToken(g.token_id, g.row) for g in guesses if g.row is not None]
            # What was drawn is judged: nothing that its values might delay takes its place.
            logits = yield Step(missing, len(draft) + 1, gains, gives_way and not drawn)
            rows = yield self._work(logits, text, draft[: len(logits) - 1], round_.form, drawn)
            draft, guesses = draft[: len(rows) - 1], guesses[: len(rows) - 1]
            position, added = len(text), _added(draft, rows.sampled)
            text += added
            hidden = self._hidden(lease, round_, begin, len(text) - 1 if added else None)
            self._decided = text
            if rows.mirostat_mus:
                self._mirostat_mu = rows.mirostat_mus[len(added) - 1]
            lease.pause()
            spent = lease.take_spent()
            used = _used(round_.draft, used, added)
            emit(_answer(round_, position, draft, guesses, rows, spent, hidden))
            if self._is_over(text, added, until, lease.capacity):
                if rows.sampled and lease.keeps_checkpoints:
                    # An idle session's is of its text. Elsewhere the next span says what is cut.
                    lease.keep(len(text) - 1)
                return
            draft, gains = _part(round_, used, lease.capacity - len(text))
            held = lease.keep(len(text) - 1)  # all but the last is held, unless a window lost it
            missing, gives_way = [*text[held:], *draft], True

    def _hidden(self, lease: Lease, round_: Round, begin: int, end: int | None) -> RowWindow:
        """Return hidden rows up to a position that were not sent yet; None: all of the decode's.

        What it decoded, from `begin` on, took the place of what may have been sent.
        """
        sequence = lease.session.sequence
        if not round_.wants_rows or self._kept_rows is None or sequence is None:
            return NO_ROWS
        first, rows = self._kept_rows(sequence)
        since = max(first, min(self._rows_end, begin))
        rows = rows[since - first : None if end is None else max(0, end - first)]
        self._rows_end = since + len(rows)
        return pack(since, rows)

    def _ask_draft(
        self, round_: Round, text: Sequence[int], capacity: int, gives_way: bool
    ) -> Generator[DraftAsk, list[Guess], Sequence[Guess]]:
        """Return what the engine's own draft adds to a text, as far as the round wants that.

        Under `rejection` nothing that looks at a drafted token ends it.
        """
        room = min(self._longest - 1, capacity) - len(text)
        wanted = min(round_.own_draft.count, room)
        if self._guess is None or wanted <= 0 or round_.form is not Form.SAMPLED:
            return ()
        if self._opening.rule is Rule.REJECTION:
            return (yield DraftAsk(text, wanted, self._guess, gives_way=gives_way))
        ends = self._opening.end_token_ids
        stop_below = round_.own_draft.stop_below
        return (yield DraftAsk(text, wanted, self._guess, stop_below, ends, gives_way))

    def _verify_tree(
        self, lease: Lease, round_: Round, text: list[int], emit: Emit
    ) -> Generator[Step | Work, Any, list[int]]:
        """Emit the rows of a tree after the text, and add to that what they accept; return it."""
        check_room(len(text), lease.capacity)
        tree, gains = tree_after(round_, text, lease.capacity - len(text))
        missing = lease.reconcile([*text, *tree.token_ids], len(tree) + 1)
        if self.cached_count is None:
            self.cached_count = min(len(lease.held), len(text))
        begin = len(text) + len(tree) - len(missing)
        logits = yield Step(missing, len(tree) + 1, gains, False, tree.parents)
        verified = tree.first(len(logits) - 1)
        walk, rows = yield Work(partial(self._walk, logits, text, verified))
        position, accepted = len(text), tree.tokens(walk.nodes)
        if len(verified):
            lease.follow(accepted)
        added = [*accepted, walk.next_token_id]
        text += added
        self._decided = text
        if rows.mirostat_mus:
            self._mirostat_mu = rows.mirostat_mus[(walk.nodes or [ROOT])[-1] + 1]
        hidden = self._hidden(lease, round_, begin, position)
        lease.pause()
        emit(Answer(round_.number, position, len(rows) - 1, rows, (), lease.take_spent(), hidden))
        return added

    def _walk(self, logits: list[Row], text: Sequence[int], tree: Tree) -> tuple[Walk, Rows]:
        """Read the rows along the path that the samples take; return it, and a row for every node.

        A node that the samples do not lead to has the row of the one that it follows: nobody
        looks at it. So one sampler does for all branches, and no row is sampled in vain. Where
        nothing at all may follow a node, it is left out with all later ones: the text may end
        there. If it does not, the next decode's first row says so.
        """
        text = self._opening.whole(text)
        sampler, nodes = self._sampler(text), list[int]()
        known: dict[int, Rows] = {}
        last: int | None = ROOT
        while last is not None:
            try:
                row = self._sampled(logits[last + 1], sampler, len(text) + len(nodes))
            except InvalidRequest:
                if last == ROOT:
                    raise
                tree = tree.first(nodes.pop())
                break
            known[last], [token_id] = row, row.sampled
            last = tree.child(last, token_id)
            nodes += [] if last is None else [last]
        rows = [known[ROOT]]
        rows += (known.get(node, rows[parent + 1]) for node, parent in enumerate(tree.parents))
        return Walk(nodes, token_id), Rows.join(rows)

    def _sampled(self, row: Row, sampler: Sampler, position: int) -> Rows:
        """Sample the row of a position, and advance the sampler by that."""
        distribution = sampler.distribution(row)
        token_id = distribution.race(self._opening.seed, self._opening.choice, position)[0]
        if sampler.has_state:
            sampler.accept(token_id)
        return self._row(row, distribution, token_id, sampler.mirostat_mu)

    def _start(self, lease: Lease, round_: Round) -> tuple[list[int], int | None]:
        """Return the text to continue from, and how many of the draft's tokens it has already.

        Where this target continued by itself, a round may have been sent before that was known;
        then the text is what was written. None instead of a count: that has ended.
        """
        prefix = compose(lease.held, round_.prefix)
        if round_.is_ahead:
            self._check_premise(prefix)
        written = self._decided
        # Under `rejection` it is never written again: that would be another text.
        stands = self._opening.rule is Rule.REJECTION or len(lease.held) >= len(written) - 1
        if not (self._continued and stands and written[: len(prefix)] == prefix):
            self._mirostat_mu = round_.mirostat_mu
            return prefix, 0
        overtaken = written[len(prefix) :]
        if self._ends(overtaken):
            return written, None
        return written, _used(round_.draft, 0, overtaken)

    def _is_over(
        self, text: Sequence[int], added: Sequence[int], until: int, capacity: int
    ) -> bool:
        """Whether a text that has just grown is not continued without a further message."""
        return len(text) >= until or len(text) > capacity or self._ends(added)

    def _ends(self, token_ids: Iterable[int]) -> bool:
        """Whether the text ends among some tokens."""
        return not self._opening.end_token_ids.isdisjoint(token_ids)

    def _check_premise(self, prefix: list[int]) -> None:
        """Spare the engine a round that rests on another answer than was given.

        Where ids are sampled here, that answer alone says what is accepted.
        """
        count = min(len(self._decided), len(prefix))
        if self._decided[:count] != prefix[:count]:
            raise RoundSuperseded("the answer before it is another than it assumes")

    def _work(
        self,
        logits: list[Row],
        text: list[int],
        draft: Sequence[int],
        form: Form,
        drawn: Sequence[DraftToken] = (),
    ) -> Work:
        """Return the work that reads rows off the logits, the first one after the text.

        Under `rejection` the draft may be one that was `drawn` here, and is judged.
        """
        if drawn:
            return Work(partial(self._judge, logits, text, drawn))
        if self._is_simple and form is Form.SAMPLED:
            if self._opening.sampling.greedy:
                return Work(partial(self._best, logits))
            return Work(partial(self._races, logits, len(text)), _run_races)
        return Work(partial(self._rows, logits, text, draft, form))

    def _rows(self, logits: list[Row], text: list[int], draft: Sequence[int], form: Form) -> Rows:
        """Read rows off the logits, the first one after the text; see `_walk` and `_targets`."""
        if form is Form.LOGITS:
            return Rows(
                logits=[row.tobytes() for row in logits],
                candidates=[self._candidates(row, self._plain.distribution(row)) for row in logits]
                if self._opening.candidate_count
                else (),
            )
        if form is Form.SAMPLED:
            return self._walk(logits, text, Tree.chain(draft))[1]
        targets, count = self._targets(logits, text, draft)
        rows = [self._row(*each) for each in zip(logits, targets, strict=False)]
        return Rows.join(rows + rows[-1:] * (count - len(rows)))

    def _best(self, logits: list[Row]) -> Rows:
        """Return what is certain after each row at temperature 0."""
        return Rows(sampled=[int(self._plain.distribution(row).token_ids[0]) for row in logits])

    def _races(self, logits: list[Row], length: int) -> list[Race]:
        """Return the race of each row; the first one follows a text of `length` tokens."""
        opening, distribution = self._opening, self._plain.distribution
        first = length + len(opening.dropped.token_ids)
        return [
            (distribution(row), opening.seed, opening.choice, first + i)
            for i, row in enumerate(logits)
        ]

    def _targets(
        self, logits: list[Row], text: Sequence[int], draft: Sequence[int]
    ) -> tuple[list[Distribution], int]:
        """Return the distributions of rows, the first one after the text, and the rows to answer.

        After a draft token that a state forbids the last row is repeated: nobody looks at it. Rows
        end after a draft token that nothing at all may follow: the text may end there.
        """
        sampler = self._sampler(self._opening.whole(text))
        targets = [sampler.distribution(logits[0])]
        for token_id, row in zip(draft, logits[1:], strict=True):
            if sampler.has_state and targets[-1].probability(token_id) == 0:
                break
            try:
                if sampler.has_state:
                    sampler.accept(token_id)
                targets.append(sampler.distribution(row))
            except InvalidRequest:
                return targets, len(targets)
        return targets, len(logits)

    def _row(
        self,
        row: Row,
        distribution: Distribution,
        token_id: int | None = None,
        mu: float | None = None,
    ) -> Rows:
        """Return one row, with all that is reported of it: that of a token, if it was sampled."""
        return Rows(
            sampled=() if token_id is None else [token_id],
            distributions=[distribution] if token_id is None else (),
            candidates=[self._candidates(row, distribution)]
            if self._opening.candidate_count
            else (),
            logprobs=self._logprobs(
                row, distribution, distribution.token_ids if token_id is None else [token_id]
            ),
            mirostat_mus=() if mu is None else [mu],
        )

    def _judge(self, logits: list[Row], text: Sequence[int], draft: Sequence[DraftToken]) -> Rows:
        """Return the rows after a text and each token of a draft that was drawn under `rejection`.

        Their samples agree with the draft as far as the rule accepts it.
        """
        opening, first = self._opening, len(self._opening.whole(text))
        targets, count = self._targets(logits, text, [token.token_id for token in draft])

        def coin(purpose: Purpose, index: int) -> float:
            return uniform(opening.seed, opening.choice, purpose, first, first + index)

        samples = block_samples(draft, targets, coin)
        rows = [self._row(*each) for each in zip(logits, targets, samples, strict=False)]
        return Rows.join(rows + rows[-1:] * (count - len(rows)))

    def _sampler(self, text: Sequence[int]) -> Sampler:
        """Return a sampler after the text that may be advanced over the draft."""
        sampler = self._tracker.at(text, len(text))
        if sampler.has_state:
            sampler = sampler.clone()
        if self._mirostat_mu is not None:
            sampler.mirostat_mu = self._mirostat_mu
        return sampler

    def _candidates(self, row: Row, distribution: Distribution) -> Candidates:
        greedy = self._opening.sampling.greedy
        return most_probable(
            softmax(row) if greedy else distribution, self._opening.candidate_count
        )

    def _logprobs(
        self, row: Row, distribution: Distribution, wanted: Iterable[int]
    ) -> Sequence[Logprobs]:
        options = self._opening.logprobs
        if options is None:
            return ()
        return [
            logprobs(
                distribution if options.after_sampling else softmax(row), options.top_count, wanted
            )
        ]
