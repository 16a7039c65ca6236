"""From a request to the plan of its generation: checked, tokenized, its rule chosen."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace

from orchestrator.config import OrchestratorConfig
from orchestrator.core.actions import Finish, TokenLogprob
from orchestrator.core.generation import Generation
from orchestrator.core.plan import Plan
from orchestrator.core.policies import CLASSIC_RATIO, control
from orchestrator.peers import Hosted, Pair
from orchestrator.salts import digest
from outrider import wire
from outrider.errors import InvalidRequest, PromptTooLong
from outrider.messages import MAX_BEAMS, Form, LogprobOptions, Rule, SessionParameters, Span
from outrider.sampling import SamplingParameters, check_bias_count
from outrider.speculation import Policy, Speculation
from outrider.texts import check_count, least_token_count
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1 import target_service_pb2

DEFAULT_LIMIT = 128
MAX_COMPLETIONS = 16
MAX_CONTROL_NAMES = 64
PROMPT_RESERVE = 4
"""A prompt leaves at least this many tokens of the context free."""

_ENDLESS = 1 << 30
"""Tokens that may follow a prompt when a full context is no end."""

_CANDIDATES = 8
"""Candidates of a position in a detailed report."""


class Planner:
    """Turns requests into plans over a pair of model services."""

    def __init__(self, config: OrchestratorConfig, pair: Pair) -> None:
        self._config = config
        self._pair = pair

    async def plan(self, request: messages.GenerateRequest, deadline: float) -> Plan:
        """Return the plan of a generation that ends by `deadline`, of the monotonic clock.

        Raises InvalidRequest, PeerUnavailable when there is no target until then, and
        ModelChanged when it is not the one that is asked for, or becomes another.
        """
        target = self._pair.target
        # What is wrong for any model is told without one.
        self._check(request)
        hosted = await target.wait_for_model(deadline - time.monotonic())
        wire.read_reference(request.model).check(hosted.reference)
        vocabulary = hosted.model.vocabulary
        sampling = await self._sampling(request, hosted, deadline)
        rule, form = read_rule_and_form(request.speculative, sampling)
        beam_count = _read_beam_count(request, form)
        if beam_count > 1:
            sampling = as_searched(sampling)
        speculation = self._speculation(request.speculative, rule, drafts=beam_count == 1)
        whole = await self._prompt(request, hosted, deadline)
        capacity = hosted.model.context_token_count
        prompt = _fit(whole, capacity, request.overflow)
        room = _ENDLESS if request.overflow.shift else capacity - len(prompt)
        limit, reason = _read_limit(request, room)
        return Plan(
            opening=SessionParameters(
                session_id=secrets.token_bytes(wire.SESSION_ID_BYTES),
                attempt=0,
                rule=rule,
                sampling=sampling,
                seed=request.seed if request.HasField("seed") else secrets.randbits(31),
                choice=0,
                prompt_count=len(prompt),
                token_limit=limit,
                vocabulary=vocabulary.token_count,
                candidate_count=_candidate_count(request.round_detail),
                min_probability=speculation.p_min,
                min_ratio=CLASSIC_RATIO if speculation.policy is Policy.CLASSIC else 0.0,
                logprobs=_read_logprobs(request, form),
                model=hosted.reference,
                salt=digest(request.cache_salt),
            ),
            prompt=prompt,
            control=control(speculation, rule, self._pair.estimates, self._config.draft_seconds),
            form=form,
            rollback_calls=request.speculative.rollback == messages.ROLLBACK_MODE_RPC,
            end_token_ids=frozenset(
                [*vocabulary.end_token_ids, *_read_stop_ids(request, vocabulary.token_count)]
            ),
            target_context=capacity,
            limit_reason=reason,
            token_texts=hosted.vocabulary.texts,
            finishes_character=request.finish_character,
            control_names=_read_control_names(request, hosted.vocabulary.control_ids),
            beam_count=beam_count,
            whole_count=len(whole),
            keep_count=_keep_count(len(prompt), request.overflow) if request.overflow.shift else -1,
        )

    def another(self, plan: Plan, choice: int) -> Plan:
        """Return the plan of another completion of the same prompt."""
        session_id = secrets.token_bytes(wire.SESSION_ID_BYTES)
        return self._renewed(plan, replace(plan.opening, session_id=session_id, choice=choice))

    def shifted(self, plan: Plan, generation: Generation) -> Plan | None:
        """Return the plan of what follows a generation; None if it is over.

        Where the context was full, its start stays and half of the rest goes.
        """
        text, opening, keep = generation.committed, plan.opening, plan.keep_count
        drop = (len(text) - keep) // 2
        if generation.finished is not Finish.CONTEXT_FULL or keep < 0 or not drop:
            return None
        dropped = Span(keep, [*opening.dropped.token_ids, *text[keep : keep + drop]])
        return replace(
            self._renewed(plan, replace(opening, dropped=dropped)),
            prompt=[*text[:keep], *text[keep + drop :]],
            mirostat_mu=generation.mirostat_mu,
        )

    def _renewed(self, plan: Plan, opening: SessionParameters) -> Plan:
        """Return the plan with a controller of its own."""
        speculation, estimates = plan.control.speculation, self._pair.estimates
        its_control = control(speculation, opening.rule, estimates, self._config.draft_seconds)
        return replace(plan, opening=opening, control=its_control)

    async def score(self, plan: Plan, deadline: float) -> AsyncGenerator[list[TokenLogprob]]:
        """Yield the log probabilities of the prompt's tokens in parts; the first has none."""
        request = target_service_pb2.ScoreRequest(
            open=wire.write_opening(plan.opening), token_ids=plan.prompt
        )
        top_count = plan.opening.logprobs.top_count if plan.opening.logprobs else 0
        yield [TokenLogprob(0.0, ())]
        left = plan.prompt[1:]
        parts = self._pair.target.stream("Score", request, deadline)
        async with aclosing(parts):
            async for part in parts:
                count = min(len(part.logprobs), len(left))
                rows = wire.read_logprobs(part.logprobs, plan.opening.vocabulary, count)
                yield [
                    TokenLogprob(dict(row)[token_id], row[:top_count])
                    for token_id, row in zip(left[:count], rows, strict=True)
                ]
                left = left[count:]
        if left:
            raise InvalidRequest("logprobs", f"{len(left)} rows are missing")

    async def cached_count(self, plan: Plan, deadline: float) -> int:
        """Return how many tokens of the prompt the target need not decode."""
        request = target_service_pb2.CountCachedRequest(
            token_ids=plan.prompt,
            model=wire.write_reference(plan.opening.model),
            cache_salt=plan.opening.salt,
        )
        response = await self._pair.target.call("CountCached", request, deadline)
        return int(response.cached_token_count)

    def _speculation(
        self, options: messages.SpeculativeOptions, rule: Rule, drafts: bool
    ) -> Speculation:
        """Return the request's options over the orchestrator's own.

        Raises InvalidRequest for what does not go together.
        """
        known = {
            name: getattr(options, name)
            for name in ("enabled", "n_max", "n_min", "p_min", "run_ahead")
            if options.HasField(name)
        }
        if options.policy:
            known["policy"] = wire.read_policy(options.policy)
        if self._pair.draft is None or not drafts:
            known["enabled"] = False
        default = self._config.speculation
        known.setdefault("n_min", min(default.n_min, known.get("n_max", default.n_max)))
        speculation = replace(default, **known)
        speculation.check_rule(rule)
        return speculation

    async def _sampling(
        self, request: messages.GenerateRequest, hosted: Hosted, deadline: float
    ) -> SamplingParameters:
        """Return the sampling parameters with every bias by id and every constraint a grammar."""
        vocabulary = hosted.model.vocabulary
        message = common.SamplingParameters()
        message.CopyFrom(request.sampling)
        del message.logit_biases[:]
        message.logit_biases.extend(await self._biases_by_id(request, hosted, deadline))
        if request.ignore_eos:
            message.logit_biases.extend(
                common.LogitBias(token_id=token_id, bias=-math.inf)
                for token_id in vocabulary.end_token_ids
            )
        if message.grammar or request.json_schema:
            source = target_service_pb2.CompileGrammarRequest(grammar=message.grammar)
            if request.json_schema:
                source.json_schema = request.json_schema
            source.model.CopyFrom(wire.write_reference(hosted.reference))
            compiled = await self._pair.target.call("CompileGrammar", source, deadline)
            message.grammar = compiled.grammar
        return wire.read_sampling(message, vocabulary.token_count)

    async def _biases_by_id(
        self, request: messages.GenerateRequest, hosted: Hosted, deadline: float
    ) -> list[common.LogitBias]:
        """Return the request's logit biases, a text's as one of each of its tokens."""
        biases = request.sampling.logit_biases
        texts = [each.text for each in biases if each.WhichOneof("token") == "text"]
        tokenized = iter(await self.tokenize(texts, hosted, deadline, add_special=False))
        by_id = [
            (next(tokenized) if each.WhichOneof("token") == "text" else [each.token_id], each.bias)
            for each in biases
        ]
        check_bias_count(sum(len(ids) for ids, _ in by_id))
        return [
            common.LogitBias(token_id=token_id, bias=bias)
            for ids, bias in by_id
            for token_id in ids
        ]

    @staticmethod
    def _check(request: messages.GenerateRequest) -> None:
        """Refuse what no model could do."""
        check_bias_count(len(request.sampling.logit_biases))
        if request.prompt_logprobs and not request.HasField("logprobs"):
            raise InvalidRequest("prompt_logprobs", "needs logprobs")
        if request.json_schema and request.sampling.grammar:
            raise InvalidRequest("json_schema", "does not go with a grammar")
        without_texts = common.SamplingParameters()
        without_texts.CopyFrom(request.sampling)
        del without_texts.logit_biases[:]
        read_rule_and_form(request.speculative, wire.read_sampling(without_texts))

    async def _prompt(
        self, request: messages.GenerateRequest, hosted: Hosted, deadline: float
    ) -> list[int]:
        size = hosted.model.vocabulary.token_count
        most = None
        if not request.overflow.truncate_prompt:
            most = hosted.model.context_token_count - PROMPT_RESERVE
        kind = request.WhichOneof("prompt")
        if kind is None:
            raise InvalidRequest("prompt", "is missing")
        if kind == "prompt_tokens":
            ids = wire.read_ids("prompt_tokens", request.prompt_tokens.token_ids, size)
        elif kind == "prompt_parts":
            parts, special = request.prompt_parts, request.parse_special
            ids = await self.tokenize_parts(parts, hosted, deadline, special, most)
        else:
            [ids] = await self.tokenize(
                [request.prompt_text], hosted, deadline, True, request.parse_special, most
            )
        if not ids:
            raise InvalidRequest("prompt", "is empty, and the model adds no BOS")
        return ids

    async def tokenize_parts(
        self,
        parts: messages.PromptParts,
        hosted: Hosted,
        deadline: float,
        parse_special: bool,
        most: int | None,
    ) -> list[int]:
        """Return the ids of texts and ids in turn; BOS is added if the first part is a text.

        Raises PromptTooLong for texts that are certainly more than `most` tokens.
        """
        is_text = [part.WhichOneof("part") == "text" for part in parts.parts]
        texts = [part.text for part, text in zip(parts.parts, is_text, strict=True) if text]
        check_count("prompt_parts", len(texts))
        tokenized = iter(
            await self.tokenize(texts, hosted, deadline, is_text[:1] == [True], parse_special, most)
        )
        size = hosted.model.vocabulary.token_count
        ids: list[int] = []
        for part, text in zip(parts.parts, is_text, strict=True):
            if text:
                ids += next(tokenized)
            else:
                ids += wire.read_ids("prompt_parts", [part.token_id], size)
        return ids

    async def tokenize(
        self,
        texts: list[str],
        hosted: Hosted,
        deadline: float,
        add_special: bool,
        parse_special: bool = False,
        most: int | None = None,
    ) -> list[list[int]]:
        """Return the ids of each text; only the first is given BOS and EOS.

        Raises PromptTooLong for texts that are certainly more than `most` tokens together.
        """
        if not texts:
            return []
        byte_count = sum(len(text.encode()) for text in texts)
        least = least_token_count(byte_count, hosted.vocabulary.longest)
        if most is not None and least > most:
            raise PromptTooLong(least, most, hosted.model.context_token_count, at_least=True)
        request = target_service_pb2.TokenizeRequest(
            texts=texts,
            add_special=add_special,
            parse_special=parse_special,
            model=wire.write_reference(hosted.reference),
        )
        response = await self._pair.target.call("Tokenize", request, deadline)
        return wire.read_tokenized(response, len(texts), hosted.model.vocabulary.token_count)


def read_rule_and_form(
    options: messages.SpeculativeOptions, sampling: SamplingParameters
) -> tuple[Rule, Form]:
    """Return the acceptance rule and the row form, refusing what does not go together."""
    rule = Rule.MATCH if sampling.greedy else Rule.SHARED_NOISE
    if options.acceptance:
        rule = wire.read_rule(options.acceptance)
    form = Form.DISTRIBUTIONS if rule is Rule.REJECTION else Form.SAMPLED
    if options.row_form:
        form = wire.read_form(options.row_form)
    if (form is Form.SAMPLED) == (rule is Rule.REJECTION):
        raise InvalidRequest(
            "speculative.row_form", f"{form.value} does not go with acceptance {rule.value}"
        )
    if sampling.mirostat and rule is Rule.REJECTION:
        # Its state follows from the tokens that the target itself draws.
        raise InvalidRequest("mirostat", "does not go with acceptance rejection")
    beyond = sampling.beyond_basic() if form is Form.LOGITS else []
    if beyond:
        raise InvalidRequest(beyond[0], "does not go with row form logits")
    return rule, form


def _read_logprobs(request: messages.GenerateRequest, form: Form) -> LogprobOptions | None:
    if not request.HasField("logprobs"):
        return None
    if form is Form.LOGITS:
        raise InvalidRequest("logprobs", "does not go with row form logits")
    return wire.read_logprob_options(request.logprobs)


def _candidate_count(detail: messages.RoundDetail) -> int:
    return _CANDIDATES if detail == messages.ROUND_DETAIL_CANDIDATES else 0


def _fit(prompt: list[int], capacity: int, overflow: messages.ContextOverflow) -> list[int]:
    """Return the prompt, or what is left of it when its middle is dropped. Raises PromptTooLong.

    Whole blocks of half the room are dropped, so that a prompt that grows
    stays the same for a while, and with it the cache.
    """
    most = capacity - PROMPT_RESERVE
    if len(prompt) <= most:
        return prompt
    if not overflow.truncate_prompt:
        raise PromptTooLong(len(prompt), most, capacity)
    keep = min(_keep_count(len(prompt), overflow), most - 2)
    block = (most - keep) // 2
    erased = -(-(len(prompt) - most) // block) * block
    return [*prompt[:keep], *prompt[keep + erased :]]


def check_embedded(token_count: int, most: int) -> None:
    """Raise PromptTooLong or InvalidRequest if a text has not 1 to `most` tokens."""
    if token_count > most:
        raise PromptTooLong(token_count, most, most)
    if not token_count:
        raise InvalidRequest("prompt_parts", "is empty")


def _keep_count(prompt_count: int, overflow: messages.ContextOverflow) -> int:
    """Return how many tokens at the start are never dropped."""
    keep = overflow.keep_token_count
    if keep < -1:
        raise InvalidRequest("overflow.keep_token_count", f"must be at least -1, not {keep}")
    return prompt_count if keep == -1 else min(keep, prompt_count)


def _read_stop_ids(request: messages.GenerateRequest, size: int) -> list[int]:
    if len(request.stop_token_ids) > 64:
        raise InvalidRequest("stop_token_ids", f"{len(request.stop_token_ids)}, at most 64")
    return wire.read_ids("stop_token_ids", request.stop_token_ids, size)


def _read_control_names(
    request: messages.GenerateRequest, ids: Mapping[str, int]
) -> dict[int, str]:
    """Return the control tokens to report that the vocabulary has."""
    names = request.control_token_names
    if len(names) > MAX_CONTROL_NAMES:
        raise InvalidRequest("control_token_names", f"{len(names)}, at most {MAX_CONTROL_NAMES}")
    return {ids[name]: name for name in names if name in ids}


def _read_limit(request: messages.GenerateRequest, room: int) -> tuple[int, Finish]:
    """Return the token limit, and what it means when it is reached."""
    limit = request.token_limit if request.HasField("token_limit") else DEFAULT_LIMIT
    if limit < -1:
        raise InvalidRequest("token_limit", f"must be at least -1, not {limit}")
    if limit == -1 or limit > room:
        return room, Finish.CONTEXT_FULL
    return limit, Finish.TOKEN_LIMIT


def as_searched(sampling: SamplingParameters) -> SamplingParameters:
    """Return what a beam search goes by: logit biases and the grammar, nothing that draws."""
    return SamplingParameters(
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        logit_bias=sampling.logit_bias,
        grammar=sampling.grammar,
    )


def _read_beam_count(request: messages.GenerateRequest, form: Form) -> int:
    count = request.beam_count if request.HasField("beam_count") else 1
    if not 1 <= count <= MAX_BEAMS:
        raise InvalidRequest("beam_count", f"must be in [1, {MAX_BEAMS}], not {count}")
    if count > 1 and request.completion_count > 1:
        raise InvalidRequest("beam_count", "does not go with several completions")
    if count > 1 and form is not Form.SAMPLED:
        raise InvalidRequest("beam_count", "does not go with acceptance rejection")
    return count


def read_count(request: messages.GenerateRequest) -> int:
    """Return how many completions are asked for."""
    count = request.completion_count if request.HasField("completion_count") else 1
    if not 1 <= count <= MAX_COMPLETIONS:
        raise InvalidRequest("completion_count", f"must be in [1, {MAX_COMPLETIONS}], not {count}")
    return count


def read_stops(sequences: Iterable[str]) -> list[str]:
    """Return the stop sequences."""
    stops = list(sequences)
    if len(stops) > 16 or any(not 1 <= len(stop.encode()) <= 256 for stop in stops):
        raise InvalidRequest("stop_sequences", "at most 16 texts of 1 to 256 bytes")
    return stops
