"""What an orchestrator does, over every wire: gRPC and HTTP both call this."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

import outrider
from orchestrator.admission import job_share
from orchestrator.chat.format import ChatFormat
from orchestrator.chat.template import ChatTemplate
from orchestrator.completions import Completions, Events, InFlight, Observer, Turn
from orchestrator.config import OrchestratorConfig
from orchestrator.infill import Infill, arrange, room_for
from orchestrator.jobs import Jobs, job_log, unknown_job
from orchestrator.joined_drafts import DraftRegistry
from orchestrator.leases import PooledPeer
from orchestrator.log import check_key, owned_key
from orchestrator.lookup_caches import load_shared_texts
from orchestrator.metering import counted
from orchestrator.paired_drafts import PairedDraft
from orchestrator.peers import Hosted
from orchestrator.planner import PROMPT_RESERVE, check_embedded, without_end
from orchestrator.pool import Pool
from orchestrator.resuming import NOTHING_REPORTED, Reported
from outrider import logs, wire
from outrider.access import Access, current_caller
from outrider.core.speculate import control
from outrider.errors import Draining, InvalidRequest
from outrider.grants import Right
from outrider.messages import ModelReference, PeerState, Rule
from outrider.request import Conversation, Request
from outrider.texts import check_count, most_bytes, starts
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1 import target_service_pb2
from outrider.wire_requests import read_parts
from outrider.wire_responses import duration, write_started, write_view

MAX_EMBEDDED = 64
MAX_DETOKENIZED = 1 << 20
_MOST_SHOWN = 64  # generations in an answer of GetStatus


class Orchestrator:
    """One orchestrator over a pair of model services. Messages are those of OrchestratorService.

    Every method raises OutriderError, with a reason that says who can act.
    """

    def __init__(
        self, config: OrchestratorConfig, pool: Pool, access: Access | None = None
    ) -> None:
        """Raise InvalidConfig or NotFound for a lookup cache that cannot be used."""
        self.config = config
        self.access = access or Access()
        """Who may ask, and how much of it is left to them, whichever port they come by."""
        self.texts = load_shared_texts(config)
        """What generations draft from without a model; not started yet."""
        self.pool = pool
        self.draining = False  # new work is refused; never false again
        self.readiness_changed = asyncio.Event()
        """Set whenever `ready` may be another."""
        self.registry: DraftRegistry | None = None
        """The drafts that join; None where none is accepted."""
        if config.accept_drafts:
            self.registry = DraftRegistry(pool, config.trust_drafts, config.request_seconds)
        pool.on_change = self.readiness_changed.set
        pool.target_seconds = config.target_seconds
        self._observers: list[Observer] = []
        self._completions = Completions(config, pool, self.texts, self._observers)
        self._template: ChatTemplate | None = None  # the one compiled last, for `_template_key`
        self._template_key = ("", "", "")  # its source, BOS and EOS
        self._noted_template: ChatTemplate | None = None  # of which a log says what it shows
        self._jobs = Jobs(
            lambda request, turn, reported: self.generate(
                request, counts_cached=not reported, turn=turn, reported=reported
            ),
            self._job_share,
            job_log(config.jobs, config.job_seconds, config.state),
        )

    def _job_share(self) -> int:
        return job_share(self.pool.session_count)

    @property
    def ready(self) -> bool:
        """Whether new work is taken, and there is a target for it."""
        return self.pool.ready and not self.draining

    async def drain(self, seconds: float) -> None:
        """Refuse new work from now on; return when what is in flight is over, or the time is."""
        self.draining = True
        self.readiness_changed.set()
        settled = asyncio.gather(self._completions.idle.wait(), self._jobs.until_settled())
        with suppress(TimeoutError):
            await asyncio.wait_for(settled, seconds)
        if self.registry is not None:
            self.registry.dismiss(Draining("the orchestrator is stopping"))

    def _take_work(self) -> None:
        if self.draining:
            raise Draining("the orchestrator is stopping")

    def observe(self, observer: Observer) -> None:
        """Show an observer all generations from now on, of every surface."""
        self._observers.append(observer)

    def generate(
        self,
        request: Request,
        seconds: float | None = None,
        counts_cached: bool = False,
        turn: Turn | None = None,
        reported: Mapping[int, Reported] = NOTHING_REPORTED,
    ) -> Events:
        """Yield one `Started`, then `Delta`s and one `Finished` of each completion.

        Closing the iterator stops the work at both models. With
        `counts_cached`, `Started` says how much of the prompt the target holds.
        With a `turn`, everything after `Started` waits for it. Of what was
        `reported` before nothing comes again. Raises Draining; the iterator also
        LimitReached, where the caller's token has limits.
        """
        self._take_work()
        events = self._completions.generate(request, seconds, counts_cached, turn, reported)
        count = request.completion_count - sum(its.is_finished for its in reported.values())
        for observer in self._observers:
            events = observer.watch(events, count)
        return counted(events, self.access, current_caller(), count)

    def in_flight(self) -> list[InFlight]:
        """Return the generations in flight, of streams and of jobs whose turn it is."""
        return list(self._completions.in_flight)

    async def submit(
        self,
        request: Request,
        caller: str = "",
        credentials: bytes = b"",
        idempotency_key: str = "",
    ) -> messages.SubmitGenerationResponse:
        """Start a job of a caller.

        Who has a token of their own is known by its name. With a key it is the job that was started
        with it, by who showed the same `credentials`.
        """
        owner, key = current_caller().own_name, b""
        if idempotency_key:
            key = owned_key(check_key("idempotency_key", idempotency_key), [credentials])
        job_id, started = await self._jobs.submit(request, owner or caller, owner=owner, key=key)
        return messages.SubmitGenerationResponse(job_id=job_id, started=write_started(started))

    async def poll(
        self, request: messages.PollGenerationRequest
    ) -> messages.PollGenerationResponse:
        """Return what a job has brought."""
        self._check_owner(request.job_id)
        return await self._jobs.poll(request)

    async def cancel(
        self, request: messages.CancelGenerationRequest
    ) -> messages.CancelGenerationResponse:
        """End a job early."""
        self._check_owner(request.job_id)
        await self._jobs.cancel(request.job_id)
        return messages.CancelGenerationResponse()

    def _check_owner(self, job_id: str) -> None:
        """Raise NotFound for a job of another token, as for one that there is not."""
        caller = current_caller()
        if self._jobs.owner(job_id) != caller.own_name and not caller.grant.allows(Right.OPERATOR):
            raise unknown_job(job_id)

    def reconfigure(self, config: OrchestratorConfig) -> None:
        """Go by other limits from now on; what is in flight keeps what it began with."""
        self.config = config
        self.pool.target_seconds = config.target_seconds
        self._completions.reconfigure(config)
        self._jobs.reconfigure(config.jobs, config.job_seconds)

    def start_jobs(self) -> None:
        """Continue the jobs of the process before this one, where they are kept."""
        self._jobs.start(self.access.returning)

    async def close(self) -> None:
        """End all jobs, but for those that outlive the process."""
        await self._jobs.close()

    async def tokenize(
        self, request: messages.TokenizeTextRequest
    ) -> messages.TokenizeTextResponse:
        """Return the tokens of a text."""
        planner, deadline = self._completions.planner, self._deadline()
        hosted = await self.model(request.model)
        [ids] = await planner.tokenize_texts(
            [request.text], hosted, deadline, request.add_special, request.parse_special
        )
        # A long text has many tokens.
        return await asyncio.to_thread(_write_tokens, ids, hosted.vocabulary.texts)

    async def detokenize(self, request: messages.DetokenizeRequest) -> messages.DetokenizeResponse:
        """Return the text of tokens."""
        vocabulary = (await self.model(request.model)).vocabulary
        texts, names = vocabulary.texts, vocabulary.names
        count = len(request.token_ids)
        if count > MAX_DETOKENIZED:
            raise InvalidRequest("token_ids", f"{count}, at most {MAX_DETOKENIZED}")
        ids = wire.read_ids("token_ids", request.token_ids, len(texts))
        if request.show_special:
            text = b"".join(texts[token_id] or names[token_id] for token_id in ids)
        else:
            text = b"".join(texts[token_id] for token_id in ids)
        return messages.DetokenizeResponse(text=text.decode("utf-8", "replace"))

    async def infill(self, asked: Infill, token_limit: int) -> tuple[list[int], ModelReference]:
        """Return the prompt by which the target fills in a text, and which model has its ids.

        It leaves room for `token_limit` tokens, a quarter of the context at most. Raises
        InvalidRequest for a target that has no tokens for it.
        """
        hosted = await self.model()
        texts = asked.texts()
        check_count("input_extra", len(texts))
        planner, deadline = self._completions.planner, self._deadline()
        ids = await planner.tokenize_texts(texts, hosted, deadline, add_special=False)
        room = room_for(hosted.model.context_token_count - PROMPT_RESERVE, token_limit)
        known = dict(zip(texts, ids, strict=True))
        return arrange(asked, hosted.model.vocabulary, known, room), hosted.reference

    async def apply_template(self, conversation: Conversation) -> tuple[str, ModelReference]:
        """Return the prompt of a chat, by the target's own template or the configured one.

        The model is that whose template it is by, or whose special tokens it has.
        """
        hosted = await self.model()
        template = self._chat_template(hosted)
        # A template is the model's or the operator's; a large chat takes its time.
        prompt = await asyncio.to_thread(
            template.render,
            conversation.chat,
            strftime_now=time.strftime,
            tools=conversation.tools or None,
            add_generation_prompt=conversation.add_generation_prompt,
            chat_template_kwargs=conversation.variables,
        )
        bos = _control_text(hosted, "bos")
        if bos and hosted.model.vocabulary.adds_bos:
            prompt = prompt.removeprefix(bos)
        return prompt, hosted.reference

    def _chat_template(self, hosted: Hosted) -> ChatTemplate:
        """Return the template for a model."""
        source = self.config.chat_template or hosted.model.chat_template
        bos, eos = _control_text(hosted, "bos"), _control_text(hosted, "eos")
        if self._template is None or self._template_key != (source, bos, eos):
            self._template = ChatTemplate(source, bos_token=bos, eos_token=eos)
            self._template_key = (source, bos, eos)
        return self._template

    async def note_chat_format(self) -> None:
        """Log what the template in use shows of how its model writes, if that is not known yet."""
        try:
            template = await asyncio.to_thread(self.chat_template)
        except InvalidRequest as error:
            logs.warning("outrider.orchestrator", "chat template", detail=str(error))
            return
        if template is None or template is self._noted_template:
            return
        self._noted_template = template
        form = await asyncio.to_thread(lambda: template.form)
        logs.event("outrider.orchestrator", "chat template", **form.summary())
        if template.takes_tools and form.calls is None:
            detail = "it does not show how the model writes calls: tools are refused"
            logs.warning("outrider.orchestrator", "chat template", detail=detail)

    def chat_format(self) -> ChatFormat:
        """Return how the model writes a turn, by the template in use; nothing of it without one."""
        template, hosted = self.chat_template(), self.pool.target.hosted
        if template is None or hosted is None:
            return ChatFormat()
        controls = hosted.vocabulary.control_ids
        form = template.form
        return replace(form, controls=tuple(mark for mark in form.marks if mark in controls))

    def chat_template(self) -> ChatTemplate | None:
        """Return the template in use; None before there was a target.

        Raises InvalidRequest for one that does not compile.
        """
        hosted = self.pool.target.hosted
        return self._chat_template(hosted) if hosted else None

    async def embed(self, request: messages.EmbedRequest) -> messages.EmbedResponse:
        """Return embeddings, each of length 1."""
        if not 1 <= len(request.inputs) <= MAX_EMBEDDED:
            raise InvalidRequest("inputs", f"{len(request.inputs)}, at least 1, at most 64")
        self._take_work()
        caller = current_caller()
        self.access.check_tokens(caller)
        planner = self._completions.planner
        deadline = self._deadline()
        hosted = await self.model(request.model)
        response = messages.EmbedResponse(model=wire.write_reference(hosted.reference))
        most = hosted.model.context_token_count
        for i, parts in enumerate(request.inputs):
            try:
                prompt = read_parts(parts)
                if request.truncate:
                    prompt = starts(prompt, most_bytes(most, hosted.vocabulary.longest))
                check_count("prompt", sum(isinstance(part, str) for part in prompt))
                bound = None if request.truncate else most
                ids = await planner.tokenize(prompt, hosted, deadline, bound)
                if request.truncate:
                    ids = without_end(ids, most, prompt, hosted.model.vocabulary.adds_eos)
                check_embedded(len(ids), most)
            except InvalidRequest as refusal:
                raise refusal.named(f"inputs[{i}]") from None
            asked = target_service_pb2.EmbedTokensRequest(
                token_ids=ids, model=wire.write_reference(hosted.reference)
            )
            values = await self.pool.calls().call("Embed", asked, deadline, _read_embedding)
            norm = float(np.linalg.norm(values)) or 1.0
            unit = (values / norm).tolist()
            response.embeddings.add(values=unit, token_count=len(ids), norm=norm)
            self.access.spend(caller, len(ids))
        return response

    def status(self) -> messages.GetStatusResponse:
        """Return the state of the peers."""
        obstacle = self.pool.obstacle()
        newcomer = control(
            self.config.speculation, Rule.MATCH, self.pool.pair, self.config.draft_seconds
        )
        return messages.GetStatusResponse(
            service_version=outrider.__version__,
            active_generation_count=self._completions.active_count,
            peers=[
                *(self._peer_status(target) for target in self.pool.targets),
                *(self._draft_status(draft) for draft in self.pool.drafts),
            ],
            speculating=not obstacle,
            reason=obstacle,
            controller=write_view(newcomer.view()),
            job_count=len(self._jobs),
            draining=self.draining,
            refused_drafts=self._refused_drafts(),
            generated_token_count=self._completions.token_count,
            generations=self._generations(),
            text_sources=self._text_sources(),
        )

    def _text_sources(self) -> list[str]:
        """Return the sources that draft from the texts themselves."""
        hosted = self.pool.target.hosted
        if not self.pool.ready or hosted is None:
            return []
        made = self.texts.sources((), hosted.model.vocabulary, is_shared=True)
        return [name for name in self.config.speculation.local_drafters if name in made]

    def _generations(self) -> list[messages.GenerationView]:
        now = time.monotonic()
        return [
            messages.GenerationView(
                age_duration=duration(now - each.begin),
                prompt_token_count=each.prompt_count,
                token_count=each.token_count,
                speculates=each.speculates,
            )
            for each in self._completions.in_flight[:_MOST_SHOWN]
        ]

    def _refused_drafts(self) -> list[messages.RefusedDraft]:
        now = time.monotonic()
        return [
            messages.RefusedDraft(
                address=each.address,
                model_name=each.model_name,
                reason=each.reason,
                attempt_count=each.attempt_count,
                since_duration=duration(now - each.time),
            )
            for each in (self.registry.refused() if self.registry is not None else ())
        ]

    def _peer_status(self, pooled: PooledPeer) -> messages.PeerStatus:
        peer, obstacle = pooled.peer, pooled.obstacle()
        state = PeerState.REFUSED if peer.ready and obstacle else peer.state
        return messages.PeerStatus(
            role=peer.role,
            address=peer.address,
            state=wire.PEER_STATES.write(state),
            detail=obstacle,
            model=peer.model,
            round_trip_duration=duration(peer.round_trip),
            joined=peer.has_joined,
            generation_count=pooled.generation_count,
        )

    def _draft_status(self, draft: PairedDraft) -> messages.PeerStatus:
        status = self._peer_status(draft)
        if draft.peer.ready and draft.is_learning:
            status.state = messages.PEER_STATE_LOADING
        status.trusted = draft.is_trusted
        if draft.translation is not None:
            status.translation.CopyFrom(draft.translation)
        status.tokens_per_second = 1.0 / draft.rates.token_time.value
        return status

    async def model(self, meant: common.ModelReference | None = None) -> Hosted:
        """Wait for the target; return what it hosts. Raises PeerUnavailable.

        With `meant`, raises ModelChanged if that is another model.
        """
        hosted = await self.pool.wait_for_model(self.config.request_seconds)
        if meant is not None:
            wire.read_reference(meant).check(hosted.reference)
        return hosted

    def _deadline(self) -> float:
        """Return when calls for a request that begins now have to end."""
        return time.monotonic() + self.config.request_seconds


def _read_embedding(response: target_service_pb2.EmbedTokensResponse) -> np.ndarray:
    values = np.array(response.values, np.float64)
    if not len(values) or not np.isfinite(values).all():
        raise InvalidRequest("values", "are no numbers")
    return values


def _write_tokens(ids: Sequence[int], texts: Sequence[bytes]) -> messages.TokenizeTextResponse:
    return messages.TokenizeTextResponse(
        tokens=[messages.Token(token_id=i, text=texts[i]) for i in ids]
    )


def _control_text(hosted: Hosted, which: str) -> str:
    """Return the text that stands for BOS or EOS; empty if there is none."""
    token_id = getattr(hosted.model.vocabulary, f"{which}_token_id")
    names = hosted.vocabulary.names
    return names[token_id].decode("utf-8", "replace") if token_id >= 0 else ""
