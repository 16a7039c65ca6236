"""Attacks real processes for a while, with honest users beside it whose texts are compared.

    make hostile                     a client, a draft and a target, ten minutes each
    make hostile MINUTES=1 WHO=draft

Each attack has processes of its own: a target, a draft and an orchestrator with the bundled pair,
named tokens and HTTP. Two honest users have texts written all the time: alone for a while before
and after, and in between beside the attacker and beside somebody honest in its place, in turns,
since a machine is not as fast in one minute as in the next. It fails (exit status 1) where a
process ended, a text was another, an honest request failed, a bug was logged, or a process grew by
more than --most-megabytes. The rates of the honest users are printed, and are for a reader to
judge: the attacker is on this machine, where it works at a lower priority than what it attacks.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles

import psutil

from outrider.client import CallFailed, Delta, OutriderClient, Request
from outrider.errors import OutriderError
from outrider.rpc.health_check import check
from outrider.rpc.security import ClientSecurity
from outrider.sampling import SamplingParameters
from tests.hostile.peers import STREAM
from tests.support.certificates import token_of, write_tokens
from tests.support.processes import DRAFT, TARGET, free_port
from tests.support.services import eventually

ROOT = Path(__file__).resolve().parents[2]
ATTACKS = ("client", "draft", "target")
USERS = 2
LENGTH = 48
ATTACK_SECONDS = 40.0
HONEST_SECONDS = 10.0  # of somebody honest in the attacker's place, between two attacks
SETTLE_SECONDS = 5.0  # after a change, until what was begun before it is over
NICENESS = 10  # of a hostile client, which is another machine's work
PROMPTS = (
    "def read_config(path):",
    "class Cache:\n    def __init__(self",
    "import os\n\n",
    "    def __enter__(self):",
)
MEGABYTE = 1 << 20

Texts = dict[int, list[int]]


@dataclass(slots=True)
class Process:
    """One process, and what its memory was, in bytes, once a second."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    memory: list[int] = field(default_factory=list)

    @property
    def ended(self) -> int | None:
        """Its exit status; None while it runs."""
        return self.popen.poll()

    def note_memory(self) -> None:
        """Take down how much memory it has now."""
        with suppress(psutil.Error):
            self.memory.append(int(psutil.Process(self.popen.pid).memory_info().rss))

    def streams(self) -> int:
        """Return how many streams a hostile service had."""
        return self.log.read_text(errors="replace").count(STREAM)

    def bugs(self) -> int:
        """Return how many lines of its log are of bugs."""
        text = self.log.read_text(errors="replace")
        return text.count("internal error") + text.count("Traceback")


class Stage:
    """The processes of one attack, and what one needs to ask them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.honest: list[Process] = []
        self.hostile: list[Process] = []
        self._all: list[Process] = []
        limits = "generations = 2\nrequests_per_minute = 1200\ntokens_per_minute = 100000"
        self.tokens = write_tokens(folder / "tokens.toml", bob=limits)
        for name in ("alice", "bob", "olga"):
            (folder / f"{name}.token").write_text(token_of(name))

    def shown(self, name: str) -> ClientSecurity:
        """Return what the holder of a token shows."""
        return ClientSecurity(token_file=self.folder / f"{name}.token")

    def start(self, name: str, *words: str, is_honest: bool = True) -> str:
        """Start a process that listens; return its address."""
        address = f"127.0.0.1:{free_port()}"
        log = self.folder / f"{name}.log"
        environment = {**os.environ, "OUTRIDER_TARGET_NUMERICS": "exact"}
        with log.open("wb") as output:
            command = [sys.executable, "-m", *words, f"--listen={address}"]
            popen = subprocess.Popen(
                [*command, f"--tokens={self.tokens}", "--stop-on-stdin-end"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,  # it ends with this process, whatever ends that
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        process = Process(name, popen, log)
        self._all.append(process)
        (self.honest if is_honest else self.hostile).append(process)
        return address

    def orchestrator(self, name: str, target: str, *drafts: str) -> str:
        """Start an orchestrator over services; return its address."""
        words = [f"--draft={each}" for each in drafts]
        peers = f"--peer-token-file={self.folder / 'olga.token'}"
        return self.start(name, "outrider_cli", "orchestrator", f"--target={target}", *words, peers)

    def stop(self) -> None:
        """End all processes."""
        for process in self._all:
            process.popen.kill()
            process.popen.communicate()  # closes its input, too

    async def until_serving(self, *addresses: str, seconds: float = 300.0) -> None:
        """Wait until services serve."""
        for address in addresses:
            await eventually(partial(self._is_serving, address), seconds, 0.2)

    async def _is_serving(self, address: str) -> bool:
        try:
            return await check(address, self.shown("olga"), 10.0) == "serving"
        except OutriderError:
            return False


# --- honest users ---


@dataclass(slots=True)
class Users:
    """What honest users got: tokens, texts that were others, failures."""

    expected: Texts
    token_count: int = 0
    text_count: int = 0
    wrong: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def use(self, stage: Stage, address: str, seconds: float) -> float:
        """Have texts written for so long by all users at once; return their tokens a second."""
        begin, before = time.monotonic(), self.token_count

        async def user(number: int) -> None:
            async with OutriderClient(address, stage.shown("alice")) as client:
                while time.monotonic() < begin + seconds:
                    await self._ask(client, number)
                    number = (number + USERS) % len(self.expected)

        await asyncio.gather(*(user(number) for number in range(USERS)))
        return (self.token_count - before) / (time.monotonic() - begin)

    async def _ask(self, client: OutriderClient, number: int) -> None:
        try:
            text = await written(client, number)
        except CallFailed as error:
            self.failures.append(f"{error.reason}: {error}")
            await asyncio.sleep(0.5)
            return
        self.text_count += 1
        self.token_count += len(text)
        if text != self.expected[number]:
            self.wrong.append(number)


async def written(client: OutriderClient, number: int, **options: bool) -> list[int]:
    """Return the tokens of one of the texts. Raises CallFailed."""
    asked = Request(
        PROMPTS[number % len(PROMPTS)],
        token_limit=LENGTH,
        seed=number,
        sampling=SamplingParameters(temperature=0.8 * (number % 2)),
        ignore_eos=True,
        **options,
    )
    ids: list[int] = []
    async for event in client.generate(asked, 120.0):
        if isinstance(event, Delta):
            ids += event.token_ids
    return ids


# --- who is beside them ---

Beside = Callable[[], Awaitable[object]]
"""Is beside the users until it is cancelled."""


@dataclass(frozen=True, slots=True)
class Place:
    """What honest users ask, and who is beside them there."""

    address: str
    beside: Beside


class Attacker:
    """The process of a hostile client, which attacks when it is let."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def attack(self) -> None:
        """Attack until this is cancelled."""
        await self._say("go")
        try:
            await asyncio.Event().wait()
        finally:
            await self._say("rest")

    async def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        await self._process.stdin.drain()

    async def count(self) -> int:
        """End it; return how many calls it made."""
        output, _ = await self._process.communicate(b"")  # which ends its input
        return int(output or 0)


@asynccontextmanager
async def hostile_client(stage: Stage, addresses: Sequence[str]) -> AsyncIterator[Attacker]:
    """Start a hostile client with a token of its own."""
    token = str(stage.folder / "bob.token")
    words = ("-m", "tests.support.hostile_client", *addresses, "inf", token)
    client = await asyncio.create_subprocess_exec(
        *("nice", "-n", str(NICENESS), sys.executable, *words),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield Attacker(client)
    finally:
        with suppress(ProcessLookupError):
            client.kill()
        await client.wait()


async def nobody() -> None:
    """Nobody is beside them."""


class Asking:
    """Has texts written one after the other, whatever comes of it, and counts them."""

    def __init__(self, stage: Stage, name: str, address: str) -> None:
        self._stage, self._name, self._address = stage, name, address
        self.count = 0

    async def ask(self) -> None:
        """Ask until this is cancelled."""
        async with OutriderClient(self._address, self._stage.shown(self._name)) as client:
            while True:
                with suppress(CallFailed, TimeoutError):
                    async with asyncio.timeout(30.0):
                        await written(client, self.count)
                self.count += 1
                await asyncio.sleep(0.05)


def hostile_words(role: str, model: Path, seed: int) -> tuple[str, ...]:
    return ("tests.hostile.peers", role, str(seed), f"--model={model}", "--threads=1")


# --- one attack ---


@dataclass(slots=True)
class Rates:
    """Tokens a second of all honest users: alone, and by turns beside somebody."""

    alone: list[float] = field(default_factory=list)
    honest: list[float] = field(default_factory=list)
    hostile: list[float] = field(default_factory=list)

    def share(self) -> float:
        """Return how fast they are beside an attacker, of how fast beside somebody honest."""
        honest = sum(self.honest) / len(self.honest) if self.honest else 0.0
        hostile = sum(self.hostile) / len(self.hostile) if self.hostile else 0.0
        return hostile / honest if honest else 0.0

    def spread(self) -> tuple[float, float]:
        """Return the first and the third quartile of the share in each turn."""
        pairs = zip(self.hostile, self.honest, strict=True)
        shares = [hostile / honest for hostile, honest in pairs if honest]
        if len(shares) < 2:
            return self.share(), self.share()
        first, _, third = quantiles(shares, n=4)
        return first, third


@dataclass(slots=True)
class Scene:
    """Where honest users ask alone, beside the attacker, and beside somebody honest."""

    alone: Place
    hostile: Place
    honest: Place
    said: Callable[[], Awaitable[list[str]]]  # at the end, of the attack


async def attack(who: str, minutes: float, seed: int, most_megabytes: int) -> bool:
    """Carry out an attack and print what came of it; return whether all went well."""
    quiet = min(30.0, 20.0 * minutes)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stage = Stage(Path(folder), seed)
        stack.callback(stage.stop)
        one = ("--threads=1",)
        target = stage.start("target", "outrider_cli", "target", f"--model={TARGET}", *one)
        draft = stage.start("draft", "outrider_cli", "draft", f"--model={DRAFT}", *one)
        drafts = [draft]
        if who == "draft":
            words = hostile_words("draft", DRAFT, seed)
            drafts.append(stage.start("hostile draft", *words, is_honest=False))
        address = stage.orchestrator("orchestrator", target, *drafts)
        await stage.until_serving(target, draft, address)
        async with OutriderClient(address, stage.shown("alice")) as client:
            expected = {n: await written(client, n, enabled=False) for n in range(8)}
        users, rates = Users(expected), Rates()
        async with AsyncExitStack() as attackers:
            scene = await set_up(stage, who, (address, target, draft), attackers)
            rates.alone.append(await served(stage, users, scene.alone, quiet))
            for process in stage.honest:
                process.note_memory()
            await by_turns(stage, users, scene, rates, 60.0 * minutes)
            rates.alone.append(await served(stage, users, scene.alone, quiet))
            more = await scene.said()
        return report(stage, who, users, rates, ", ".join(more), most_megabytes)


async def set_up(stage: Stage, who: str, addresses: Sequence[str], stack: AsyncExitStack) -> Scene:
    """Start who attacks, and who is honest in its place."""
    address, target, draft = addresses

    async def streams() -> list[str]:
        return [f"{each.streams()} hostile streams" for each in stage.hostile]

    alone = Place(address, nobody)
    if who == "client":
        attacker = await stack.enter_async_context(hostile_client(stage, addresses))
        honest = Place(address, Asking(stage, "bob", address).ask)

        async def calls() -> list[str]:
            return [f"{await attacker.count()} hostile calls"]

        return Scene(alone, Place(address, attacker.attack), honest, calls)
    if who == "draft":
        # A draft that is dialled is always there: without it is an orchestrator that does not
        # know it.
        other = stage.orchestrator("orchestrator without it", target, draft)
        await stage.until_serving(other)
        return Scene(Place(other, nobody), alone, Place(other, nobody), streams)
    # A hostile target's users take the machine's time, too, as those of an honest one do.
    twin, other = await two_more_pairs(stage, draft)
    # one at a time, as of the honest one; some of its answers take until the caller gives up
    in_vain = Asking(stage, "alice", other)

    async def asked() -> list[str]:
        return [f"{in_vain.count} asked of the hostile target", *await streams()]

    honest = Place(address, Asking(stage, "alice", twin).ask)
    return Scene(alone, Place(address, in_vain.ask), honest, asked)


async def two_more_pairs(stage: Stage, draft: str) -> tuple[str, str]:
    """Start an orchestrator over an honest target and one over a hostile one; return addresses."""
    honest = stage.start("twin", "outrider_cli", "target", f"--model={TARGET}", "--threads=1")
    words = hostile_words("target", TARGET, stage.seed)
    hostile = stage.start("hostile target", *words, is_honest=False)
    await stage.until_serving(honest, hostile)
    twin = stage.orchestrator("orchestrator of the twin", honest, draft)
    other = stage.orchestrator("orchestrator of the hostile target", hostile, draft)
    await stage.until_serving(twin, other)
    return twin, other


async def served(stage: Stage, users: Users, place: Place, seconds: float) -> float:
    """Return the users' tokens a second in a place, once it is as it will be."""
    beside = asyncio.ensure_future(place.beside())
    try:
        await users.use(stage, place.address, min(SETTLE_SECONDS, seconds / 4.0))
        return await users.use(stage, place.address, seconds)
    finally:
        beside.cancel()
        with suppress(asyncio.CancelledError):
            await beside


async def by_turns(stage: Stage, users: Users, scene: Scene, rates: Rates, seconds: float) -> None:
    """Let users work beside the attacker for so long, with somebody honest now and then."""

    async def watch() -> None:
        while True:
            await asyncio.sleep(1.0)
            for process in stage.honest:
                process.note_memory()

    watching = asyncio.create_task(watch())
    try:
        attacked = 0.0
        while attacked < seconds:
            begin = time.monotonic()
            turn = min(ATTACK_SECONDS, seconds - attacked)
            rates.hostile.append(await served(stage, users, scene.hostile, turn))
            attacked += time.monotonic() - begin
            rates.honest.append(await served(stage, users, scene.honest, HONEST_SECONDS))
            beside = f"{rates.hostile[-1]:.1f} beside it, {rates.honest[-1]:.1f} beside the honest"
            print(f"    {attacked:5.0f} s: {beside}, {users.text_count} texts", flush=True)
    finally:
        watching.cancel()


def report(
    stage: Stage,
    who: str,
    users: Users,
    rates: Rates,
    more: str,
    most_megabytes: int,
) -> bool:
    """Print what came of an attack; return whether all went well."""
    first, third = rates.spread()
    alone, honest, hostile = (
        sum(each) / len(each) if each else 0.0
        for each in (rates.alone, rates.honest, rates.hostile)
    )
    print(f"hostile {who} (seed {stage.seed}): {users.text_count} honest texts; {more}")
    print(f"  wrong texts: {len(users.wrong)}; failed requests: {len(users.failures)}")
    for failure in sorted(set(users.failures))[:5]:
        print(f"    {failure}")
    print(f"  tokens/s: {hostile:.1f} beside it, {honest:.1f} beside somebody honest,", end=" ")
    print(f"{alone:.1f} alone")
    print(f"  share: {rates.share():.2f} (quartiles of {len(rates.hostile)} turns", end=" ")
    print(f"{first:.2f} and {third:.2f})")
    good = bool(users.text_count) and not users.wrong and not users.failures
    for process in stage.honest:
        first, most, last = (
            f"{number / MEGABYTE:.0f}"
            for number in (process.memory[0], max(process.memory), process.memory[-1])
        )
        growth = (max(process.memory) - process.memory[0]) / MEGABYTE
        is_well = process.ended is None and not process.bugs() and growth <= most_megabytes
        good = good and is_well
        state = "runs" if process.ended is None else f"ENDED with {process.ended}"
        print(f"  {process.name}: {state}, {first} MB, at most {most}, then {last};", end=" ")
        print(f"bugs logged: {process.bugs()}{'' if is_well else '   <--'}")
        if not is_well:
            print(process.log.read_text(errors="replace")[-3000:])
    print("  well" if good else "  NOT WELL", flush=True)
    return good


def main() -> int:
    """Carry out the attacks that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description="Attack real processes.")
    parser.add_argument("who", nargs="*", default=[], help=f"of {', '.join(ATTACKS)}; none: all")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each attack")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-megabytes", type=int, default=150, help="that a process may grow")
    asked = parser.parse_args()
    for who in asked.who:
        if who not in ATTACKS:
            parser.error(f"{who} is none of {', '.join(ATTACKS)}")
    went_well = True
    for who in asked.who or ATTACKS:
        went_well &= asyncio.run(attack(who, asked.minutes, asked.seed, asked.most_megabytes))
    return 0 if went_well else 1


if __name__ == "__main__":
    sys.exit(main())
