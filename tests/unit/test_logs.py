"""Logging waits for nobody."""

from __future__ import annotations

import json
import logging
import os

import pytest

from outrider.logs import BackgroundLines


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("outrider.test", logging.INFO, "", 0, text, None, None)


def read_all(descriptor: int) -> str:
    parts = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
    return b"".join(parts).decode()


def stands_for(line: str) -> int:
    """Return how many of the long lines a line that was written stands for."""
    return int(json.loads(line)["count"]) if line.startswith("{") else line.startswith("x")


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
    for _ in range(200):  # each longer than what a pipe holds: without the thread, no return
        handler.emit(record("x" * 100_000))
    handler.finish(seconds=0.1)  # nor does the end of the process wait for it
    lines, rest = list[str](), ""
    while sum(map(stands_for, lines)) < 200:
        *more, rest = (rest + os.read(reader, 1 << 20).decode()).split("\n")
        lines += more
        if len(lines) > 3:
            handler.emit(record("later"))  # what was dropped is noted with a line that is written
    notes = [json.loads(line) for line in lines if line.startswith("{")]
    assert {note["message"] for note in notes} == {"log lines dropped"}
    assert sum(line.startswith("x") for line in lines) <= 12  # ten wait, and one is being written
    os.close(reader)
