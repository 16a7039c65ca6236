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
    "whoever reads the log of a service hangs",
    before="the service hung with its next line",
    now="a thread writes the log; lines beyond 4,096 that wait are dropped and counted",
)
def test_a_log_that_nobody_reads_stops_nobody() -> None:
    reader, writer = os.pipe()
    handler = BackgroundLines(writer, most_lines=10)
    for _ in range(200):  # each longer than what a pipe holds: without the thread, no return
        handler.emit(record("x" * 100_000))
    handler.finish(seconds=0.1)  # nor does the end of the process wait for it
    text = ""
    while '"count"' not in text:
        text += os.read(reader, 1 << 20).decode()
        if text.count("\n") > 3:
            handler.emit(record("later"))
    dropped = next(json.loads(line) for line in text.split("\n") if line.startswith("{"))
    assert dropped["message"] == "log lines dropped"
    assert 150 < dropped["count"] < 200
    os.close(reader)
