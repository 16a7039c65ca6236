"""A llama-server, unmodified, as a draft: it drafts, and whatever it does the text stays."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider_llama_server.main import key_of
from tests.support.llama_server import LlamaServerDraft, LlamaServerStandIn
from tests.support.processes import DRAFT as DRAFT_FILE
from tests.support.processes import ServiceProcess, free_port
from tests.support.services import (
    TARGET,
    Completion,
    Interruption,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    generate,
    request,
    running,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel

DRAFTED = messages.TOKEN_ORIGIN_DRAFTED
CORRECTED = messages.TOKEN_ORIGIN_CORRECTED
MATCH = common.ACCEPTANCE_RULE_MATCH
SHARED_NOISE = common.ACCEPTANCE_RULE_SHARED_NOISE
REJECTION = common.ACCEPTANCE_RULE_REJECTION
LONG = 60.0  # seconds; two busy loops may take the machine


def target(**options: Any) -> ToyModel:
    return toy(**{"seed": 1, "eos_bias": NEVER, **options})


def good_draft(**options: Any) -> ToyModel:
    return target(**{"seed": 2, "like": 1, "agreement": 0.95, **options})


@contextlib.contextmanager
def standing_in(model: ToyModel, **options: Any) -> Iterator[LlamaServerStandIn]:
    stand_in = LlamaServerStandIn(model, **options)
    stand_in.start()
    try:
        yield stand_in
    finally:
        stand_in.kill()


@contextlib.contextmanager
def started(*words: str) -> Iterator[None]:
    """Run a process, and kill it at the end."""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


@contextlib.asynccontextmanager
async def over(
    draft: LlamaServerDraft, make_target: Callable[[], ToyModel] = target, **options: Any
) -> AsyncIterator[OrchestratorProcess]:
    """Start a target and an orchestrator beside a draft that runs."""
    async with (
        running(ModelProcess(TARGET, make_target)) as process,
        running(OrchestratorProcess(process.address, draft.address, **options)) as orchestrator,
    ):
        await eventually(lambda: orchestrator.pool.targets[0].peer.ready, LONG)
        yield orchestrator


async def speculating(orchestrator: OrchestratorProcess) -> bool:
    return bool((await orchestrator.status()).speculating)


@contextlib.asynccontextmanager
async def drafted_by(
    stand_in: LlamaServerStandIn, **options: Any
) -> AsyncIterator[OrchestratorProcess]:
    """Start everything, and wait until the draft is used."""
    async with (
        running(LlamaServerDraft(stand_in.url)) as draft,
        over(draft, **options) as orchestrator,
    ):
        await eventually(lambda: speculating(orchestrator), LONG)
        yield orchestrator


async def written(orchestrator: OrchestratorProcess, *args: Any, **options: Any) -> Completion:
    return await generate(orchestrator, *args, timeout=LONG, **options)


async def drafts_again(orchestrator: OrchestratorProcess, asked: Any) -> bool:
    """Return whether a text has draft tokens, and is the target's own in any case."""
    completion = await written(orchestrator, asked)
    assert completion.token_ids == written_alone(target(), asked)
    return completion.origin_count(DRAFTED) > 0


@pytest.mark.parametrize(("rule", "temperature"), [(MATCH, 0.0), (SHARED_NOISE, 0.8)])
async def test_the_targets_own_model_drafts_nothing_that_is_rejected(
    rule: Any, temperature: float
) -> None:
    """Above temperature 0, too: the likeliest tokens are drawn from with the target's noise."""
    asked = request(temperature=temperature, acceptance=rule)
    with standing_in(target()) as stand_in:
        async with drafted_by(stand_in) as orchestrator:
            completion = await written(orchestrator, asked)
            await eventually(lambda: drafts_again(orchestrator, asked), LONG)
    assert completion.token_ids == written_alone(target(), asked)
    assert completion.origin_count(CORRECTED) == 0


async def test_under_rejection_it_drafts_and_is_asked_for_blocks_of_a_fixed_length() -> None:
    asked = request(temperature=0.8, acceptance=REJECTION)
    with standing_in(good_draft(eos_bias=0.0)) as stand_in:
        async with drafted_by(stand_in) as orchestrator:

            async def is_drafted() -> bool:
                completion = await written(orchestrator, asked)
                assert len(completion.token_ids) == asked.token_limit
                return completion.origin_count(DRAFTED) > 0

            await eventually(is_drafted, LONG)
        assert all(body["ignore_eos"] for body in stand_in.completions[1:])


async def test_an_end_of_the_text_ends_its_line() -> None:
    asked = request(temperature=0.0, prompt="abc")
    ending = partial(target, eos_bias=2.0)
    expected = written_alone(ending(), asked)
    assert 1 < len(expected) < asked.token_limit
    with standing_in(ending()) as stand_in:
        async with drafted_by(stand_in, make_target=ending) as orchestrator:
            completion = await written(orchestrator, asked)
    assert completion.token_ids == expected
    assert completion.origin_count(CORRECTED) == 0


async def test_one_that_is_killed_costs_speed_and_is_used_again_when_it_is_back() -> None:
    asked = request(temperature=0.0, token_limit=120)
    with standing_in(good_draft()) as stand_in:
        async with drafted_by(stand_in) as orchestrator:

            async def kill() -> None:
                stand_in.kill()

            completion = await written(orchestrator, asked, [Interruption(30, kill)])
            assert completion.token_ids == written_alone(target(), asked)
            stand_in.start()
            await eventually(lambda: drafts_again(orchestrator, asked), LONG)


async def test_one_that_comes_back_with_another_model_is_asked_for_that() -> None:
    asked = request(temperature=0.8, token_limit=120)
    with standing_in(good_draft()) as stand_in:
        async with drafted_by(stand_in) as orchestrator:

            async def exchange() -> None:
                stand_in.kill()
                stand_in.model = good_draft(seed=3)
                stand_in.start()

            completion = await written(orchestrator, asked, [Interruption(30, exchange)])
            assert completion.token_ids == written_alone(target(), asked)

            def is_the_new_one() -> bool:
                model = orchestrator.pool.drafts[0].peer.model
                return model is not None and model.model_name == "toy-3"

            await eventually(is_the_new_one, LONG)
            await eventually(lambda: drafts_again(orchestrator, asked), LONG)


LIES: dict[str, Any] = {
    "no JSON": b"<html>Bad gateway</html>",
    "no object": [1, 2, 3],
    "no ids": {"content": "the rain"},
    "ids that are none": {"tokens": [5, 64]},
    "ids below 0": {"tokens": [-1]},
    "ids of other kinds": {"tokens": ["5", 5.0, None, True]},
    "more than was asked for": {"tokens": [5] * 1000},
    "nothing": {"tokens": []},
    "rows that are no rows": {"tokens": [5], "completion_probabilities": [7]},
    "chances above 1": {
        "tokens": [5],
        "completion_probabilities": [{"id": 5, "top_logprobs": [{"id": 5, "logprob": 3.0}]}],
    },
    "more than fits": b'{"tokens": [' + b" " * (17 << 20),
    "nesting without end": b"[" * 200_000,
}


async def test_what_it_may_never_answer_costs_speed_alone() -> None:
    asked = request(temperature=0.8, token_limit=24)
    expected = written_alone(target(), asked)
    with standing_in(good_draft()) as stand_in:
        async with drafted_by(stand_in, draft_seconds=0.2) as orchestrator:
            for name, lie in LIES.items():
                stand_in.lie = lambda path, _, lie=lie: lie if path == "/completion" else None
                before = len(stand_in.completions)
                completion = await written(orchestrator, asked)
                assert completion.token_ids == expected, name

                async def was_asked(before: int = before) -> bool:
                    await written(orchestrator, asked)
                    return len(stand_in.completions) > before

                await eventually(was_asked, LONG)
                stand_in.lie = lambda path, body: None
            await eventually(lambda: drafts_again(orchestrator, asked), LONG)


async def test_a_slow_one_is_not_waited_for() -> None:
    asked = request(temperature=0.0, token_limit=24)
    with standing_in(good_draft()) as stand_in:
        async with drafted_by(stand_in, draft_seconds=0.1) as orchestrator:
            stand_in.pace = 1000.0
            completion = await written(orchestrator, asked)
            assert completion.token_ids == written_alone(target(), asked)
            stand_in.kill()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"changed_texts": {i: b"<%d>" % i for i in range(20, 60)}}, "mean something else"),
        ({"vocabulary_size": 400}, "sizes differ"),
    ],
)
async def test_one_with_another_vocabulary_is_refused_by_name(
    other: dict[str, Any], said: str
) -> None:
    asked = request(temperature=0.0)
    with standing_in(good_draft(**other)) as stand_in:
        async with (
            running(LlamaServerDraft(stand_in.url)) as draft,
            over(draft) as orchestrator,
        ):
            obstacle = orchestrator.pool.drafts[0].obstacle
            await eventually(lambda: said in obstacle(), LONG)
            completion = await written(orchestrator, asked)
            assert completion.token_ids == written_alone(target(), asked)
            assert completion.origin_count(DRAFTED) == 0


@pytest.mark.parametrize("size", [60, 70])
async def test_its_vocabulary_may_have_another_tail(size: int) -> None:
    asked = request(temperature=0.8, token_limit=64)
    with standing_in(good_draft(vocabulary_size=size)) as stand_in:
        async with drafted_by(stand_in) as orchestrator:
            await eventually(lambda: drafts_again(orchestrator, asked), LONG)


async def test_it_is_shown_its_key_and_one_that_wants_another_is_not_used() -> None:
    asked = request(temperature=0.0)
    with standing_in(good_draft(), key="sesame") as stand_in:
        async with (
            running(LlamaServerDraft(stand_in.url, lambda: "sesame")) as draft,
            over(draft) as orchestrator,
        ):
            await eventually(lambda: drafts_again(orchestrator, asked), LONG)
        async with running(LlamaServerDraft(stand_in.url)) as draft, over(draft) as orchestrator:
            await eventually(lambda: "401" in draft.upstream.detail, LONG)
            completion = await written(orchestrator, asked)
            assert completion.token_ids == written_alone(target(), asked)


@pytest.mark.fault(
    "restart",
    "a llama-server is started with another `--api-key`, and the draft's key file follows it",
    before="the old key was shown until the draft was started again",
    now="the file is read again when it changes",
)
async def test_its_key_may_be_another_while_it_drafts(tmp_path: Path) -> None:
    asked = request(temperature=0.0)
    file = tmp_path / "key"
    file.write_text("sesame\n")
    with standing_in(good_draft(), key="sesame") as stand_in:
        async with (
            running(LlamaServerDraft(stand_in.url, key_of(file))) as draft,
            over(draft) as orchestrator,
        ):
            await eventually(lambda: drafts_again(orchestrator, asked), LONG)
            stand_in.key = "open up"
            await eventually(lambda: "401" in draft.upstream.detail, LONG)
            file.write_text("open up\n")
            await eventually(lambda: draft.upstream.is_up, LONG)
            await eventually(lambda: drafts_again(orchestrator, asked), LONG)


async def test_what_does_not_fit_its_context_is_left_to_the_target() -> None:
    asked = request(temperature=0.0, token_limit=120)
    with standing_in(good_draft(context=64)) as stand_in:
        async with drafted_by(stand_in) as orchestrator:
            await eventually(lambda: drafts_again(orchestrator, asked), LONG)


_WITHOUT_LLAMA = """
import sys
sys.modules["llama_cpp"] = None
from outrider_cli import main
sys.argv = ["outrider", *sys.argv[1:]]
main()
"""


async def test_the_command_joins_from_a_process_without_llama_cpp(tmp_path: Path) -> None:
    asked = request(temperature=0.0)
    key = tmp_path / "key"
    key.write_text("sesame\n")
    with standing_in(good_draft(), key="sesame") as stand_in:
        async with (
            running(ModelProcess(TARGET, target)) as process,
            running(OrchestratorProcess(process.address, accept_drafts=True)) as orchestrator,
        ):
            words = ["draft-llama-server", "--url", stand_in.url, "--join", orchestrator.address]
            words += ["--key-file", str(key)]
            command = [sys.executable, "-c", _WITHOUT_LLAMA, *words]
            with started(*command):
                await eventually(lambda: speculating(orchestrator), LONG)
                await eventually(lambda: drafts_again(orchestrator, asked), LONG)


BINARY = os.environ.get("LLAMA_SERVER", "")


@pytest.mark.skipif(not BINARY, reason="LLAMA_SERVER names no llama-server")
async def test_a_real_llama_server_drafts_for_a_real_target() -> None:
    from tests.support.processes import TARGET as TARGET_FILE

    port = free_port()
    words = [BINARY, "--model", str(DRAFT_FILE), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--ctx-size", "4096", "--parallel", "2", "--threads", "1"]
    service = ServiceProcess("target", "--model", str(TARGET_FILE), "--threads", "1")
    with started(*words):
        try:
            service.start()
            await service.wait_until_serving()
            async with (
                running(LlamaServerDraft(f"http://127.0.0.1:{port}")) as draft,
                running(OrchestratorProcess(service.address, draft.address)) as orchestrator,
            ):
                await eventually(lambda: speculating(orchestrator), LONG)
                for temperature in (0.0, 0.8):
                    texts = [
                        await written(
                            orchestrator,
                            request("def read_config(path):", temperature=temperature, **options),
                        )
                        for options in ({}, {"enabled": False})
                    ]
                    assert texts[0].token_ids == texts[1].token_ids
                    accepted, wrong = (texts[0].origin_count(o) for o in (DRAFTED, CORRECTED))
                    print(f"temperature {temperature}: {accepted} accepted, {wrong} corrected")
                    assert accepted > 10
        finally:
            service.stop()
