"""How tools/benchmarks/beside_llama_server.py lets servers take turns."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from benchmarks.beside_llama_server import Contender, Race, Setting
from benchmarks.readme_figures import LLAMA_SERVER, OUTRIDER
from outrider_cli.cpu_time import OthersClock

GREEDY, SAMPLED = Setting(0.0, 1, 3), Setting(0.8, 2, 3)


class Recorder(ThreadingHTTPServer):
    """Writes as many tokens as it is asked for, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.bodies: list[dict[str, Any]] = []


class Answering(BaseHTTPRequestHandler):
    server: Recorder

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.send_response(200)
        self.end_headers()
        for count in range(1, body["n_predict"] + 1):
            event = json.dumps({"tokens_predicted": count})
            self.wfile.write(f"data: {event}\n\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def a_recorder() -> Iterator[Recorder]:
    with Recorder() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def a_contender(server: Recorder, **fields: Any) -> Contender:
    return Contender(OUTRIDER, 0, "default", server.server_address[1], fields)


def a_race(*contenders: Contender) -> Race:
    new = itertools.count(10)
    prompts = {each: ([1, next(new), 2] for _ in itertools.count()) for each in (GREEDY, SAMPLED)}
    race = Race(prompts=prompts, tokens=4, attempts=1)
    for each in contenders:
        race.enter(each, ())
    return race


async def measured(race: Race, repetitions: int, seconds: float = float("inf")) -> int:
    """Run a race; return how many rows it took."""
    await race.warm_up()
    return len([row async for row in race.run(repetitions, time.monotonic() + seconds)])


async def test_all_write_after_the_same_prompts_each_with_what_is_its_own():
    with a_recorder() as one, a_recorder() as two:
        plain = {"speculative": {"enabled": False}}
        race = a_race(a_contender(one), a_contender(two, **plain))
        assert await measured(race, repetitions=2) == 4
    asked, others = (each.bodies[-6:] for each in (one, two))  # without the three to warm up
    prompts = [[tuple(body.pop("prompt")) for body in each] for each in (asked, others)]
    assert sorted(prompts[0]) == sorted(prompts[1])
    assert len(set(prompts[0])) == 6  # never one twice
    assert all(body.pop("speculative") == {"enabled": False} for body in others)
    assert sorted(map(repr, asked)) == sorted(map(repr, others))
    assert not any(body["cache_prompt"] for body in asked)
    assert [len(each) for each in race.turns[GREEDY]] == [2, 2]
    assert [turn.token_count for turn in race.turns[SAMPLED][1]] == [8, 8]


async def test_no_row_begins_that_would_end_too_late():
    with a_recorder() as server:
        assert await measured(a_race(a_contender(server)), repetitions=2, seconds=-1.0) == 0
        assert 0 < await measured(a_race(a_contender(server)), 1000, seconds=1.0) < 2000


async def test_what_cannot_write_is_left_out_and_named():
    with a_recorder() as server:
        able = a_contender(server)
        gone = Contender(LLAMA_SERVER, 3, "off", 1)  # nobody listens there
        race = a_race(gone, able)
        await race.warm_up()
    assert race.contenders == [able]
    (line,) = race.left_out
    assert line.startswith("llama-server, drafts of 3, flash attention off: ")


@pytest.mark.parametrize(("shares", "tries", "disturbed"), [([0.5, 0.0], 2, 0), ([0.5] * 3, 3, 1)])
async def test_a_turn_that_others_disturb_is_taken_again(
    monkeypatch: pytest.MonkeyPatch, shares: list[float], tries: int, disturbed: int
):
    with a_recorder() as server:
        race = a_race(a_contender(server))
        race.attempts = 3
        await race.warm_up()
        before, left = len(server.bodies), iter(shares)
        monkeypatch.setattr(OthersClock, "share", lambda _: next(left))
        await anext(race.run(1, float("inf")))
        assert len(server.bodies) - before == tries
    assert len(race.turns[GREEDY][0]) == 1
    assert race.disturbed == disturbed
