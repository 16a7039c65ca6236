"""Events of a generation happen one after the other, and not while committed text is untaken."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.event_queue import EventQueue


class Echo:
    """Puts out what events said since it was last asked."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.events = EventQueue[str](self._follow)

    def say(self, word: str) -> None:
        self.said.append(word)

    def _follow(self) -> list[str]:
        said, self.said = self.said, []
        return said


async def test_an_event_happens_at_once_and_what_follows_is_put_out() -> None:
    echo = Echo()
    echo.events.happen(lambda: echo.say("one"))
    assert list(await echo.events.outputs()) == ["one"]


async def test_nothing_happens_while_something_is_untaken() -> None:
    echo = Echo()
    for word in ("one", "two", "three"):
        echo.events.happen(lambda word=word: echo.say(word))
    assert list(await echo.events.outputs()) == ["one"]
    echo.events.note_taken()
    assert list(await echo.events.outputs()) == ["two"]
    echo.events.note_taken()
    assert list(await echo.events.outputs()) == ["three"]


async def test_what_an_event_lets_happen_comes_after_it() -> None:
    echo, order = Echo(), list[str]()

    def first() -> None:
        echo.events.happen(lambda: order.append("second"))
        order.append("first")

    echo.events.happen(first)
    assert order == ["first", "second"]


async def test_what_fails_reaches_the_reader_and_nothing_happens_after_it() -> None:
    echo = Echo()

    def fail() -> None:
        raise ValueError("broken")

    echo.events.happen(fail)
    echo.events.happen(lambda: echo.say("late"))
    with pytest.raises(ValueError, match="broken"):
        await echo.events.outputs()
    assert echo.said == []


async def test_a_failure_comes_before_what_was_put_out_with_it() -> None:
    echo = Echo()

    def end() -> None:
        echo.say("one")
        echo.events.fail(ValueError("over"))

    echo.events.happen(end)
    with pytest.raises(ValueError, match="over"):
        await echo.events.outputs()


async def test_a_timer_is_an_event_and_may_be_forgotten() -> None:
    echo = Echo()
    echo.events.forget(echo.events.after(0.0, lambda: echo.say("forgotten")))
    echo.events.after(-1.0, lambda: echo.say("fired"))
    async with asyncio.timeout(30):
        assert list(await echo.events.outputs()) == ["fired"]


async def test_no_timer_outlives_the_queue() -> None:
    echo = Echo()
    timer = echo.events.after(0.0, lambda: echo.say("late"))
    echo.events.close()
    assert timer.cancelled()


async def test_peers_are_read_no_further_while_too_much_waits() -> None:
    echo = Echo()
    echo.events.happen(lambda: echo.say("untaken"))
    for _ in range(256):
        assert not echo.events.is_full
        echo.events.happen(lambda: None)
    assert echo.events.is_full
    echo.events.note_taken()
    assert not echo.events.is_full
