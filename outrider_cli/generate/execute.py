"""Carries out one generation: readies the models, reads the events, shows them."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from outrider.client import (
    Delta,
    Detail,
    Event,
    OutriderClient,
    PeerState,
    Request,
    Started,
    Status,
)
from outrider.errors import VocabularyMismatch
from outrider.rpc.channel import PLAIN
from outrider.rpc.security import ClientSecurity
from outrider_cli.generate.verbose import round_lines
from outrider_cli.render import FAINT, Transcript, Words
from outrider_cli.screen import Progress, Screen, note, open_screen, show_lines
from outrider_cli.services.local import LocalPlan, LocalServices, local_services
from outrider_cli.statistics import Comparison, json_object, statistics_lines, table_lines
from outrider_cli.status_table import waiting_line

_POLL_SECONDS = 0.02  # s; between two looks at the status
_PAIRS = 10  # of texts with and without drafts, as many as `bench` takes
_COMPARE_SECONDS = 20.0  # after which no further pair begins
_LONG_PROMPT = 2000  # characters from which on the prompt is worth a line of progress


class EventReader(Protocol):
    """Does something with the events of a generation."""

    def read(self, event: Event) -> None:
        """Something happened."""

    def end(self, transcript: Transcript, status: Status, comparison: Comparison | None) -> None:
        """Everything was read."""


@dataclass(frozen=True, slots=True)
class GenerateTask:
    """What to generate, who reads it, and whether to compare it with the target alone."""

    request: Request
    reader: EventReader
    compare: bool = False


def make_reader(prompt: str, as_json: bool, verbose: int) -> EventReader:
    """Return what shows the events in the way that the options ask for."""
    if as_json:
        return JsonReader()
    screen = open_screen()
    return RoundReader(screen, prompt) if verbose else TextOutput(screen, prompt)


class TextOutput:
    """Shows the text as it comes, then the statistics."""

    lines = staticmethod(statistics_lines)

    def __init__(self, screen: Screen, prompt: str) -> None:
        self._screen = screen
        self._prompt = prompt

    def read(self, event: Event) -> None:
        if isinstance(event, Started):
            self._screen.show(Words(self._prompt, FAINT))
        for words in Transcript.words(event):
            self._screen.show(words)

    def end(self, transcript: Transcript, status: Status, comparison: Comparison | None) -> None:
        self._screen.show(Words("\n\n"))
        show_lines(self._screen, self.lines(transcript, status, comparison))


class RoundReader(TextOutput):
    """Shows what every round did, then the text and all of the statistics."""

    lines = staticmethod(table_lines)

    def __init__(self, screen: Screen, prompt: str) -> None:
        super().__init__(screen, prompt)
        self._events: list[Event] = []

    def read(self, event: Event) -> None:
        self._events.append(event)
        if isinstance(event, Delta) and event.report is not None:
            show_lines(self._screen, round_lines(event.report))

    def end(self, transcript: Transcript, status: Status, comparison: Comparison | None) -> None:
        self._screen.show(Words("\n"))
        for event in self._events:
            super().read(event)
        super().end(transcript, status, comparison)


class JsonReader:
    """Prints one JSON object at the end."""

    def read(self, event: Event) -> None:
        pass

    def end(self, transcript: Transcript, status: Status, comparison: Comparison | None) -> None:
        print(json.dumps(json_object(transcript, status, comparison)), flush=True)


async def run_locally(order: GenerateTask, plan: LocalPlan) -> None:
    """Generate with services of our own, which are gone when this returns."""
    with Progress() as progress:
        async with local_services(plan) as services:
            progress.say("starting the services")
            await _use(services, order, plan, progress)
            if services.draft is not None and services.draft.ended:
                note("the draft ended early; the rest was generated without it")


async def _use(
    services: LocalServices, order: GenerateTask, plan: LocalPlan, progress: Progress
) -> None:
    async with OutriderClient(await services.start()) as client:
        status = await services.watch(wait_for_pair(client, progress))
        progress.clear()
        await services.watch_without_draft(_carry_out(client, order, status, progress))


async def run_remotely(order: GenerateTask, address: str, security: ClientSecurity) -> None:
    """Generate with an orchestrator that is running."""
    with Progress() as progress:
        async with OutriderClient(address, security) as client:
            status = await wait_for_target(client, progress)
            progress.clear()
            if order.request.enabled and not status.speculating:
                note(f"without a draft model: {status.reason}")
            await _carry_out(client, order, status, progress)


async def _carry_out(
    client: OutriderClient, order: GenerateTask, status: Status, progress: Progress
) -> None:
    if len(order.request.prompt) >= _LONG_PROMPT:
        progress.say("reading the prompt")
    transcript = Transcript()
    async with aclosing(client.generate(order.request)) as events:
        async for event in events:
            # It is read once the first token is there.
            if not isinstance(event, Started):
                progress.clear()
            transcript.add(event)
            order.reader.read(event)
    comparison = await _compare(client, order, transcript, progress) if order.compare else None
    order.reader.end(transcript, status, comparison)


async def _compare(
    client: OutriderClient, order: GenerateTask, shown: Transcript, progress: Progress
) -> Comparison | None:
    """Return what the text takes with and without drafts; None for one that is too short.

    The text that was shown is not counted: costs are learned in it, and to show it takes time. The
    prompt is then cached alike for all, and which of a pair comes first alternates.
    """
    assert shown.started is not None
    request = replace(order.request, seed=shown.started.seed, detail=Detail.NOTHING)
    pairs: list[tuple[Transcript, Transcript]] = []
    begin = time.monotonic()
    while len(pairs) < _PAIRS and (not pairs or time.monotonic() - begin < _COMPARE_SECONDS):
        progress.say(f"comparing with and without drafts, {len(pairs) + 1} of {_PAIRS}")
        runs = {}
        for enabled in (True, False) if len(pairs) % 2 == 0 else (False, True):
            runs[enabled] = await _silently(client, replace(request, enabled=enabled))
        pairs.append((runs[True], runs[False]))
    progress.clear()
    return Comparison.of(pairs)


async def _silently(client: OutriderClient, request: Request) -> Transcript:
    """Generate, and show nothing."""
    transcript = Transcript()
    async with aclosing(client.generate(request)) as events:
        async for event in events:
            transcript.add(event)
    return transcript


async def wait_for_pair(client: OutriderClient, progress: Progress) -> Status:
    """Return once every model is ready. Raises VocabularyMismatch when they do not fit.

    Drafts that joined by themselves come and go: none of them is waited for or has to fit.
    """
    while True:
        status = await client.status()
        named = [peer for peer in status.peers if not peer.joined]
        for peer in named:
            if peer.state is PeerState.REFUSED:
                raise VocabularyMismatch(f"{peer.role} refused: {peer.detail}")
        if all(peer.state is PeerState.READY for peer in named):
            return status
        # Those of this machine are loading; one elsewhere may be away, or be another service.
        remote = [peer.detail for peer in named if not peer.address.startswith(PLAIN)]
        progress.say("; ".join(filter(None, remote)) or "loading the models")
        await asyncio.sleep(_POLL_SECONDS)


async def wait_for_target(client: OutriderClient, progress: Progress) -> Status:
    """Return once the target is ready; the draft may come later, or never."""
    shown = ""
    while True:
        status = await client.status()
        target = status.peer("target")
        if target is None or target.state is PeerState.READY:
            return status
        if waiting_line(status) != shown:
            shown = waiting_line(status)
            progress.say(shown)
        await asyncio.sleep(_POLL_SECONDS)
