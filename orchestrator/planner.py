"""From what is asked for to the plan of its generation; asks the target what a model decides."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from orchestrator.config import OrchestratorConfig
from orchestrator.lookup_caches import SharedTexts
from orchestrator.peers import Hosted
from orchestrator.pool import Pool
from orchestrator.sources import Expected, Grammars, sources_after_shift, sources_of
from outrider import wire
from outrider.core.actions import TokenLogprob
from outrider.core.control import Control
from outrider.core.generation import Generation
from outrider.core.plan import MakeSources, Plan
from outrider.core.speculate import CLASSIC_RATIO, control
from outrider.drafters.source import Source
from outrider.errors import InvalidRequest, PromptTooLong
from outrider.messages import (
    MAX_CANDIDATES,
    SALT_BYTES,
    FinishReason,
    Form,
    Logprobs,
    Rule,
    SessionParameters,
    Span,
)
from outrider.request import Detail, Request, RollbackMode
from outrider.sampling import SamplingParameters, check_bias_count
from outrider.speculation import Policy, Speculation
from outrider.texts import least_token_count
from outrider.v1 import target_service_pb2
from outrider.wire_checks import at_least, within

PROMPT_RESERVE = 4
"""A prompt leaves at least this many tokens of the context free."""

_SEARCHED = SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
"""What a beam search goes by, beside biases and the grammar: no draws."""

_NO_LIMIT = 1 << 30
"""Tokens that may follow a prompt when a full context is no end."""


class Planner:
    """Turns requests into plans over a pool of model services."""

    def __init__(self, config: OrchestratorConfig, pool: Pool, shared: SharedTexts) -> None:
        """`shared` is what generations share, if anything."""
        self._config = config
        self._pool = pool
        self._shared = shared
        self._grammars = Grammars()
        self._reading = asyncio.Lock()  # one grammar at a time

    def reconfigure(self, config: OrchestratorConfig) -> None:
        """Go by other limits from now on."""
        self._config = config

    async def plan(self, asked: Request, speculation: Speculation, deadline: float) -> Plan:
        """Return the plan of a generation that ends by `deadline`, of the monotonic clock.

        `speculation` is what is asked for over the orchestrator's own options.

        Raises InvalidRequest, PeerUnavailable when there is no target until then, and
        ModelChanged when it is not the one that is asked for, or becomes another.
        """
        hosted = await self._pool.wait_for_model(deadline - time.monotonic())
        asked.model.check(hosted.reference)
        vocabulary = hosted.model.vocabulary
        sampling = await self._sampling(asked, hosted, deadline)
        whole = await self._prompt(asked, hosted, deadline)
        capacity = hosted.model.context_token_count
        prompt = _fit(whole, capacity, asked)
        room = _NO_LIMIT if asked.shift else capacity - len(prompt)
        is_limited = 0 <= asked.token_limit <= room
        stop_ids = wire.read_ids("stop_token_ids", asked.stop_token_ids, vocabulary.token_count)
        control_ids = hosted.vocabulary.control_ids
        names = [name for name in asked.control_token_names if name in control_ids]
        salt = secrets.token_bytes(SALT_BYTES) if asked.ignore_cached_prefix else asked.salt_digest
        rollback_calls = asked.rollback is RollbackMode.RPC
        make = await self._source_maker(asked, speculation, hosted, sampling.grammar, deadline)
        return Plan(
            opening=SessionParameters(
                session_id=secrets.token_bytes(wire.SESSION_ID_BYTES),
                attempt=0,
                rule=asked.rule,
                sampling=sampling,
                seed=secrets.randbits(31) if asked.seed is None else asked.seed,
                choice=0,
                prompt_count=len(prompt),
                token_limit=asked.token_limit if is_limited else room,
                vocabulary=vocabulary.token_count,
                candidate_count=MAX_CANDIDATES if asked.detail is Detail.CANDIDATES else 0,
                min_probability=speculation.p_min,
                min_ratio=CLASSIC_RATIO if speculation.policy is Policy.CLASSIC else 0.0,
                logprobs=asked.logprobs,
                model=hosted.reference,
                salt=salt,
                end_token_ids=frozenset([*vocabulary.end_token_ids, *stop_ids]),
            ),
            prompt=prompt,
            control=self._control(speculation, asked.rule, asked.form, rollback_calls),
            form=asked.form,
            rollback_calls=rollback_calls,
            target_context=capacity,
            target_seconds=self._config.target_seconds,
            limit_reason=FinishReason.TOKEN_LIMIT if is_limited else FinishReason.CONTEXT_FULL,
            token_texts=hosted.vocabulary.texts,
            finishes_character=asked.finish_character,
            control_names={control_ids[name]: name for name in names},
            beam_count=asked.beam_count,
            whole_count=len(whole),
            sources=make(prompt),
            make_sources=make,
            clock=time.perf_counter,
            keep_count=_keep_count(len(prompt), asked) if asked.shift else -1,
            is_watched=asked.detail is not Detail.NOTHING,
        )

    def another(self, plan: Plan, choice: int) -> Plan:
        """Return the plan of another completion of the same prompt."""
        session_id = secrets.token_bytes(wire.SESSION_ID_BYTES)
        opening = replace(plan.opening, session_id=session_id, choice=choice)
        return replace(self._renewed(plan, opening), sources=plan.make_sources(plan.prompt))

    def shifted(self, plan: Plan, generation: Generation) -> Plan | None:
        """Return the plan of what follows a generation; None if it is over.

        Where the context was full, its start stays and half of the rest goes.
        """
        if generation.finished is not FinishReason.CONTEXT_FULL:
            return None
        return self._shifted(plan, generation.committed, generation.mirostat_mu)

    def _shifted(self, plan: Plan, text: Sequence[int], mirostat_mu: float | None) -> Plan | None:
        opening, keep = plan.opening, plan.keep_count
        drop = (len(text) - keep) // 2
        if keep < 0 or not drop:
            return None
        dropped = Span(keep, [*opening.dropped.token_ids, *text[keep : keep + drop]])
        prompt = [*text[:keep], *text[keep + drop :]]
        return replace(
            self._renewed(plan, replace(opening, dropped=dropped)),
            prompt=prompt,
            sources=sources_after_shift(plan.sources, plan.make_sources(prompt)),
            mirostat_mu=mirostat_mu,
        )

    def resumed(self, plan: Plan, token_ids: Sequence[int]) -> Plan:
        """Return the plan of a text of which so much is written, after its prompt."""
        left = list(token_ids)
        # One token more than the context holds is committed before it is full.
        while plan.keep_count >= 0 and len(left) > (
            room := plan.target_context + 1 - len(plan.prompt)
        ):
            following = self._shifted(plan, [*plan.prompt, *left[:room]], None)
            if following is None:
                break
            plan, left = following, left[room:]
        prompt = [*plan.prompt, *left]
        sources = sources_after_shift(plan.sources, plan.make_sources(prompt))
        return replace(plan, prompt=prompt, sources=sources)

    def _renewed(self, plan: Plan, opening: SessionParameters) -> Plan:
        """Return the plan with a controller of its own."""
        its_control = self._control(
            plan.control.speculation, opening.rule, plan.form, plan.rollback_calls
        )
        return replace(plan, opening=opening, control=its_control)

    def _control(
        self, speculation: Speculation, rule: Rule, form: Form, rollback_calls: bool
    ) -> Control:
        samples = form is not Form.LOGITS and not rollback_calls
        timeout = self._config.draft_seconds
        return control(speculation, rule, self._pool.pair, timeout, samples)

    async def score(self, plan: Plan, deadline: float) -> list[TokenLogprob]:
        """Return the log probabilities of the prompt's tokens; the first one has none."""
        request = target_service_pb2.ScoreRequest(
            open=wire.write_opening(plan.opening), token_ids=plan.prompt
        )
        top_count = plan.opening.logprobs.top_count if plan.opening.logprobs else 0
        begin = partial(_Scores, plan, top_count)
        return [
            TokenLogprob(0.0, ()),
            *await self._pool.calls().whole("Score", request, deadline, begin),
        ]

    async def cached_count(self, plan: Plan, deadline: float) -> int:
        """Return how many tokens of the prompt the target need not decode."""
        request = target_service_pb2.CountCachedRequest(
            token_ids=plan.prompt,
            model=wire.write_reference(plan.opening.model),
            cache_salt=plan.opening.salt,
        )
        first = self._pool.likely_target(plan.prompt, plan.opening)
        most = len(plan.prompt)

        def read(response: target_service_pb2.CountCachedResponse) -> int:
            return int(within("cached_token_count", response.cached_token_count, 0, most))

        return await self._pool.calls(first).call("CountCached", request, deadline, read)

    async def _sampling(
        self, asked: Request, hosted: Hosted, deadline: float
    ) -> SamplingParameters:
        """Return the sampling parameters with every bias by id and every constraint a grammar."""
        vocabulary, grammar = hosted.model.vocabulary, asked.sampling.grammar
        sampling = asked.sampling if asked.beam_count == 1 else _SEARCHED
        biases = await self._biases_by_id(asked, hosted, deadline)
        if asked.ignore_eos:
            biases += [(token_id, -math.inf) for token_id in vocabulary.end_token_ids]
        if grammar or asked.json_schema:
            source = target_service_pb2.CompileGrammarRequest(
                grammar=grammar, model=wire.write_reference(hosted.reference)
            )
            if asked.json_schema:
                source.json_schema = asked.json_schema
            grammar = await self._pool.calls().call(
                "CompileGrammar", source, deadline, _read_grammar
            )
        return replace(sampling, logit_bias=tuple(biases), grammar=grammar)

    async def _biases_by_id(
        self, asked: Request, hosted: Hosted, deadline: float
    ) -> list[tuple[int, float]]:
        """Return the logit biases, a text's as one of each of its tokens."""
        texts = [token for token, _ in asked.logit_bias if isinstance(token, str)]
        tokenized = iter(await self.tokenize_texts(texts, hosted, deadline, add_special=False))
        by_id = [
            (next(tokenized) if isinstance(token, str) else [token], bias)
            for token, bias in asked.logit_bias
        ]
        check_bias_count(sum(len(ids) for ids, _ in by_id))
        biases = [(token_id, bias) for ids, bias in by_id for token_id in ids]
        size = hosted.model.vocabulary.token_count
        wire.read_ids("logit_bias", [token_id for token_id, _ in biases], size)
        return biases

    async def _prompt(self, asked: Request, hosted: Hosted, deadline: float) -> list[int]:
        most = None
        if not asked.truncate_prompt:
            most = hosted.model.context_token_count - PROMPT_RESERVE
        parts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        ids = await self.tokenize(parts, hosted, deadline, most, asked.parse_special)
        if not ids:
            raise InvalidRequest("prompt", "is empty, and the model adds no BOS")
        return ids

    async def _source_maker(
        self,
        asked: Request,
        speculation: Speculation,
        hosted: Hosted,
        grammar: str,
        deadline: float,
    ) -> MakeSources:
        """Return what makes the sources without a model for a text of this request."""
        vocabulary = hosted.model.vocabulary
        names = speculation.local_drafters
        forcing = None
        if grammar and "forced" in names:
            async with self._reading:
                texts = hosted.vocabulary.texts
                forcing = await asyncio.to_thread(self._grammars.read, grammar, texts)
        wants_prediction = bool(asked.prediction) and "prediction" in names
        expected = Expected(
            await self._prediction(asked, hosted, deadline) if wants_prediction else [],
            forcing,
            next(iter(vocabulary.end_token_ids), None),
        )
        is_shared = not asked.has_own_salt
        asks_for_ngrams = speculation.drafters is not None and "ngram" in names

        def make(prompt: Sequence[int]) -> dict[str, Source]:
            if not names:
                return {}
            of_texts = self._shared.sources(prompt, vocabulary, is_shared, asks_for_ngrams)
            return sources_of(speculation, expected, of_texts, prompt)

        return make

    async def _prediction(self, asked: Request, hosted: Hosted, deadline: float) -> list[int]:
        """Return the ids of what the caller expects, as many as the text may have."""
        expected, size = asked.prediction, hosted.model.vocabulary.token_count
        if isinstance(expected, str):
            [ids] = await self.tokenize_texts([expected], hosted, deadline, add_special=False)
        else:
            ids = wire.read_ids("prediction", expected, size)
        return ids[: hosted.model.context_token_count]

    async def tokenize(
        self,
        parts: Sequence[int | str],
        hosted: Hosted,
        deadline: float,
        most: int | None,
        parse_special: bool = False,
    ) -> list[int]:
        """Return the ids of a prompt; BOS is added if its first part is a text.

        Raises PromptTooLong for texts that are certainly more than `most` tokens, and
        InvalidRequest for an id that the vocabulary does not have.
        """
        texts = [part for part in parts if isinstance(part, str)]
        adds_special = isinstance(next(iter(parts), 0), str)
        tokenized = iter(
            await self.tokenize_texts(texts, hosted, deadline, adds_special, parse_special, most)
        )
        ids: list[int] = []
        for part in parts:
            if isinstance(part, str):
                ids += next(tokenized)
            else:
                ids.append(part)
        return wire.read_ids("prompt", ids, hosted.model.vocabulary.token_count)

    async def tokenize_texts(
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
        size = hosted.model.vocabulary.token_count

        def read(response: target_service_pb2.TokenizeResponse) -> list[list[int]]:
            tokenized = wire.read_tokenized(response, len(texts), size)
            at_least("texts", sum(map(len, tokenized)), least)
            return tokenized

        return await self._pool.calls().call("Tokenize", request, deadline, read)


class _Scores:
    """Reads the log probabilities of a prompt's tokens, but for the first one."""

    def __init__(self, plan: Plan, top_count: int) -> None:
        self._left = plan.prompt[1:]
        self._size = plan.opening.vocabulary
        self._top_count = top_count

    def read(self, part: target_service_pb2.ScoreResponse) -> list[TokenLogprob]:
        """Return those of the next tokens. Raises InvalidRequest."""
        count = min(len(part.logprobs), len(self._left))
        rows = wire.read_logprobs(part.logprobs, self._size, count)
        its, self._left = self._left[:count], self._left[count:]
        return [_score(*each, self._top_count) for each in zip(its, rows, strict=True)]

    def finish(self) -> None:
        """Raise InvalidRequest for a token without."""
        if self._left:
            raise InvalidRequest("logprobs", f"those of {len(self._left)} tokens are missing")


def _read_grammar(response: target_service_pb2.CompileGrammarResponse) -> str:
    if not response.grammar:
        raise InvalidRequest("grammar", "none was made of what the text must be")
    return response.grammar


def _score(token_id: int, row: Logprobs, top_count: int) -> TokenLogprob:
    """Return what a prompt's token and its row say. Raises InvalidRequest."""
    score = dict(row).get(token_id)
    if score is None:
        raise InvalidRequest("logprobs", f"the row of token {token_id} does not have it")
    return TokenLogprob(score, row[:top_count])


def _fit(prompt: list[int], capacity: int, asked: Request) -> list[int]:
    """Return the prompt, or what is left of it when its middle is dropped. Raises PromptTooLong.

    Whole blocks of half the room are dropped, so that a prompt that grows
    stays the same for a while, and with it the cache.
    """
    most = capacity - PROMPT_RESERVE
    if len(prompt) <= most:
        return prompt
    if not asked.truncate_prompt:
        raise PromptTooLong(len(prompt), most, capacity)
    keep = min(_keep_count(len(prompt), asked), most - 2)
    block = (most - keep) // 2
    erased = -(-(len(prompt) - most) // block) * block
    return [*prompt[:keep], *prompt[keep + erased :]]


def without_end(
    ids: Sequence[int], most: int, prompt: Sequence[int | str], adds_eos: bool
) -> list[int]:
    """Return the first `most` ids of a prompt, the EOS at its end among them if one was added."""
    ends_in_eos = adds_eos and len(prompt) == 1  # of several parts, the first text has it
    kept = most - ends_in_eos
    return list(ids) if len(ids) <= most else [*ids[:kept], *ids[len(ids) - ends_in_eos :]]


def check_embedded(token_count: int, most: int) -> None:
    """Raise PromptTooLong or InvalidRequest if a text has not 1 to `most` tokens."""
    if token_count > most:
        raise PromptTooLong(token_count, most, most)
    if not token_count:
        raise InvalidRequest("prompt", "is empty")


def _keep_count(prompt_count: int, asked: Request) -> int:
    """Return how many tokens at the start are never dropped."""
    keep = asked.keep_token_count
    return prompt_count if keep == -1 else min(keep, prompt_count)
