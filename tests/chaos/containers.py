"""Kills a container every 10 s while users have texts written; says what they saw of it.

    make containers-test             10 minutes, and 2 undisturbed ones before
    make containers-test MINUTES=1 SEED=3 ALSO=orchestrator

Three targets and five drafts of deploy/compose*.yaml, each role under a name, and an orchestrator.
Users ask for one text after the other. The seed gives who is killed when, and what is asked for.
It fails where a text is another, a request ends without a word or not at all, or the 99th
percentile of the time to the first token is more than one health interval above that of the
undisturbed minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from outrider.client import (
    CallFailed,
    Delta,
    Finished,
    Origin,
    OutriderClient,
    PeerState,
)
from outrider.client import Request as Asked
from outrider.sampling import SamplingParameters
from outrider.speculation import Policy
from tests.chaos.kills import (
    Kill,
    Loss,
    Request,
    figures,
    in_failover,
    kills,
    problems,
    stood_still,
    table,
)
from tests.support.compose import PATIENCE, Project, connected, insist, inspect

PROJECT = Project("outrider-kills-test", ("compose.yaml", "compose.pools.yaml"))
COUNTS = {"target": 3, "draft": 5}
SETTINGS = {
    "START_PERIOD": "10m",
    "NUMERICS": "exact",  # so that texts can be compared
    "SESSIONS": "8",  # two targets have room for all users
    "TARGET_THREADS": "1",
    "DRAFT_THREADS": "1",
}
LIMIT_SECONDS = 120.0
"""A user's own; a text that takes longer has no end."""

_TRIES = 5  # to start them all, and of a text that says what is right
_STANDSTILL_SECONDS = 4.0
_AGAIN_SECONDS = 0.2  # until a user who got an error asks again
_PROMPTS = (
    "def read_config(path):",
    "class Matrix:\n    def __init__(self",
    "import os\nimport sys\n\n",
    "def parse_header(line):\n    name, _, value = line.partition(':')\n",
    "for name in sorted(os.listdir(folder)):\n    ",
    "    def __enter__(self):",
)


def catalogue() -> list[Asked]:
    """Return everything that is asked for: short and long, greedy and sampled."""
    samplings = (SamplingParameters(temperature=0), SamplingParameters(temperature=0.8))
    return [
        Asked(
            prompt,
            token_limit=24 + 16 * number,
            sampling=sampling,
            seed=number,
            ignore_eos=True,
            policy=Policy.FIXED,
            n_max=3,
        )
        for number, prompt in enumerate(_PROMPTS)
        for sampling in samplings
    ]


async def write(client: OutriderClient, asked: Asked, request: Request) -> list[int]:
    """Have a text written; note in the request what its user sees, and return its tokens."""
    made, is_finished = list[int](), False
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            async for event in client.generate(asked):
                if isinstance(event, Delta):
                    if request.first is None and event.token_ids:
                        request.first = time.monotonic()
                    made += event.token_ids
                    request.drafted_count += event.origins.count(Origin.DRAFTED)
                is_finished |= isinstance(event, Finished)
    except CallFailed as error:
        request.outcome = f"error: {error.reason}"
    except TimeoutError:
        request.outcome = "no end"
    else:
        request.outcome = "written" if is_finished else "an end without a word"
    request.ended, request.token_count = time.monotonic(), len(made)
    return made


class Users:
    """Users who ask for one text after the other, each with a connection of their own."""

    def __init__(self, count: int, seed: int, token_file: Path) -> None:
        self._rngs = [random.Random(f"{seed} {number}") for number in range(count)]
        self._token_file = token_file
        self._asked = catalogue()
        self._right: list[list[int]] = []
        self._stopping = False
        self.requests: list[Request] = []

    async def learn(self) -> None:
        """Have every text written once, alone, with nothing going wrong."""
        async with connected(self._token_file) as client:
            for asked in self._asked:
                for _ in range(_TRIES):
                    request = Request(time.monotonic())
                    made = await write(client, asked, request)
                    if request.outcome == "written":
                        break
                assert request.outcome == "written", request.outcome
                self._right.append(made)

    async def work(self) -> None:
        """Ask until `stop`, and until all that was asked for has ended."""
        async with asyncio.TaskGroup() as group:
            for rng in self._rngs:
                group.create_task(self._work(rng))

    def stop(self) -> None:
        """Ask for nothing more."""
        self._stopping = True

    async def _work(self, rng: random.Random) -> None:
        async with connected(self._token_file) as client:
            while not self._stopping:
                number = rng.randrange(len(self._asked))
                request = Request(time.monotonic())
                self.requests.append(request)
                made = await write(client, self._asked[number], request)
                if request.outcome == "written":
                    is_right = made == self._right[number]
                    request.outcome = "right" if is_right else "another text"
                else:
                    await asyncio.sleep(_AGAIN_SECONDS)


@dataclass
class Killer:
    """Kills containers and starts them again."""

    client: OutriderClient
    containers: dict[str, str]  # ids by name, such as "target 0"
    losses: list[Loss] = field(default_factory=list)

    async def run(self, plan: list[Kill]) -> None:
        """Kill what is planned when it is planned, until the last one is back."""
        begin = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for kill in plan:
                await asyncio.sleep(max(0.0, begin + kill.at - time.monotonic()))
                group.create_task(self._lose(kill, time.monotonic() - begin))

    async def _lose(self, kill: Kill, past: float) -> None:
        running = await asyncio.to_thread(self._running)
        name = next((name for name in kill.order if name in running), None)
        if name is None:
            return
        texts = (await used(self.client)).get(running[name], 0)
        at = time.monotonic()
        await asyncio.to_thread(insist, "docker", "kill", self.containers[name])
        await asyncio.sleep(kill.away)
        await asyncio.to_thread(insist, "docker", "start", self.containers[name])
        until = await self._until_used(name)
        self.losses.append(Loss(name, at, until, texts))
        said = f"{name} killed with {texts} texts, used again after {until - at:.1f} s"
        print(f"{past:6.0f} s  {said}", flush=True)

    def _running(self) -> dict[str, str]:
        return {name: where for name, id_ in self.containers.items() if (where := address(id_))}

    async def _until_used(self, name: str) -> float:
        """Return when the orchestrator uses a container that was started again."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            where = await asyncio.to_thread(address, self.containers[name])
            ready = await used(self.client)
            if ready if name.startswith("orchestrator") else where in ready:
                return time.monotonic()
            await asyncio.sleep(0.3)
        raise AssertionError(f"{name} does not come back")


async def note_standstills(spans: list[tuple[float, float]]) -> None:
    """Note when this process did not run at all, as on a machine that is stopped or overloaded."""
    before = time.monotonic()
    while True:
        await asyncio.sleep(0.5)
        now = time.monotonic()
        if now - before > _STANDSTILL_SECONDS:
            spans.append((before, now))
        before = now


def address(container: str) -> str:
    """Return where a container's service is dialled; empty where it does not run."""
    [network, *_] = inspect(container)["NetworkSettings"]["Networks"].values()
    return f"{network['IPAddress']}:50060" if network["IPAddress"] else ""


async def used(client: OutriderClient) -> dict[str, int]:
    """Return the texts at each address that is ready; none while the orchestrator is away."""
    with suppress(CallFailed):
        peers = (await client.status()).peers
        return {one.address: one.generation_count for one in peers if one.state is PeerState.READY}
    return {}


def bring_up() -> None:
    """Start the containers; again where a busy machine was too late with a health check."""
    counts = [word for role, count in COUNTS.items() for word in ("--scale", f"{role}={count}")]
    for tries in range(_TRIES, 0, -1):
        try:
            PROJECT.compose("up", "--detach", "--no-build", *counts, **SETTINGS)
            return
        except AssertionError:
            if tries == 1:
                raise


@asynccontextmanager
async def started() -> AsyncIterator[tuple[Path, dict[str, str]]]:
    """Start the containers; yield the file with their token and the ids of those with a number."""
    PROJECT.compose("down", "--volumes", "--remove-orphans")
    begin = time.monotonic()
    try:
        bring_up()
        with tempfile.TemporaryDirectory(prefix="outrider-kills-") as folder:
            token_file = PROJECT.read_token(Path(folder))
            found = {
                f"{role} {number}": container
                for role in COUNTS
                for number, container in enumerate(PROJECT.containers(role))
            }
            async with connected(token_file) as client:
                deadline = time.monotonic() + PATIENCE
                while not {address(one) for one in found.values()} <= set(await used(client)):
                    assert time.monotonic() < deadline, "not all of them are used"
                    await asyncio.sleep(0.5)
            print(f"{COUNTS} are used after {time.monotonic() - begin:.0f} s", flush=True)
            yield token_file, found
    except BaseException:
        print(PROJECT.compose("logs", "--tail", "40"))
        raise
    finally:
        PROJECT.compose("down", "--volumes", "--remove-orphans", "--timeout", "10")


async def left(client: OutriderClient) -> list[str]:
    """Return what is still held once everybody has left, after a while."""
    for _ in range(60):
        peers = (await client.status()).peers
        held = [
            f"{each.generation_count} texts at {each.address}"
            for each in peers
            if each.generation_count
        ]
        if not held:
            return []
        await asyncio.sleep(0.5)
    return held


async def run(options: argparse.Namespace) -> list[str]:
    """Do what the command line says; return what was not kept."""
    async with started() as (token_file, found), connected(token_file) as client:
        counts = dict(COUNTS)
        if options.also:
            counts[options.also] = 1
            found[f"{options.also} 0"] = PROJECT.container(options.also)
        users = Users(options.users, options.seed, token_file)
        await users.learn()
        killer = Killer(client, found)
        standstills: list[tuple[float, float]] = []
        noting = asyncio.create_task(note_standstills(standstills))
        working = asyncio.create_task(users.work())
        await asyncio.sleep(60.0 * options.undisturbed_minutes)
        begin = time.monotonic()
        print(f"{len(users.requests)} requests before the first kill", flush=True)
        await killer.run(kills(options.seed, options.minutes, counts))
        users.stop()
        await working
        held = await left(client)
        noting.cancel()
    requests = [each for each in users.requests if not stood_still(each, standstills)]
    if standstills:
        away = sum(until - since for since, until in standstills)
        count = len(users.requests) - len(requests)
        print(f"the machine stood still for {away:.0f} s: {count} requests of then are left out")
    after = [each for each in requests if each.first is None or each.first >= begin]
    before = [each for each in requests if each.first is not None and each.first < begin]
    failing = [each for each in after if in_failover(each, killer.losses)]
    columns = {
        "undisturbed": figures(before),
        f"{len(killer.losses)} killed": figures(after),
        "of them in failover": figures(failing),
    }
    print(table(columns))
    print(f"{sum(loss.texts for loss in killer.losses)} texts were at what was killed")
    return problems(columns["undisturbed"], columns["of them in failover"], requests) + held


def main() -> int:
    """Run what the command line says; the exit status is 1 where a promise was not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--undisturbed-minutes", type=float, default=2.0)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--also", choices=["orchestrator"], help="may be killed too")
    found = asyncio.run(run(parser.parse_args()))
    for problem in found:
        print(f"FAULT: {problem}")
    print("FAULT" if found else "every text was written, or its user has an error")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
