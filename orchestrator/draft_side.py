"""The draft of one generation: leases one, opens a stream to it, reads it, takes another when lost.

Nothing here can end a text, or change what is committed: a generation continues without a draft.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.event_queue import EventQueue
from orchestrator.fail_over import FailOver, PeerFailed
from orchestrator.leases import PeerLease
from orchestrator.link import Attempts, Link
from orchestrator.own_prompts import OwnPrompts
from orchestrator.paired_drafts import PairedDraft
from orchestrator.peers import Hosted
from orchestrator.pool import Pool
from orchestrator.streams import StreamLost
from orchestrator.targets import PooledTarget
from orchestrator.timings import Timings
from outrider import wire, wire_drafts
from outrider.backoff import FIRST_PAUSE
from outrider.core.acceptance import drew_as_keyed
from outrider.core.allowance import OrderAllowance
from outrider.core.generation import Generation
from outrider.errors import InvalidRequest, PeerUnavailable
from outrider.messages import Order, Rule, SessionParameters
from outrider.noise import draft_seed
from outrider.v1 import draft_service_pb2
from outrider.wire_checks import within


class DraftSide:
    """Keeps a generation supplied with a draft, as long as one is wanted and there is one."""

    def __init__(
        self,
        generation: Generation,
        pool: Pool,
        events: EventQueue[Any],
        timings: Timings,
        target: Callable[[], PooledTarget],
        own_prompts: OwnPrompts | None,
    ) -> None:
        """`target` returns where the text is written, or would be.

        With `own_prompts` a draft reads the conversation in its own template.
        """
        self._generation = generation
        self._opening: SessionParameters = generation.plan.opening
        self._pool = pool
        self._events = events
        self._timings = timings
        self._target = target
        self._own_prompts = own_prompts
        # Renders the prompt of the draft that is leased; its stream is opened after that.
        self._rendering: asyncio.Task[None] | None = None
        self._attempts = Attempts(self._opening, events, self._read, self._lose)
        self._lease: PeerLease[PairedDraft] | None = None  # of the draft, until it is given back
        # While it is leased: its stream is not opened, as the target drafts by itself.
        self._is_put_off = False
        self._refusing: list[PairedDraft] = []  # that cannot serve this generation
        self._fail_over = FailOver[PairedDraft]()
        self._allowance = OrderAllowance()  # of the stream

    @property
    def byte_count(self) -> int:
        """Serialized bytes so far, both ways."""
        return self._attempts.byte_count

    @property
    def leased(self) -> PairedDraft | None:
        """The draft that is leased, if one is."""
        return self._lease.leased if self._lease is not None else None

    @property
    def link(self) -> Link | None:
        """The newest stream; None before the first."""
        return self._attempts.link

    # --- streams ---

    def open(self) -> None:
        """Open a stream to the best draft as soon as one is usable."""
        if not self._generation.plan.control.speculation.drafts:
            return
        ways = (self._fail_over.failed, ())
        if self._pool.may_have_draft and not any(map(self._open_besides, ways)):
            self._events.after(FIRST_PAUSE, self.open)

    def open_if_needed(self) -> None:
        """Open the stream that was put off, where something is wanted of a draft by now."""
        if self._is_put_off and self._generation.plan.control.needs_stream:
            self._give_back()
            self.open()

    def _open_besides(self, others: Sequence[PairedDraft]) -> bool:
        """Open a stream to the best usable draft that is none of the others, if there is one."""
        opening, text = self._opening, self._generation.committed
        besides = [*others, *self._refusing]
        self._lease = lease = self._pool.lease_draft(opening.rule, besides, text, opening.salt)
        if lease is None:
            return False
        draft, control = lease.leased, self._generation.plan.control
        hosted = draft.peer.hosted
        control.note_pair(draft.pair_beside(self._target()))
        self._is_put_off = not control.needs_stream
        if self._is_put_off:
            return True
        assert hosted is not None
        if self._own_prompts is None:
            self._open_leased(draft, hosted, "")
        else:
            rendering = self._render(self._own_prompts, draft, hosted)
            self._rendering = asyncio.create_task(rendering)
        return True

    async def _render(self, prompts: OwnPrompts, draft: PairedDraft, hosted: Hosted) -> None:
        """Open the stream to a draft once there is what it is to read; meanwhile none drafts."""
        prompt = await prompts.prompt_for(draft)
        self._events.happen(partial(self._open_leased, draft, hosted, prompt))

    def _open_leased(self, draft: PairedDraft, hosted: Hosted, own_prompt: str) -> None:
        """Open a stream to a draft that is leased, to the model that it hosted."""
        opening = replace(
            self._attempts.next_opening(),
            model=hosted.reference,
            vocabulary_key=draft.vocabulary_key,
            own_prompt=own_prompt,
        )
        if opening.rule is Rule.REJECTION:
            # A draft that knows the coins can draft what they will accept.
            opening = replace(opening, seed=draft_seed(opening.seed))
        self._allowance = OrderAllowance()
        with self._timings.traced():
            self._attempts.begin(opening, draft.peer.open(opening))
        its = hosted.model
        row_width = its.hidden_row_width if its.head else 0
        self._generation.draft_opened(its.context_token_count, row_width)

    def _lose(self, link: Link, lost: StreamLost) -> None:
        """Continue with another draft, or with the same one unless it would refuse again."""
        if link is not self.link or self._lease is None:
            return
        if lost.final and lost.refusal is None:  # else the pair will know its new model
            self._refusing.append(self._lease.leased)
        error = PeerUnavailable(str(lost))
        self._fail(PeerFailed(error, is_ejected=lost.breaks_protocol, is_counted=False))

    def _fail(self, failed: PeerFailed) -> None:
        """Continue with another draft at once, or with any after a while."""
        assert self._lease is not None
        draft = self._lease.leased
        self._attempts.close()
        self._generation.draft_lost()
        self._give_back()
        self._fail_over.note(draft, failed)
        if not self._open_besides(self._fail_over.failed):
            self._events.after(self._fail_over.pause(failed, is_another_left=True), self.open)

    def _give_back(self) -> None:
        if self._lease is not None:
            self._lease.end()
            self._lease, self._is_put_off = None, False

    def close(self) -> None:
        """End the stream and the lease."""
        if self._rendering is not None:
            self._rendering.cancel()
        if self._lease is not None and self._generation.draft_is_silent:
            self._lease.leased.note_silent()
        self._attempts.close()
        self._give_back()

    # --- out, and in ---

    def send(self, order: Order) -> None:
        """Send an order, if there is a stream."""
        if self.link is not None:
            self._allowance.note_order(order)
            self.link.send(wire_drafts.write_order(order))

    def _read(self, message: draft_service_pb2.DraftResponse) -> None:
        """Take in what the draft sent; one that sends what cannot be is ejected."""
        try:
            self._allowance.take_completed(message.completed_order)
            self._take(message)
        except InvalidRequest as fault:
            self._fail(PeerFailed(fault, is_ejected=True, is_counted=False))

    def _take(self, message: draft_service_pb2.DraftResponse) -> None:
        generation, order, draft = self._generation, message.completed_order, self._timings.draft
        work, queue = draft.work, draft.queue
        self._timings.note_draft(wire.read_time(message.service_time))
        outcome = message.WhichOneof("outcome")
        if outcome == "missing":
            within("held_token_count", message.missing.held_token_count, 0, 2**31 - 1)
            self._allowance.take_lost()
            generation.draft_missing(order, message.missing.held_token_count)
        elif outcome == "frame":
            frame = wire_drafts.read_frame(message, self._opening.vocabulary)
            self._allowance.take_frame(frame)
            if self._opening.rule is Rule.REJECTION and not drew_as_keyed(frame, self._opening):
                raise InvalidRequest("token_ids", "are not the draws from their rows")
            if frame.token_ids and self._lease is not None:
                self._lease.leased.note_tokens()
                self._fail_over.note_progress()
            work, queue = draft.work - work, draft.queue - queue
            generation.draft_frame(frame, time.perf_counter(), work, queue)
        else:
            generation.draft_refused(order)
