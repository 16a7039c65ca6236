"""The compose file for real: what starts when, what is reachable, and the draft failing midway.

Run by `make compose-test`, which builds the image and finds or starts a Docker. Its Docker must be
on this machine, and port 50060 free.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from outrider.client import CallFailed, Origin, OutriderClient, Request
from outrider.messages import MAX_DRAFT
from outrider.sampling import SamplingParameters
from outrider.speculation import Policy
from tests.support.compose import (
    ADDRESS,
    DEPLOY,
    PATIENCE,
    PROMPT,
    Generation,
    Project,
    connected,
    generate,
    insist,
    run,
)

SERVICES = ("target", "draft", "orchestrator")
TOKEN_COUNT = 600
MIDWAY = 100  # tokens after which the draft is made to fail
IN_FLIGHT = 2 * MAX_DRAFT  # drafted tokens that may still be used once the draft has failed

# How much is drafted is pinned: whether drafts pay here is not what is tested.
PINNED = Request(PROMPT, token_limit=TOKEN_COUNT, policy=Policy.FIXED, n_max=4)
GREEDY = replace(PINNED, sampling=SamplingParameters(temperature=0))
OPTIONS = {"greedy": GREEDY, "sampled": replace(PINNED, seed=7)}

PROJECT = Project("outrider-compose-test")
NETWORK = f"{PROJECT.name}_models"

log = logging.getLogger("compose")


def events(since: float) -> list[tuple[str, str]]:
    """Return (service, what happened), in order."""
    chosen = (
        "--since",
        f"{since:.3f}",
        "--until",
        f"{time.time():.3f}",
        "--filter",
        "type=container",
    )
    lines = run("docker", "events", *chosen, "--format", "{{json .}}").splitlines()
    happened = [json.loads(line) for line in lines]
    name = "com.docker.compose.service"
    return [(one["Actor"]["Attributes"].get(name, ""), one["Action"]) for one in happened]


@dataclass(frozen=True)
class Stack:
    """The running containers."""

    started: float  # seconds since the epoch
    token_file: Path


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    PROJECT.compose("down", "--volumes", "--remove-orphans")
    started = time.time()
    try:
        # Texts are compared, so they must not depend on what is decoded together.
        exact = {"START_PERIOD": "10m", "NUMERICS": "exact"}
        PROJECT.compose("up", "--detach", "--wait", "--no-build", **exact)
        log.info("up after %.0f s", time.time() - started)
        yield Stack(started, PROJECT.read_token(tmp_path_factory.mktemp("token")))
    except BaseException:
        log.error(PROJECT.compose("logs"))
        raise
    finally:
        PROJECT.compose("down", "--volumes", "--remove-orphans", "--timeout", "10")


# --- generations ---


async def wait_until_drafting(client: OutriderClient) -> float:
    """Return after how many seconds the draft was healthy and its tokens were used."""
    started = time.monotonic()
    while time.monotonic() - started < PATIENCE:
        # Ask Docker first: generations would take the cores that the draft needs to start.
        if PROJECT.healthy("draft"):
            made = await generate(client, replace(GREEDY, token_limit=32))
            if made.drafted():
                return time.monotonic() - started
        await asyncio.sleep(0.5)
    raise AssertionError(f"no drafted token {PATIENCE:.0f} s after the draft came back")


@pytest.fixture(scope="module")
def undisturbed(stack: Stack) -> dict[str, Generation]:
    """Return what is generated when nothing fails, by its kind."""

    async def all_kinds() -> dict[str, Generation]:
        async with connected(stack.token_file) as client:
            return {kind: await generate(client, OPTIONS[kind]) for kind in OPTIONS}

    made = asyncio.run(all_kinds())
    for kind, one in made.items():
        assert one.statistics is not None
        log.info(
            "undisturbed, %s: %d tokens, %d of them drafted, %.0f tokens/s",
            kind,
            len(one.token_ids),
            one.drafted(),
            one.statistics.tokens_per_second,
        )
    return made


# --- what is up, and for whom ---


def test_one_service_builds_the_image_that_all_of_them_run() -> None:
    services = json.loads(PROJECT.compose("config", "--format", "json"))["services"]
    assert [name for name, service in services.items() if "build" in service] == ["token"]
    assert {service["image"] for service in services.values()} == {"outrider"}


def test_every_service_has_a_limit_of_memory(stack: Stack) -> None:
    assert all(PROJECT.inspect(service)["HostConfig"]["Memory"] > 0 for service in SERVICES)


def test_nothing_in_the_image_installs_packages(stack: Stack) -> None:
    look = "command -v apt apt-get dpkg pip pip3; python -m pip; python -m ensurepip; ls /etc/apt"
    inside = PROJECT.container("orchestrator")
    assert run("docker", "exec", inside, "sh", "-c", f"({look}) 2>/dev/null; true") == ""


def test_draft_and_target_share_the_locks_of_their_cores(stack: Stack) -> None:
    digests = set()
    for service in ("target", "draft"):
        look = "import os; s = os.stat('/tmp/outrider-10001'); print(s.st_dev, s.st_ino, s.st_uid)"
        digests.add(run("docker", "exec", PROJECT.container(service), "python", "-c", look))
    assert len(digests) == 1
    assert digests.pop().endswith(" 10001")


def test_the_gpu_override_fits() -> None:
    files = (DEPLOY / "compose.yaml", DEPLOY / "compose.gpu.yaml")
    chosen = [word for file in files for word in ("-f", str(file))]
    merged = json.loads(run("docker", "compose", *chosen, "config", "--format", "json"))
    target = merged["services"]["target"]
    assert target["image"] == "outrider-cuda"
    assert Path(target["build"]["context"]) == DEPLOY.parent
    assert target["build"]["dockerfile"] == "deploy/Dockerfile"
    assert target["build"]["args"] == {"LLAMA": "cuda"}
    assert target["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"


def test_the_target_is_healthy_before_the_orchestrator_starts(stack: Stack) -> None:
    seen = events(stack.started)
    orchestrator = seen.index(("orchestrator", "start"))
    for service in ("target", "draft"):
        assert seen.index(("token", "die")) < seen.index((service, "start"))
    assert seen.index(("target", "health_status: healthy")) < orchestrator
    assert orchestrator < seen.index(("orchestrator", "health_status: healthy"))


def test_only_the_orchestrator_is_published_and_on_loopback_only(stack: Stack) -> None:
    published = {name: PROJECT.inspect(name)["NetworkSettings"]["Ports"] for name in SERVICES}
    assert published["orchestrator"] == {
        "50060/tcp": [{"HostIp": "127.0.0.1", "HostPort": "50060"}]
    }
    assert not any(published["target"].values())
    assert not any(published["draft"].values())


def test_models_are_out_of_reach_of_other_networks(stack: Stack) -> None:
    reached = json.loads(run("docker", "network", "inspect", NETWORK))[0]
    assert reached["Internal"]
    for service in ("target", "draft"):
        assert list(PROJECT.inspect(service)["NetworkSettings"]["Networks"]) == [NETWORK]


async def test_the_draft_dialled_in(stack: Stack) -> None:
    async with connected(stack.token_file) as client:
        await wait_until_drafting(client)
        drafts = [peer for peer in (await client.status()).peers if peer.role == "draft"]
    assert [(draft.joined, draft.trusted) for draft in drafts] == [(True, False)]


async def test_a_call_without_the_token_is_refused(stack: Stack) -> None:
    async with OutriderClient(ADDRESS) as client:
        with pytest.raises(CallFailed) as refusal:
            await client.status()
    assert refusal.value.status == "UNAUTHENTICATED"


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_has_no_privileges_and_nothing_to_write_to(stack: Stack, service: str) -> None:
    look = (
        "import os, re\n"
        "def write(path):\n"
        "    try: open(path, 'w').close(); return 'written'\n"
        "    except OSError as error: return error.strerror\n"
        "status = open('/proc/1/status').read()\n"
        "print(os.getuid(), re.search('CapBnd:\\t(.*)', status)[1],"
        " re.search('NoNewPrivs:\\t(.*)', status)[1], write('/opt/x'), write('/run/outrider/x'),"
        " write('/tmp/x'), sep='|')"
    )
    seen = PROJECT.compose("exec", "-T", service, "python", "-c", look).split("|")
    read_only = "Read-only file system"
    assert seen == ["10001", "0" * 16, "1", read_only, read_only, "written"]


async def test_the_target_advertises_exact_numerics(stack: Stack) -> None:
    async with connected(stack.token_file) as client:
        target = (await client.status()).peer("target")
    assert target is not None
    assert target.model is not None
    assert target.model.numerics_profile == "exact"


def test_the_command_works_inside_the_orchestrators_container(stack: Stack) -> None:
    words = ("outrider", "generate", "--prompt", PROMPT, "--temperature", "0", "--json")
    answer = json.loads(PROJECT.compose("exec", "-T", "orchestrator", *words, "--n-predict", "40"))
    assert len(answer["token_ids"]) == 40


def test_the_image_alone_writes_with_the_bundled_pair(stack: Stack) -> None:
    alone = ("docker", "run", "--rm", "--read-only", "--tmpfs", "/tmp", "--network", "none")
    words = ("outrider", "generate", "--n-predict", "8", "--threads", "1", "--json")
    assert len(json.loads(run(*alone, *words))["token_ids"]) == 8
    listed = run(*alone, "--entrypoint", "ls", "outrider", "/models/")
    assert {"stdlib-draft-q8_0.gguf", "stdlib-target-q8_0.gguf"} <= set(listed.split())


# --- the draft fails midway ---

FAULTS = {  # what Docker is told to do to the draft, and how that is undone
    "killed": (["kill"], ["start"]),
    "paused": (["pause"], ["unpause"]),
    "disconnected": (["network", "disconnect", NETWORK], ["network", "connect", NETWORK]),
}


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_the_text_is_the_same_when_the_draft_is(
    stack: Stack, undisturbed: dict[str, Generation], fault: str, kind: str
) -> None:
    options, expected = OPTIONS[kind], undisturbed[kind]
    fail, repair = FAULTS[fault]
    draft = PROJECT.container("draft")
    async with connected(stack.token_file) as client:
        await wait_until_drafting(client)
        made = await generate(client, options, lambda: insist("docker", *fail, draft), MIDWAY)
        run("docker", *repair, draft)
        back = await wait_until_drafting(client)
        again = await generate(client, replace(options, token_limit=TOKEN_COUNT // 3))

    assert (made.token_ids, made.text) == (expected.token_ids, expected.text)
    assert again.token_ids == expected.token_ids[: TOKEN_COUNT // 3]
    # On a slow Docker the text may be written before the draft is gone.
    failed_at = TOKEN_COUNT if made.failed_at is None else made.failed_at
    assert Origin.DRAFTED not in made.origins[failed_at + IN_FLIGHT :]
    assert made.statistics is not None
    log.info(
        "%s, %s: same text; %d of the %d tokens until then were drafted, %d after it, %d later;"
        " %d draft faults; drafting again %.1f s after it was repaired",
        fault,
        kind,
        made.origins[:failed_at].count(Origin.DRAFTED),
        failed_at,
        made.origins[failed_at:].count(Origin.DRAFTED),
        again.drafted(),
        made.statistics.draft_fault_count,
        back,
    )


async def test_without_a_draft_the_orchestrator_starts_and_the_text_is_the_same(
    stack: Stack, undisturbed: dict[str, Generation]
) -> None:
    PROJECT.compose("down", "--timeout", "10")
    no_model = str(DEPLOY / "compose.yaml")
    PROJECT.compose("up", "--detach", "--no-build", DRAFT_MODEL=no_model, NUMERICS="exact")
    PROJECT.wait_until_healthy("orchestrator")
    assert not PROJECT.healthy("draft")
    async with connected(stack.token_file) as client:
        made = await generate(client, GREEDY)
    assert made.token_ids == undisturbed["greedy"].token_ids
    assert made.drafted() == 0
