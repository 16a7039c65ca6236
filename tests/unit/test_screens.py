"""Whole screens of the commands, on terminals of 80 and of 120 columns.

Each is a file in tests/unit/screens, of a state that is made up. `REWRITE_SCREENS=1 pytest
tests/unit/test_screens.py` writes what is shown now; the difference is for a reader to judge.
"""

from __future__ import annotations

import ast
import asyncio
import io
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.color import ColorType
from rich.console import Console
from rich.errors import StyleSyntaxError
from rich.style import Style

from outrider.client import (
    CallFailed,
    ControllerView,
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerationView,
    Origin,
    PeerState,
    RefusedDraft,
    Request,
    RoundReport,
    Started,
    Status,
    TextPiece,
)
from outrider.drafters.ngram_cache import NgramCache
from outrider.logs import renderer
from outrider.messages import Rule
from outrider_bench.report import pair_lines, verdict_lines
from outrider_certs.authority import Made
from outrider_certs.command import made_line
from outrider_cli import run, settings
from outrider_cli.app import app
from outrider_cli.chat.session import ChatSession
from outrider_cli.chat.state import ChatState
from outrider_cli.demo.questions import requests_for
from outrider_cli.demo.show import open_show
from outrider_cli.doctor.checks import Finding, Severity, judge_numerics, judge_token
from outrider_cli.doctor.command import _show as show_findings
from outrider_cli.doctor.report import judge_gain
from outrider_cli.generate.execute import RoundReader, TextOutput
from outrider_cli.options import ClientOptions
from outrider_cli.render import STYLES, Transcript, Words
from outrider_cli.screen import note, open_screen, show_view
from outrider_cli.services.next_steps import NextSteps
from outrider_cli.status_table import status_view
from outrider_cli.terminal import say
from outrider_cli.top import TopView
from outrider_lookup.command import tell_limits, tell_saved
from outrider_lookup.stats import LookupFigures, figure_lines
from outrider_teach.acceptance import Acceptance, Judgement, curve
from outrider_teach.trying import Tried, lines_of, table
from tests.tools.unit.test_bench_report import DEFAULT, ONE_USER, RESULT, Measured, turns
from tests.tools.unit.test_teach_command import SMOL
from tests.unit.test_cli_render import (
    COMPARED,
    LONG,
    MODEL,
    MODEL_DRAFTS,
    READY,
    STATISTICS,
    SUFFIX,
)
from tests.unit.test_cli_rounds import KEY, THE, report
from tests.unit.test_demo import Row
from tests.unit.test_demo import run as measured_run
from tests.unit.test_logs import terminal as pseudo_terminal

SCREENS = Path(__file__).parent / "screens"
WIDTHS = (80, 120)
_WIDE = 500  # columns; where nothing is wrapped

ROOT = Path(__file__).parents[2]
FOLDERS = ("outrider_cli", "tools/outrider_bench", "tools/outrider_plan", "tools/outrider_teach")

READABLE = {0, 1, 2, 3, 4, 22, 24, 31, 32, 33, 35, 36, 91, 94, 95}
"""Codes of a terminal's styles, and of its 16 colours, whose shades are its theme's. Not among
them, since many themes show them almost as their light or their dark background: black, white and
their bright forms (30, 37, 90, 97), blue (34), and bright green, yellow and cyan (92, 93, 96)."""

_MARKUP = re.compile(r"\[([a-z_ ]+)\]")
_CODE = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])")
_FRAME = re.compile(r"[─│╭╮╰╯]+")
_COPIED = ("try:  ", "# ")
"""Lines for the clipboard, which the terminal wraps: a line end would be copied, too."""


class Terminal(io.StringIO):
    """Takes what is printed, codes included."""

    def isatty(self) -> bool:
        """Return True."""
        return True


# --- the states that are shown ---

_NAME = "Qwen3-Coder-30B-A3B-Instruct-Q4_K_M"
_TARGET = replace(
    READY,
    address="gpu-host-01.example.org:50062",
    model=replace(MODEL, name=_NAME, session_count=8),
    generation_count=2,
)
_DRAFT = replace(
    READY,
    role="draft",
    address="10.20.130.140:51234",
    model=replace(MODEL, name="Qwen3-0.6B-Q4_0"),
    round_trip_seconds=0.0123,
    joined=True,
    tokens_per_second=141.0,
)
_LOST = replace(
    READY,
    role="draft",
    address="laptop.example.org:50061",
    state=PeerState.LOST,
    detail="Temporary failure in name resolution",
    model=None,
    round_trip_seconds=0.0,
)
_REFUSED = RefusedDraft(
    address="10.20.130.141:40022",
    model_name="stdlib-draft-q8_0",
    reason="token 17 differs: target 'Ġwritt', draft 'otter'; both sides need one vocabulary",
    attempt_count=3,
    since_seconds=12.3,
)
_STATUS = Status(
    version="1.2.3",
    active_generation_count=3,
    peers=(_TARGET, _DRAFT, _LOST),
    speculating=True,
    reason="",
    controller=ControllerView(acceptance=0.73),
    job_count=1,
    generated_token_count=123_456,
    generations=(
        GenerationView(age_seconds=4.0, prompt_token_count=2000, token_count=100, speculates=True),
        GenerationView(age_seconds=0.5, prompt_token_count=0, token_count=0, speculates=False),
    ),
    refused_drafts=(_REFUSED,),
    text_sources=("suffix", "copy", "ngram"),
)
_NUMBERS = replace(STATISTICS, **LONG, sources=(MODEL_DRAFTS, SUFFIX))


def commands() -> Iterator[str]:
    """Yield the words of each command, in the order of the help."""
    import typer

    yield from settings.commands(typer.main.get_command(app))


def show_help() -> None:
    for words in commands():
        assert run([*words.split(), "--help"]) == 0


def show_status() -> None:
    show_view(status_view("gpu-host-01.example.org:50060", _STATUS))


def show_top() -> None:
    view = TopView("gpu-host-01.example.org:50060")
    view.note(_STATUS, 0.0)
    view.note(replace(_STATUS, generated_token_count=123_516), 2.0)
    Console(highlight=False).print(view.frame())


def events_of(*pieces: tuple[str, Origin], report: RoundReport | None = None) -> list[Event]:
    """Return the events of a text that came in one round."""
    texts = tuple(TextPiece(*piece) for piece in pieces)
    origins = tuple(piece.origin for piece in texts)
    return [
        Started((0, 1, 2), 42, Rule.SHARED_NOISE),
        Delta(tuple(range(len(texts))), origins, texts, report),
        Finished(FinishReason.END_OF_TEXT, _NUMBERS),
    ]


_ROUND = events_of(
    ("The", Origin.DRAFTED),
    (" main", Origin.CORRECTED),
    report=report(THE, KEY, KEY, accepted=1, sources=("suffix", "model", "model")),
)


def show_generate() -> None:
    for kind in (TextOutput, RoundReader):
        reader, transcript = kind(open_screen(), "Once upon a time: "), Transcript()
        for event in _ROUND:
            transcript.add(event)
            reader.read(event)
        reader.end(transcript, _STATUS, COMPARED)
        print()


_ANSWERS: dict[str, list[Event]] = {
    "the capital of France?": events_of(
        ("Paris is", Origin.PLAIN),
        (" the capital", Origin.DRAFTED),
        (" of France", Origin.CORRECTED),
        (", and", Origin.BONUS),
        (" known for its art, its museums and the tower that stands by its ri", Origin.PLAIN),
        ("ver, the Seine.", Origin.PLAIN),
    ),
    "think first": events_of(
        ("<think>\nThey want thoughts.\n</think>\n\n", Origin.PLAIN), ("Done.", Origin.DRAFTED)
    ),
    "the weather?": events_of(
        ('<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>', Origin.PLAIN)
    ),
}
_TYPED = (
    *("/help", *_ANSWERS, "/stats", "/stats all", "and now?", "/hlep", "/k 99", "/draft off"),
    "/save /no/such/folder/chat.json",
)


class Typed:
    """Stands for a keyboard at which these lines are typed."""

    is_interactive = True

    def __init__(self) -> None:
        self._lines = iter(_TYPED)

    def read(self, notice: object) -> str | None:
        line = next(self._lines, None)
        print(f"> {line or ''}")
        return line


class Partner:
    """Stands for services that answer what is known, until they are gone."""

    async def stands_in(self, status: Status) -> bool:
        return True

    async def status(self) -> Status:
        return _STATUS

    async def answer(self, talk: ChatState, question: str, show: Callable[[Event], None]) -> None:
        if question not in _ANSWERS:
            told = "no orchestrator answers at 127.0.0.1:1: the connection is refused"
            raise CallFailed("UNAVAILABLE", "UNAVAILABLE", told, {})
        for event in _ANSWERS[question]:
            show(event)

    async def loss_of_draft(self) -> str:
        raise AssertionError("no key is waited for")


def show_chat() -> None:
    partner: Any = Partner()
    with asyncio.Runner() as runner:
        session = ChatSession(ChatState(Request("")), partner, runner, Typed())
        session.open(_STATUS)
        while session.is_open:
            session.step()


def show_certs() -> None:
    end = datetime(2027, 11, 28, tzinfo=UTC)
    hosts = ("gpu-host-01.example.org", "10.20.130.140", "localhost", "127.0.0.1", "::1")
    for made in (
        Made(Path("certs/ca.pem"), "authority", (), end),
        Made(Path("certs/gpu.pem"), "server", hosts, end),
    ):
        say(made_line(made), sys.stdout, indent=2)


def show_lookup() -> None:
    tell_saved(NgramCache(), Path("past-texts.lcd"), as_json=False)
    print(*figure_lines(LookupFigures(3072, 1024, 3, 1813, 762, 175, 0.041, 0.168)), sep="\n")
    tell_limits(3072, 1024, 175)


def show_teach() -> None:
    for line in SMOL.lines("/srv/models/SmolLM2-135M-Instruct.head.gguf.work", 150, "the CPU"):
        say(line, sys.stdout, indent=10)
    low, high = (Acceptance((x, x / 2, x / 3, x / 4, x / 5), x / 2) for x in (0.24, 0.81))
    print(*curve([(100, Judgement(low, low, 9)), (12_000, Judgement(high, high, 9))]), "", sep="\n")
    tried = [Tried("chat", 0.0, 30, 15, 1.2), Tried("code", 0.8, 90, 81, 1.6)]
    print(*table(lines_of(tried)), sep="\n")


_LOGGED: tuple[tuple[str, str, dict[str, object]], ...] = (
    (
        "info",
        "starting",
        {"outrider": "1.2.3", "python": "3", "file": f"/srv/{_NAME}.gguf"},
    ),
    ("info", "loading", {"percent": 50}),
    (
        "info",
        "serving",
        {"model": _NAME, "context": 131072, "sessions": 8, "threads": 16, "address": "[::]:50062"},
    ),
    ("warning", "no GPU, so the CPU computes", {"detail": "no driver answers"}),
    ("info", "chat template", {"calls": "", "thoughts": "<think> </think>", "ids": "any"}),
    ("info", "joining", {"address": "gpu-host-01.example.org:50060"}),
    ("info", "joined", {}),
    ("warning", "not joined", {"address": "gpu:50060", "detail": _REFUSED.reason}),
    ("info", "draft joined", {"request": "2" * 32, "address": "10.0.0.9:4", "model": "small"}),
    ("warning", "draft lost", {"detail": "waiting for the draft at gpu:50061 (it is refused)"}),
    ("error", "internal error id=0a1b2c3d", {}),
)


def show_logs() -> None:
    noon = time.mktime((2026, 11, 28, 12, 0, 0, 0, 0, -1))
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(noon))
    with pseudo_terminal(int(os.environ["COLUMNS"])) as descriptor:
        for name in ("", "orchestrator"):
            render = renderer(descriptor, name)
            for level, message, fields in _LOGGED:
                print(render({"time": when, "level": level, "message": message, **fields}))


def show_plan() -> None:
    assert run(["plan", "--target-ms", "1:66,4:55,8:100", "--draft-ms", "9", "--away-ms", "5"]) == 0


def show_bench() -> None:
    ran = [turn for turn in ONE_USER.block.turns if turn.variant != "serial"]
    block = replace(ONE_USER.block, turns=[*ran, *turns("measured", 24.0)])
    blocks = [Measured(block, [ONE_USER.summaries[0], DEFAULT, *ONE_USER.summaries[2:]])]
    width = int(os.environ["COLUMNS"])
    print(*pair_lines(RESULT, blocks, 256, width), "", *verdict_lines(blocks), sep="\n")


def show_demo() -> None:
    slow, fast = measured_run(48), measured_run(81, suffix=9, copy=8, ngram=7)
    show = open_show()
    show.open(MODEL)
    first, _, linked = requests_for(True)
    for request, pairs in ((first, [(slow, fast)]), (linked, [])):
        scene = show.scene("1 of 3", request)
        scene.plain(Words("The capital of France is Paris, which is known for its art. " * 3))
        scene.drafted(Words("The capital of France is Paris.", STYLES[Origin.DRAFTED]))
        scene.finish_plain(slow)
        scene.finish_drafted(fast)
        Console(highlight=False).print(scene.side_by_side())
        show.end_of_request(Row(request, pairs))
    rows = [Row(each, 3 * [(slow, fast)]) for each in requests_for(True)]
    show.close(rows)


def show_doctor() -> None:
    show_findings(
        [
            Finding("versions", Severity.OK, "Python 3.11, outrider 1.2.3, llama-cpp-python 0.3"),
            judge_numerics("native", "", 26.3, 39.7),
            judge_token("/etc/outrider/token", "", 0o644),
            Finding("gpu", Severity.PROBLEM, "no driver answers", "install the driver, then again"),
            judge_gain(1.4),
        ]
    )


def show_up() -> None:
    show_status()
    steps = NextSteps(
        address="127.0.0.1:50060",
        http="127.0.0.1:8080",
        name="gpu",
        shown=ClientOptions(tls_ca=Path("gpu-cert.pem")),
        key_file=None,
        tokens=Path("tokens.toml"),
    )
    print("\n".join(steps.lines()))


MISTAKES = (
    "generate --model large.gguf",
    "generate --temperature nan",
    "generate --n-predict many",
    "generate Once upon a time",
    "up --ctx-sise 2048",
    "up --target gpu:50062 --model large.gguf",
    "up --spec-type draft-oracle",
    "draft --model small.gguf --join gpu",
    "status --orchestrator 127.0.0.1:1",
    "pair no-such-model",
    "plan",
    "dcotor",
)


def show_mistakes() -> None:
    for words in MISTAKES:
        print(f"$ outrider {words}")
        assert run(words.split()) != 0
    note(
        "the draft stopped: killed by SIGKILL, so that texts continue without it; starting it again"
    )


SHOWN: dict[str, Callable[[], object]] = {
    "outrider": lambda: run([]),
    "help": show_help,
    "status": show_status,
    "top": show_top,
    "generate": show_generate,
    "chat": show_chat,
    "plan": show_plan,
    "pair": lambda: run(["pair", "qwen3"]),
    "config": lambda: run(["config", "show", "status"]),
    "bench": show_bench,
    "demo": show_demo,
    "teach": show_teach,
    "certs": show_certs,
    "lookup": show_lookup,
    "logs": show_logs,
    "doctor": show_doctor,
    "up": show_up,
    "mistakes": show_mistakes,
}


def screen(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a command shows on a terminal of this width, codes included."""
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "stderr", terminal)
        patch.setattr(sys, "stdin", None)
        for variable, value in {"COLUMNS": width, "LINES": 50, "TERM": "xterm-256color"}.items():
            patch.setenv(variable, str(value))
        patch.delenv("NO_COLOR", raising=False)
        SHOWN[name]()
    return terminal.getvalue()


def plain(text: str) -> str:
    """Return a screen as text, without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in _CODE.sub("", text).splitlines()) + "\n"


def words(text: str) -> Counter[str]:
    """Return what is said, in any order, since cells are wrapped; without frames."""
    return Counter(_FRAME.sub(" ", plain(text)).split())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SHOWN)
def test_a_screen_is_as_its_file_and_nothing_of_it_is_cut(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, file = screen(name, width, monkeypatch), SCREENS / f"{name}-{width}.txt"
    shown = plain(drawn)
    if os.environ.get("REWRITE_SCREENS"):
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")
    wrapped = [line for line in shown.splitlines() if not line.startswith(_COPIED)]
    assert [line for line in wrapped if len(line) > width] == []
    whole = words(screen(name, _WIDE, monkeypatch))
    assert "…" not in shown and not words(drawn) - whole, "a word is cut or broken"
    assert {style for codes in styled(drawn) for style in codes} <= READABLE


def test_every_file_is_a_screen() -> None:
    known = {f"{name}-{width}.txt" for name in SHOWN for width in WIDTHS}
    assert {file.name for file in SCREENS.iterdir()} == known


# --- light and dark ---


def styled(text: str) -> Iterator[list[int]]:
    """Yield the numbers of each code that sets a style."""
    for numbers, kind in _CODE.findall(text):
        if kind == "m":
            yield [int(each or 0) for each in numbers.split(";")]


def named_styles() -> Iterator[tuple[str, Style]]:
    """Yield every style that the sources of the commands name, with where."""
    for file in sorted(each for folder in FOLDERS for each in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for name in {node.value, *_MARKUP.findall(node.value)}:
                    with suppress(StyleSyntaxError):
                        yield f"{file.name}: {name}", Style.parse(name)


def test_every_colour_can_be_read_on_a_light_and_on_a_dark_terminal() -> None:
    found = dict(named_styles())
    assert sum(style.color is not None for style in found.values()) > len(READABLE) / 2
    for where, style in found.items():
        assert style.bgcolor is None, where
        color = style.color
        if color is not None and not color.is_default:
            assert color.type is ColorType.STANDARD and color.number is not None, where
            assert color.number + (30 if color.number < 8 else 82) in READABLE, where
