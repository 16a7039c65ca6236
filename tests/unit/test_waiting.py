"""What a command shows while the models that it needs are not ready."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrator.peers import DialledPeer
from outrider.client import OutriderClient, PeerState, PeerStatus, Status
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


async def test_an_address_is_named_without_how_it_is_reached() -> None:
    peer = DialledPeer("target", "plain://gpu:50062")
    assert peer.detail == "waiting for the target at gpu:50062"
