"""Several targets and drafts behind names, for real: what is lost, drained and replaced meanwhile.

`docker compose up --scale` gives a name several records, as a headless Service of Kubernetes does.
Texts are compared with one that nothing disturbed; targets are under the `exact` profile, so they
are the same to the last token. Run by `make compose-test`, as test_compose.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.client import OutriderClient, PeerState, Request
from outrider.sampling import SamplingParameters
from outrider.speculation import Policy
from tests.support.compose import (
    PATIENCE,
    PROMPT,
    Generation,
    Project,
    connected,
    generate,
    healthy,
    insist,
    inspect,
    run,
    wait_until,
)

PROJECT = Project("outrider-pools-test", ("compose.yaml", "compose.pools.yaml"))
NETWORK = f"{PROJECT.name}_models"
ROLES = ("target", "draft")
TARGETS, DRAFTS, USERS = 3, 2, 6
TOKEN_COUNT = 400
MIDWAY = 60  # tokens of each text after which something happens
OPTIONS = Request(
    PROMPT,
    token_limit=TOKEN_COUNT,
    policy=Policy.FIXED,
    n_max=4,
    sampling=SamplingParameters(temperature=0),
)
EXACT = {"START_PERIOD": "10m", "NUMERICS": "exact"}

log = logging.getLogger("compose")


def scale(targets: int, drafts: int) -> None:
    """Have so many containers of each, those that run among them, and wait for their health."""
    counts = ("--scale", f"target={targets}", "--scale", f"draft={drafts}")
    # Alone, since on a busy machine a health check that is late would fail what depends on it.
    options = ("--detach", "--no-build", "--no-recreate", "--no-deps")
    PROJECT.compose("up", *options, *counts, *ROLES, **EXACT)
    wait_until(
        lambda: all(healthy(one) for role in ROLES for one in running(role)),
        "a container does not become healthy",
    )


def running(service: str) -> list[str]:
    """Return the ids of a service's containers that run."""
    return [one for one in PROJECT.containers(service) if inspect(one)["State"]["Running"]]


def address(container: str) -> str:
    """Return where a container's service is dialled; empty where it has no network."""
    [network] = inspect(container)["NetworkSettings"]["Networks"].values()
    return f"{network['IPAddress']}:50060" if network["IPAddress"] else ""


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start the containers; yield the file with their token."""
    PROJECT.compose("down", "--volumes", "--remove-orphans")
    try:
        started = time.monotonic()
        counts = ("--scale", f"target={TARGETS}", "--scale", f"draft={DRAFTS}")
        PROJECT.compose("up", "--detach", "--wait", "--no-build", *counts, **EXACT)
        log.info("%d targets, %d drafts: up after %.0f s", *_counts(started))
        yield PROJECT.read_token(tmp_path_factory.mktemp("token"))
    except BaseException:
        log.error(PROJECT.compose("logs"))
        raise
    finally:
        PROJECT.compose("down", "--volumes", "--remove-orphans", "--timeout", "10")


def _counts(started: float) -> tuple[int, int, float]:
    return TARGETS, DRAFTS, time.monotonic() - started


@pytest.fixture
async def client(token_file: Path) -> AsyncIterator[OutriderClient]:
    """Yield a client, with every service in use."""
    async with connected(token_file) as client:
        await wait_until_used(client, TARGETS, DRAFTS)
        yield client


@pytest.fixture(scope="module")
def undisturbed(token_file: Path) -> list[int]:
    """Return the tokens of the text when nothing happens."""

    async def write() -> Generation:
        async with connected(token_file) as client:
            return await generate(client, OPTIONS)

    made = asyncio.run(write())
    assert len(made.token_ids) == TOKEN_COUNT
    return made.token_ids


async def used(client: OutriderClient) -> dict[str, set[str]]:
    """Return the addresses that are ready, by role."""
    ready = [one for one in (await client.status()).peers if one.state is PeerState.READY]
    return {role: {one.address for one in ready if one.role == role} for role in ROLES}


async def wait_until_used(client: OutriderClient, targets: int, drafts: int) -> None:
    """Wait until the orchestrator uses so many of each, and they are those that run."""
    wanted = {role: {address(one) for one in running(role)} for role in ROLES}
    assert [len(wanted[role]) for role in ROLES] == [targets, drafts]
    began, seen = time.monotonic(), await used(client)
    while not all(_fits(seen[role], wanted[role]) for role in ROLES):
        assert time.monotonic() - began < PATIENCE, f"{seen} are used and not {wanted}"
        await asyncio.sleep(0.5)
        seen = await used(client)


def _fits(seen: set[str], wanted: set[str]) -> bool:
    """Return whether the wanted ones are used; a name that never had two records is dialled."""
    return seen == wanted or (len(seen) == len(wanted) == 1)


async def busiest(client: OutriderClient) -> str:
    """Return the container of the target where most texts are."""
    targets = [one for one in (await client.status()).peers if one.role == "target"]
    most = max(targets, key=lambda one: one.generation_count)
    [container] = [one for one in running("target") if address(one) == most.address]
    return container


@asynccontextmanager
async def texts_in_flight(client: OutriderClient) -> AsyncIterator[list[Generation]]:
    """Write texts for several users; enter once each is midway, leave when all are written."""
    midway, made = asyncio.Semaphore(0), list[Generation]()
    loop = asyncio.get_running_loop()

    async def write() -> None:
        signal = lambda: loop.call_soon_threadsafe(midway.release)  # noqa: E731
        made.append(await generate(client, OPTIONS, signal, MIDWAY))

    async with asyncio.TaskGroup() as group:
        for _ in range(USERS):
            group.create_task(write())
        for _ in range(USERS):
            await midway.acquire()
        yield made


def check(made: list[Generation], expected: list[int], what: str) -> None:
    """Fail unless all texts are there and as expected."""
    assert [one.token_ids == expected for one in made] == [True] * USERS
    log.info("%s: %d texts the same, %d of %d tokens drafted", what, len(made), *_drafted(made))


def _drafted(made: list[Generation]) -> tuple[int, int]:
    return sum(one.drafted() for one in made), sum(len(one.token_ids) for one in made)


# --- what is behind the names ---


async def test_every_record_of_a_name_is_a_service_and_texts_are_spread(
    client: OutriderClient, undisturbed: list[int]
) -> None:
    async with texts_in_flight(client) as made:
        peers = (await client.status()).peers
        counts = Counter({one.address: one.generation_count for one in peers if one.role in ROLES})
    check(made, undisturbed, f"texts at once by address: {dict(counts)}")


FAULTS = {  # what Docker is told to do to a target, and how that is undone
    "killed": (("kill",), ("start",)),
    "drained": (("stop", "--time", "15"), ("start",)),
    "disconnected": (
        ("network", "disconnect", NETWORK),
        ("network", "connect", "--alias", "target", NETWORK),
    ),
    "paused": (("pause",), ("unpause",)),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_texts_are_the_same_when_a_target_is(
    client: OutriderClient, undisturbed: list[int], fault: str
) -> None:
    fail, repair = FAULTS[fault]
    async with texts_in_flight(client) as made:
        lost = await busiest(client)
        await asyncio.to_thread(insist, "docker", *fail, lost)
        in_flight = USERS - len(made)
        if fault == "paused":  # a text waits for a target that may come back, until its deadline
            await asyncio.sleep(3)
            await asyncio.to_thread(insist, "docker", *repair, lost)
    if fault != "paused":
        run("docker", *repair, lost)
    check(made, undisturbed, f"a target {fault} with {in_flight} texts in flight")
    await asyncio.to_thread(wait_until, lambda: healthy(lost), "the target does not come back")
    await wait_until_used(client, TARGETS, DRAFTS)


async def test_texts_are_the_same_when_all_drafts_but_one_are_killed(
    client: OutriderClient, undisturbed: list[int]
) -> None:
    async with texts_in_flight(client) as made:
        [lost, *_] = running("draft")
        await asyncio.to_thread(insist, "docker", "kill", lost)
    run("docker", "start", lost)
    check(made, undisturbed, "a draft killed")
    await asyncio.to_thread(wait_until, lambda: healthy(lost), "the draft does not come back")


async def test_targets_are_replaced_one_after_the_other_while_texts_are_written(
    client: OutriderClient, undisturbed: list[int]
) -> None:
    """As a Deployment does it: one more, and once that is healthy, one of the old ones drains."""
    old = running("target")
    stopped, made = asyncio.Event(), list[Generation]()

    async def write() -> None:
        while not stopped.is_set():
            made.append(await generate(client, OPTIONS))

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(write())
        try:
            for container in old:
                await asyncio.to_thread(scale, TARGETS + 1, DRAFTS)
                await asyncio.to_thread(run, "docker", "stop", "--time", "15", container)
                await asyncio.to_thread(run, "docker", "rm", container)
            await wait_until_used(client, TARGETS, DRAFTS)
        finally:
            stopped.set()
    assert not set(old) & set(running("target"))
    assert made and all(one.token_ids == undisturbed for one in made)
    log.info("replaced %d targets while %d texts were written, all the same", len(old), len(made))


async def test_fewer_and_more_of_both_are_followed(
    client: OutriderClient, undisturbed: list[int]
) -> None:
    small, large = (1, 1), (TARGETS, DRAFTS)
    for targets, drafts in (small, large):
        async with texts_in_flight(client) as made:
            await asyncio.to_thread(scale, targets, drafts)
        check(made, undisturbed, f"scaled to {targets} targets, {drafts} drafts")
        await wait_until_used(client, targets, drafts)
    again = await generate(client, replace(OPTIONS, token_limit=32))
    assert again.token_ids == undisturbed[:32]
