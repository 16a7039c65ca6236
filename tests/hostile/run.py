"""Attacks real processes for a while, with honest users beside it whose texts are compared.

    make hostile                     a client, a draft and a target, ten minutes each
    make hostile MINUTES=1 WHO=draft

Each attack has processes of its own: a target, a draft and an orchestrator with the bundled pair,
named tokens and HTTP. Two honest users have texts written all the time: for a while before the
attack, during it, and after it. It fails (exit status 1) where a process ended, a text was another,
an honest request failed, a bug was logged, or a process grew by more than --most-megabytes. The
rate of the honest users is printed, and is for a reader to judge: the attacker is on this machine.
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
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from outrider.client import CallFailed, Delta, GenerateOptions, OutriderClient
from outrider.errors import OutriderError
from outrider.rpc.health import check
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
    asked = GenerateOptions(
        token_limit=LENGTH,
        seed=number,
        sampling=SamplingParameters(temperature=0.8 * (number % 2)),
        ignore_eos=True,
        **options,
    )
    ids: list[int] = []
    async for event in client.generate(PROMPTS[number % len(PROMPTS)], asked, 120.0):
        if isinstance(event, Delta):
            ids += event.token_ids
    return ids


# --- attackers ---


@asynccontextmanager
async def attacked(
    stage: Stage, who: str, addresses: Sequence[str], minutes: float
) -> AsyncIterator[Callable[[], Awaitable[list[str]]]]:
    """Let the client attack; the hostile services are there already.

    What is yielded stops it and says how often it called.
    """
    if who != "client":
        yield nothing_more
        return
    token = str(stage.folder / "bob.token")
    words = ("-m", "tests.support.hostile_client", *addresses, str(60.0 * minutes), token)
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, *words),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )

    async def calls() -> list[str]:
        output, _ = await client.communicate()
        return [f"{int(output or 0)} hostile calls"]

    try:
        yield calls
    finally:
        with suppress(ProcessLookupError):
            client.kill()
        await client.wait()


async def nothing_more() -> list[str]:
    """Have nothing to say."""
    return []


async def ask_in_vain(stage: Stage, address: str) -> int:
    """Have texts written at a hostile target until this is cancelled; return how many came."""
    count = 0
    with suppress(asyncio.CancelledError):
        async with OutriderClient(address, stage.shown("alice")) as client:
            while True:
                with suppress(CallFailed, TimeoutError):
                    async with asyncio.timeout(30.0):
                        await written(client, count)
                count += 1
                await asyncio.sleep(0.05)
    return count


def hostile_words(role: str, model: Path, seed: int) -> tuple[str, ...]:
    return ("tests.hostile.peers", role, str(seed), f"--model={model}", "--threads=1")


# --- one attack ---


async def attack(who: str, minutes: float, seed: int, most_megabytes: int) -> bool:
    """Carry out an attack and print what came of it; return whether all went well."""
    quiet = min(60.0, 30.0 * minutes)
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
        users = Users(expected)
        # A draft that is dialled is always there: the rate without it is that of an orchestrator
        # that does not know it.
        quiet_address, twin, other = address, "", ""
        if who == "draft":
            quiet_address = stage.orchestrator("orchestrator without it", target, draft)
            await stage.until_serving(quiet_address)
        if who == "target":
            twin, other = await two_more_pairs(stage, draft)
        before, _ = await served(stage, users, quiet_address, twin, quiet)
        for process in stage.honest:
            process.note_memory()
        addresses = (address, target, draft)
        during, more = await under_attack(stage, who, users, addresses, other, minutes)
        after, _ = await served(stage, users, quiet_address, twin, quiet)
        return report(stage, who, users, (before, during, after), more, most_megabytes)


async def two_more_pairs(stage: Stage, draft: str) -> tuple[str, str]:
    """Start an orchestrator over an honest target and one over a hostile one; return addresses.

    Its users take the machine's time, too: the rate without an attack is that beside the honest.
    """
    honest = stage.start("twin", "outrider_cli", "target", f"--model={TARGET}", "--threads=1")
    words = hostile_words("target", TARGET, stage.seed)
    hostile = stage.start("hostile target", *words, is_honest=False)
    await stage.until_serving(honest, hostile)
    twin = stage.orchestrator("orchestrator of the twin", honest, draft)
    other = stage.orchestrator("orchestrator of the hostile target", hostile, draft)
    await stage.until_serving(twin, other)
    return twin, other


async def served(
    stage: Stage, users: Users, address: str, other: str, seconds: float
) -> tuple[float, int]:
    """Return the users' tokens a second, and what came of asking another orchestrator beside it."""
    vain = asyncio.create_task(ask_in_vain(stage, other)) if other else None
    try:
        rate = await users.use(stage, address, seconds)
    finally:
        if vain is not None:
            vain.cancel()
    return rate, await vain if vain is not None else 0


async def under_attack(
    stage: Stage, who: str, users: Users, addresses: Sequence[str], other: str, minutes: float
) -> tuple[float, str]:
    """Return the users' tokens a second while the attack lasts, and a word on the attack."""

    async def watch() -> None:
        while True:
            await asyncio.sleep(1.0)
            for process in stage.honest:
                process.note_memory()

    watching = asyncio.create_task(watch())
    try:
        async with attacked(stage, who, addresses, minutes) as calls:
            rate, count = await served(stage, users, addresses[0], other, 60.0 * minutes)
            more = await calls()
    finally:
        watching.cancel()
    if other:
        more.append(f"{count} asked of the hostile target")
    more += [f"{each.streams()} hostile streams" for each in stage.hostile]
    return rate, ", ".join(more)


def report(
    stage: Stage,
    who: str,
    users: Users,
    rates: tuple[float, float, float],
    more: str,
    most_megabytes: int,
) -> bool:
    """Print what came of an attack; return whether all went well."""
    before, during, after = rates
    share = 2 * during / (before + after) if before + after else 0.0
    print(f"hostile {who} (seed {stage.seed}): {users.text_count} honest texts; {more}")
    print(f"  wrong texts: {len(users.wrong)}; failed requests: {len(users.failures)}")
    for failure in sorted(set(users.failures))[:5]:
        print(f"    {failure}")
    print(f"  tokens/s: {during:.1f} beside it, {before:.1f} and {after:.1f} without: {share:.2f}")
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
