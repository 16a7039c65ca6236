"""Outrider beside llama-server: the same prompts over the same HTTP call, in turn, timed here.

    python -m benchmarks.beside_llama_server --llama-server BIN --model LARGE.gguf \\
        --draft-model SMALL.gguf --name '7B, Q4_0' --rows 0:1:64 0.8:1:64 0:8:64 \\
        --gpu-layers 99 --until 300 --out benchmarks/results/NAME.json

It runs in the repository's root with the package's own dependencies, without root and without a
network. These are the arms:

- llama-server without drafts and with the draft model, once for each of `--draft-tokens`, and all
  that once for each of `--flash-attention`: `auto`, and `off`, which is often faster on a CPU
- Outrider as `outrider up` starts it, and the same servers with drafts turned off in the request

All stay loaded together. In a repetition every arm gets the same new random prompts, in an order
drawn anew, with an empty cache. Rows take turns too, so a slow minute meets all of them. After
`--until` seconds no further row of a repetition begins; what is done is in the file after each.
An arm that cannot start, for want of memory for example, is left out, and the file says so.

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
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.readme_figures import LLAMA_SERVER, OUTRIDER, Arm, Result, Row, write_result
from outrider.client import Model, OutriderClient, PeerState, Status
from outrider.errors import PeerUnavailable, ServiceStopped
from outrider.processes import ANY_PORT, Child
from outrider.sampling import SamplingParameters
from outrider_cli import COMMAND
from outrider_cli.bench.cores import pinned
from outrider_cli.bench.llama_server import LlamaServer, PeerPlan, complete, request_body
from outrider_cli.bench.machine import describe_machine
from outrider_cli.bench.peer_drafters import draft_model
from outrider_cli.bench.prompts import ordinary_tokens, random_prompts
from outrider_cli.bench.records import Turn
from outrider_cli.bench.variants import Variant
from outrider_cli.delayed_link import delayed_link
from outrider_cli.options import ModelOptions, arguments
from outrider_cli.services.local import Hosted, LocalPlan, local_services
from outrider_cli.services.pair import BESIDE_THE_TARGET

_SEED = 1
_SLACK_TOKENS = 128  # of the context, for drafts that run past the end of a text
_SETTLE_SECONDS = 0.1  # before a turn; a draft that ran ahead ends meanwhile
_POLL_SECONDS = 0.1
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


Turns = dict[Setting, list[list[Turn]]]
"""For each row, the turns of each contender, one per repetition."""


def main() -> None:
    """Measure, print and write."""
    words = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("--llama-server", type=Path, required=True, metavar="PROGRAM")
    parser.add_argument("--model", type=Path, required=True, metavar="GGUF")
    parser.add_argument("--draft-model", type=Path, required=True, metavar="GGUF")
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
    async with AsyncExitStack() as stack:
        status, port = await stack.enter_async_context(_running_outrider(asked))
        target = _model(status, "target")
        ours = [
            Contender(OUTRIDER, None, "default", port),
            Contender(OUTRIDER, 0, "default", port, {"speculative": {"enabled": False}}),
        ]
        left_out: list[str] = []
        peers = await _start_peers(stack, asked, target, left_out)
        _say(f"all loaded after {time.monotonic() - begin:.0f} s")
        prompts = {each: _prompts(asked.model, each.prompt_tokens) for each in asked.rows}
        executor = ThreadPoolExecutor(max(each.users for each in asked.rows))
        asyncio.get_running_loop().set_default_executor(executor)
        contenders = await _warm_up([*ours, *peers], asked, prompts, left_out)
        turns: Turns = {each: [[] for _ in contenders] for each in asked.rows}
        async for setting, repetition in _take_turns(asked, contenders, prompts, turns, begin):
            result = Result(
                name=asked.name,
                date=datetime.date.today().isoformat(),
                commit=asked.commit,
                machine=_machine(asked, target),
                models={role: _described(_model(status, role)) for role in ("target", "draft")},
                threads=target.thread_count,
                round_trip_ms=asked.round_trip,
                tokens=asked.tokens,
                left_out=left_out,
                rows=[_row(each, contenders, turns[each]) for each in asked.rows],
            )
            write_result(result, asked.out)
            _say(f"{time.monotonic() - begin:.0f} s: repetition {repetition + 1} of {setting}")


# --- the servers ---


@asynccontextmanager
async def _running_outrider(asked: argparse.Namespace) -> AsyncIterator[tuple[Status, int]]:
    """Start what `outrider up` starts, or the two machines; give its state and its HTTP port."""
    usual = ModelOptions()
    engine = replace(
        usual,
        context=_context(asked),
        sessions=max(usual.sessions, *(each.users for each in asked.rows)),
        n_gpu_layers=usual.n_gpu_layers if asked.gpu_layers is None else asked.gpu_layers,
    )
    beside = replace(engine, nice=BESIDE_THE_TARGET.nice)
    here, there = _machines(asked)
    apart = asked.round_trip is not None
    plan = LocalPlan(
        target=Hosted(asked.model, engine),
        draft=None if apart else Hosted(asked.draft_model, beside),
        orchestrator=(f"--http={ANY_PORT}", *(("--accept-drafts",) if apart else ())),
        commands={role: pinned(COMMAND, here, role) for role in ("target", "orchestrator")},
    )
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(local_services(plan))
        address = await services.start()
        client = await stack.enter_async_context(OutriderClient(address))
        if apart:
            link = await stack.enter_async_context(delayed_link(address, asked.round_trip / 1e3))
            options = arguments(replace(engine, n_gpu_layers=0))
            words = (f"--model={asked.draft_model}", f"--join={link}", *options)
            child = await Child.start(pinned(COMMAND, there, "draft"), "draft", ANY_PORT, words)
            stack.push_async_callback(child.stop)
        http = await services.http_address()
        status = await services.watch(_ready(client))
        yield status, int(http.rpartition(":")[2])


async def _ready(client: OutriderClient) -> Status:
    """Wait until target and draft are there, and ready."""
    while True:
        status = await client.status()
        ready = {peer.role for peer in status.peers if peer.state is PeerState.READY}
        if {"target", "draft"} <= ready:
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
    stack: AsyncExitStack, asked: argparse.Namespace, target: Model, left_out: list[str]
) -> list[Contender]:
    """Start all llama-servers; those that do not start are left out."""
    lengths = (0, *asked.draft_tokens)
    started = []
    for length, flash_attention in product(lengths, asked.flash_attention):
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
        drafters = (draft_model(length),) if length else ()
        server = LlamaServer(Variant(LLAMA_SERVER, peer_drafters=drafters), plan)
        contender = Contender(LLAMA_SERVER, length, flash_attention, server.port)
        stack.push_async_callback(server.stop)
        _say(f"starting {contender}")
        try:
            await server.start()
            started.append(contender)
        except ServiceStopped as error:
            _leave_out(contender, error, left_out)
    return started


def _leave_out(contender: Contender, error: Exception, left_out: list[str]) -> None:
    left_out.append(f"{contender}: {error}")
    _say(f"left out: {left_out[-1]}")


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


async def _warm_up(
    contenders: Sequence[Contender],
    asked: argparse.Namespace,
    prompts: Mapping[Setting, Iterator[list[int]]],
    left_out: list[str],
) -> list[Contender]:
    """Let every server write once in every row's way, uncounted; return those that could."""
    able = []
    for contender in contenders:
        try:
            for setting in asked.rows:
                drawn = [next(prompts[setting]) for _ in range(setting.users)]
                tokens = min(asked.tokens, _WARM_UP_TOKENS)
                await _turn(contender, setting, drawn, tokens, repetition=0)
            able.append(contender)
        except PeerUnavailable as error:
            _leave_out(contender, error, left_out)
    return able


async def _take_turns(
    asked: argparse.Namespace,
    contenders: Sequence[Contender],
    prompts: Mapping[Setting, Iterator[list[int]]],
    turns: Turns,
    begin: float,
) -> AsyncIterator[tuple[Setting, int]]:
    """Let all contenders write after the same prompts, row by row; yield after each row."""
    order = random.Random(_SEED)
    longest = dict.fromkeys(asked.rows, 0.0)  # seconds that a row has taken at most
    for repetition in range(asked.prompts):
        for setting in asked.rows:
            started = time.monotonic()
            if started - begin + longest[setting] > asked.until:
                continue
            drawn = [next(prompts[setting]) for _ in range(setting.users)]
            for i in order.sample(range(len(contenders)), len(contenders)):
                turn = await _turn(contenders[i], setting, drawn, asked.tokens, repetition)
                turns[setting][i].append(turn)
            longest[setting] = max(longest[setting], time.monotonic() - started)
            yield setting, repetition


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


def _machine(asked: argparse.Namespace, target: Model) -> dict[str, Any]:
    machine = describe_machine()
    return {
        "cpu": machine.cpu,
        "core_count": machine.core_count,
        "kernels": target.cpu_kernels,
        "gpus": [] if asked.gpu_layers == 0 else _gpus(asked.llama_server),
        "versions": dict(machine.versions),
    }


def _gpus(llama_server: Path) -> list[str]:
    """Return the devices beside the CPU that llama-server computes on, as it names them."""
    command = (str(llama_server), "--list-devices")
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return [line.strip() for line in found.splitlines() if line.startswith("  ") and ":" in line]


def _described(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "description": model.description,
        "parameters": model.parameter_count,
        "bytes": model.weight_byte_count,
    }


def _model(status: Status, role: str) -> Model:
    return next(peer.model for peer in status.peers if peer.role == role and peer.model)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
