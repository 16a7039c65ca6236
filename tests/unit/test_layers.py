"""Keeps the house rules about imports true, by reading the sources without running them."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("draft_service", "target_service", "orchestrator")
MAIN = (("outrider",), SERVICES, ("gateway",), ("outrider_cli",))
"""From the ground up; a folder imports only what is on floors below its own."""
BESIDE = {
    package.parent.name: package.parent
    for room in ("tools", "integrations")
    for package in sorted((ROOT / room).glob("*/__init__.py"))
}
"""The satellites, by name: none imports another, and nothing of the main package imports one."""
NOT_SHIPPED = ("model_making", "benchmarks")
SATELLITES = tuple(name for name in BESIDE if name not in NOT_SHIPPED)
FLOORS = (*MAIN, SATELLITES, *((name,) for name in NOT_SHIPPED))
SHIPPED = tuple(folder for floor in (*MAIN, SATELLITES) for folder in floor)
INTEGRATIONS = tuple(name for name in SATELLITES if BESIDE[name].parent.name == "integrations")
TOOLS = tuple(name for name in SATELLITES if BESIDE[name].parent.name == "tools")
PICTURE = ROOT / "docs" / "layout.md"

PURE = (
    "outrider.core",
    "outrider.errors",
    "outrider.distribution",
    "outrider.noise",
    "outrider.sampling",
    "outrider.option_fields",
    "outrider.messages",
    "outrider.request",
    "outrider.response",
    "orchestrator.resuming",
    "outrider_cli.demo.questions",
    "outrider_cli.doctor.checks",
    "outrider_cli.doctor.head_checks",
    "outrider_cli.doctor.model_checks",
    "outrider_cli.forecasting",
    "outrider_cli.hub.names",
    "outrider_cli.phrases",
    "outrider_cli.verdict",
    "outrider.grammar.rules",
    "outrider.grammar.gbnf",
    "outrider.grammar.lexemes",
    "outrider.grammar.lark",
    "outrider.grammar.json_texts",
    "outrider.grammar.regular",
    "outrider.grammar.formats",
    "outrider.grammar.pattern",
    "outrider.grammar.schema_reader",
    "outrider.grammar.schema",
    "outrider.drafters.ngram_cache",
    "outrider.drafters.ngram_format",
    "outrider.drafters.ngram_source",
    "outrider_lookup.stats",
    "outrider.grammar.states",
    "outrider.drafters.source",
    "outrider.drafters.suffix",
    "outrider.drafters.copying",
    "outrider.drafters.prediction",
    "outrider.drafters.forced",
    "outrider.engine.cache",
    "outrider.engine.cuda_driver",
    "outrider.engine.footprint",
    "outrider.engine.heads",
    "outrider.engine.hidden_rows",
    "outrider.engine.repeated_cells",
    "outrider.engine.rollback",
    "outrider.engine.sampler_state",
    "outrider.engine.model",
    "outrider.engine.batching",
    "outrider.engine.branches",
    "outrider.engine.profile",
    "outrider.engine.thread_choice",
    "outrider.engine.reading",
    "orchestrator.admission",
    "orchestrator.refused_drafts",
    "orchestrator.sources",
    "orchestrator.chat.template",
    "outrider.costs",
    "outrider.grants",
    "outrider.limits",
    "outrider.speculation",
    "outrider_ray.directory",
    "outrider_ray.routing",
    "outrider_ray.scaling",
    "outrider_ray.settings",
    "outrider.texts",
    "outrider.text_encoder",
    "outrider.translation",
    "outrider.row_window",
    "outrider.trees",
    "outrider.vocabularies",
    "orchestrator.chat.required_calls",
    "outrider.json_text",
    "outrider_jsonrpc.protocol",
    "orchestrator.chat.sandbox",
    *(f"orchestrator.chat.{name}" for name in ("events", "format", "learn", "tool_calls")),
    *(f"orchestrator.chat.{name}" for name in ("parser", "reader", "value_readers")),
    "outrider.engine.guesser",
    "outrider.engine.string_guesser",
    "outrider_llama_server.answers",
    "outrider_llama_server.guesses",
    "draft_service.local_sources",
    "draft_service.runner_ups",
    "outrider.wire_checks",
)
PURE_OVER_PROTOBUF = (
    "outrider.descriptions",
    "outrider.wire",
    "outrider.wire_drafts",
    "outrider.wire_rounds",
    "outrider.vocabulary_pieces",
    "outrider.handshake",
    "orchestrator.infill",
    "outrider_ray.repeating",
    "target_service.tree_rounds",
    "outrider.wire_requests",
    "outrider.wire_responses",
    "outrider_cli.doctor.peer_checks",
)
HTTP_SHAPES = (
    *(f"gateway.{name}" for name in ("accumulator", "anthropic", "body_fields", "http_errors")),
    *(f"gateway.{name}" for name in ("llama_server", "ollama", "openai", "structured")),
    *(f"gateway.{name}" for name in ("token_reports", "turns", "usage")),
)
HARMLESS = (  # what a pure module may take from outside: no clock, no I/O, no randomness
    *(
        "__future__",
        "abc",
        "array",
        "bisect",
        "codecs",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "difflib",
        "enum",
        "fractions",
    ),
    *(
        "functools",
        "graphlib",
        "hashlib",
        "heapq",
        "hmac",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
    ),
    *("string", "struct", "tomllib", "types", "typing", "unicodedata", "jinja2", "numpy"),
    *("ast", "html", "pydantic_core", "regex"),
    "outrider.PROTOCOL_VERSION",
)
SHAPES_MAY_TAKE = (
    *("base64", "google.protobuf", "outrider.v1", "outrider.wire", "pydantic"),
    "orchestrator.infill",
)
GRPC_PLACES = (
    *("outrider.rpc", "outrider.model_service", "outrider.client", "outrider.v1"),
    *("outrider_ray.calls", "outrider_ray.ingress"),
    *("orchestrator.calls", "orchestrator.peers", "orchestrator.streams", "draft_service.joining"),
    *("outrider_cli.doctor.peer_probe", "benchmarks"),
    *(f"{service}.servicer" for service in SERVICES),
)

BEHIND_THE_CLIENT = (
    *("orchestrator", "gateway", "draft_service", "target_service"),
    *(f"outrider.{name}" for name in ("engine", "model_service", "rpc", "v1", "wire")),
)
OFFERED_TO_TOOLS = (
    "outrider.model_service.config",
    "outrider.core",
    "outrider.engine.heads",  # which targets show their layers
    "outrider.engine.llama_loading",  # the tokens of a GGUF file
    "outrider.engine.model.Numerics",
    "outrider.rpc.security.ClientSecurity",
)
INSIDE = ("orchestrator", "target_service", "gateway", "outrider.engine")
FOR_INTEGRATIONS = (  # of these: values, and what stands before any route of HTTP
    "outrider.engine.guesser",
    *(f"gateway.{name}" for name in ("access_log", "config", "http_errors", "middleware")),
    *(f"gateway.{name}" for name in ("rights", "serving", "event_streams")),
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
    "the orchestrator holds no model": Rule(
        within("orchestrator", "gateway"),
        within("outrider.engine", "llama_cpp"),
        [("orchestrator.driver", "from outrider import engine"), ("gateway.routes", LAZY)],
    ),
    "integrations reach into no service": Rule(
        within(*INTEGRATIONS),
        lambda name: within(*INSIDE)(name) and outside(*FOR_INTEGRATIONS)(name),
        [
            ("outrider_ray.serving", "from orchestrator.service import Orchestrator"),
            ("outrider_jsonrpc.app", "from gateway.gateway import Gateway"),
        ],
    ),
    "one file imports OpenTelemetry": Rule(
        outside("outrider.otlp"),
        within("opentelemetry"),
        [("outrider.tracing", "def start():\n    from opentelemetry import trace")],
    ),
    "one folder imports Ray": Rule(
        outside("outrider_ray"),
        within("ray"),
        [("outrider.processes", "def start():\n    from ray import serve")],
    ),
    "one file imports llama_cpp": Rule(
        outside("outrider.engine.llama_library"),
        within("llama_cpp"),
        [("outrider.engine.llama", LAZY), ("target_service.main", "from llama_cpp import Llama")],
    ),
    "one file imports llguidance": Rule(
        outside("outrider.engine.grammar_matcher"),
        within("llguidance"),
        [("outrider.grammar.lark", "from llguidance import LLMatcher")],
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
            ("outrider.core.control", "from numpy import random"),
            ("outrider.core.generation", "from outrider.v1 import common_pb2"),
        ],
    ),
    "the shapes of HTTP know messages and values": Rule(
        within(*HTTP_SHAPES),
        lambda name: impure(name) and outside(*HTTP_SHAPES, *SHAPES_MAY_TAKE)(name),
        [
            ("gateway.openai.requests", "from gateway.event_streams import event"),
            ("gateway.llama_server", "import time"),
            ("gateway.usage", "from fastapi import Request"),
        ],
    ),
    "tools use the client, values, and what the command offers": Rule(
        within(*TOOLS),
        lambda name: within(*BEHIND_THE_CLIENT)(name) and outside(*OFFERED_TO_TOOLS)(name),
        [
            ("outrider_bench.run", "from orchestrator.pool import Pool"),
            ("outrider_lookup.command", "from outrider.engine.llama import LlamaModel"),
            ("outrider_plan.tables", "from outrider.v1 import common_pb2"),
        ],
    ),
    "wire knows protobuf and values": Rule(
        within(*PURE_OVER_PROTOBUF),
        lambda name: (
            impure(name) and outside("outrider.v1", "google.protobuf", *PURE_OVER_PROTOBUF)(name)
        ),
        [("outrider.wire", "import asyncio"), ("outrider.wire", "from outrider import engine")],
    ),
}


@cache
def imported_names(module: str, source: str) -> list[str]:
    """Return the dotted names of all that the source of `module` imports, wherever it does."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            base = [*above, *([node.module] if node.module else [])]
            names += [".".join([*base, alias.name]) for alias in node.names]
    return names


def violations(rule: Rule, module: str, source: str) -> list[str]:
    names = imported_names(module, source) if rule.inside(module) else ()
    return [f"{module} imports {name}" for name in names if rule.forbidden(name)]


def module_name(path: Path) -> str:
    """Return the dotted name; a package's own file counts as a module `__init__` inside it."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[1] in BESIDE else parts)


SOURCES = {
    module_name(path): path.read_text(encoding="utf-8")
    for floor in FLOORS
    for folder in floor
    for path in sorted(BESIDE.get(folder, ROOT / folder).rglob("*.py"))
}


def folder_of(name: str) -> str:
    return name.partition(".")[0]


def floor_of(name: str) -> int | None:
    """Return the floor of the folder that a dotted name begins with; None if it is not ours."""
    return next((i for i, floor in enumerate(FLOORS) if folder_of(name) in floor), None)


def goes_up(module: str, name: str) -> bool:
    """Return whether a module must not know a name: another folder that is not below its own."""
    own, other = floor_of(module), floor_of(name)
    assert own is not None
    return other is not None and folder_of(name) != folder_of(module) and other >= own


TIE = re.compile(
    rf"\b(?:outrider_cli|{'|'.join(BESIDE)}|"
    r"(?:gateway|orchestrator|draft_service|target_service)\.[a-z_]+)"
)


def named_in_strings(source: str) -> Iterator[str]:
    """Yield what the strings of a source name of ours, except in docstrings."""
    tree = ast.parse(source)
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield from TIE.findall(node.value.replace("outrider.orchestrator", ""))


def ties_upwards(module: str, source: str) -> list[str]:
    names = [*imported_names(module, source)]
    if "outrider.v1" not in module:
        names += named_in_strings(source)
    return [f"{module} knows {name}" for name in names if goes_up(module, name)]


def test_nothing_knows_what_stands_above_it_or_beside_it():
    assert [line for pair in SOURCES.items() for line in ties_upwards(*pair)] == []


def test_a_tie_upwards_is_found_in_an_import_and_in_a_string():
    for module, source in (
        ("draft_service.drafter", "from target_service.verifier import Verifier"),
        ("target_service.verifier", "import orchestrator.driver as rules"),
        ("orchestrator.driver", "import time, draft_service"),
        ("orchestrator.main", "def start():\n    from gateway.http_server import HttpServer"),
        ("outrider.client", "from orchestrator.session import Session"),
        ("gateway.routes", "from outrider_cli import run"),
        ("outrider_cli.app", "from outrider_ray import app"),
        ("outrider.logs", "name = 'outrider_vllm'"),
        ("outrider_ray.settings", "import outrider_vllm"),
        ("outrider.processes", "command = ['-m', 'outrider_cli', role]"),
        ("outrider.rpc.probe", "module = 'orchestrator.main'"),
        ("outrider_cli.doctor.command", "def forecast():\n    from outrider_plan import tables"),
        ("outrider_cli.app", "commands = ['outrider_bench.command:bench']"),
        ("outrider_bench.run", "from outrider_plan import layouts"),
        ("outrider_bench.run", "from benchmarks import processes"),
    ):
        assert ties_upwards(module, source), (module, source)
    assert not ties_upwards("outrider_cli.app", "from outrider.core import text")
    assert not ties_upwards("outrider.logs", "name = 'outrider.orchestrator'")


def picture() -> str:
    """Return the arrows between folders, as the imports of today draw them."""
    arrows = sorted(
        {
            (folder_of(module), folder_of(name))
            for module, source in SOURCES.items()
            for name in imported_names(module, source)
            if floor_of(name) is not None and folder_of(name) != folder_of(module)
        }
    )
    lines = [f"    {a} --> {b}" for a, b in arrows]
    return "\n".join(["```mermaid", "graph TD", *lines, "```"])


def test_the_picture_in_the_documents_shows_the_imports():
    """`REWRITE_LAYOUT=1` draws it anew."""
    text = PICTURE.read_text(encoding="utf-8")
    before, drawn, after = re.split(r"(```mermaid\n.*?```)", text, maxsplit=1, flags=re.DOTALL)
    if os.environ.get("REWRITE_LAYOUT"):
        PICTURE.write_text(before + picture() + after, encoding="utf-8")
    else:
        assert drawn == picture()


WRITTEN = {
    module: source
    for module, source in SOURCES.items()
    if folder_of(module) in SHIPPED and "outrider.v1" not in module
}


def test_no_folder_is_more_than_a_third_of_the_product():
    """The folders of the base count each for itself: it is what all others stand on."""
    lines = Counter[str]()
    for module, source in WRITTEN.items():
        parts = module.split(".")
        is_base = parts[0] in FLOORS[0] and len(parts) > 2
        lines[".".join(parts[: 1 + is_base])] += source.count("\n")
    assert max(lines.values()) <= lines.total() / 3, lines


def test_no_file_has_more_than_600_lines():
    assert [m for m, source in WRITTEN.items() if source.count("\n") > 600] == []


def test_no_function_has_more_than_60_lines():
    functions = [
        (module, node.name, (node.end_lineno or 0) - node.lineno + 1)
        for module, source in WRITTEN.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [each for each in functions if each[2] > 60] == []


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_tree_keeps_the_rule(rule: Rule):
    assert [line for pair in SOURCES.items() for line in violations(rule, *pair)] == []


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_sources_that_break_the_rule_are_found(rule: Rule):
    assert all(violations(rule, *pair) for pair in rule.broken)


def test_what_is_allowed_is_not_found():
    allowed = [
        ("outrider.engine.cache", "import numpy as np\nfrom collections.abc import Iterable"),
        ("outrider.engine.cache", "from .batching import x\nfrom outrider import noise"),
        ("outrider.engine.llama_library", "import llama_cpp as ll\nimport os"),
        ("outrider.wire", "from outrider.v1 import common_pb2\nfrom outrider import errors"),
        ("outrider_cli.services.up", "from orchestrator import servicer\nimport draft_service"),
        ("draft_service.servicer", "import grpc\nfrom outrider.engine import host"),
    ]
    assert [v for pair in allowed for rule in RULES.values() for v in violations(rule, *pair)] == []


def test_every_module_that_calls_itself_pure_is_held_to_it():
    claims = {
        module.removesuffix(".__init__")
        for module, source in SOURCES.items()
        if (ast.get_docstring(ast.parse(source)) or "").split("\n")[0].endswith("Pure.")
    }
    held = within(*PURE, *PURE_OVER_PROTOBUF, *HTTP_SHAPES)
    assert [claim for claim in claims if not held(claim)] == []


def test_the_sources_were_found():
    assert {"outrider.noise", "outrider.core.acceptance"} <= SOURCES.keys()
