"""Lets a target write what a head learns from: it answers prompts, and keeps its rows meanwhile.

The target writes its own shards (`outrider.kept_rows`). Beside them stands `prompts.json`, the
number of the next prompt: it is written before a prompt is asked, so that after any end none is
asked twice, and what was in flight is lost.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from outrider.client import CallFailed, Delta, OutriderClient, Request
from outrider.errors import InvalidConfig
from outrider.kept_rows import Kept, folder_bytes
from outrider.sampling import SamplingParameters
from outrider_cli.generate.execute import wait_for_target
from outrider_cli.options import KeepingOptions, arguments
from outrider_cli.screen import Progress
from outrider_cli.services.local import HostedModel, LocalPlan, LocalServices, local_services
from outrider_teach.prompts import Prompt, PromptAt, is_held_out
from outrider_teach.work_progress import WorkProgress

TEMPERATURES = (0.0, 0.8)
"""At which prompts are answered, in turn: greedy text, and what chats are usually drawn with."""
PATIENT = ("--request-timeout", "1000000")  # who waits can press Ctrl-C

_NEXT = "prompts.json"
_ROUNDS = 8  # in which the user's own prompts are asked, from the second on at the highest
_LOOK_SECONDS = 1.0  # s; between two looks at how far it is
_SPARE_BYTES = 64 << 20  # beyond what is wanted: a shard that is being written, and one that waits
_LEAST_FREE = 256 << 20  # bytes of a disk that are left free
_MOST_REFUSED = 20  # prompts in turn that a target does not take: no other will be taken
_DAYS = 36500.0  # days for which rows are kept: until the user deletes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """What a target is to write."""

    target: HostedModel
    folder: Path
    """Where its rows are kept."""
    prompts: PromptAt
    prompt_count: int | None = None
    """Of the user's own prompts; None: there is no end of them."""
    tokens: int
    """Answered ones that are wanted in the folder."""
    most_bytes: int
    """Of the folder, after which writing ends in any case."""
    token_limit: int = 256  # of an answer
    seed: int = 1

    @property
    def sessions(self) -> int:
        """Answers that are written at once."""
        return self.target.options.sessions

    def temperature(self, number: int) -> float:
        """Return at which one a prompt is answered; greedily only once."""
        if self.prompt_count is not None and number >= self.prompt_count:
            return max(TEMPERATURES)
        return TEMPERATURES[number % len(TEMPERATURES)]

    def plan(self) -> LocalPlan:
        """Return what to start: the target alone, which keeps its rows."""
        keeping = KeepingOptions(
            keep_rows=self.folder,
            keep_rows_mib=max(1, (self.most_bytes + _SPARE_BYTES) >> 20),
            keep_rows_days=_DAYS,
        )
        return LocalPlan(
            target=self.target,
            draft=None,
            own_draft=False,
            orchestrator=(*PATIENT, f"--generations={self.sessions}"),
            target_words=tuple(arguments(keeping)),
        )


def answered(folder: Path) -> int:
    """Return the answered tokens that a folder has; 0 for one that is not there yet."""
    return Kept(folder).answered if folder.is_dir() and any(folder.iterdir()) else 0


async def write(writing: Writing, progress: Progress) -> int:
    """Let the target answer prompts until enough is kept; return the answered tokens there are.

    Raises InvalidConfig where the target keeps nothing, or the disk is full.
    """
    kept = answered(writing.folder)
    while kept < writing.tokens and folder_bytes(writing.folder) < writing.most_bytes:
        before = kept
        async with started(writing.plan(), progress) as (services, client):
            questions = _Questions(writing, client)
            await services.watch(questions.ask_all(before, progress))
        progress.clear()
        kept = answered(writing.folder)  # with what the target still had when it was stopped
        if questions.exhausted:
            break
        if kept == before:
            raise InvalidConfig("model", f"its target kept nothing in {writing.folder}")
    return kept


@asynccontextmanager
async def started(
    plan: LocalPlan, progress: Progress
) -> AsyncIterator[tuple[LocalServices, OutriderClient]]:
    """Give services whose target is ready, and a client of theirs; they are stopped at the end."""
    async with local_services(plan) as services:
        progress.say("starting the target")
        async with OutriderClient(await services.start()) as client:
            await services.watch(wait_for_target(client, progress))
            yield services, client


async def to_request(client: OutriderClient, prompt: Prompt, has_template: bool) -> Request:
    """Return what a prompt asks of a target; without a chat template, to continue its text."""
    if prompt.messages and has_template:
        return Request(await client.apply_template(prompt.messages), parse_special=True)
    return Request(prompt.text if prompt.passage else f"{prompt.text}\n\n")


class _Questions:
    """Asks one prompt after the other, several at once."""

    def __init__(self, writing: Writing, client: OutriderClient) -> None:
        self._writing = writing
        self._client = client
        self._has_template = True
        self._generated = 0  # tokens since the start
        self._refused = 0  # prompts in turn
        self._turns = _turns(writing)
        self.exhausted = False
        """Whether there are no more prompts."""

    async def ask_all(self, before: int, progress: Progress) -> None:
        """Ask until enough is written, beside the `before` tokens that there are."""
        status = await self._client.status()
        target = status.peer("target")
        self._has_template = bool(target and target.model and target.model.has_chat_template)
        asking = [asyncio.create_task(self._ask()) for _ in range(self._writing.sessions)]
        try:
            await self._look(before, progress, asking)
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _look(
        self, before: int, progress: Progress, asking: list[asyncio.Task[None]]
    ) -> None:
        """Report how far it is until enough is written, or nobody asks any more."""
        writing = self._writing
        done_so_far = WorkProgress("writing", writing.tokens, progress, before)
        while asking:
            done, _ = await asyncio.wait(asking, timeout=_LOOK_SECONDS)
            asking = [each for each in asking if each not in done]
            for each in done:
                each.result()
            size = folder_bytes(writing.folder)
            done_so_far.report(before + self._generated, f"{size / 1e6:,.0f} MB")
            if before + self._generated >= writing.tokens or size >= writing.most_bytes:
                return
            _check_room(writing.folder)

    async def _ask(self) -> None:
        for number, prompt in self._turns:
            try:
                await self._answer(number, prompt)
                self._refused = 0
            except CallFailed as error:
                self._refused += 1
                if error.status != "INVALID_ARGUMENT" or self._refused >= _MOST_REFUSED:
                    raise
        self.exhausted = True

    async def _answer(self, number: int, prompt: Prompt) -> None:
        asked = await to_request(self._client, prompt, self._has_template)
        request = Request(
            asked.prompt,
            parse_special=asked.parse_special,
            token_limit=self._writing.token_limit,
            sampling=SamplingParameters(temperature=self._writing.temperature(number)),
            seed=(self._writing.seed << 32) + number,
            truncate_prompt=True,
            enabled=False,
        )
        async with aclosing(self._client.generate(request)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    self._generated += len(event.token_ids)


def _turns(writing: Writing) -> Iterator[tuple[int, Prompt]]:
    """Yield the prompts to ask from where the folder ended, none that is held out.

    That one is asked is written down before.
    """
    place = writing.folder / _NEXT
    number = _read_next(place)
    end = None if writing.prompt_count is None else _ROUNDS * writing.prompt_count
    while end is None or number < end:
        prompt = writing.prompts(number)
        if not is_held_out(prompt.text):
            _write_next(place, number + 1)
            yield number, prompt
        number += 1


def _read_next(place: Path) -> int:
    try:
        return int(json.loads(place.read_text(encoding="utf-8"))["next"])
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidConfig("work", f"{place} cannot be read: {error}") from None


def _write_next(place: Path, number: int) -> None:
    part = place.with_name(f".{place.name}")
    try:
        part.write_text(json.dumps({"next": number}), encoding="utf-8")
        os.replace(part, place)
    except OSError as error:
        raise InvalidConfig("work", f"cannot write {place}: {error.strerror}") from None


def _check_room(folder: Path) -> None:
    """Raise InvalidConfig where a disk is nearly full: what the target leaves out is lost."""
    free = shutil.disk_usage(folder).free
    if free < _LEAST_FREE:
        raise InvalidConfig("work", f"the disk of {folder} is full: {free / 1e6:,.0f} MB are left")
