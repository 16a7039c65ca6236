"""What a command shows while the models that it needs are not ready."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from orchestrator.peers import DialledPeer
from outrider.client import OutriderClient, PeerState, PeerStatus, Status
from outrider.errors import VocabularyMismatch
from outrider_cli.generate.execute import wait_for_pair
from outrider_cli.screen import Progress


class Answers:
    """Stands for a client: each status is the next one of a list."""

    def __init__(self, *statuses: Status) -> None:
        self._statuses = iter(statuses)

    async def status(self) -> Status:
        return next(self._statuses)


class Said(Progress):
    """Keeps what it is to show."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)


def status(address: str, state: PeerState, detail: str = "") -> Status:
    peer = PeerStatus(
        role="target",
        address=address,
        state=state,
        detail=detail,
        model=None,
        round_trip_seconds=0.0,
    )
    return Status(
        version="1", active_generation_count=0, peers=(peer,), speculating=False, reason=""
    )


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("plain://127.0.0.1:4711", "loading the models"),
        ("gpu:50062", "what answers at gpu:50062 is not a target"),
    ],
)
async def test_what_is_waited_for_elsewhere_is_shown(address: str, shown: str) -> None:
    waits = status(address, PeerState.CONNECTING, f"what answers at {address} is not a target")
    ready = status(address, PeerState.READY)
    progress = Said()
    client: Any = Answers(waits, ready)
    assert await wait_for_pair(cast(OutriderClient, client), progress) is ready
    assert progress.texts == [shown]


@pytest.mark.parametrize("state", [PeerState.REFUSED, PeerState.CONNECTING])
async def test_a_draft_that_joined_by_itself_neither_ends_a_start_nor_delays_it(
    state: PeerState,
) -> None:
    ready = status("plain://127.0.0.1:4711", PeerState.READY)
    [joined] = status("10.0.0.7", state, "another vocabulary").peers
    both = replace(ready, peers=(*ready.peers, replace(joined, role="draft", joined=True)))
    client: Any = Answers(both)
    assert await wait_for_pair(cast(OutriderClient, client), Said()) is both


async def test_a_model_that_was_named_has_to_fit() -> None:
    refused = status("gpu:50062", PeerState.REFUSED, "it is of another version")
    client: Any = Answers(refused)
    with pytest.raises(VocabularyMismatch, match="target refused: it is of another version"):
        await wait_for_pair(cast(OutriderClient, client), Said())


async def test_an_address_is_named_without_how_it_is_reached() -> None:
    peer = DialledPeer("target", "plain://gpu:50062")
    assert peer.detail == "waiting for the target at gpu:50062"
