"""Carries out what a generation asks: two streams, two deadlines, one event after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.core.acceptance import drew_as_keyed
from orchestrator.core.actions import Action, Commit, End, RollBack, SendOrder, SendRound, Wake
from orchestrator.core.allowance import Allowance
from orchestrator.core.estimates import PairEstimates
from orchestrator.core.generation import Generation
from orchestrator.core.silence import LOOK_SECONDS, Fate
from orchestrator.core.target_faults import MOST_FAILURES, MOST_FAULTS, TargetFaults
from orchestrator.link import Backoff, Link
from orchestrator.own_prompts import OwnPrompts
from orchestrator.paired_drafts import DraftPeer, PairedDraft
from orchestrator.peers import Hosted, Peer
from orchestrator.pool import Pool, Stay
from orchestrator.sent_rounds import Arrival, SentRounds
from orchestrator.streams import SessionStream, StreamLost
from orchestrator.target_watch import TargetWatch
from orchestrator.targets import PooledTarget
from orchestrator.timings import Timings
from outrider import wire
from outrider.errors import DeadlinePassed, DecodeFailed, InvalidRequest, PeerUnavailable
from outrider.messages import Order, Round, Rule, SessionParameters
from outrider.noise import draft_seed
from outrider.v1 import draft_service_pb2, target_service_pb2
from outrider.wire_checks import within

_RETRY_SECONDS = 0.1
_MOST_EVENTS = 256  # that wait until committed text was taken; then peers are read no further
_BUSY_SECONDS = 0.01  # at least, before a round is asked again


class Driver:
    """Runs one generation over a pool. `run` is used once."""

    def __init__(
        self,
        generation: Generation,
        pool: Pool,
        deadline: float,
        own_prompts: OwnPrompts | None = None,
    ) -> None:
        """With `own_prompts` a draft reads the conversation in its own template."""
        self.timings = Timings(time.perf_counter())
        self._generation = generation
        self._opening: SessionParameters = generation.plan.opening
        self._pool = pool
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        # What happened and was not handled yet, oldest first.
        self._events: list[Callable[[], None]] = []
        # For the reader of `run`; nothing advances while there are any.
        self._untaken: list[Commit | End] = []
        self._news = asyncio.Event()  # set when there is something untaken, or a failure
        self._advancing = False  # `_advance` runs; what happens meanwhile only joins `_events`
        self._timers: set[asyncio.TimerHandle] = set()  # that have not fired; none outlives `run`
        self._target: Link | None = None  # the newest stream; None before the first
        self._stay: Stay | None = None  # at the target of that stream, until it is lost
        self._is_at_first = True  # target: nothing was read at another one before
        self._draft: Link | None = None  # the same
        self._lease: PairedDraft | None = None  # the draft of that stream, until it is given back
        self._is_put_off = False  # the stream to it is not opened: the target drafts by itself
        self._own_prompts = own_prompts
        # Renders the prompt of the draft that is leased; its stream is opened after that.
        self._rendering: asyncio.Task[None] | None = None
        self._watch = TargetWatch(generation.plan.target_seconds)
        self._refusing: list[DraftPeer] = []  # drafts that cannot serve this generation
        self._target_backoff, self._draft_backoff = Backoff(), Backoff()
        self._faults = TargetFaults[PooledTarget]()
        self._allowance = Allowance()  # of the draft's stream
        self._failure: Exception | None = None  # ends `run`; set once
        form, vocabulary = generation.plan.form, self._opening.vocabulary
        self._sent = SentRounds(form, vocabulary, self.timings, generation.plain_share)
        self._wake: asyncio.TimerHandle | None = None  # for the newest Wake; the one before is void
        self._closed_bytes = 0  # over links that are closed

    async def run(self) -> AsyncGenerator[Commit | End]:
        """Yield what is committed and, last, the end.

        Raises PeerUnavailable when the target is away until the deadline.
        """
        self._after(self._deadline - time.monotonic(), self._note_deadline)
        self._look_at_target()
        self._open_target()
        self._open_draft()
        try:
            async for event in self._rounds():
                if isinstance(event, End):
                    self._tidy_up()  # before the end is taken: nothing is asked for after it
                yield event
        finally:
            self._close()

    async def _rounds(self) -> AsyncIterator[Commit | End]:
        self._advance()
        while True:
            await self._news.wait()
            self._news.clear()
            if self._failure is not None:
                raise self._failure
            for event in self._untaken:
                self.timings.note_commit(time.perf_counter())
                yield event
                if isinstance(event, End):
                    return
            self._untaken.clear()
            self._advance()

    def _happen(self, event: Callable[[], None]) -> None:
        """Let an event happen, in turn with all others."""
        self._events.append(event)
        self._advance()

    def _advance(self) -> None:
        """Handle what happened and carry out what follows, on news of any kind.

        One at a time; and not while committed text waits to be taken, because
        its reader may end the generation there. Nothing is awaited here: what
        a peer does or leaves undone holds nobody up.
        """
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._failure is None and not self._untaken:
                # One at a time: a reader may end the text at what any of them commits.
                if self._events:
                    self._events.pop(0)()
                self._act()
                if not self._events:
                    break
        except Exception as error:
            self._failure = error
        finally:
            self._advancing = False
        if self._untaken or self._failure is not None:
            self._news.set()

    def _act(self) -> None:
        """Carry out what the generation asks; work for the models goes out before text."""
        untaken = []
        self._forget_timer(self._wake)
        if self._is_put_off and self._generation.plan.control.needs_stream:
            self._give_back_draft()
            self._open_draft()
        for action in self._generation.next_actions(time.perf_counter()):
            if isinstance(action, Commit | End):
                untaken.append(action)
            else:
                self._carry_out(action)
        if self._generation.waits_for_draft:
            self._sent.note_draft_wait(time.perf_counter())
        self._untaken += untaken

    # --- out ---

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, SendOrder):
            self._send_order(action.order)
        elif isinstance(action, SendRound):
            self._send_round(action.round)
        elif isinstance(action, Wake):
            self._wake = self._after(action.time - time.perf_counter(), lambda: None)
        elif isinstance(action, RollBack):
            self._roll_back(action.token_count, action.round, action.order)

    def _send_order(self, order: Order) -> None:
        if self._draft is not None:
            self._allowance.note_order(order)
            self._draft.send(wire.write_order(order))

    def _send_round(self, round_: Round) -> None:
        self._sent.note_sent(round_, time.perf_counter())
        if self._target is not None:
            self._target.send(wire.write_round(round_))

    def _roll_back(self, token_count: int, round_: int, order: int) -> None:
        """Call Rollback at both services, each before what is sent to it next."""
        for link, peer, number in self._sessions(round_, order):
            link.call(partial(peer.roll_back, link.opening, token_count, number))

    def _sessions(self, round_: int, order: int) -> Iterator[tuple[Link, Peer | DraftPeer, int]]:
        """Yield each stream that is open, whose it is, and the newest number sent on it."""
        if self._target is not None and self._stay is not None:
            yield self._target, self._stay.target.peer, round_
        if self._draft is not None and self._lease is not None:
            yield self._draft, self._lease.peer, order

    # --- streams ---

    def _open_target(self) -> None:
        """Open a stream to a target as soon as one is usable."""
        suspects = (*self._faults.distrusted, *self._watch.stuck)
        if self._pool.target.closed:
            self._failure = PeerUnavailable(self._pool.target.detail)
        elif not (self._open_target_besides(*suspects) or self._open_target_besides()):
            self._after(_RETRY_SECONDS, self._open_target)

    def _open_target_besides(self, *others: PooledTarget) -> bool:
        """Open a stream to the best usable target that is none of the others, if there is one."""
        generation = self._generation
        self._stay = stay = self._pool.stay(generation.committed, self._opening, others)
        if stay is None:
            return False
        self._learn_at(stay.target)
        self._sent.forget()
        opening = self._next_opening(self._target)
        with self.timings.traced():
            stream = stay.target.peer.open(opening)
            self._target = self._link(opening, stream, self._read_target, self._lose_target)
        if not self._is_at_first:  # nobody reports what it takes to read the text again
            self._after(stay.read_seconds, stay.forget_unread)
        generation.target_opened(self._estimates_at(stay.target).continues)
        return True

    def _learn_at(self, target: PooledTarget) -> None:
        """Go by what is known of this target from now on, if it is another one."""
        control = self._generation.plan.control
        if self._pool.is_single or control.estimates.costs is target.alone.costs:
            return
        control.note_draft(self._estimates_at(target))

    def _estimates_at(self, target: PooledTarget) -> PairEstimates:
        """Return what is known of a target and the draft in use, or the one that would be."""
        if self._lease is not None:
            return self._lease.estimates_beside(target)
        return self._pool.estimates_at(target)

    def _open_draft(self) -> None:
        """Open a stream to the best draft as soon as one is usable."""
        if not self._generation.plan.control.speculation.drafts:
            return
        if self._pool.may_have_draft and not self._open_draft_besides(*self._refusing):
            self._after(_RETRY_SECONDS, self._open_draft)

    def _open_draft_besides(self, *others: DraftPeer) -> bool:
        """Open a stream to the best usable draft that is none of the others, if there is one."""
        target = self._stay.target if self._stay is not None else self._pool.standing
        opening, text = self._opening, self._generation.committed
        self._lease = lease = self._pool.lease(opening.rule, target, others, text, opening.salt)
        if lease is None:
            return False
        draft, control = lease.peer, self._generation.plan.control
        estimates = lease.estimates_beside(target)
        if estimates is not control.estimates:
            control.note_draft(estimates)
        self._is_put_off = not control.needs_stream
        if self._is_put_off:
            return True
        assert draft.hosted is not None
        if self._own_prompts is None:
            self._open_leased(lease, draft.hosted, "")
        else:
            rendering = self._render(self._own_prompts, lease, draft.hosted)
            self._rendering = asyncio.create_task(rendering)
        return True

    async def _render(self, prompts: OwnPrompts, lease: PairedDraft, hosted: Hosted) -> None:
        """Open the stream to a draft once there is what it is to read; meanwhile none drafts."""
        prompt = await prompts.prompt_for(lease)
        self._happen(partial(self._open_leased, lease, hosted, prompt))

    def _open_leased(self, lease: PairedDraft, hosted: Hosted, own_prompt: str) -> None:
        """Open a stream to a draft that is leased, to the model that it hosted."""
        draft = lease.peer
        opening = replace(
            self._next_opening(self._draft),
            model=hosted.reference,
            vocabulary_key=lease.vocabulary_key,
            own_prompt=own_prompt,
        )
        if opening.rule is Rule.REJECTION:
            # A draft that knows the coins can draft what they will accept.
            opening = replace(opening, seed=draft_seed(opening.seed))
        self._allowance = Allowance()
        with self.timings.traced():
            stream = draft.open(opening)
            self._draft = self._link(opening, stream, self._read_draft, self._lose_draft)
        self._generation.draft_opened(hosted.model.context_token_count)

    def _next_opening(self, before: Link | None) -> SessionParameters:
        """Return what a new stream opens with, after the one before was lost."""
        if before is None:
            return replace(self._opening, attempt=1)
        self._closed_bytes += before.byte_count
        return replace(self._opening, attempt=before.opening.attempt + 1)

    def _link(
        self,
        opening: SessionParameters,
        stream: SessionStream,
        read: Callable[[Any], None],
        lose: Callable[[Link, StreamLost], None],
    ) -> Link:
        """Return a link whose messages, and whose end, become events."""
        link: Link

        def read_on(message: Any) -> None:
            # What still waits of a stream that was closed is nobody's, least of all the next one's.
            if not link.is_closed:
                read(message)

        link = Link(
            opening,
            stream,
            lambda message: self._happen(partial(read_on, message)),
            lambda: len(self._events) >= _MOST_EVENTS,
            lambda its, lost: self._happen(partial(lose, its, lost)),
        )
        return link

    def _lose_target(self, link: Link, lost: StreamLost) -> None:
        """Continue at another target, or at the same one unless it would refuse again."""
        if link is not self._target or self._stay is None:
            return
        target, estimates = self._stay.target, self._generation.plan.control.estimates
        has_another = self._pool.has_another(self._opening.model, [target])
        if lost.refuses_trees and estimates.tree_leaves:
            estimates.tree_leaves = self._pool.estimates_at(target).tree_leaves = 0
        elif lost.refusal is None and (lost.final or lost.failed):
            what, most = ("refused", MOST_FAULTS) if lost.final else ("failed", MOST_FAILURES)
            self._distrust_target(f"the target {what} the session: {lost}", most)
            return
        elif lost.final and not (has_another and self._faults.doubts(lost.is_changed)):
            self._failure = lost.refusal
            return
        if target.peer.ready and not lost.final:  # else it is known to be away, or another model
            target.conduct.note_fault(time.monotonic())
        self._replace_target()

    def _replace_target(self) -> None:
        """Continue at another target at once; at the lost one, or a third, only after a while."""
        assert self._stay is not None
        lost = self._stay.target
        self._end_stay()
        self._generation.target_lost()
        is_first = not self._target_backoff.tries
        pause = self._target_backoff.next()
        if self._pool.is_single or not (
            is_first and self._open_target_besides(lost, *self._watch.stuck)
        ):
            self._after(pause, self._open_target)

    def _distrust_target(self, fault: str, most: int = MOST_FAULTS) -> None:
        """Go on elsewhere after what no target should do; a few times at the same one, too."""
        assert self._stay is not None and self._target is not None
        target, faults = self._stay.target, self._faults
        target.note_distrusted(fault)
        self._target.close()
        self._end_stay()
        self._generation.target_lost()
        count = faults.note_fault(target, len(self._generation.committed))
        if self._open_target_besides(*faults.distrusted, *self._watch.stuck):
            return
        if self._pool.has_another(self._opening.model, faults.distrusted):
            most = MOST_FAILURES  # it may come
        if count >= most:
            self._failure = DecodeFailed(fault)
        else:
            self._after(self._target_backoff.next(), self._open_target)

    def _look_at_target(self) -> None:
        """See whether the target still works for the round that it has to answer; look again."""
        self._after(LOOK_SECONDS, self._look_at_target)
        generation, stay = self._generation, self._stay
        target, length = stay.target if stay is not None else None, len(generation.committed)
        fate = self._watch.look(generation.waits_for_target, target, length)
        if fate is Fate.WAIT or self._target is None:
            return
        self._target.close()
        if fate is Fate.ASK_AGAIN:
            self._replace_target()
            return
        self._end_stay()
        generation.target_lost()
        if not self._open_target_besides(*self._watch.stuck):
            self._failure = PeerUnavailable(self._watch.reason)

    def _note_busy(self, seconds: float) -> bool:
        """The target has no room for so long; return whether the text continues at another one."""
        assert self._stay is not None and self._target is not None
        target = self._stay.target
        target.note_busy(seconds)
        faults, rounds = self._faults, self._generation.counts.rounds
        if not faults.note_busy(rounds) or not self._pool.has_room(self._opening.model, target):
            return False
        faults.forget_busy(rounds)
        self._target.close()
        self._replace_target()
        return True

    def _end_stay(self) -> None:
        """Give the target back, with what is known of the text that it holds."""
        stay, self._stay = self._stay, None
        if stay is None:
            return
        timings = self.timings
        if self._is_at_first:
            # Later it reads the whole text again, and that is no time of the rounds.
            seconds, decodes = timings.verify_wait - timings.prompt, timings.plain_rounds
            rows = decodes + self._generation.counts.drafted
            stay.note_written(decodes, rows, seconds)
        self._is_at_first = False
        self._pool.end_stay(stay, self._generation.committed, self._opening.salt)

    def _lose_draft(self, link: Link, lost: StreamLost) -> None:
        """Continue with another draft, or with the same one unless it would refuse again."""
        if link is self._draft and self._lease is not None:
            self._generation.draft_lost()
            if lost.breaks_protocol:
                self._lease.pause(str(lost))
            if lost.final and lost.refusal is None:  # else the pair will know its new model
                self._refusing.append(self._lease.peer)
            self._replace_draft()

    def _replace_draft(self) -> None:
        """Lease another draft at once; the lost one, or a third, only after a while."""
        assert self._lease is not None
        lost = self._lease.peer
        self._give_back_draft()
        is_first = not self._draft_backoff.tries
        pause = self._draft_backoff.next()
        if not (is_first and self._open_draft_besides(lost, *self._refusing)):
            self._after(pause, self._open_draft)

    def _give_back_draft(self) -> None:
        if self._lease is not None:
            self._lease.give_back()
            self._lease = None

    def _expel_draft(self, fault: InvalidRequest) -> None:
        """End the stream of a draft that sends what nobody asked for; leave it alone a while."""
        assert self._draft is not None and self._lease is not None
        self._draft.close()
        self._generation.draft_lost()
        self._lease.pause(str(fault))
        self._replace_draft()

    # --- in ---

    def _read_target(self, message: target_service_pb2.VerifyResponse) -> None:
        generation, number = self._generation, message.round
        self._watch.wait.note_word()
        try:
            self.timings.target.add(message.service_time)
        except InvalidRequest as error:
            self._distrust_target(f"the target says what cannot be of its time: {error}")
            return
        outcome = message.WhichOneof("outcome")
        if outcome == "rows":
            self._read_rows(message)
        elif outcome == "missing":
            held = message.missing.held_token_count
            if self._faults.note_missing(generation.target_missing(number, held)):
                self._distrust_target("the target forgets what it is sent again and again")
        elif outcome == "busy":
            delay = message.busy.retry_delay_duration.ToMilliseconds() / 1e3
            if self._pool.is_single or not self._note_busy(delay):
                self._after(max(delay, _BUSY_SECONDS), lambda: generation.target_busy(number))
        elif outcome == "context_full" and self._may_be_full():
            generation.target_full(number)
        elif self._faults.note_dropped():
            self._distrust_target("the target drops what it is sent again and again")
        else:
            self._after(_BUSY_SECONDS, lambda: generation.target_busy(number))

    def _may_be_full(self) -> bool:
        model, length = self._opening.model, len(self._generation.committed)
        return self._pool.may_be_full(model, length, self._generation.plan.target_context)

    def _read_rows(self, message: target_service_pb2.VerifyResponse) -> None:
        """Take in rows; of nonsense nothing is committed."""
        generation, sent = self._generation, self._sent
        try:
            if not sent.expects(message.round):
                return  # a repeat of a round that is over
            now, length = time.perf_counter(), len(generation.committed)
            is_answer = message.HasField("position")
            arrival: Arrival | None = (
                sent.read_answer(message, now)
                if is_answer
                else sent.read_rows(message, now, length)
            )
            self._note_rows(message, arrival)
            if arrival is None:
                return
            answer, spent = arrival.answer, arrival.spent
            if is_answer:
                generation.target_wrote(answer, now, spent, arrival.each)
            else:
                generation.target_rows(answer.round, answer.rows, now, spent)
        except InvalidRequest as error:
            self._distrust_target(f"the target sent rows that cannot be read: {error}")

    def _note_rows(
        self, message: target_service_pb2.VerifyResponse, arrival: Arrival | None
    ) -> None:
        self._faults.note_rows()
        self._target_backoff.reset()
        self._watch.wait.note_rows()
        if not self._generation.counts.rounds:
            cached = message.cached_token_count
            within("cached_token_count", cached, 0, len(self._generation.committed))
            self._generation.target_cached(cached)
        if arrival and arrival.is_prompt and self._stay is not None and self._is_at_first:
            plan, cached = self._generation.plan, self._generation.counts.cached
            self._stay.note_read(len(plan.prompt), cached, arrival.seconds)

    def _read_draft(self, message: draft_service_pb2.DraftResponse) -> None:
        """Take in what the draft sent; one that sends nonsense, or too much, is left alone."""
        try:
            self._allowance.take_message(message.completed_order)
            self._take_draft(message)
        except InvalidRequest as fault:
            self._expel_draft(fault)

    def _take_draft(self, message: draft_service_pb2.DraftResponse) -> None:
        generation, order, draft = self._generation, message.completed_order, self.timings.draft
        work, queue = draft.work, draft.queue
        draft.add(message.service_time)
        outcome = message.WhichOneof("outcome")
        if outcome == "missing":
            self._allowance.take_missing(message.missing.held_token_count)
            generation.draft_missing(order, message.missing.held_token_count)
        elif outcome == "frame":
            frame = wire.read_frame(message, self._opening.vocabulary)
            self._allowance.take_frame(frame)
            if self._opening.rule is Rule.REJECTION and not drew_as_keyed(frame, self._opening):
                raise InvalidRequest("token_ids", "are not the draws from their rows")
            if frame.token_ids:
                self._draft_backoff.reset()
            work, queue = draft.work - work, draft.queue - queue
            generation.draft_frame(frame, time.perf_counter(), work, queue)
        else:
            generation.draft_refused(order)

    # --- time, and the end ---

    def _after(self, seconds: float, event: Callable[[], None]) -> asyncio.TimerHandle:
        """Make `event` happen later, in turn with all others."""

        def fire() -> None:
            self._timers.discard(handle)
            self._happen(event)

        handle = self._loop.call_later(max(0.0, seconds), fire)
        self._timers.add(handle)
        return handle

    def _forget_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
            self._timers.discard(timer)

    def _note_deadline(self) -> None:
        target = self._pool.target
        if target.ready and self._generation.target_ready:
            self._failure = DeadlinePassed("the generation took longer than its deadline")
        else:
            detail = self._pool.detail or f"lost the target at {target.address}"
            self._failure = PeerUnavailable(detail)

    def _tidy_up(self) -> None:
        """Leave clean prefixes, so that the next turn of a chat can reuse them."""
        generation = self._generation
        count = len(generation.committed)
        for link, peer, number in self._sessions(generation.round, generation.order):
            with self.timings.traced():
                task = asyncio.create_task(peer.roll_back(link.opening, count, number))
            _background.add(task)
            task.add_done_callback(_background.discard)

    def _close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._rendering is not None:
            self._rendering.cancel()
        for link in self._links():
            link.close()
        self._end_stay()
        self._give_back_draft()

    def _links(self) -> list[Link]:
        return [link for link in (self._target, self._draft) if link is not None]

    @property
    def wire_bytes(self) -> int:
        """Serialized bytes so far, both ways, both peers."""
        return self._closed_bytes + sum(link.byte_count for link in self._links())


_background: set[asyncio.Task[None]] = set()
