"""What tests of clients ask, and clients in processes of their own, with their own globals."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

KEY = "a key of sixteen characters"
CHAT: Any = [{"role": "user", "content": "Hi"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Reports the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
HERMES = (Path(__file__).parents[1] / "support/templates/qwen.jinja").read_text(encoding="utf-8")

NODE = Path(__file__).parents[1] / "http/node"
"""Of the clients in JavaScript."""


async def run_python(script: str, *words: str, **environment: str) -> str:
    """Run a script of Python; return what it prints."""
    return await run_program(sys.executable, "-c", script, *words, **environment)


async def run_program(*command: str, **environment: str) -> str:
    """Run a program that must succeed; return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", **environment},
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-2000:]
    return out.decode()
