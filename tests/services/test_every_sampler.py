"""Every sampler under speculation, over the wire, with real models: the target's own text."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio

from outrider import wire
from outrider.distribution import logprobs, softmax
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk
from outrider.sampling import SamplingParameters
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.sampling_table import JSON_GRAMMAR, LETTERS, pairwise
from tests.support.schemas import is_valid
from tests.support.services import (
    DRAFT,
    PATIENCE,
    TARGET,
    Completion,
    Interruption,
    ModelProcess,
    OrchestratorProcess,
    Trio,
    generate,
    running,
)
from tests.support.thorough import THOROUGH
from tests.support.tiny_gguf import Shape, write_model

PROMPT = "for line in lines: print(line)\nfor line in"
REJECTION = common.ACCEPTANCE_RULE_REJECTION
SAMPLERS = pairwise(seed=2)


def load(path: Path) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=256,
            sequence_count=4,
            thread_count=1,
            pad_multiple=1,
            batch_rows=128,
        )
    )


@pytest.fixture(scope="module")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "target.gguf", shape=Shape(layers=1))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def trio(target_path: Path) -> AsyncIterator[Trio]:
    """Three services; the draft is the target's own file, so that drafts get far."""
    async with (
        running(ModelProcess(TARGET, lambda: load(target_path))) as target,
        running(ModelProcess(DRAFT, lambda: load(target_path))) as draft,
        running(OrchestratorProcess(target.address, draft.address)) as orchestrator,
    ):
        await orchestrator.until_ready()
        yield Trio(target, draft, orchestrator)


def asked(
    parameters: SamplingParameters, *, seed: int = 3, limit: int = 32, top: int = 3, **how: Any
) -> messages.GenerateRequest:
    how = {"n_max": 4, "policy": messages.DRAFT_POLICY_FIXED, **how}
    return messages.GenerateRequest(
        prompt_text=PROMPT,
        sampling=wire.write_sampling(parameters),
        seed=seed,
        token_limit=limit,
        speculative=messages.SpeculativeOptions(**how),
        logprobs=common.LogprobOptions(top_count=top),
    )


@pytest.mark.parametrize("parameters", SAMPLERS, ids=range(len(SAMPLERS)))
async def test_speculation_changes_neither_tokens_nor_logprobs(
    trio: Trio, parameters: SamplingParameters
) -> None:
    alone = await generate(trio.orchestrator, asked(parameters, enabled=False))
    drafted = await generate(trio.orchestrator, asked(parameters))
    assert drafted.token_ids == alone.token_ids
    assert drafted.logprobs == alone.logprobs
    assert drafted.finished is not None and alone.finished is not None
    assert drafted.finished.reason == alone.finished.reason
    assert alone.statistics.drafted_token_count == 0
    if len(alone.token_ids) > 2:
        assert drafted.statistics.accepted_token_count > 0


async def test_drafts_of_an_equal_model_are_nearly_all_accepted(trio: Trio) -> None:
    """Because the draft applies the same chain with the same coins, grammar included."""
    drafted = accepted = 0
    for parameters in SAMPLERS:
        if parameters.mirostat:
            continue  # the draft does not know its state
        completion = await generate(trio.orchestrator, asked(parameters))
        drafted += completion.statistics.drafted_token_count
        accepted += completion.statistics.accepted_token_count
    assert drafted > 200
    assert accepted > 0.95 * drafted


async def test_state_survives_evictions_and_restarts(trio: Trio) -> None:
    everything = SamplingParameters(
        top_k=0,
        repeat_penalty=1.2,
        dry_multiplier=1.0,
        dry_allowed_length=1,
        xtc_probability=0.4,
        xtc_threshold=0.05,
        grammar='root ::= [a-z ]{60,80} "."',
    )
    for parameters in (everything, SamplingParameters(mirostat=2, mirostat_tau=3.0)):
        request = asked(parameters, limit=40)
        alone = await generate(trio.orchestrator, asked(parameters, limit=40, enabled=False))
        assert len(alone.token_ids) > 27
        disturbed = await generate(
            trio.orchestrator,
            request,
            [
                Interruption(5, trio.target.close_sessions),
                Interruption(12, trio.draft.close_sessions),
                Interruption(18, trio.target.restart),
                Interruption(26, trio.draft.restart),
            ],
        )
        assert disturbed.token_ids == alone.token_ids
        assert disturbed.logprobs == alone.logprobs
        await trio.orchestrator.until_ready()


async def test_logprobs_are_the_targets_own(trio: Trio, target_path: Path) -> None:
    model = load(target_path)
    for temperature in (0.0, 0.8):
        completion = await generate(
            trio.orchestrator, asked(SamplingParameters(temperature=temperature), top=4)
        )
        text = [*completion.prompt, *completion.token_ids]
        model.truncate(0, 0)
        [rows] = model.decode([Chunk(0, 0, text, len(completion.token_ids) + 1)])
        for row, token_id, told in zip(
            rows, completion.token_ids, completion.logprobs, strict=False
        ):
            expected = dict(logprobs(softmax(row), 4, [token_id]))
            assert told[0] == pytest.approx(expected[token_id], abs=1e-4)
            best = list(expected.items())[:4]
            assert [token for token, _ in told[1]] == [token for token, _ in best]
            np.testing.assert_allclose(
                [value for _, value in told[1]], [value for _, value in best], atol=1e-4
            )
    model.close()


async def test_logprobs_after_sampling_are_those_of_the_distribution(trio: Trio) -> None:
    parameters = SamplingParameters(top_k=3, top_p=1.0, min_p=0.0)
    request = asked(parameters, top=10)
    request.logprobs.after_sampling = True
    completion = await generate(trio.orchestrator, request)
    for value, alternatives in completion.logprobs:
        assert len(alternatives) == 3
        assert sum(math.exp(each) for _, each in alternatives) == pytest.approx(1.0, abs=1e-5)
        assert value in [each for _, each in alternatives]


@pytest.mark.parametrize(
    "parameters", [SamplingParameters(top_k=8), SamplingParameters(top_k=0, top_p=1.0, min_p=0.0)]
)
async def test_logprobs_come_under_the_rejection_rule_too(
    trio: Trio, parameters: SamplingParameters
) -> None:
    for after_sampling in (False, True):
        request = asked(parameters, acceptance=REJECTION, top=2)
        request.logprobs.after_sampling = after_sampling
        completion = await generate(trio.orchestrator, request)
        assert completion.statistics.accepted_token_count > 0
        assert len(completion.logprobs) == len(completion.token_ids)
        for value, alternatives in completion.logprobs:
            assert -20 < value <= 0
            assert 1 <= len(alternatives) <= 2


async def test_rejection_keeps_to_the_grammar(trio: Trio) -> None:
    for seed in range(5):
        request = asked(
            SamplingParameters(grammar=LETTERS, repeat_penalty=1.2),
            seed=seed,
            limit=60,
            acceptance=REJECTION,
        )
        completion = await generate(trio.orchestrator, request)
        assert completion.statistics.accepted_token_count > 0
        assert set(completion.text) <= set("abcdefghijklmnopqrstuvwxyz .")
        assert completion.text.find(".") in (-1, len(completion.text) - 1)


async def test_a_bias_by_text_hits_every_token_of_it(trio: Trio) -> None:
    request = asked(SamplingParameters(temperature=0.0), limit=8, enabled=False)
    plain = await generate(trio.orchestrator, request)
    request.sampling.logit_biases.append(common.LogitBias(text="line", bias=-math.inf))
    request.sampling.logit_biases.append(
        common.LogitBias(token_id=plain.token_ids[0], bias=-math.inf)
    )
    biased = await generate(trio.orchestrator, request)
    assert biased.token_ids[0] != plain.token_ids[0]
    only = asked(SamplingParameters(temperature=0.0), limit=8)
    only.sampling.logit_biases.append(common.LogitBias(text="(", bias=1000.0))
    assert (await generate(trio.orchestrator, only)).text == "(" * 8


async def test_a_text_that_may_not_end_does_not(trio: Trio) -> None:
    request = asked(SamplingParameters(temperature=0.0), limit=12)
    request.sampling.logit_biases.append(common.LogitBias(token_id=1, bias=1000.0))
    ended = await generate(trio.orchestrator, request)
    assert ended.token_ids == [1]
    request.ignore_eos = True
    endless = await generate(trio.orchestrator, request)
    assert len(endless.token_ids) == 12
    assert 1 not in endless.token_ids


REFUSED = [
    ({"sampling": SamplingParameters(grammar="root ::= nothing")}, {}, "grammar"),
    ({"sampling": SamplingParameters(mirostat=2)}, {"acceptance": REJECTION}, "mirostat"),
    (
        {"sampling": SamplingParameters(typical_p=0.5)},
        {"acceptance": REJECTION, "row_form": common.ROW_FORM_LOGITS},
        "typical_p",
    ),
    (
        {"sampling": SamplingParameters(grammar=JSON_GRAMMAR)},
        {"acceptance": REJECTION, "row_form": common.ROW_FORM_LOGITS},
        "grammar",
    ),
    (
        {"sampling": SamplingParameters()},
        {"acceptance": REJECTION, "row_form": common.ROW_FORM_LOGITS},
        "logprobs",
    ),
    ({"sampling": SamplingParameters(logit_bias=((320, 1.0),))}, {}, "logit_bias"),
    ({"sampling": SamplingParameters(), "top": 129}, {}, "logprobs.top_count"),
]


@pytest.mark.parametrize(("options", "how", "field"), REFUSED)
async def test_what_does_not_go_together_is_refused_by_name(
    trio: Trio, options: dict[str, Any], how: dict[str, Any], field: str
) -> None:
    completion = Completion()
    request = asked(options["sampling"], top=options.get("top", 3), **how)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await generate(trio.orchestrator, request, into=completion)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(refused.value.details()).startswith(f"{field}: ")
    assert not completion.prompt, "it had started"


async def test_a_grammar_that_leaves_nothing_is_an_error_and_harmless(trio: Trio) -> None:
    parameters = replace(
        SamplingParameters(temperature=0.0),
        grammar='root ::= "("',
        logit_bias=tuple((token_id, -math.inf) for token_id in range(320)),
    )
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await generate(trio.orchestrator, asked(parameters))
    assert "leaves no token" in str(refused.value.details())
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await generate(trio.orchestrator, asked(SamplingParameters()), timeout=PATIENCE)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["lamp", "line", "road"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3},
        "is_free": {"type": ["boolean", "null"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
SCHEMA_TEXTS = 200 if THOROUGH else 20


async def test_every_text_under_a_json_schema_is_valid_and_drafts_are_accepted(trio: Trio) -> None:
    accepted = 0
    for seed in range(SCHEMA_TEXTS):
        request = asked(
            SamplingParameters(temperature=0.8 if seed % 4 else 0.0), seed=seed, limit=-1
        )
        request.ClearField("logprobs")
        request.json_schema = json.dumps(SCHEMA)
        request.prompt_text = f"{PROMPT} {seed}"
        completion = await generate(trio.orchestrator, request)
        assert completion.finished is not None
        assert completion.finished.reason == messages.FINISH_REASON_END_OF_TEXT
        assert is_valid(json.loads(completion.text), SCHEMA), completion.text
        accepted += completion.statistics.accepted_token_count
    assert accepted > 10 * SCHEMA_TEXTS


async def test_a_beam_search_keeps_to_a_schema_and_to_biases(trio: Trio) -> None:
    request = asked(SamplingParameters(), limit=-1)
    request.beam_count = 3
    request.json_schema = json.dumps(SCHEMA)
    completion = await generate(trio.orchestrator, request)
    assert is_valid(json.loads(completion.text), SCHEMA), completion.text
    free = asked(SamplingParameters())
    free.beam_count = 3
    first = (await generate(trio.orchestrator, free)).token_ids
    free.sampling.logit_biases.append(common.LogitBias(token_id=first[0], bias=-math.inf))
    completion = await generate(trio.orchestrator, free)
    assert first[0] not in completion.token_ids and completion.token_ids
    # The target's own log probabilities are told, whatever the biases.
    assert all(value <= listed[0][1] for value, listed in completion.logprobs)


@pytest.mark.parametrize("schema", ['{"type": "nothing"}', "{", '{"not": {}}', "[]"])
async def test_a_schema_that_cannot_be_kept_is_refused_by_name(trio: Trio, schema: str) -> None:
    request = asked(SamplingParameters())
    request.json_schema = schema
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await generate(trio.orchestrator, request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(refused.value.details()).startswith("json_schema")


async def test_a_grammar_too_complex_to_follow_ends_its_own_generation_alone(trio: Trio) -> None:
    endings = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    others = " | ".join(f'"(" root "(" root "{end}"' for end in endings)
    many = f'root ::= "(" | "(" root root | {others}'
    parameters = SamplingParameters(grammar=many, logit_bias=((10, 1000.0),), temperature=0.0)
    bystander = generate(trio.orchestrator, asked(SamplingParameters(), seed=9))
    request = asked(parameters, limit=60)
    with pytest.raises(grpc.aio.AioRpcError, match="too complex to follow") as refused:
        await generate(trio.orchestrator, request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len((await bystander).token_ids) > 1
