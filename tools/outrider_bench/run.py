"""Runs the benchmark of a pair: starts its services and those that are compared, block by block."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

from outrider.client import ModelInfo, OutriderClient, Request, Started, Status
from outrider.errors import InvalidRequest
from outrider_bench.cores import pinned
from outrider_bench.interleave import Bench, Contender, Outrider
from outrider_bench.llama_server import LlamaServer, PeerPlan, running_peers
from outrider_bench.prompts import (
    ordinary_tokens,
    random_prompts,
    task_prompts,
    text_prompts,
)
from outrider_bench.records import Block, Turn
from outrider_bench.remote_model import RemoteModel, remote_model
from outrider_bench.settings import Settings
from outrider_bench.variants import Variant, distant_variants, numerics_variants
from outrider_cli import COMMAND
from outrider_cli.generate.execute import wait_for_pair
from outrider_cli.phrases import plural
from outrider_cli.screen import Progress
from outrider_cli.services.local import HostedModel, LocalPlan, LocalServices, local_services

_TEXT_CHARACTERS = 200_000
_PATIENT = ("--request-timeout", "1000000")  # who waits can press Ctrl-C


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResult:
    """What was measured of one pair. Grows while it runs."""

    target: Path
    draft: Path
    models: dict[str, ModelInfo] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)


async def run_pair(
    settings: Settings,
    target: HostedModel,
    draft: HostedModel,
    result: PairResult,
    progress: Progress,
) -> None:
    """Measure a pair, block by block; what is done stays in `result`, however this ends."""
    await _run_here(settings, target, draft, result, progress)
    if settings.round_trips_ms:
        await _run_draft_away(settings, target, draft, result, progress)
    if settings.target_round_trips_ms:
        await _run_target_away(settings, target, draft, result, progress)


async def _run_here(
    settings: Settings,
    target: HostedModel,
    draft: HostedModel,
    result: PairResult,
    progress: Progress,
) -> None:
    """Measure all variants and users with the three services on this machine."""
    plan = _plan(settings, target, draft)
    async with AsyncExitStack() as stack:
        services, client = await _started(stack, plan)
        status = await services.watch(wait_for_pair(client, progress))
        result.models.update(_models(status))
        others = await _other_numerics(stack, settings, plan, target, progress)
        wanted = sum(settings.users) * (settings.repetitions + 1)
        prompts = await services.watch(make_prompts(settings, target.model, client, result, wanted))
        bench = Bench(settings, prompts, progress.say, settings.seed)
        known = settings.tasks.read() if settings.tasks else ()
        texts = {tuple(prompt): tuple(text) for prompt, text in known}
        for index, users in enumerate(settings.users):
            swept = (*settings.variants, *(settings.lengths if index == 0 else ()))
            mine = [_salted(variant, settings) for variant in swept]
            ours = [*(Outrider(each, client, services.pids, texts) for each in mine), *others]
            peer_plan = _plan_peer(settings, target.model, draft.model, users, result)
            async with running_peers(peer_plan, progress.say) as peers:
                await services.watch(_run_block(bench, ours, peers, users, result))


def _salted(variant: Variant, settings: Settings) -> Variant:
    """Return a variant that knows nothing of what others read: of tasks all have the same."""
    if settings.tasks is None:
        return variant
    return replace(variant, changes={**variant.changes, "cache_salt": variant.name})


def _plan(
    settings: Settings,
    target: HostedModel | str,
    draft: HostedModel | str,
    far_token_file: Path | None = None,
) -> LocalPlan:
    """Return what to start here, beside what is far and wants a token."""
    return LocalPlan(
        target=target,
        draft=draft,
        orchestrator=_PATIENT,
        peer_token_file=far_token_file,
        commands={role: pinned(COMMAND, settings.cores, role) for role in settings.cores},
    )


async def _started(stack: AsyncExitStack, plan: LocalPlan) -> tuple[LocalServices, OutriderClient]:
    """Start services that end with the stack; return them and a client of theirs."""
    services = await stack.enter_async_context(local_services(plan))
    client = await stack.enter_async_context(OutriderClient(await services.start()))
    return services, client


async def _other_numerics(
    stack: AsyncExitStack,
    settings: Settings,
    plan: LocalPlan,
    target: HostedModel,
    progress: Progress,
) -> list[Outrider]:
    """Start the pair once more for each of the other numerics; return what is measured of it."""
    found = []
    for profile in settings.numerics:
        progress.say(f"starting the services, numerics {profile}")
        other = replace(target, options=replace(target.options, numerics=profile))
        services, client = await _started(stack, replace(plan, target=other))
        await services.watch(wait_for_pair(client, progress))
        found += [Outrider(each, client, services.pids) for each in numerics_variants(profile)]
    return found


async def _run_block(
    bench: Bench,
    ours: Sequence[Contender],
    peers: Sequence[LlamaServer],
    users: int,
    result: PairResult,
) -> None:
    contenders: list[Contender] = [*ours, *peers]
    turns: list[Turn] = []
    await bench.warm_up(contenders, users)
    result.blocks.append(Block(user_count=users, turns=turns))
    where = plural(users, "user")
    for repetition in range(bench.settings.repetitions):
        turns += await bench.take_turns(contenders, users, repetition, where)


def _plan_peer(
    settings: Settings, target: Path, draft: Path, users: int, result: PairResult
) -> PeerPlan | None:
    if settings.peer is None:
        return None
    model = result.models["target"]
    return PeerPlan(
        binary=settings.peer,
        target=target,
        draft=draft,
        threads=model.thread_count,
        context=model.context_token_count,
        users=users,
        variants=settings.peer_variants,
        options=settings.peer_options,
        cores=settings.cores,
    )


async def _run_draft_away(
    settings: Settings,
    target: HostedModel,
    draft: HostedModel,
    result: PairResult,
    progress: Progress,
) -> None:
    """Measure what is worth it at every round trip, with the draft over a slow link."""
    progress.say("starting the services, with the draft far away")
    async with remote_model("draft", draft, settings.cores) as far:
        plan = _plan(settings, target, far.address, far.token_file)
        times = settings.round_trips_ms
        await _run_away(settings, plan, target.model, far, times, result, progress)


async def _run_target_away(
    settings: Settings,
    target: HostedModel,
    draft: HostedModel,
    result: PairResult,
    progress: Progress,
) -> None:
    """Measure the same with the target over a slow link, and draft and orchestrator here."""
    progress.say("starting the services, with the target far away")
    async with remote_model("target", target, settings.cores) as far:
        plan = _plan(settings, far.address, draft, far.token_file)
        times = settings.target_round_trips_ms
        await _run_away(settings, plan, target.model, far, times, result, progress)


async def _run_away(
    settings: Settings,
    plan: LocalPlan,
    target: Path,
    far: RemoteModel,
    round_trips_ms: Sequence[float],
    result: PairResult,
    progress: Progress,
) -> None:
    """Start what is here, and measure it with what is far at every round trip."""
    async with AsyncExitStack() as stack:
        services, client = await _started(stack, plan)
        await services.watch(wait_for_pair(client, progress))
        variants = distant_variants(settings.variants)
        wanted = len(round_trips_ms) * settings.repetitions * 2
        prompts = await services.watch(make_prompts(settings, target, client, result, wanted))
        bench = Bench(settings, prompts, progress.say, settings.seed)
        pids = {**services.pids, far.role: far.child.pid}
        ours = [Outrider(each, client, pids) for each in variants]
        await services.watch(_run_distances(bench, ours, far, round_trips_ms, result))


async def _run_distances(
    bench: Bench,
    ours: Sequence[Outrider],
    far: RemoteModel,
    round_trips_ms: Sequence[float],
    result: PairResult,
) -> None:
    """Let the round trips take turns too.

    After each change of the link one uncounted generation per variant shows
    the controller: no real link changes between two requests.
    """
    turns: dict[float, list[Turn]] = {ms: [] for ms in round_trips_ms}
    result.blocks.extend(
        Block(user_count=1, turns=own, round_trip_ms=ms, far=far.role) for ms, own in turns.items()
    )
    for repetition in range(bench.settings.repetitions):
        order = list(turns)
        random.Random(f"{bench.settings.seed} {far.role} far {repetition}").shuffle(order)
        for ms in order:
            await far.reshape(ms)
            measured = await far.round_trip()
            await bench.warm_up(ours, 1)
            for turn in await bench.take_turns(ours, 1, repetition, f"{far.role} {ms:g} ms away"):
                turns[ms].append(replace(turn, round_trip_seconds=measured))
            if far.child.ended:
                raise await far.child.end()


def _models(status: Status) -> dict[str, ModelInfo]:
    return {peer.role: peer.model for peer in status.peers if peer.model is not None}


# --- prompts ---


async def make_prompts(
    settings: Settings, target: Path, client: OutriderClient, result: PairResult, wanted: int
) -> Iterator[list[int]]:
    """Return new prompts without end, or as many as the file has; of tasks, those wanted.

    Raises InvalidRequest when a prompt and its text do not fit the context.
    """
    from outrider.engine.llama_loading import read_vocabulary

    context = result.models["target"].context_token_count
    if settings.tasks is not None:
        return task_prompts(settings.tasks.read(), wanted, settings.token_limit, context)
    if settings.prompt_tokens + settings.token_limit > context:
        size = f"{settings.prompt_tokens} + {settings.token_limit}"
        raise InvalidRequest("tokens", f"{size} do not fit a context of {context}; see --ctx")
    vocabulary = read_vocabulary(target)
    kind = vocabulary.description
    head = [kind.bos] if kind.adds_bos and kind.bos is not None else []
    if settings.prompt_file is None:
        special = {kind.bos, kind.eos, kind.eot, *kind.end_token_ids}
        known = ordinary_tokens(vocabulary.names, special)
        return random_prompts(known, settings.prompt_tokens, head, settings.seed)
    text = settings.prompt_file.read_text(encoding="utf-8", errors="replace")
    token_ids = await tokenize(client, text[:_TEXT_CHARACTERS], head, context)
    return text_prompts(token_ids, settings.prompt_tokens, head, settings.seed)


async def tokenize(
    client: OutriderClient, text: str, head: Sequence[int], context: int
) -> list[int]:
    """Return the token ids of a text as the orchestrator reads it, in parts that fit a context."""
    token_ids: list[int] = []
    size = max(1, context // 8)  # a character is at most four tokens
    for begin in range(0, len(text), size):
        options = Request(text[begin : begin + size], token_limit=0)
        async with aclosing(client.generate(options)) as events:
            async for event in events:
                if isinstance(event, Started):
                    token_ids += event.prompt_token_ids[len(head) :]
    return token_ids
