"""Runs asyncio beside the main thread, which is left to the keyboard."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Background:
    """An event loop in a thread; the main thread hands it work and waits.

    Between two works the loop continues: connections are kept, and what child
    processes write is read.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Ctrl-C cancels it, and KeyboardInterrupt comes after it."""
        tasks: list[asyncio.Task[T]] = []
        ended: Future[None] = Future()
        interrupted = threading.Event()

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda task: ended.set_result(None))
            if interrupted.is_set():
                tasks[0].cancel()

        def cancel() -> None:
            interrupted.set()
            for task in tasks:
                task.cancel()

        # From before the work can begin until it has ended, Ctrl-C is its own.
        with _on_interrupt(lambda: self._loop.call_soon_threadsafe(cancel)):
            self._loop.call_soon_threadsafe(begin)
            ended.result()
        if tasks[0].cancelled():
            raise KeyboardInterrupt
        return tasks[0].result()


@contextmanager
def _on_interrupt(act: Callable[[], object]) -> Iterator[None]:
    """Do this on Ctrl-C, in place of an exception wherever the main thread happens to be."""

    def handle(number: int, frame: FrameType | None) -> None:
        act()

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
