"""The Serve application on a real Ray of this machine, with the bundled pair.

Not part of `make test`, which has no Ray: `make ray-test` runs it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import psutil
import pytest
import yaml

from outrider.rpc.channel import open_channel
from outrider.rpc.security import ClientSecurity
from outrider.rpc.statuses import read_error_info
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from tests.support.processes import DRAFT, MODELS, TARGET, ServiceProcess, free_port
from tests.support.services import Completion, request

ray = pytest.importorskip("ray", reason="needs the extra `ray`: make ray-test")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

PATIENCE = 240.0
"""Seconds for what takes a few on a machine that does nothing else."""
PROMPT = "def read_config(path):\n"
LONG, SHORT = 480, 48


@dataclass(frozen=True)
class Cluster:
    """The application, and where it is reached."""

    http: str
    grpc: str

    def deploy(self, **changes: Any) -> None:
        """Run the application with other arguments, in place of what runs."""
        from ray import serve

        import outrider_ray

        args = {
            "model": str(TARGET),
            "draft_model": str(DRAFT),
            "target_args": "--numerics=exact --threads=1",
            "draft_args": "--threads=1 --nice=19",
            "drafts": "1-3",
            "draft_load": 2,
            "look_back": 11,  # more than the interval of 10 s that Serve takes for given
            "upscale_delay": 1,
            "downscale_delay": 2,
            "grace": 10,
        }
        serve.run(outrider_ray.app({**args, **changes}))

    def running(self, deployment: str) -> int:
        """Return how many replicas of a deployment run."""
        from ray import serve

        states = serve.status().applications["default"].deployments[deployment].replica_states
        return sum(count for state, count in states.items() if str(state).endswith("RUNNING"))

    def pids(self, deployment: str) -> dict[str, int]:
        """Return the processes of a replica."""
        from ray import serve

        handle = serve.get_deployment_handle(deployment, "default")
        return dict(handle.pids.remote().result(timeout_s=PATIENCE))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    from ray import serve
    from ray.serve.config import gRPCOptions

    from outrider_ray.application import GRPC_SERVICES

    folder = tempfile.mkdtemp(prefix="ray")  # short: it has sockets in it
    http, over_grpc = free_port(), free_port()
    try:
        ray.init(
            address="local",
            num_cpus=16,  # what replicas ask for; the cores are those of the machine
            include_dashboard=False,
            object_store_memory=100 * 1024 * 1024,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        serve.start(
            http_options={"host": "127.0.0.1", "port": http},
            grpc_options=gRPCOptions(port=over_grpc, grpc_servicer_functions=GRPC_SERVICES),
        )
        found = Cluster(f"http://127.0.0.1:{http}", f"127.0.0.1:{over_grpc}")
        found.deploy()
        yield found
    finally:
        serve.shutdown()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def stub(cluster: Cluster) -> AsyncIterator[Any]:
    async with open_channel(cluster.grpc, ClientSecurity(no_pings=True)) as channel:
        yield OrchestratorServiceStub(channel)


async def eventually(condition: Callable[[], Any], pause: float = 0.2) -> None:
    """Wait until a condition, plain or awaitable, holds."""
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = condition()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < deadline, condition
        await asyncio.sleep(pause)


def asked(limit: int = LONG, **more: Any) -> messages.GenerateRequest:
    return request(PROMPT, token_limit=limit, **more)


async def write(stub: Any, wanted: messages.GenerateRequest) -> Completion:
    completion = Completion()
    async for response in stub.Generate(wanted, timeout=PATIENCE):
        completion.add(response)
    return completion


async def without_ray(limit: int) -> list[int]:
    """Return what the target writes alone, its services started by hand."""
    target = ServiceProcess("target", "--model", str(TARGET), "--threads", "1")
    orchestrator = ServiceProcess("orchestrator", "--no-draft", "--target", target.address)
    try:
        target.start()
        orchestrator.start()
        await orchestrator.wait_until_serving(PATIENCE)
        async with open_channel(orchestrator.address) as channel:
            return (await write(OrchestratorServiceStub(channel), asked(limit))).token_ids
    finally:
        orchestrator.stop()
        target.stop()


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return asyncio.run(without_ray(LONG))


# --- what it writes ---


async def test_a_text_is_that_of_the_target_alone_and_comes_in_pieces(
    stub: Any, expected: list[int]
) -> None:
    events = []
    completion = Completion()
    async for response in stub.Generate(asked(), timeout=PATIENCE):
        events.append(response.WhichOneof("event"))
        completion.add(response)
    assert completion.token_ids == expected
    assert events[0] == "started" and events[-1] == "finished" and events.count("delta") > 2


async def test_the_draft_drafts(stub: Any, expected: list[int]) -> None:
    async def drafted() -> bool:
        wanted = asked(policy=messages.DRAFT_POLICY_FIXED, n_max=4)
        completion = await write(stub, wanted)
        assert completion.token_ids == expected
        return messages.TOKEN_ORIGIN_DRAFTED in completion.origins

    await eventually(drafted)


async def test_http_streams_the_same_text(cluster: Cluster, stub: Any) -> None:
    over_grpc = await write(stub, asked(SHORT, temperature=0.0))
    body = {"prompt": PROMPT, "max_tokens": SHORT, "temperature": 0, "stream": True}
    pieces = []
    async with httpx.AsyncClient(base_url=cluster.http, timeout=PATIENCE) as client:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    pieces.append(line)
        whole = await client.post("/v1/completions", json={**body, "stream": False})
    assert len(pieces) > 1
    assert whole.json()["choices"][0]["text"] == over_grpc.text
    assert whole.headers["content-length"] == str(len(whole.content))


async def test_what_is_wrong_is_refused_as_without_ray(cluster: Cluster, stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await write(stub, asked(temperature=-1.0))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "temperature" in str(refused.value.details())
    with pytest.raises(grpc.aio.AioRpcError) as unary:
        await stub.PollGeneration(messages.PollGenerationRequest(job_id="none"), timeout=PATIENCE)
    assert unary.value.code() is grpc.StatusCode.NOT_FOUND
    info = read_error_info(unary.value.trailing_metadata())
    assert info is not None and info.reason == "NOT_FOUND"
    async with httpx.AsyncClient(base_url=cluster.http, timeout=PATIENCE) as client:
        assert (await client.get("/nowhere")).status_code == 404
        answer = await client.post("/v1/completions", json={"prompt": 1.5})
        assert answer.status_code in (400, 422) and "error" in answer.json()
        huge = await client.post("/v1/completions", content=b"x" * (17 * 1024 * 1024))
        assert huge.status_code == 413


async def test_a_job_is_polled_at_its_replica(stub: Any, expected: list[int]) -> None:
    submitted = await stub.SubmitGeneration(
        messages.SubmitGenerationRequest(request=asked()), timeout=PATIENCE
    )
    job, cursor, completion = submitted.job_id, 0, Completion()
    while True:
        poll = messages.PollGenerationRequest(job_id=job, cursor=cursor)
        poll.wait_duration.FromSeconds(5)
        answer = await stub.PollGeneration(poll, timeout=PATIENCE)
        for response in answer.responses:
            completion.add(response)
        cursor = answer.next_cursor
        if answer.finished:
            break
    assert "@" in job and completion.token_ids == expected


async def test_a_client_that_hangs_up_leaves_nothing_in_flight(cluster: Cluster, stub: Any) -> None:
    async def idle() -> bool:
        status = await stub.GetStatus(messages.GetStatusRequest(), timeout=PATIENCE)
        return int(status.active_generation_count) == 0

    await eventually(idle)
    call = stub.Generate(asked(900), timeout=PATIENCE)
    await anext(aiter(call))
    call.cancel()
    await eventually(idle)
    body = {"prompt": PROMPT, "max_tokens": 900, "stream": True, "ignore_eos": True}
    async with (
        httpx.AsyncClient(base_url=cluster.http, timeout=PATIENCE) as client,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        await anext(answer.aiter_lines())
    await eventually(idle)


@pytest.mark.parametrize("name", ["serve.yaml", "rayservice.yaml"])
def test_serve_knows_every_field_of_the_examples(name: str) -> None:
    from ray.serve.schema import ServeDeploySchema

    its = yaml.safe_load((MODELS.parent / "deploy" / "ray" / name).read_text())
    if "spec" in its:
        its = yaml.safe_load(its["spec"]["serveConfigV2"])
    read = ServeDeploySchema.model_validate(its)
    assert [each.import_path for each in read.applications] == ["outrider_ray:app"]
    del its["applications"][0]["import_path"]
    with pytest.raises(ValueError):
        ServeDeploySchema.model_validate(its)


# --- replicas that come and go ---


async def test_drafts_are_scaled_up_and_down_by_generations_in_flight(
    cluster: Cluster, stub: Any, expected: list[int]
) -> None:
    await eventually(lambda: cluster.running("Draft") == 1)
    enough = asyncio.Event()

    async def user() -> int:
        count = 0
        while not enough.is_set():
            assert (await write(stub, asked())).token_ids == expected
            count += 1
        return count

    users = [asyncio.create_task(user()) for _ in range(8)]
    try:
        await eventually(lambda: cluster.running("Draft") == 3)

        async def three_are_dialled() -> bool:
            status = await stub.GetStatus(messages.GetStatusRequest(), timeout=PATIENCE)
            ready = messages.PEER_STATE_READY
            return sum(p.role == "draft" and p.state == ready for p in status.peers) == 3

        await eventually(three_are_dialled)
    finally:
        enough.set()
    assert all([await each for each in users])
    await eventually(lambda: cluster.running("Draft") == 1)
    assert (await write(stub, asked())).token_ids == expected


async def test_a_draft_that_is_killed_changes_no_text(
    cluster: Cluster, stub: Any, expected: list[int]
) -> None:
    await eventually(lambda: cluster.running("Draft") == 1)
    pids = await asyncio.to_thread(cluster.pids, "Draft")
    assert set(pids) == {"replica", "draft"}
    completion, is_killed = Completion(), False
    async for response in stub.Generate(asked(), timeout=PATIENCE):
        completion.add(response)
        if len(completion.token_ids) > 4 and not is_killed:
            os.kill(pids["replica"], signal.SIGKILL)
            is_killed = True
    assert is_killed and completion.token_ids == expected
    # What a replica started does not outlive it.
    await eventually(lambda: not any(map(psutil.pid_exists, pids.values())))

    async def another_one_drafts() -> bool:
        wanted = asked(policy=messages.DRAFT_POLICY_FIXED, n_max=4)
        completion = await write(stub, wanted)
        assert completion.token_ids == expected
        return messages.TOKEN_ORIGIN_DRAFTED in completion.origins

    await eventually(another_one_drafts)


async def test_a_text_continues_when_its_target_is_killed(
    cluster: Cluster, stub: Any, expected: list[int]
) -> None:
    target = (await asyncio.to_thread(cluster.pids, "Serving"))["target"]
    completion = Completion()
    async for response in stub.Generate(asked(), timeout=PATIENCE):
        completion.add(response)
        if completion.token_ids and target:
            os.kill(target, signal.SIGKILL)
            target = 0
    assert target == 0 and completion.token_ids == expected


@pytest.mark.parametrize("process", ["replica", "orchestrator"])
async def test_a_text_continues_when_the_replica_that_writes_it_is_killed(
    cluster: Cluster, stub: Any, expected: list[int], process: str
) -> None:
    pids = await asyncio.to_thread(cluster.pids, "Serving")
    completion, is_killed, events = Completion(), False, []
    async for response in stub.Generate(asked(), timeout=PATIENCE):
        completion.add(response)
        events.append(response.WhichOneof("event"))
        if completion.token_ids and not is_killed:
            os.kill(pids[process], signal.SIGKILL)
            is_killed = True
    assert is_killed and completion.token_ids == expected
    assert events.count("started") == events.count("finished") == 1
    await eventually(lambda: not any(map(psutil.pid_exists, pids.values())))


async def test_over_http_a_stream_ends_with_an_error_and_what_was_not_begun_is_answered(
    cluster: Cluster, stub: Any
) -> None:
    body = {"prompt": PROMPT, "max_tokens": LONG, "temperature": 0}
    text = (await write(stub, asked(LONG, temperature=0.0))).text
    pids = await asyncio.to_thread(cluster.pids, "Serving")
    lines = []
    async with httpx.AsyncClient(base_url=cluster.http, timeout=PATIENCE) as client:
        async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as one:
            whole: asyncio.Task[httpx.Response] | None = None
            async for line in one.aiter_lines():
                lines.append(line)
                if line.startswith("data: {") and whole is None:
                    whole = asyncio.create_task(client.post("/v1/completions", json=body))
                    os.kill(pids["replica"], signal.SIGKILL)
        assert whole is not None
        answer = await whole
    assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == text
    [*_, last] = [line for line in lines if line.startswith("data: ")]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "peer_unavailable"


# --- several replicas of target and orchestrator ---


async def test_the_turns_of_a_chat_stay_and_new_chats_are_spread(
    cluster: Cluster, expected: list[int]
) -> None:
    await asyncio.to_thread(cluster.deploy, serving=2)
    await eventually(lambda: cluster.running("Serving") == 2)
    replicas = set()
    async with httpx.AsyncClient(base_url=cluster.http, timeout=PATIENCE) as client:

        async def turn(*texts: str) -> str:
            roles = ("user", "assistant")
            turns = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
            answer = await client.post("/v1/chat/completions", json=chat(turns))
            assert answer.status_code == 200, answer.text
            return answer.headers["x-outrider-replica"]

        def chat(turns: list[dict[str, str]]) -> dict[str, Any]:
            return {"messages": turns, "max_tokens": 2, "temperature": 0}

        for number in range(8):
            opening = f"{number} {'the rain in spain ' * 30}"
            first = await turn(opening)
            again = await turn(opening, "so it does", "and the wind?")
            assert again == first
            replicas.add(first)
            answer = await client.get("/health", headers={"X-Outrider-Replica": first})
            assert answer.headers["x-outrider-replica"] == first
    assert len(replicas) == 2
