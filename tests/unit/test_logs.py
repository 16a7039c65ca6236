"""Logging waits for nobody."""

from __future__ import annotations

import ast
import json
import logging
import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.logs import BackgroundLines, formatter, internal_error, renderer

PROMPT = "canary in a prompt"
ROOT = Path(__file__).parents[2]
_LOGGING = ("event", "warning", "logs.event", "logs.warning")


def record(text: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("outrider.test", logging.INFO, "", 0, text, None, None)
    made.created = 1_700_000_000.0
    made.fields = fields
    return made


@contextmanager
def terminal(columns: int = 80) -> Iterator[int]:
    """Give the descriptor of a terminal that nobody looks at."""
    ours, theirs = os.openpty()
    try:
        termios.tcsetwinsize(theirs, (24, columns))
        yield theirs
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


def on_a_terminal(text: str, columns: int = 80, **fields: object) -> list[str]:
    with terminal(columns) as descriptor:
        return formatter(descriptor).format(record(text, **fields))[9:].split("\n")


def read_all(descriptor: int) -> str:
    parts = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
    return b"".join(parts).decode()


def stands_for(line: str) -> int:
    """Return how many of the long lines a line that was written stands for."""
    event = json.loads(line)
    return int(event.get("count", event["message"].startswith("x")))


def test_a_pipe_gets_json_with_the_same_keys_first() -> None:
    reader, writer = os.pipe()
    line = formatter(writer).format(record("serving", model="small", request="7", f=0.5))
    os.close(reader)
    os.close(writer)
    assert line == (
        '{"time": "2023-11-14T22:13:20", "level": "info", "where": "outrider.test", '
        '"message": "serving", "model": "small", "request": "7", "f": 0.5}'
    )


def test_a_terminal_gets_words_and_of_a_long_record_what_matters(plain: None) -> None:
    fields = {"address": "127.0.0.1:1", "context": 512, "sessions": 4, "system": "AVX = 1 " * 99}
    assert on_a_terminal("serving", model="small", **fields) == [
        "[info     ] serving model=small context=512 sessions=4"
    ]
    assert on_a_terminal("draft joined", address="10.0.0.9:4") == [
        "[info     ] draft joined address=10.0.0.9:4"
    ]


def test_a_long_detail_is_wrapped_at_words(plain: None) -> None:
    detail = "the orchestrator at gpu:50060 does not accept this token (--token-file)"
    assert on_a_terminal("not joined", 60, detail=detail) == [
        "[info     ] not joined: the orchestrator at",
        "                     gpu:50060 does not accept this token",
        "                     (--token-file)",
    ]


def test_a_word_that_is_longer_than_the_terminal_is_shown_whole(plain: None) -> None:
    assert on_a_terminal("x" * 70) == [f"[info     ] {'x' * 70}"]
    assert on_a_terminal("no", detail="y" * 70) == [
        "[info     ] no:",
        f"                     {'y' * 70}",
    ]


def test_fields_that_do_not_fit_have_a_line_of_their_own(plain: None) -> None:
    file = "/srv/models/a-model-with-a-name-of-some-length.gguf"
    assert on_a_terminal("starting", file=file, outrider="0.1") == [
        "[info     ] starting",
        f"                     file={file}",
        "                     outrider=0.1",
    ]


def test_a_terminal_is_spared_what_is_empty_and_ids_of_requests(plain: None) -> None:
    fields = {"calls": "", "thoughts": "<think> </think>", "ids": "any", "request": "2" * 32}
    assert on_a_terminal("chat template", **fields) == [
        "[info     ] chat template thoughts='<think> </think>'"
    ]


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[" in on_a_terminal("serving")[0]
    monkeypatch.setenv("TERM", "dumb")
    assert on_a_terminal("serving") == ["[info     ] serving"]


def test_what_others_wrote_gives_a_terminal_no_orders(plain: None) -> None:
    lines = on_a_terminal("lost\x1b[2J", detail="a\nb\x9b1m", model="\x1b]0;x\x07")
    assert lines == [r"[info     ] lost\x1b[2J: a b\x9b1m model=\x1b]0;x\x07"]


def test_a_terminal_of_several_services_names_whose_line_it_is(plain: None) -> None:
    event = {
        "time": "2023-11-14T22:13:20",
        "level": "info",
        "message": "serving",
        "model": "x" * 40,
    }
    with terminal() as descriptor:
        lines = renderer(descriptor, "target")(event).split("\n")
    assert [line[9:] for line in lines] == [
        "[info     ] target: serving",
        " " * 12 + "model=" + "x" * 40,
    ]


@contextmanager
def nowhere() -> Iterator[int]:
    with open(os.devnull, "wb") as file:
        yield file.fileno()


@pytest.mark.parametrize("opened", [terminal, nowhere])
def test_a_bug_is_logged_with_its_trace_and_without_variables(
    plain: None, opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(prompt: str) -> None:
        raise KeyError(len(prompt))

    try:
        fail(PROMPT)
    except KeyError as error:
        told = internal_error("outrider.test", error)
    with opened() as descriptor:
        line = formatter(descriptor).format(caplog.records[-1])
    assert told.metadata["errorId"] in line
    assert "in fail" in line and "KeyError: 18" in line and PROMPT not in line


def test_every_line_is_written_in_order() -> None:
    reader, writer = os.pipe()
    handler = BackgroundLines(writer)
    for number in range(100):
        handler.emit(record(f"line {number}"))
    handler.finish()
    os.close(writer)
    assert read_all(reader).split("\n") == [*(f"line {number}" for number in range(100)), ""]
    os.close(reader)


def test_a_line_that_cannot_be_formatted_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    handler = BackgroundLines(writer)
    odd = record("%d")
    odd.args = ("no number",)
    handler.emit(odd)
    handler.emit(record("the next"))
    handler.finish()
    os.close(writer)
    assert read_all(reader) == "the next\n"
    os.close(reader)
    assert "Logging error" in capsys.readouterr().err


@pytest.mark.fault(
    "hang",
    "the reader of a service's log hangs",
    before="the service hung with its next line",
    now="a thread writes the log; lines beyond 4,096 that wait are dropped and counted",
)
def test_a_log_that_nobody_reads_stops_nobody() -> None:
    reader, writer = os.pipe()
    handler = BackgroundLines(writer, most_lines=10)
    handler.setFormatter(formatter(writer))
    for _ in range(200):  # each longer than what a pipe holds: without the thread, no return
        handler.emit(record("x" * 100_000))
    handler.finish(seconds=0.1)  # nor does the end of the process wait for it
    lines, rest = list[str](), ""
    while sum(map(stands_for, lines)) < 200:
        *more, rest = (rest + os.read(reader, 1 << 20).decode()).split("\n")
        lines += more
        if len(lines) > 3:
            handler.emit(record("later"))  # what was dropped is noted with a line that is written
    notes = [each for each in map(json.loads, lines) if "count" in each]
    assert {note["message"] for note in notes} == {"log lines dropped"}
    assert (
        sum('"message": "x' in line for line in lines) <= 12
    )  # ten wait, and one is being written
    os.close(reader)


def test_no_event_has_a_field_that_every_line_has_already() -> None:
    taken = {"time", "level", "where", "message", "exception"}
    for folder in ("outrider", "draft_service", "target_service", "orchestrator", "gateway"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(call, ast.Call) and ast.unparse(call.func) in _LOGGING:
                    names = {each.arg for each in call.keywords}
                    assert not names & taken, f"{file.name}:{call.lineno}"
