"""The predecessor library's methods over JSON-RPC: its keys, its options, its jobs."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from tests.support.json_rpc import json_rpc
from tests.support.sampling_table import LETTERS
from tests.support.services import (
    DRAFT,
    TARGET,
    ModelProcess,
    OrchestratorProcess,
    all_idle,
    eventually,
    running,
)
from tests.support.tiny_gguf import Shape, write_model

PROMPT = "for line in lines: print(line)\nfor line in"
SETTINGS = {
    *("n_ctx", "model", "seed", "temp", "top_k", "top_p", "tfs_z", "typical_p", "repeat_last_n"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty", "mirostat", "mirostat_tau"),
    *("mirostat_eta", "penalize_nl", "stop", "n_predict", "n_keep", "ignore_eos", "stream"),
    *("logit_bias", "n_probs", "grammar"),
}
SETTINGS_SINCE = {
    *("dynatemp_range", "dynatemp_exponent", "top_n_sigma", "xtc_probability", "xtc_threshold"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    *("dry_sequence_breakers", "min_keep", "samplers", "min_p", "speculative"),
}
ANSWER = {
    *("content", "stop", "model", "tokens_predicted", "tokens_evaluated", "generation_settings"),
    *("prompt", "truncated", "stopped_eos", "stopped_word", "stopped_limit", "stopping_word"),
    *("tokens_cached", "timings", "status"),
}
TIMINGS = {
    f"{what}_{unit}"
    for what in ("prompt", "predicted")
    for unit in ("n", "ms", "per_token_ms", "per_second")
}
STATS = {"n_ctx", "total_prompt_tokens", "truncated", "n_past", "cached", "to_eval"}


def load(path: Path) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=256,
            sequence_count=8,
            thread_count=1,
            pad_multiple=1,
            batch_rows=128,
            embeddings=True,
        )
    )


class Server:
    """JSON-RPC, the services behind it, and a caller."""

    def __init__(
        self, client: httpx.AsyncClient, target: ModelProcess, draft: ModelProcess
    ) -> None:
        self.client = client
        self.target = target
        self.draft = draft

    async def send(self, payload: Any, caller: str = "tests") -> Any:
        headers = {"Outrider-Client": caller} if caller else {}
        response = await self.client.post("/rpc", json=payload, headers=headers)
        return response.json() if response.content else None

    async def call(self, method: str, params: Any = None, caller: str = "tests") -> Any:
        """Return the result of a call."""
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        answer = await self.send(asked, caller)
        assert "error" not in answer, answer
        return answer["result"]

    async def refusal(self, method: str, params: Any = None) -> dict[str, Any]:
        """Return the error of a call."""
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        error: dict[str, Any] = (await self.send(asked))["error"]
        return error

    async def drain(self, job_id: str = "", caller: str = "tests") -> list[dict[str, Any]]:
        """Poll a job, or the caller's latest, to its end."""
        updates: list[dict[str, Any]] = []
        for _ in range(2000):
            polled = await self.call("async_completion_poll", {"job_id": job_id or None}, caller)
            updates += polled["completion_updates"]
            if polled["finished"]:
                return updates
            await asyncio.sleep(0.005)
        raise AssertionError("the job does not end")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    path = write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", shape=Shape(layers=1))
    async with (
        running(ModelProcess(TARGET, lambda: load(path))) as target,
        running(ModelProcess(DRAFT, lambda: load(path))) as draft,
        running(OrchestratorProcess(target.address, draft.address)) as orchestrator,
    ):
        await orchestrator.until_ready()
        async with (
            json_rpc(orchestrator.address) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as client,
        ):
            yield Server(client, target, draft)


# the system


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"model": "tiny", "draft_model": "tiny"},
        {"model": "/somewhere/tiny.gguf", "n_threads": 4},
        ["server -m /somewhere/tiny.gguf -md tiny.gguf --host 127.0.0.1 --port 8080 -t 4 -ngl 0"],
        ['{"model": "tiny.gguf", "hostname": "127.0.0.1"}'],
    ],
    ids=["nothing", "names", "path", "command line", "JSON text"],
)
async def test_init_confirms_the_pair_that_is_served(server: Server, params: Any) -> None:
    for method in ("init", "init_async"):
        result = await server.call(method, params)
        assert result == {"init_success": 1, "model_alias": "tiny", "model": "tiny"}
    assert await server.call("poll_system_status") == result


@pytest.mark.parametrize("params", [{"model": "other"}, ["-m other.gguf"], {"draft_model": "x"}])
async def test_init_of_another_model_is_refused_by_name(server: Server, params: Any) -> None:
    error = await server.refusal("init", params)
    assert error["data"]["reason"] == "INVALID_CONFIG"
    assert "serves tiny" in error["message"]


@pytest.mark.parametrize("line", ["--frobnicate 1", "-m", "-m a --port"])
async def test_a_command_line_that_is_not_understood_is_refused(server: Server, line: str) -> None:
    assert (await server.refusal("init", [line]))["code"] == -32602


async def test_texts_and_tokens(server: Server) -> None:
    tokens = await server.call("tokenize", {"text": "line é"})
    assert tokens["success"] and tokens["length"] == len(tokens["tokens"])
    assert tokens["tokens"][0] == ""  # BOS
    assert tokens["tokens"][-2:] == ["byte: \\xc3", "byte: \\xa9"]
    assert await server.call("tokenize", {"text": 7}) == {"success": False}
    assert await server.call("detokenize", {"tokens": [0, 69, 70]}) == {"content": "cd"}
    for wrong in ("x", [320], [-1], [1.5], None):
        assert (await server.refusal("detokenize", {"tokens": wrong}))["code"] == -32602


async def test_embeddings(server: Server) -> None:
    one = (await server.call("embedding", {"content": "the rain"}))["embedding"]
    assert sum(value * value for value in one) == pytest.approx(1.0, abs=1e-5)
    other = (await server.call("embedding", {"content": "in spain"}))["embedding"]
    assert one != other and len(one) == len(other) == 64


# completions


async def test_an_answer_has_every_key_of_the_library(server: Server) -> None:
    asked = {"prompt": PROMPT, "n_predict": 12, "seed": 5, "n_probs": 3, "stop": ["never", ""]}
    answer = await server.call("get_completion", asked)
    assert ANSWER | {"completion_probabilities", "prompt_stats"} <= set(answer)
    assert set(answer["generation_settings"]) >= SETTINGS | SETTINGS_SINCE
    assert set(answer["timings"]) == TIMINGS
    assert set(answer["prompt_stats"]) == STATS
    assert answer["stop"] is True and answer["status"] == 200
    assert answer["prompt"] == PROMPT and answer["model"] == "tiny"
    assert 12 <= answer["tokens_predicted"] <= 15
    assert answer["stopped_limit"] and not answer["stopped_eos"] and not answer["stopped_word"]
    assert answer["tokens_cached"] == answer["tokens_evaluated"] + answer["tokens_predicted"] - 1
    settings = answer["generation_settings"]
    assert settings["seed"] == 5 and settings["repeat_penalty"] == 1.1 and settings["temp"] == 0.8
    assert settings["stop"] == ["never"]  # an empty stop word is none
    stats = answer["prompt_stats"]
    assert stats["cached"] + stats["to_eval"] == PROMPT
    assert stats["total_prompt_tokens"] == answer["tokens_evaluated"]
    probabilities = answer["completion_probabilities"]
    assert len(probabilities) == answer["tokens_predicted"]
    for each in probabilities:
        assert 1 <= len(each["probs"]) <= 3
        assert sum(p["prob"] for p in each["probs"]) <= 1.0001


async def test_null_is_as_good_as_absent(server: Server) -> None:
    asked = {"prompt": PROMPT, "n_predict": 8, "seed": 5}
    names = ("temperature", "top_k", "stop", "grammar", "logit_bias", "speculative", "stream")
    nulls = dict.fromkeys(names)
    one = await server.call("get_completion", asked)
    other = await server.call("get_completion", asked | nulls)
    assert one["content"] == other["content"]
    assert one["generation_settings"] == other["generation_settings"]


@pytest.mark.parametrize(
    ("taken", "meant"),
    [
        ({"stop": [None, "i", None]}, {"stop": ["i"]}),
        ({"temperature": -0.5}, {"temperature": 0}),
        ({"top_p": 1.5, "tfs_z": 2, "typical_p": 7.0}, {"top_p": 1.0}),
        ({"top_p": -1}, {"top_p": 0.0}),
        ({"repeat_last_n": -9}, {"repeat_last_n": -1}),
        ({"n_keep": -9, "n_probs": -2}, {"n_keep": -1}),
        ({"n_predict": -9, "logit_bias": [[1, 1000.0]]}, {"logit_bias": [[1, 1000.0]]}),
    ],
)
async def test_what_the_library_took_beyond_a_range_means_its_end(
    server: Server, taken: dict[str, Any], meant: dict[str, Any]
) -> None:
    asked = {"prompt": PROMPT, "n_predict": 8, "seed": 5}
    one = await server.call("get_completion", asked | taken)
    other = await server.call("get_completion", asked | meant)
    assert one["content"] == other["content"]
    settings = {**one["generation_settings"], "n_predict": 8}
    assert settings == {**other["generation_settings"], "n_predict": 8}


async def test_a_prompt_of_texts_and_ids_has_a_bos_before_a_first_text_only(
    server: Server,
) -> None:
    async def count(prompt: Any) -> int:
        asked = {"prompt": prompt, "n_predict": 1}
        return int((await server.call("get_completion", asked))["tokens_evaluated"])

    assert await count(["a", 70, "b"]) == 4
    assert await count([70, "a", "b"]) == 3
    assert await count("ab") == 3


async def test_what_the_library_ignored_is_ignored(server: Server) -> None:
    asked = {"prompt": PROMPT, "n_predict": 6, "seed": 5}
    plain = await server.call("get_completion", asked)
    ignored = [[99999, 5.0], [-1, 5.0], [70, "x"], [70], "x", [70, True], [True, 1.0]]
    other = await server.call("get_completion", asked | {"logit_bias": ignored})
    assert other["content"] == plain["content"]
    assert other["generation_settings"]["logit_bias"] == []


async def test_biases_are_a_number_or_never(server: Server) -> None:
    asked = {"prompt": PROMPT, "n_predict": 4, "temperature": 0, "repeat_penalty": 1.0}
    forced = await server.call("get_completion", asked | {"logit_bias": [[69, 1000.0]]})
    assert forced["content"] == "cccc"
    banned = [[69, 1000.0], [69, False]]
    never = await server.call("get_completion", asked | {"logit_bias": banned})
    assert "c" not in never["content"]
    assert [69, False] in never["generation_settings"]["logit_bias"]


async def test_an_end_is_what_ends_the_text(server: Server) -> None:
    forced = {"prompt": PROMPT, "n_predict": 5, "logit_bias": [[1, 1000.0]]}
    answer = await server.call("get_completion", forced)
    assert answer["stopped_eos"] and not answer["stopped_limit"]
    assert answer["content"] == ""
    answer = await server.call("get_completion", forced | {"ignore_eos": True})
    assert answer["stopped_limit"] and answer["generation_settings"]["ignore_eos"]


async def test_a_stop_word_cuts_text_and_probabilities_at_the_same_place(server: Server) -> None:
    asked = {"prompt": PROMPT, "seed": 8, "n_predict": 40, "n_probs": 1, "grammar": LETTERS}
    whole = await server.call("get_completion", asked)
    tokens = [each["content"] for each in whole["completion_probabilities"]]
    assert "".join(tokens) == whole["content"]
    word = whole["content"][9:12]
    cut = await server.call("get_completion", asked | {"stop": [word]})
    assert cut["stopped_word"] and cut["stopping_word"] == word
    at = whole["content"].index(word)
    assert cut["content"] == whole["content"][:at]
    shown = [each["content"] for each in cut["completion_probabilities"]]
    starts = [len("".join(tokens[:i])) for i in range(len(tokens))]
    assert shown == [token for token, start in zip(tokens, starts, strict=True) if start < at]


async def test_a_grammar_holds_in_both_paths_and_a_bad_one_is_refused_in_both(
    server: Server,
) -> None:
    asked = {"prompt": PROMPT, "n_predict": 30, "grammar": LETTERS}
    allowed = set("abcdefghijklmnopqrstuvwxyz .")
    assert set((await server.call("get_completion", asked))["content"]) <= allowed
    await server.call("async_completion_init", asked)
    text = "".join(update["content"] for update in await server.drain())
    assert text and set(text) <= allowed
    for method in ("get_completion", "async_completion_init"):
        error = await server.refusal(method, asked | {"grammar": "root ::= nothing"})
        assert error["code"] == -32602
        assert error["data"]["metadata"]["field"] == "grammar"


async def test_a_stream_is_refused_and_says_what_to_use(server: Server) -> None:
    error = await server.refusal("get_completion", {"prompt": "x", "stream": True})
    assert error["data"]["metadata"]["field"] == "stream"
    assert "async_completion_init" in error["message"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"repeat_penalty": -5}, "repeat_penalty"),
        ({"stop": ["x", 5]}, "stop"),
        ({"temperature": "hot"}, "temperature"),
        ({"mirostat": 3}, "mirostat"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"speculative": {"n_max": 65}}, "n_max"),
        ({"speculative": {"n_parallel": 9}}, "n_parallel"),
        ({"speculative": {"p_split": 1.5}}, "p_split"),
        ({"seed": 2**70}, "seed"),
        ({"n_beams": 17}, "n_beams"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    server: Server, options: dict[str, Any], field: str
) -> None:
    error = await server.refusal("get_completion", {"prompt": "x"} | options)
    assert error["code"] == -32602
    assert field in error["data"]["metadata"]["field"]


async def test_every_sampler_of_the_library_changes_the_text(server: Server) -> None:
    asked = {"prompt": PROMPT, "n_predict": 32, "seed": 3}
    plain = (await server.call("get_completion", asked))["content"]
    for options in (
        {"top_k": 1},
        {"top_p": 0.1},
        {"tfs_z": 0.1},
        {"typical_p": 0.1},
        {"temperature": 3.0},
        {"repeat_penalty": 5.0, "repeat_last_n": -1},
        {"presence_penalty": 9.0},
        {"frequency_penalty": 9.0},
        {"mirostat": 1, "mirostat_tau": 0.5},
        {"mirostat": 2, "mirostat_tau": 0.5},
        {"seed": 4},
        {"min_p": 0.7},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"top_n_sigma": 0.3},
        {"dry_multiplier": 50.0, "dry_allowed_length": 1, "logit_bias": [[69, 20.0]]},
    ):
        answer = await server.call("get_completion", asked | options)
        assert answer["content"] != plain, options
        settings = answer["generation_settings"]
        for name, value in options.items():
            shown = {"temperature": "temp"}.get(name, name)
            if name != "logit_bias":
                assert settings[shown] == pytest.approx(value)


async def test_beams_search_the_same_text_whatever_would_be_drawn(server: Server) -> None:
    asked = {"prompt": PROMPT, "n_predict": 24, "n_beams": 3, "n_probs": 2}
    first = await server.call("get_completion", asked | {"seed": 1})
    second = await server.call("get_completion", asked | {"seed": 2, "temperature": 1.5})
    assert first["content"] == second["content"] != ""
    assert len(first["completion_probabilities"]) == first["tokens_predicted"] >= 24
    await server.call("async_completion_init", asked)
    assert "".join(update["content"] for update in await server.drain()) == first["content"]


async def test_speculation_is_reported_and_changes_nothing_else(server: Server) -> None:
    asked = {"prompt": PROMPT, "n_predict": 32, "seed": 3, "origins": True}
    off = await server.call("get_completion", asked | {"speculative": {"enabled": False}})
    on = await server.call(
        "get_completion", asked | {"speculative": {"policy": "fixed", "n_max": 4}}
    )
    assert on["content"] == off["content"]
    assert off["drafted"] == off["accepted"] == 0 and set(off["origins"]) == {"plain"}
    assert on["accepted"] > 15
    assert on["acceptance_rate"] == pytest.approx(on["accepted"] / on["drafted"])
    assert on["origins"].count("drafted") == on["accepted"]
    assert len(on["origins"]) == on["tokens_predicted"]


async def test_a_full_context_shifts_as_it_did_and_a_long_prompt_is_cut(server: Server) -> None:
    asked = {"prompt": PROMPT, "n_predict": 300, "seed": 3, "ignore_eos": True, "n_keep": 4}
    answer = await server.call("get_completion", asked)
    assert answer["truncated"] and answer["tokens_predicted"] >= 300
    answer = await server.call("get_completion", {"prompt": "x " * 400, "n_predict": 2})
    assert answer["truncated"] and answer["prompt_stats"]["truncated"]
    assert answer["tokens_evaluated"] <= 252
    assert answer["prompt_stats"]["total_prompt_tokens"] > 400


async def test_debug_logs_the_texts_of_that_request_alone(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> str:
        return json.dumps([getattr(each, "fields", {}) for each in caplog.records])

    with caplog.at_level(logging.INFO, "outrider.jsonrpc"):
        await server.call("get_completion", {"prompt": "a canary sings", "n_predict": 2})
        assert "canary" not in logged()
        debug = {"prompt": "a canary sings", "n_predict": 2, "__debug": True}
        await server.call("get_completion", debug)
        assert "canary" in logged() and "tokens_predicted" in logged()


async def test_debug_logs_the_whole_text_of_a_job_once_it_is_taken(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {"prompt": PROMPT, "n_predict": 24, "seed": 6}
    with caplog.at_level(logging.INFO, "outrider.jsonrpc"):
        for debug in (False, True):
            started = await server.call("async_completion_init", asked | {"__debug": debug})
            updates = await server.drain(started["job_id"])
            await server.call("async_completion_poll", {"job_id": started["job_id"]})
    over = [each.fields for each in caplog.records if each.getMessage() == "debug job over"]  # type: ignore[attr-defined]
    assert [json.loads(each["input"]) for each in over] == [{"job_id": started["job_id"]}]
    text = "".join(update["content"] for update in updates)
    output = json.loads(over[0]["output"])
    assert text and output == updates[-1] | {"content": text}


# jobs


async def test_a_job_brings_what_a_call_brings(server: Server) -> None:
    asked = {"prompt": PROMPT, "n_predict": 24, "seed": 6, "n_probs": 2}
    answer = await server.call("get_completion", asked)
    started = await server.call("async_completion_init", asked)
    assert started["success"] and set(started["prompt_stats"]) == STATS
    updates = await server.drain(started["job_id"])
    *parts, last = updates
    assert "".join(part["content"] for part in parts) == answer["content"]
    assert all(part["stop"] is False for part in parts)
    assert last["stop"] is True and last["content"] == ""
    assert last["tokens_predicted"] == answer["tokens_predicted"]
    assert last["completion_probabilities"] == answer["completion_probabilities"]
    listed = [each for part in parts for each in part["completion_probabilities"]]
    assert listed == answer["completion_probabilities"]
    again = await server.call("async_completion_poll", {"job_id": started["job_id"]})
    assert again == {"success": True, "completion_updates": [], "finished": True}


async def test_without_an_id_it_is_the_callers_latest_job(server: Server) -> None:
    prompts = {"ann": ("first", "second"), "bob": ("third",)}
    for caller, texts in prompts.items():
        for text in texts:
            asked = {"prompt": text, "n_predict": 3}
            await server.call("async_completion_init", asked, caller)
    for caller, texts in prompts.items():
        last = (await server.drain(caller=caller))[-1]
        assert last["prompt"] == texts[-1]
    error = (
        await server.send(
            {"jsonrpc": "2.0", "id": 1, "method": "async_completion_poll"}, caller="nobody"
        )
    )["error"]
    assert error["data"]["reason"] == "NOT_FOUND"


async def test_a_cancelled_job_ends_with_one_final_message(server: Server) -> None:
    asked = {"prompt": PROMPT, "n_predict": 100000, "ignore_eos": True}
    started = await server.call("async_completion_init", asked)
    await server.call("async_completion_poll")
    assert await server.call("async_completion_cancel") == {"success": True}
    updates = await server.drain(started["job_id"])
    assert [update["stop"] for update in updates].count(True) == 1
    assert updates[-1]["stop"] and updates[-1]["cancelled"]
    await eventually(lambda: all_idle(server.target, server.draft))


@pytest.mark.fault(
    "others",
    "programs at one address that do not say who they are",
    before="they polled, cancelled and ended each other's jobs",
    now="without a name a job needs its id",
)
async def test_without_a_name_a_job_needs_its_id(server: Server) -> None:
    asked = {"prompt": "abc", "n_predict": 4}
    started = await server.call("async_completion_init", asked, caller="")
    for method in ("async_completion_poll", "async_completion_cancel"):
        answer = await server.send({"jsonrpc": "2.0", "id": 1, "method": method}, caller="")
        assert answer["error"]["code"] == -32602
        assert "Outrider-Client" in answer["error"]["message"]
    await server.call("deinit", caller="")
    last = (await server.drain(started["job_id"], ""))[-1]
    assert last["stop"] and not last.get("cancelled")


async def test_deinit_ends_the_callers_jobs_and_no_others(server: Server) -> None:
    endless = {"prompt": PROMPT, "n_predict": 100000, "ignore_eos": True}
    mine = await server.call("async_completion_init", endless, "ann")
    others = await server.call("async_completion_init", {"prompt": "x", "n_predict": 9}, "bob")
    assert await server.call("deinit", caller="ann") == {"success": True}
    error = await server.refusal("async_completion_poll", {"job_id": mine["job_id"]})
    assert error["data"]["reason"] == "NOT_FOUND"
    last = (await server.drain(others["job_id"], "bob"))[-1]
    assert last["tokens_predicted"] >= 9


async def test_a_batch_starts_polls_and_cancels_in_its_order(server: Server) -> None:
    calls = [
        ("async_completion_init", {"prompt": "x", "n_predict": 100000, "ignore_eos": True}),
        ("async_completion_cancel", {}),
        ("async_completion_poll", {}),
    ]
    batch = [
        {"jsonrpc": "2.0", "id": i, "method": method, "params": params}
        for i, (method, params) in enumerate(calls)
    ]
    answers = await server.send([*batch, {"jsonrpc": "2.0", "method": "deinit"}])
    assert [each["id"] for each in answers] == [0, 1, 2]
    polled = answers[2]["result"]
    assert polled["finished"] and polled["completion_updates"][-1]["cancelled"]


async def test_probabilities_at_temperature_0_are_the_models_own(server: Server) -> None:
    asked = {"prompt": PROMPT, "n_predict": 3, "temperature": 0, "n_probs": 320}
    error = await server.refusal("get_completion", asked)
    assert error["data"]["metadata"]["field"] == "n_probs"
    answer = await server.call("get_completion", asked | {"n_probs": 100})
    for each in answer["completion_probabilities"]:
        assert len(each["probs"]) == 100
        assert not math.isclose(each["probs"][0]["prob"], 1.0)
