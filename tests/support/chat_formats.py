"""Chat templates of models, and what is learned of them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from orchestrator.chat.format import ChatFormat
from orchestrator.chat.template import ChatTemplate

TEMPLATES = Path(__file__).parent / "templates" / "models"
_SOURCE = os.environ.get("LLAMA_CPP_SOURCE")
LLAMA_CPP = Path(_SOURCE) / "models" / "templates" if _SOURCE else None
"""All templates that llama.cpp has, where its source is at hand."""

NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


def source(name: str) -> str:
    """Return the text of a template."""
    folder = TEMPLATES if name in NAMES or LLAMA_CPP is None else LLAMA_CPP
    return (folder / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def template(name: str) -> ChatTemplate:
    """Return a template, compiled."""
    return ChatTemplate(source(name), bos_token="<BOS>", eos_token="<EOS>")


def form(name: str) -> ChatFormat:
    """Return what is learned of a template."""
    return template(name).form
