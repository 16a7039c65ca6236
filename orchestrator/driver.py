"""Carries out what a generation asks, at its target, its draft's side, and until its deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from functools import partial

from orchestrator.draft_side import DraftSide
from orchestrator.event_queue import EventQueue
from orchestrator.fail_over import PeerFailed, TargetFailOver
from orchestrator.leases import PeerLease
from orchestrator.link import SHORT_SECONDS, Attempts, Link
from orchestrator.own_prompts import OwnPrompts
from orchestrator.peers import Peer
from orchestrator.pool import Pool
from orchestrator.sent_rounds import SentRounds
from orchestrator.streams import StreamLost
from orchestrator.targets import PooledTarget
from orchestrator.timings import Timings
from outrider import wire_rounds
from outrider.backoff import FIRST_PAUSE
from outrider.core.actions import Action, Commit, End, RollBack, Wake
from outrider.core.allowance import RoundAllowance
from outrider.core.generation import Generation
from outrider.core.health import LOOK_SECONDS
from outrider.core.target_costs import Pair
from outrider.errors import (
    DeadlinePassed,
    DecodeFailed,
    EngineBusy,
    InvalidRequest,
    PeerUnavailable,
)
from outrider.messages import Order, Round, SessionParameters
from outrider.v1 import target_service_pb2
from outrider.wire_checks import within

_MOST_BUSY_SECONDS = 10.0  # s; at most, however much longer a target without room asks for


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
        self._events = EventQueue[Commit | End](self._act)
        self._attempts = Attempts(self._opening, self._events, self._read_target, self._lose_target)
        # Of the target of the newest stream, until it is lost.
        self._lease: PeerLease[PooledTarget] | None = None
        self._fail_over = TargetFailOver(generation.plan.target_seconds)
        self._allowance = RoundAllowance()  # of the stream
        self._busy_number = 0  # of the newest round for which a target had no room
        vocabulary = self._opening.vocabulary
        self._sent = SentRounds(vocabulary, self.timings, generation.plain_share)
        self._wake: asyncio.TimerHandle | None = None  # for the newest Wake; the one before is void
        self._draft = DraftSide(
            generation, pool, self._events, self.timings, self._current_target, own_prompts
        )

    async def run(self) -> AsyncGenerator[Commit | End]:
        """Yield what is committed and, last, the end.

        Raises PeerUnavailable when the target is away until the deadline.
        """
        self._events.after(self._deadline - time.monotonic(), self._note_deadline)
        self._look_at_target()
        self._open_target()
        self._draft.open()
        try:
            async for event in self._rounds():
                if isinstance(event, End):
                    self._tidy_up()  # before the end is taken: nothing is asked for after it
                yield event
        finally:
            self._close()

    async def _rounds(self) -> AsyncIterator[Commit | End]:
        self._events.advance()
        while True:
            for event in await self._events.outputs():
                self.timings.note_commit(time.perf_counter())
                yield event
                if isinstance(event, End):
                    return
            self._events.note_taken()

    def _act(self) -> Sequence[Commit | End]:
        """Carry out what the generation asks; work for the models goes out before text."""
        untaken = []
        self._events.forget(self._wake)
        self._draft.open_if_needed()
        for action in self._generation.next_actions(time.perf_counter()):
            if isinstance(action, Commit | End):
                untaken.append(action)
            else:
                self._carry_out(action)
        if self._generation.waits_for_draft:
            self._sent.note_draft_wait(time.perf_counter())
        return untaken

    # --- out ---

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Order):
            self._draft.send(action)
        elif isinstance(action, Round):
            self._send_round(action)
        elif isinstance(action, Wake):
            self._wake = self._events.after(action.time - time.perf_counter(), lambda: None)
        elif isinstance(action, RollBack):
            self._roll_back(action.token_count, action.round, action.order)

    def _send_round(self, round_: Round) -> None:
        self._sent.note_sent(round_, time.perf_counter())
        self._allowance.note_round(round_)
        if self._link is not None:
            self._link.send(wire_rounds.write_round(round_))

    def _roll_back(self, token_count: int, round_: int, order: int) -> None:
        """Call Rollback at both services, each before what is sent to it next."""
        for link, peer, number in self._sessions(round_, order):
            link.call(partial(peer.roll_back, link.opening, token_count, number))

    def _sessions(self, round_: int, order: int) -> Iterator[tuple[Link, Peer, int]]:
        """Yield each stream that is open, whose it is, and the newest number sent on it."""
        if self._link is not None and self._lease is not None:
            yield self._link, self._lease.leased.peer, round_
        if self._draft.link is not None and self._draft.leased is not None:
            yield self._draft.link, self._draft.leased.peer, order

    # --- streams ---

    def _open_target(self) -> None:
        """Open a stream to a target as soon as one is usable."""
        if self._pool.target.closed:
            self._events.fail(PeerUnavailable(self._pool.target.detail))
        elif not any(map(self._open_target_besides, (self._fail_over.failed, ()))):
            self._events.after(FIRST_PAUSE, self._open_target)

    def _open_target_besides(self, others: Sequence[PooledTarget]) -> bool:
        """Open a stream to the best usable target that is none of the others, if there is one."""
        generation = self._generation
        text = generation.committed
        self._lease = lease = self._pool.lease_target(text, self._opening, others)
        if lease is None:
            return False
        target = lease.leased
        self._learn_at(target)
        self._sent.forget()
        self._allowance = RoundAllowance()
        opening = self._attempts.next_opening()
        with self.timings.traced():
            self._attempts.begin(opening, target.peer.open(opening))
        generation.target_opened(target.costs.continues)
        return True

    def _learn_at(self, target: PooledTarget) -> None:
        """Go by what is known of this target from now on, if it is another one."""
        control = self._generation.plan.control
        if control.costs is not target.costs:
            control.note_pair(self._pair_at(target))

    def _current_target(self) -> PooledTarget:
        """Return where the text is written, or before that what stands for all targets."""
        return self._lease.leased if self._lease is not None else self._pool.standing

    def _pair_at(self, target: PooledTarget) -> Pair:
        """Return what is known of a target and the draft in use, or the one that would be."""
        draft = self._draft.leased
        return draft.pair_beside(target) if draft else self._pool.pair_at(target)

    def _lose_target(self, link: Link, lost: StreamLost) -> None:
        """Continue at another target, or at the same one unless it would refuse again."""
        if link is not self._link or self._lease is None:
            return
        target = self._lease.leased
        if lost.refuses_trees and target.costs.tree_leaves:
            target.costs.tree_leaves = 0
            self._fail(PeerFailed(PeerUnavailable(str(lost)), is_counted=False))
        elif lost.refusal is not None and lost.final:
            self._fail(PeerFailed(lost.refusal, is_asked_again=False))
        elif lost.final or lost.failed:
            what = "refused" if lost.final else "failed"
            self._eject(f"the target {what} the session: {lost}")
        else:
            error, serves = PeerUnavailable(f"it lost a text: {lost}"), target.peer.ready
            self._fail(PeerFailed(error, is_ejected=serves, is_counted=False))

    def _eject(self, fault: str) -> None:
        """Continue elsewhere after what no target should do."""
        self._fail(PeerFailed(DecodeFailed(fault), is_ejected=True))

    def _fail(self, failed: PeerFailed) -> None:
        """Continue at another target at once, or at any after a while. Raises why neither helps."""
        assert self._lease is not None
        target = self._lease.leased
        self._attempts.close()
        self._end_lease()
        self._generation.target_lost()
        self._fail_over.note(target, failed)
        if not self._open_target_besides(self._fail_over.failed):
            is_another_left = self._pool.has_another(self._fail_over.failed)
            pause = self._fail_over.pause(failed, is_another_left)
            self._events.after(pause, self._open_target)

    def _look_at_target(self) -> None:
        """See for how long the target has left a round unanswered; look again."""
        self._events.after(LOOK_SECONDS, self._look_at_target)
        lease, length = self._lease, len(self._generation.committed)
        self._fail_over.look(self._generation.waits_for_target)
        if lease is None or self._link is None:
            return
        if failed := self._fail_over.overdue(lease.leased, length):
            self._fail(failed)

    def _end_lease(self) -> None:
        """Give the target back, with what is known of the text that it holds."""
        lease, self._lease = self._lease, None
        if lease is not None:
            self._pool.end(lease, self._generation.committed, self._opening.salt)

    # --- in ---

    def _read_target(self, message: target_service_pb2.VerifyResponse) -> None:
        generation, link = self._generation, self._link
        length = len(generation.committed)
        try:
            self._allowance.take_message()
            is_news = self._take(message)
        except InvalidRequest as error:
            self._eject(f"the target sent what cannot be: {error}")
            return
        if link is None or link.is_closed or link is not self._link:
            return  # the text continues elsewhere
        if len(generation.committed) > length:
            self._allowance.note_progress()
            if self._lease is not None:
                self._lease.leased.health.note_success()
            self._fail_over.note_progress()
        elif is_news:
            self._fail_over.note_word()

    def _take(self, message: target_service_pb2.VerifyResponse) -> bool:
        """Take in a message; return whether it says anything new, though the text may not grow.

        Raises InvalidRequest for what cannot be, of which nothing is committed.
        """
        generation, number = self._generation, message.round
        outcome = message.WhichOneof("outcome")
        if outcome == "rows":
            return self._take_rows(message)
        if outcome == "busy":
            return self._take_busy(number, message.busy.retry_delay_duration.ToMilliseconds() / 1e3)
        if outcome == "missing":
            is_asked_again = generation.target_missing(number, message.missing.held_token_count)
            if is_asked_again:
                self._allowance.take_lost()
            return is_asked_again
        if outcome == "context_full":
            if not self._may_be_full():
                raise InvalidRequest("context_full", f"after {len(generation.committed)} tokens")
            generation.target_full(number)
        else:
            self._events.after(SHORT_SECONDS, partial(self._ask_again, number))
        return False

    def _ask_again(self, number: int, is_lost: bool = True) -> None:
        """Ask once more for a round of which the target has brought nothing."""
        try:
            if self._generation.target_busy(number) and is_lost and self._lease is not None:
                self._allowance.take_lost()
        except InvalidRequest as error:
            self._eject(f"the target sent what cannot be: {error}")

    def _take_busy(self, number: int, seconds: float) -> bool:
        """The target has no room; return whether that is new of a round that it was sent.

        The text continues at another one that has room, where there is one.
        """
        if self._lease is None or not self._sent.expects(number) or number <= self._busy_number:
            return False  # else there would be a timer for every word of a flood
        self._busy_number = number
        delay = min(max(seconds, SHORT_SECONDS), _MOST_BUSY_SECONDS)
        target = self._lease.leased
        target.note_busy(delay)
        if self._pool.has_room(self._opening.model, target):
            self._fail(PeerFailed(EngineBusy("the target has no room"), is_counted=False))
        else:
            self._events.after(delay, partial(self._ask_again, number, is_lost=False))
        return True

    def _may_be_full(self) -> bool:
        length, context = len(self._generation.committed), self._generation.plan.target_context
        return self._pool.may_be_full(length, context)

    def _take_rows(self, message: target_service_pb2.VerifyResponse) -> bool:
        """Take in rows; return whether they are a further part of a round's."""
        generation, sent = self._generation, self._sent
        if not sent.expects(message.round):
            return False  # a repeat of a round that is over
        now, length = time.perf_counter(), len(generation.committed)
        is_answer = message.HasField("position")
        answer = (
            sent.read_answer(message, now) if is_answer else sent.read_rows(message, now, length)
        )
        self._note_read(message.cached_token_count)
        if answer is None:
            return message.rows.first_row > 0
        if is_answer:
            generation.target_wrote(answer, now)
        else:
            generation.target_answered(answer, now)
        return False

    def _note_read(self, held_count: int) -> None:
        """Take note of how much of the text a target held, which its first rows say."""
        generation, lease = self._generation, self._lease
        if lease is None or lease.is_read:
            return
        within("cached_token_count", held_count, 0, len(generation.committed))
        lease.note_read(held_count)
        if not generation.counts.rounds:
            generation.target_cached(held_count)

    # --- time, and the end ---

    def _note_deadline(self) -> None:
        target = self._pool.target
        if target.ready and self._generation.target_ready:
            self._events.fail(DeadlinePassed("the generation took longer than its deadline"))
        else:
            detail = self._pool.detail or f"lost the target at {target.address}"
            self._events.fail(PeerUnavailable(detail))

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
        self._events.close()
        self._attempts.close()
        self._end_lease()
        self._draft.close()

    @property
    def _link(self) -> Link | None:
        """The newest stream to a target; None before the first."""
        return self._attempts.link

    @property
    def wire_bytes(self) -> int:
        """Serialized bytes so far, both ways, both peers."""
        return self._attempts.byte_count + self._draft.byte_count


_background: set[asyncio.Task[None]] = set()
