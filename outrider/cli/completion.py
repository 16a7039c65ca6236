"""Carries out one generation: readies the models, reads the events, shows them."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from outrider.cli.local import LocalModels, LocalServices, local_services
from outrider.cli.render import (
    FAINT,
    Transcript,
    Words,
    json_object,
    statistics_lines,
    waiting_line,
)
from outrider.cli.screen import Progress, Screen, note, show_lines
from outrider.client import Event, GenerateOptions, OutriderClient, PeerState, Started, Status
from outrider.errors import VocabularyMismatch

_POLL_SECONDS = 0.02


class Reader(Protocol):
    """Does something with the events of a generation."""

    def read(self, event: Event) -> None:
        """Something happened."""

    def end(self, status: Status) -> None:
        """Everything was read."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to generate, and who reads it."""

    prompt: str
    options: GenerateOptions
    reader: Reader


class TextReader:
    """Shows the text as it comes, then the statistics."""

    def __init__(self, screen: Screen, prompt: str) -> None:
        self._screen = screen
        self._prompt = prompt
        self._transcript = Transcript()

    def read(self, event: Event) -> None:
        if isinstance(event, Started):
            self._screen.show(Words(self._prompt, FAINT))
        for words in self._transcript.add(event):
            self._screen.show(words)

    def end(self, status: Status) -> None:
        self._screen.show(Words("\n\n"))
        show_lines(self._screen, statistics_lines(self._transcript))


class JsonReader:
    """Prints one JSON object at the end."""

    def __init__(self) -> None:
        self._transcript = Transcript()

    def read(self, event: Event) -> None:
        self._transcript.add(event)

    def end(self, status: Status) -> None:
        print(json.dumps(json_object(self._transcript, status)), flush=True)


async def run_locally(order: Order, models: LocalModels) -> None:
    """Generate with services of our own, which are gone when this returns."""
    progress = Progress()
    try:
        async with local_services(models) as services:
            progress.say("starting the services")
            await _use(services, order, models, progress)
            if services.draft is not None and services.draft.ended:
                note("the draft ended early; the rest was generated without it")
    finally:
        progress.clear()


async def _use(
    services: LocalServices, order: Order, models: LocalModels, progress: Progress
) -> None:
    async with OutriderClient(await services.start()) as client:
        ready = _wait_for_pair(client, progress)
        status = await services.watch(ready)
        progress.clear()
        if models.draft == models.target:
            note(f"no --draft-model: {models.target.name} drafts for itself")
        await services.watch_without_draft(_read(client, order, status))


async def run_remotely(order: Order, address: str) -> None:
    """Generate with an orchestrator that is running."""
    progress = Progress()
    try:
        async with OutriderClient(address) as client:
            status = await _wait_for_target(client, progress)
            progress.clear()
            if order.options.speculate and not status.speculating:
                note(f"without drafts: {status.reason}")
            await _read(client, order, status)
    finally:
        progress.clear()


async def _read(client: OutriderClient, order: Order, status: Status) -> None:
    async with aclosing(client.generate(order.prompt, order.options)) as events:
        async for event in events:
            order.reader.read(event)
    order.reader.end(status)


async def _wait_for_pair(client: OutriderClient, progress: Progress) -> Status:
    """Return once every model is ready. Raises VocabularyMismatch when they do not fit."""
    while True:
        status = await client.status()
        for peer in status.peers:
            if peer.state is PeerState.REFUSED:
                raise VocabularyMismatch(f"{peer.role} refused: {peer.detail}")
        if all(peer.state is PeerState.READY for peer in status.peers):
            return status
        progress.say("loading the models")
        await asyncio.sleep(_POLL_SECONDS)


async def _wait_for_target(client: OutriderClient, progress: Progress) -> Status:
    """Return once the target is ready; the draft may come later, or never."""
    told = ""
    while True:
        status = await client.status()
        target = status.peer("target")
        if target is None or target.state is PeerState.READY:
            return status
        if waiting_line(status) != told:
            told = waiting_line(status)
            progress.say(told)
        await asyncio.sleep(_POLL_SECONDS)
