"""`init` at /rpc with --allow-init: models that JSON-RPC has loaded here, and leaves."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.commands import Command, outrider_json, service, until
from tests.support.tiny_gguf import Shape, write_model

ENDLESS = {"prompt": "for line in", "n_predict": 100000, "ignore_eos": True, "context_shift": True}
SMALL = ("--threads", "1", "--ctx", "256")


@dataclass(frozen=True)
class Files:
    """The models of these tests; `configured` is what the services started by hand serve."""

    configured: Path
    other: Path
    other_draft: Path
    broken: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("models")
    shape = Shape(layers=1)
    broken = folder / "broken.gguf"
    broken.write_text("no model")
    return Files(
        configured=write_model(folder / "configured.gguf", shape=shape),
        other=write_model(folder / "other.gguf", shape=shape, seed=2),
        other_draft=write_model(folder / "other-draft.gguf", shape=shape, seed=2),
        broken=broken,
    )


class Host:
    """JSON-RPC with --allow-init, and a caller of it; `orchestrator` is the configured one."""

    def __init__(self, command: Command, orchestrator: str) -> None:
        self.command = command
        self.orchestrator = orchestrator
        line = command.wait_for_line("outrider jsonrpc listening on ")
        self.url = "http://" + line.split()[-1]
        self._client = httpx.Client(timeout=60)

    def close(self) -> None:
        self._client.close()
        self.command.kill_all()

    def send(self, method: str, params: Any = None, **headers: str) -> httpx.Response:
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        return self._client.post(f"{self.url}/rpc", json=asked, headers=headers)

    def call(self, method: str, params: Any = None) -> Any:
        """Return the result of a call."""
        answer = self.send(method, params).json()
        assert "error" not in answer, answer
        return answer["result"]

    def refusal(self, method: str, params: Any = None) -> Any:
        """Return the error of a call."""
        return self.send(method, params).json()["error"]

    def init(self, target: Path, draft: Path | None = None, **more: Any) -> dict[str, Any]:
        return {"model": str(target), "n_threads": 1, "n_ctx": 256} | (
            {"model_draft": str(draft), **more} if draft else more
        )

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.call("poll_system_status")
        return status

    def is_ready(self, model: str) -> bool:
        return self.status() == {"init_success": 1, "model_alias": model, "model": model}

    def complete(self, **more: Any) -> Any:
        asked = {"prompt": "for line in", "n_predict": 8, "seed": 3}
        return self.call("get_completion", asked | more)

    def children(self) -> dict[str, psutil.Process]:
        """Return the services that it has started, by role."""
        return self.command.services()


@contextmanager
def hosting(orchestrator: str, *options: str) -> Iterator[Host]:
    """Run JSON-RPC, and leave nothing behind."""
    words = ("--listen", "127.0.0.1:0", "--orchestrator", orchestrator, "--allow-init")
    host = Host(Command("jsonrpc", *words, *options), orchestrator)
    try:
        yield host
    finally:
        host.close()


@pytest.fixture(scope="module")
def orchestrator(files: Files) -> Iterator[str]:
    """The address of an orchestrator with a target that were started by hand."""
    with (
        service("target", "--model", str(files.configured), *SMALL) as target,
        service("orchestrator", "--target", target, "--no-draft") as address,
    ):
        yield address


@pytest.fixture
def host(orchestrator: str) -> Iterator[Host]:
    """JSON-RPC whose configured pair is ready."""
    with hosting(orchestrator) as host:
        until(lambda: host.is_ready("configured"))
        yield host


def test_another_pair_is_loaded_used_and_left_for_the_configured_one(host: Host, files: Files):
    before = host.complete()
    loaded = host.call("init", host.init(files.other, files.other_draft))
    assert loaded == {"init_success": 1, "model_alias": "other", "model": "other"}
    assert host.children().keys() == {"target", "draft", "orchestrator"}
    answer = host.complete(speculative={"policy": "fixed", "n_max": 4})
    assert answer["model"] == "other" and answer["content"] != before["content"]
    assert answer["accepted"] > 0 and answer["generation_settings"]["n_ctx"] == 253
    assert len(host.call("embedding", {"content": "the rain"})["embedding"]) == 64

    first = host.children()["target"]
    # What is in use is loaded once, named by its file or as it is told to others.
    assert host.call("init", host.init(files.other, files.other_draft)) == loaded
    assert host.call("init", {"model": "other"}) == loaded
    assert host.children()["target"] == first

    back = host.call("init", [f"server -m {files.configured} -t 4"])
    assert back["model"] == "configured" and back["init_success"] == 1
    until(lambda: not host.children())
    assert host.complete()["content"] == before["content"]


def test_a_command_line_says_how_to_load(host: Host, files: Files):
    line = f"server -m {files.other} -a mine -c 128 -t 1 -ngl 0 --host x --port 1 -to 5"
    assert host.call("init", [line])["model_alias"] == "mine"
    words = host.children()["target"].cmdline()
    assert {"--alias=mine", "--ctx=128", "--threads=1", "--n-gpu-layers=0"} <= set(words)
    assert host.complete()["generation_settings"]["n_ctx"] == 128
    # Another way to load it is another init.
    assert host.call("init", host.init(files.other))["model"] == "other"
    assert host.complete()["generation_settings"]["n_ctx"] == 253
    until(lambda: len(host.children()) == 2)


def test_init_async_answers_at_once_and_the_old_pair_serves_until_the_new_one_does(
    host: Host, files: Files
):
    started = host.call("init_async", host.init(files.other))
    assert started["init_success"] == 0
    host.command.wait_for_services("target")
    child = host.children()["target"]
    child.suspend()
    assert host.status() == {
        "init_success": 0,
        "model_alias": "configured",
        "model": "configured",
    }
    assert host.complete()["model"] == "configured"
    for method in ("init", "init_async"):
        refusal = host.refusal(method, host.init(files.other_draft))
        assert refusal["code"] == -32001 and refusal["data"]["reason"] == "ENGINE_BUSY"
    child.resume()
    until(lambda: host.is_ready("other"))
    assert host.complete()["model"] == "other"
    assert host.children()["target"] == child


def test_loading_goes_on_when_the_caller_hangs_up(host: Host, files: Files):
    asked = {"jsonrpc": "2.0", "id": 1, "method": "init", "params": host.init(files.other)}
    body = json.dumps(asked).encode()
    address, _, port = host.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((address, int(port))) as caller:
        head = f"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        caller.sendall(head.encode() + body)
        host.command.wait_for_services("target")
    until(lambda: host.is_ready("other"))


def test_a_pair_that_cannot_be_used_is_refused_with_its_own_words(host: Host, files: Files):
    error = host.refusal("init", host.init(files.broken))
    assert (error["code"], error["data"]["reason"]) == (-32015, "SERVICE_STOPPED")
    assert error["message"] == f"target: model: {files.broken} is not a GGUF file"
    status = host.status()
    assert len(status["error"].pop("requestId")) == 32
    assert status == {
        "init_success": -1,
        "model_alias": "configured",
        "model": "configured",
        "error": {"reason": "SERVICE_STOPPED", "message": error["message"]},
    }
    assert host.complete()["model"] == "configured"

    error = host.refusal("init", host.init(files.other, files.broken))
    assert error["message"] == f"draft: model: {files.broken} is not a GGUF file"
    error = host.refusal("init", host.init(Path("hf:tiny/model")))
    assert error["message"].endswith("hf:tiny/model: No such file or directory"), "no download"
    error = host.refusal("init", host.init(files.other, n_ctx=16))
    assert error["message"] == "target: ctx: must be at least 32 tokens, not 16"
    assert host.call("init_async", host.init(files.broken))["init_success"] == 0
    until(lambda: host.status()["init_success"] == -1)
    until(lambda: not host.children())
    # The next init is asked anew.
    assert host.call("init", {"model": "configured"})["init_success"] == 1
    assert host.is_ready("configured")


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"model": 7}, "model"),
        ({"model": "a\0b"}, "model"),
        ({"model": "a" * 5000}, "model"),
        ({"model": "x.gguf", "n_threads": "many"}, "n_threads"),
        ({"model": "x.gguf", "n_gpu_layers": True}, "n_gpu_layers"),
        ({"model": "x.gguf", "n_ctx": 1.5}, "n_ctx"),
        ({"model_draft": "x.gguf"}, "model"),
    ],
)
def test_what_is_wrong_is_refused_by_name_and_starts_nothing(
    bare: Host, params: dict[str, Any], field: str
):
    error = bare.refusal("init", params)
    assert error["code"] == -32602 and error["data"]["metadata"]["field"] == field
    assert not bare.children()


@pytest.fixture(scope="module")
def bare() -> Iterator[Host]:
    """JSON-RPC whose configured orchestrator is not there."""
    with hosting("127.0.0.1:9") as host:
        yield host


def test_a_web_page_may_not_call_unless_it_is_named(bare: Host):
    refused = bare.send("init", {"model": "x.gguf"}, Origin="https://evil.example")
    assert refused.status_code == 403 and "--cors" in refused.text
    with hosting("127.0.0.1:9", "--cors", "https://mine.example") as host:
        answer = host.send("poll_system_status", Origin="https://mine.example").json()
        assert answer["result"]["init_success"] == 0


def test_a_model_is_loaded_where_no_service_was_there(bare: Host, files: Files):
    assert bare.call("init", bare.init(files.other))["init_success"] == 1
    assert bare.complete()["model"] == "other"


# The one without which it goes on, and the one that is asked.
@pytest.mark.parametrize("role", ["draft", "orchestrator"])
def test_a_service_that_is_killed_is_a_lost_one_and_init_starts_it_again(
    host: Host, files: Files, role: str
):
    wanted = host.init(files.other, files.other_draft)
    host.call("init", wanted)
    first = host.children()
    first[role].kill()
    if role != "draft":
        until(lambda: host.status()["init_success"] == 0)

    def is_started_again() -> bool:  # once its loss was seen
        assert host.call("init", wanted)["init_success"] == 1
        return {*host.children().values()}.isdisjoint(first.values())

    until(is_started_again)
    assert host.complete()["model"] == "other"


def test_jobs_end_when_another_pair_takes_the_place_of_theirs(host: Host, files: Files):
    host.call("init", host.init(files.other))
    job = host.call("async_completion_init", ENDLESS)["job_id"]
    until(lambda: host.call("async_completion_poll", {"job_id": job})["completion_updates"])
    assert host.call("init", {"model": "configured"})["model"] == "configured"
    updates = host.call("async_completion_poll", {"job_id": job})
    [last] = updates["completion_updates"]
    assert updates["finished"] and last["cancelled"] and last["model"] == "other"
    again = host.call("async_completion_poll", {"job_id": job})
    assert again == {"success": True, "completion_updates": [], "finished": True}


def test_jobs_of_the_configured_orchestrator_and_its_other_callers_continue(
    host: Host, files: Files
):
    words = ("--orchestrator", host.orchestrator, "--prompt", "for line in", "--n-predict", "4")
    job = host.call("async_completion_init", {"prompt": "for line in", "n_predict": 200})["job_id"]
    host.call("init", host.init(files.other))
    assert outrider_json(*words)["token_ids"]
    updates: list[Any] = []

    def is_over() -> bool:
        polled = host.call("async_completion_poll", {"job_id": job})
        updates.extend(polled["completion_updates"])
        return bool(polled["finished"])

    until(is_over)
    assert updates[-1]["model"] == "configured" and not updates[-1].get("cancelled")


def test_no_service_outlives_json_rpc(host: Host, files: Files):
    host.call("init", host.init(files.other, files.other_draft))
    host.command.process.send_signal(signal.SIGTERM)
    assert host.command.process.wait(60) == 0
    until(lambda: not host.children())


def test_no_service_that_loads_outlives_json_rpc(host: Host, files: Files):
    host.call("init_async", host.init(files.other, files.other_draft))
    host.command.wait_for_services("target", "draft")
    host.command.process.kill()
    host.command.process.wait(60)
    until(lambda: not host.children())
