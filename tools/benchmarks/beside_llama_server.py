"""Outrider beside llama-server: the same prompts over the same HTTP call, in turn, timed here.

    python -m benchmarks.beside_llama_server --llama-server BIN --model LARGE.gguf \\
        --draft-model SMALL.gguf --name '7B, Q4_0' --rows 0:1:64 0.8:1:64 0:8:64 \\
        --gpu-layers 99 --until 300 --out tools/benchmarks/results/NAME.json

It runs in the repository's root with the package's own dependencies, without root and without a
network. These are the arms:

- llama-server without drafts and with the draft model, once for each of `--draft-tokens`, and all
  that once for each of `--flash-attention`: `auto`, and `off`, which is often faster on a CPU
- Outrider as `outrider up` starts it, and the same servers with drafts turned off in the request

All stay loaded together. In a repetition every arm gets the same new random prompts, in an order
drawn anew, with an empty cache. Rows take turns too, so a slow minute meets all of them. After
`--until` seconds no further row of a repetition begins; what is done is in the file after each.
An arm that cannot start, for want of memory for example, is left out, and the file says so. On a
CPU what is measured while other processes compute is measured again, twice at most.

With `--spec-type draft-mtp` and without `--draft-model` both draft with the head in the target's
file; heads in files of their own are named like a draft model.

With `--round-trip 20` there are two machines: target and orchestrator on the first half of the
cores, the draft on the other half, on no GPU, behind a link with that many milliseconds of round
trip, through which it dials the orchestrator. llama-server then has the first half.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.readme_figures import LLAMA_SERVER, OUTRIDER, Arm, Result, Row, write_result
from outrider.client import ModelInfo, OutriderClient, Status
from outrider.errors import PeerUnavailable, ServiceStopped
from outrider.model_service.config import ModelOptions
from outrider.processes import ANY_PORT, Child
from outrider.sampling import SamplingParameters
from outrider_bench.cores import pinned
from outrider_bench.llama_server import LlamaServer, PeerPlan, complete, request_body
from outrider_bench.machine import QUIET_SHARE, describe_machine
from outrider_bench.peer_drafters import DRAFT_MODELS, draft_model
from outrider_bench.prompts import ordinary_tokens, random_prompts
from outrider_bench.records import Turn
from outrider_bench.variants import Variant
from outrider_cli import COMMAND
from outrider_cli.cpu_time import OthersClock
from outrider_cli.delayed_link import delayed_link
from outrider_cli.generate.execute import wait_for_pair
from outrider_cli.options import arguments
from outrider_cli.screen import Progress
from outrider_cli.services.local import HostedModel, LocalPlan, local_services
from outrider_cli.services.pair import host_draft

_SEED = 1
_SLACK_TOKENS = 128  # of the context, for drafts that run past the end of a text
_SETTLE_SECONDS = 0.1  # before a turn; a draft that ran ahead ends meanwhile
_POLL_SECONDS = 0.1
_CPU_ATTEMPTS = 3  # at a turn that other processes disturb
_WARM_UP_TOKENS = 64  # of a text that is not counted, for each row


@dataclass(frozen=True, slots=True)
class Setting:
    """What one row of the table asks for."""

    temperature: float
    users: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Contender:
    """A server that is loaded, and what its requests say beside the others'."""

    program: str
    draft_tokens: int | None
    flash_attention: str
    port: int
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        drafts = {None: "", 0: ", no drafts"}.get(
            self.draft_tokens, f", drafts of {self.draft_tokens}"
        )
        return f"{self.program}{drafts}, flash attention {self.flash_attention}"


def main() -> None:
    """Measure, print and write."""
    words = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("--llama-server", type=Path, required=True, metavar="PROGRAM")
    parser.add_argument("--model", type=Path, required=True, metavar="GGUF")
    parser.add_argument("--draft-model", type=Path, metavar="GGUF")
    kinds = "what drafts, by llama-server's name"
    parser.add_argument("--spec-type", choices=DRAFT_MODELS, default=DRAFT_MODELS[0], help=kinds)
    parser.add_argument("--name", required=True, help="the pair in words, such as '1.1B, Q4_0'")
    parser.add_argument("--out", type=Path, required=True, metavar="JSON")
    rows = "temperature, users and tokens of the prompt of each row"
    parser.add_argument(
        "--rows", type=_setting, nargs="+", default=[_setting("0:1:64")], metavar="T:U:N", help=rows
    )
    parser.add_argument("--tokens", type=int, default=128, help="written after each prompt")
    parser.add_argument("--prompts", type=int, default=4, help="repetitions of each row")
    until = "seconds after which nothing more begins"
    parser.add_argument("--until", type=float, default=float("inf"), metavar="SECONDS", help=until)
    parser.add_argument("--draft-tokens", type=_numbers, default=[1, 3, 8], metavar="N,N,...")
    parser.add_argument("--flash-attention", type=_words, default=["auto"], metavar="auto,off")
    layers = "of both models in both programs; else what each program does by itself"
    parser.add_argument("--gpu-layers", type=int, metavar="N", help=layers)
    link = "to the draft on a machine of its own"
    parser.add_argument("--round-trip", type=float, metavar="MS", help=link)
    parser.add_argument("--commit", default=_commit(), help="where this is no git checkout")
    asyncio.run(_measure(parser.parse_args(), time.monotonic()))


def _setting(text: str) -> Setting:
    temperature, users, prompt_tokens = text.split(":")
    return Setting(float(temperature), int(users), int(prompt_tokens))


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _commit() -> str:
    command = ("git", "describe", "--always", "--dirty")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


async def _measure(asked: argparse.Namespace, begin: float) -> None:
    """Start everything, measure, and write what there is after each row."""
    async with AsyncExitStack() as stack:
        status, port, pids = await stack.enter_async_context(_running_outrider(asked))
        target = _model(status, "target")
        machine = _machine(asked, target)
        race = Race(
            prompts={each: _prompts(asked.model, each.prompt_tokens) for each in asked.rows},
            tokens=asked.tokens,
            attempts=1 if machine["gpus"] else _CPU_ATTEMPTS,
        )
        race.enter(Contender(OUTRIDER, None, "default", port), pids)
        plain = {"speculative": {"enabled": False}}
        race.enter(Contender(OUTRIDER, 0, "default", port, plain), ())
        await _start_peers(stack, asked, target, race)
        _say(f"all loaded after {time.monotonic() - begin:.0f} s")
        executor = ThreadPoolExecutor(max(each.users for each in asked.rows))
        asyncio.get_running_loop().set_default_executor(executor)
        await race.warm_up()
        async for setting, repetition in race.run(asked.prompts, begin + asked.until):
            write_result(_result(asked, status, machine, race), asked.out)
            _say(f"{time.monotonic() - begin:.0f} s: repetition {repetition + 1} of {setting}")


# --- the servers ---


@asynccontextmanager
async def _running_outrider(
    asked: argparse.Namespace,
) -> AsyncIterator[tuple[Status, int, list[int]]]:
    """Start what `outrider up` starts, or the two machines.

    Give its state, its HTTP port and its processes.
    """
    usual = ModelOptions()
    engine = replace(
        usual,
        context=_context(asked),
        sessions=max(usual.sessions, *(each.users for each in asked.rows)),
        n_gpu_layers=usual.n_gpu_layers if asked.gpu_layers is None else asked.gpu_layers,
    )
    here, there = _machines(asked)
    apart = asked.round_trip is not None
    has_draft = asked.draft_model is not None and not apart
    plan = LocalPlan(
        target=HostedModel(asked.model, engine),
        draft=host_draft(asked.draft_model, engine, engine) if has_draft else None,
        orchestrator=(f"--http={ANY_PORT}", *(("--accept-drafts",) if apart else ())),
        commands={role: pinned(COMMAND, here, role) for role in ("target", "orchestrator")},
    )
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(local_services(plan))
        address = await services.start()
        client = await stack.enter_async_context(OutriderClient(address))
        pids = list(services.pids.values())
        if apart:
            link = await stack.enter_async_context(delayed_link(address, asked.round_trip / 1e3))
            options = arguments(replace(engine, n_gpu_layers=0))
            words = (f"--model={asked.draft_model}", f"--join={link}", *options)
            child = await Child.start(pinned(COMMAND, there, "draft"), "draft", ANY_PORT, words)
            stack.push_async_callback(child.stop)
            pids.append(child.pid)
        http = await services.http_address()
        status = await services.watch(_ready(client))
        yield status, int(http.rpartition(":")[2]), pids


async def _ready(client: OutriderClient) -> Status:
    """Wait until both models are there, and ready, or a head. Raises VocabularyMismatch."""
    while True:
        status = await wait_for_pair(client, Progress())
        if status.peer("draft") or _model(status, "target").own_draft:
            return status
        await asyncio.sleep(_POLL_SECONDS)


def _machines(asked: argparse.Namespace) -> tuple[Mapping[str, list[int]], Mapping[str, list[int]]]:
    """Return the cores by role, of what is here and of what is on the machine of the draft."""
    if asked.round_trip is None:
        return {}, {}
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    if not half:
        raise SystemExit("two machines need two cores")
    return dict.fromkeys(("target", "orchestrator"), cores[:half]), {"draft": cores[half:]}


async def _start_peers(
    stack: AsyncExitStack, asked: argparse.Namespace, target: ModelInfo, race: Race
) -> None:
    """Start all llama-servers and let them enter; those that do not start are left out."""
    for length, flash_attention in product((0, *asked.draft_tokens), asked.flash_attention):
        layers = str(asked.gpu_layers)
        plan = PeerPlan(
            binary=asked.llama_server,
            target=asked.model,
            draft=asked.draft_model,
            threads=target.thread_count,
            context=target.context_token_count,
            users=max(each.users for each in asked.rows),
            variants=(),
            options=(
                *("--flash-attn", flash_attention),
                *(("--n-gpu-layers", layers) if asked.gpu_layers is not None else ()),
                *(("--spec-draft-ngl", layers) if asked.gpu_layers is not None and length else ()),
            ),
            cores=_machines(asked)[0],
        )
        drafters = (draft_model(length, asked.spec_type),) if length else ()
        server = LlamaServer(Variant(LLAMA_SERVER, peer_drafters=drafters), plan)
        contender = Contender(LLAMA_SERVER, length, flash_attention, server.port)
        stack.push_async_callback(server.stop)
        _say(f"starting {contender}")
        try:
            await server.start()
        except ServiceStopped as error:
            race.leave_out(contender, error)
        else:
            race.enter(contender, server.pids.values())


def _context(asked: argparse.Namespace) -> int:
    longest: int = max(each.prompt_tokens for each in asked.rows) + asked.tokens
    return longest + _SLACK_TOKENS


def _prompts(model: Path, length: int) -> Iterator[list[int]]:
    """Yield random prompts of the model's ordinary tokens, without end."""
    from outrider.engine.llama_loading import read_vocabulary

    vocabulary = read_vocabulary(model)
    kind = vocabulary.description
    head = [kind.bos] if kind.adds_bos and kind.bos is not None else []
    special = {kind.bos, kind.eos, kind.eot, *kind.end_token_ids}
    known = ordinary_tokens(vocabulary.names, special)
    return random_prompts(known, length, head, _SEED)


# --- the turns ---


@dataclass(slots=True, kw_only=True)
class Race:
    """Servers that take turns at the same prompts, and what came of it."""

    prompts: Mapping[Setting, Iterator[list[int]]]  # new ones for each row, without end
    tokens: int  # to write after each
    attempts: int  # at a turn, while other processes compute
    contenders: list[Contender] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)  # of all that the servers run
    turns: dict[Setting, list[list[Turn]]] = field(default_factory=dict)
    """Of each contender, by repetition."""
    left_out: list[str] = field(default_factory=list)  # who could not take part, and why
    disturbed: int = 0  # turns that were never quiet

    def enter(self, contender: Contender, pids: Iterable[int]) -> None:
        """Let a contender take part, whose processes are these."""
        self.contenders.append(contender)
        self.pids += pids

    async def warm_up(self) -> None:
        """Let all write once for every row, uncounted; leave out who cannot."""
        able = []
        for contender in self.contenders:
            try:
                for setting in self.prompts:
                    tokens = min(self.tokens, _WARM_UP_TOKENS)
                    await _turn(contender, setting, self._draw(setting), tokens, repetition=0)
                able.append(contender)
            except PeerUnavailable as error:
                self.leave_out(contender, error)
        self.contenders = able
        self.turns = {setting: [[] for _ in able] for setting in self.prompts}

    def leave_out(self, contender: Contender, error: Exception) -> None:
        """Note that a contender takes no part."""
        self.left_out.append(f"{contender}: {error}")
        _say(f"left out: {self.left_out[-1]}")

    async def run(self, repetitions: int, deadline: float) -> AsyncIterator[tuple[Setting, int]]:
        """Let all take their turns, row by row, and yield after each row of a repetition.

        None begins that would last past the deadline, a time of the monotonic clock.
        """
        order = random.Random(_SEED)
        longest = dict.fromkeys(self.prompts, 0.0)  # seconds that a row has taken at most
        for repetition in range(repetitions):
            for setting, turns in self.turns.items():
                begin = time.monotonic()
                if begin + longest[setting] > deadline:
                    continue
                drawn = self._draw(setting)
                for i in order.sample(range(len(turns)), len(turns)):
                    turns[i].append(
                        await self._quiet_turn(self.contenders[i], setting, drawn, repetition)
                    )
                longest[setting] = max(longest[setting], time.monotonic() - begin)
                yield setting, repetition

    def _draw(self, setting: Setting) -> list[list[int]]:
        return [next(self.prompts[setting]) for _ in range(setting.users)]

    async def _quiet_turn(
        self, contender: Contender, setting: Setting, drawn: Sequence[list[int]], repetition: int
    ) -> Turn:
        """Take a turn, again while other processes compute, too, as often as may be."""
        for _ in range(self.attempts):
            others = OthersClock(self.pids)
            turn = await _turn(contender, setting, drawn, self.tokens, repetition)
            if (others.share() or 0.0) < QUIET_SHARE:
                return turn
        self.disturbed += 1
        return turn


async def _turn(
    contender: Contender,
    setting: Setting,
    prompts: Sequence[list[int]],
    tokens: int,
    repetition: int,
) -> Turn:
    """Let a contender write after one prompt for each user, all at once."""
    await asyncio.sleep(_SETTLE_SECONDS)
    sampling = SamplingParameters(temperature=setting.temperature)
    bodies = [
        {**request_body(prompt, tokens, sampling, _SEED + i), **contender.fields}
        for i, prompt in enumerate(prompts)
    ]
    trials = await asyncio.gather(
        *(asyncio.to_thread(complete, contender.port, body, lambda: None) for body in bodies)
    )
    turn = Turn(variant=str(contender), repetition=repetition, trials=tuple(trials))
    if turn.count_short(tokens):
        raise PeerUnavailable(f"{turn.variant}: a text ended before {tokens} tokens")
    return turn


# --- the result ---


def _result(
    asked: argparse.Namespace, status: Status, machine: dict[str, Any], race: Race
) -> Result:
    return Result(
        name=asked.name,
        date=datetime.date.today().isoformat(),
        commit=asked.commit,
        machine=machine,
        models={
            role: _described(_model(status, role))
            for role in ("target", "draft")
            if status.peer(role)
        },
        threads=_model(status, "target").thread_count,
        round_trip_ms=asked.round_trip,
        tokens=asked.tokens,
        left_out=race.left_out,
        disturbed=race.disturbed,
        rows=[_row(setting, race.contenders, turns) for setting, turns in race.turns.items()],
    )


def _row(setting: Setting, contenders: Sequence[Contender], turns: Sequence[list[Turn]]) -> Row:
    return Row(
        temperature=setting.temperature,
        users=setting.users,
        prompt_tokens=setting.prompt_tokens,
        arms=[_arm(*each) for each in zip(contenders, turns, strict=True)],
    )


def _arm(contender: Contender, turns: Sequence[Turn]) -> Arm:
    trials = [trial for turn in turns for trial in turn.trials]
    return Arm(
        program=contender.program,
        draft_tokens=contender.draft_tokens,
        flash_attention=contender.flash_attention,
        tokens_per_second=[round(turn.token_rate or 0.0, 2) for turn in turns],
        first_token_seconds=[
            round(statistics.median(each.first_token_seconds or 0.0 for each in turn.trials), 4)
            for turn in turns
        ],
        drafted=sum(each.drafted_count for each in trials),
        accepted=sum(each.accepted_count for each in trials),
    )


def _machine(asked: argparse.Namespace, target: ModelInfo) -> dict[str, Any]:
    return {
        **asdict(describe_machine()),
        "kernels": target.cpu_kernels,
        "gpus": [] if asked.gpu_layers == 0 else _gpus(asked.llama_server),
    }


def _gpus(llama_server: Path) -> list[str]:
    """Return the devices beside the CPU that llama-server computes on, as it names them."""
    command = (str(llama_server), "--list-devices")
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return re.findall(r"^ +\w+: (.+?) \(\d+ MiB", found, re.MULTILINE)


def _described(model: ModelInfo) -> dict[str, Any]:
    return {
        "name": model.name,
        "description": model.description,
        "parameters": model.parameter_count,
        "bytes": model.weight_byte_count,
    }


def _model(status: Status, role: str) -> ModelInfo:
    peer = status.peer(role)
    assert peer is not None and peer.model is not None
    return peer.model


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
