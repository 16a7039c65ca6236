"""Keeps the house rules about imports true, by reading the sources without running them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("draft_service", "target_service", "orchestrator")
FOLDERS = ("outrider", *SERVICES)

PURE = (
    "outrider.errors",
    "outrider.distribution",
    "outrider.noise",
    "outrider.sampling",
    "outrider.messages",
    "outrider_cli.doctor.checks",
    "outrider.grammar.rules",
    "outrider.grammar.gbnf",
    "outrider.grammar.matcher",
    "outrider.grammar.tokens",
    "outrider.grammar.json_texts",
    "outrider.grammar.pattern",
    "outrider.grammar.schema_reader",
    "outrider.grammar.schema",
    "outrider.engine.cache",
    "outrider.engine.sampler_state",
    "outrider.engine.model",
    "outrider.engine.schedule",
    "orchestrator.core.acceptance",
    "orchestrator.core.allowance",
    "orchestrator.admission",
    "orchestrator.chat.template",
    "outrider.costs",
    "outrider.speculation",
    "outrider.texts",
    "orchestrator.core.controller",
    "orchestrator.chat.required_calls",
    "orchestrator.core.forecast",
    "orchestrator.core.generation",
    "gateway.jsonrpc.protocol",
    "orchestrator.core.draft_line",
    "orchestrator.core.round_times",
    "orchestrator.chat.sandbox",
    "orchestrator.core.text",
    "orchestrator.chat.tool_calls",
)
PURE_OVER_PROTOBUF = ("outrider.wire", "outrider.handshake", "orchestrator.salts")
HTTP_SHAPES = (
    *(f"gateway.{name}" for name in ("anthropic", "calls", "errors", "gathering", "llama_server")),
    *(f"gateway.{name}" for name in ("openai", "options", "progress", "structured", "usage")),
    "gateway.jsonrpc.shapes",
)
HARMLESS = (  # what a pure module may take from outside: no clock, no I/O, no randomness
    *("__future__", "abc", "bisect", "codecs", "collections", "dataclasses", "enum", "fractions"),
    *("functools", "graphlib", "hashlib", "heapq", "itertools", "json", "math", "operator", "re"),
    *("string", "struct", "types", "typing", "unicodedata", "jinja2", "numpy"),
    "outrider.PROTOCOL_VERSION",
)
SHAPES_MAY_TAKE = ("base64", "google.protobuf", "outrider.v1", "outrider.wire", "pydantic")
GRPC_PLACES = (
    *("outrider.rpc", "outrider.client", "outrider.v1", "orchestrator.peers"),
    *(f"{service}.servicer" for service in SERVICES),
)

LAZY = "def load():\n    import llama_cpp as ll"

Name = Callable[[str], bool]
"""Says whether a dotted name is meant."""


def within(*places: str) -> Name:
    return lambda name: any(name == place or name.startswith(f"{place}.") for place in places)


def outside(*places: str) -> Name:
    return lambda name: not within(*places)(name)


def impure(name: str) -> bool:
    return within("numpy.random")(name) or outside(*PURE, *HARMLESS)(name)


@dataclass(frozen=True)
class Rule:
    """Modules `inside` import nothing `forbidden`; `broken` holds sources that do."""

    inside: Name
    forbidden: Name
    broken: list[tuple[str, str]]


RULES = {
    "a service stands alone: draft": Rule(
        within("draft_service"),
        within("target_service", "orchestrator"),
        [("draft_service.drafter", "from target_service.verifier import Verifier")],
    ),
    "a service stands alone: target": Rule(
        within("target_service"),
        within("draft_service", "orchestrator"),
        [("target_service.verifier", "import orchestrator.core.acceptance as rules")],
    ),
    "a service stands alone: orchestrator": Rule(
        within("orchestrator"),
        within("draft_service", "target_service"),
        [("orchestrator.driver", "import time, draft_service")],
    ),
    "only the command imports services": Rule(
        lambda module: within("outrider")(module) and outside("outrider_cli")(module),
        within(*SERVICES),
        [("outrider.client", "from orchestrator import text")],
    ),
    "the orchestrator holds no model": Rule(
        within("orchestrator"),
        within("outrider.engine", "llama_cpp"),
        [("orchestrator.driver", "from outrider import engine"), ("orchestrator.main", LAZY)],
    ),
    "two files import llama_cpp": Rule(
        outside(
            "outrider.engine.llama",
            "outrider.engine.llama_sampling",
            "outrider.engine.llama_vocabulary",
        ),
        within("llama_cpp"),
        [("outrider.engine.host", LAZY), ("target_service.main", "from llama_cpp import Llama")],
    ),
    "grpc stays at the edges": Rule(
        outside(*GRPC_PLACES),
        lambda name: within("grpc")(name) or name.startswith("grpc_"),
        [("target_service.verifier", "import grpc.aio"), ("outrider.wire", "import grpc_status")],
    ),
    "pure modules stay pure": Rule(
        within(*PURE),
        impure,
        [
            ("outrider.engine.cache", "from . import host"),
            ("outrider.noise", "from time import perf_counter"),
            ("orchestrator.core.controller", "from numpy import random"),
            ("orchestrator.core.generation", "from outrider.v1 import common_pb2"),
        ],
    ),
    "the shapes of HTTP know messages and values": Rule(
        within(*HTTP_SHAPES),
        lambda name: impure(name) and outside(*HTTP_SHAPES, *SHAPES_MAY_TAKE)(name),
        [
            ("gateway.openai.requests", "from gateway.streams import event"),
            ("gateway.llama_server", "import time"),
            ("gateway.usage", "from fastapi import Request"),
        ],
    ),
    "wire knows protobuf and values": Rule(
        within(*PURE_OVER_PROTOBUF),
        lambda name: impure(name) and outside("outrider.v1")(name),
        [("outrider.wire", "import asyncio"), ("outrider.wire", "from outrider import engine")],
    ),
}


def imported_names(module: str, source: str) -> Iterator[str]:
    """Yield the dotted name of everything that the source of `module` imports, wherever it does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            base = [*above, *([node.module] if node.module else [])]
            yield from (".".join([*base, alias.name]) for alias in node.names)


def violations(rule: Rule, module: str, source: str) -> list[str]:
    names = imported_names(module, source) if rule.inside(module) else ()
    return [f"{module} imports {name}" for name in names if rule.forbidden(name)]


def module_name(path: Path) -> str:
    """Return the dotted name; a package's own file counts as a module `__init__` inside it."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


SOURCES = {
    module_name(path): path.read_text(encoding="utf-8")
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_tree_keeps_the_rule(rule: Rule):
    assert [line for pair in SOURCES.items() for line in violations(rule, *pair)] == []


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_sources_that_break_the_rule_are_found(rule: Rule):
    assert all(violations(rule, *pair) for pair in rule.broken)


def test_what_is_allowed_is_not_found():
    allowed = [
        ("outrider.engine.cache", "import numpy as np\nfrom collections.abc import Iterable"),
        ("outrider.engine.cache", "from .schedule import x\nfrom outrider import noise"),
        ("outrider.engine.llama", "import llama_cpp as ll\nimport os"),
        ("outrider.wire", "from outrider.v1 import common_pb2\nfrom outrider import errors"),
        ("outrider_cli.services.up", "from orchestrator import servicer\nimport draft_service"),
        ("draft_service.servicer", "import grpc\nfrom outrider.engine import host"),
    ]
    assert [v for pair in allowed for rule in RULES.values() for v in violations(rule, *pair)] == []


def test_every_module_that_calls_itself_pure_is_held_to_it():
    claims = {
        module
        for module, source in SOURCES.items()
        if (ast.get_docstring(ast.parse(source)) or "").split("\n")[0].endswith("Pure.")
    }
    assert claims <= {*PURE, *PURE_OVER_PROTOBUF, *HTTP_SHAPES}


def test_the_sources_were_found():
    assert {"outrider.noise", "orchestrator.core.acceptance"} <= SOURCES.keys()
