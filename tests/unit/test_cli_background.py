"""Work beside the main thread: its result, its failure, and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from outrider_cli.chat.background import Background


@pytest.fixture
def background() -> Iterator[Background]:
    with Background() as running:
        yield running


def test_the_result_and_the_failure_come_back(background: Background):
    async def divide(number: int) -> int:
        return 10 // number

    assert background.run(divide(2)) == 5
    with pytest.raises(ZeroDivisionError):
        background.run(divide(0))


def test_the_loop_goes_on_between_two_works(background: Background):
    happened = threading.Event()

    async def begin() -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(0.01, happened.set)

    background.run(begin())
    assert happened.wait(10)


def test_ctrl_c_ends_the_work_before_it_is_told(background: Background):
    steps: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            steps.append("ended")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        background.run(work())
    assert steps == ["ended"]
    assert signal.getsignal(signal.SIGINT) is before
