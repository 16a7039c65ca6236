"""Sessions of programs that work with tools by themselves, as they were sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "http/agents"
"""Has a session a file, a request a line, with its long texts replaced, most of its tools left out
and no personal data."""

AGENTS = ("aider", "claude_code", "codex", "continue", "open_webui")
"""aider 0.86, Claude Code 2.1, Codex 0.171, Continue's command 1.5, a browser's Open WebUI 0.12."""


def session(name: str) -> list[dict[str, Any]]:
    """Return the requests of a session: the path and the body of each."""
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def events_of(text: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream."""
    for line in text.splitlines():
        data = line.removeprefix("data: ")  # Ollama's events are lines of nothing else
        if data.startswith("{"):
            yield json.loads(data)
