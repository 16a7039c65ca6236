"""A chat on a real terminal, and through a pipe."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.commands import Command, Terminal, status, until
from tests.support.processes import ServiceProcess
from tests.support.tiny_gguf import write_model

CTRL_C, CTRL_D = "\x03", "\x04"
PROMPT = "\n> "
NO_TEMPLATE = (
    "note: the model has no chat template; ChatML stands in, which it may never have seen\n"
)
ONE_THREAD = ("--threads", "1")
ENDLESS = ("--ignore-eos", "-n", "900")

Open = Callable[..., Terminal]


@pytest.fixture
def open_chat() -> Iterator[Open]:
    """Opens a chat on a terminal and waits until it asks for a line."""
    terminals: list[Terminal] = []

    def open_one(*arguments: str, **surroundings: str) -> Terminal:
        terminals.append(Terminal("chat", *arguments, **surroundings))
        terminals[-1].wait_for(PROMPT)
        return terminals[-1]

    yield open_one
    for terminal in terminals:
        terminal.close()


@pytest.fixture
def chat(open_chat: Open, orchestrator: str) -> Callable[..., Terminal]:
    """Opens a greedy chat with the bundled pair."""

    def open_one(*arguments: str) -> Terminal:
        return open_chat("--orchestrator", orchestrator, "--temperature", "0", *arguments)

    return open_one


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The options that name a model of random weights, which loads at once."""
    model = write_model(tmp_path_factory.mktemp("models") / "tiny.gguf")
    return ("--model", str(model), *ONE_THREAD, "--draft-threads", "1")


BRIEF = ["prompt", "generated", "drafts", "verdict"]


def statistics(terminal: Terminal) -> str:
    """Return all that is known of the last answer."""
    terminal.enter("/stats all")
    return terminal.wait_for(PROMPT)


# --- turns ---


def test_the_second_turn_finds_the_first_in_the_cache(chat: Callable[..., Terminal]):
    terminal = chat("-n", "12")
    assert terminal.shown.startswith(NO_TEMPLATE.replace(" seen", "\n  seen"))  # of 80 columns
    assert "stdlib-target-q8_0, drafted by stdlib-draft-q8_0" in terminal.shown
    terminal.enter("def read(path):")
    assert "(cut: token limit)" in terminal.wait_for(PROMPT)
    first = statistics(terminal)
    assert "generated    12 tokens" in first and "cached" not in first.split("drafted")[0]
    terminal.enter("and then?")
    terminal.wait_for(PROMPT)
    found = re.search(r"prompt +(\d+) tokens .*, (\d+) of them cached", statistics(terminal))
    assert found is not None and int(found[1]) > int(found[2]) > 10
    terminal.enter("/stats")
    told = terminal.wait_for(PROMPT)
    assert re.findall(r"(?m)^(prompt|generated|drafts|verdict) ", told) == BRIEF
    assert "speed-up" not in told


def test_a_question_goes_over_several_lines_and_is_saved(
    chat: Callable[..., Terminal], tmp_path: Path
):
    terminal = chat("-n", "4", "--system", "Be brief.")
    terminal.enter("def f():\\")
    terminal.wait_for("\n. ")
    terminal.enter("    pass")
    terminal.wait_for(PROMPT)
    path = tmp_path / "chat.json"
    terminal.enter(f"/save {path}")
    terminal.wait_for("3 messages are in")
    system, question, answer = json.loads(path.read_text())
    assert system == {"role": "system", "content": "Be brief."}
    assert question == {"role": "user", "content": "def f():\n    pass"}
    assert answer["role"] == "assistant" and answer["content"] and answer["cut"]
    path.write_text("mine")
    terminal.enter(f"/save {path}")
    terminal.wait_for("outrider: there is a file")
    assert path.read_text() == "mine"
    terminal.enter(f"/save! {path}")
    terminal.wait_for("3 messages are in")
    terminal.enter(f"/load {path}")
    terminal.wait_for("3 messages from")


def test_the_draft_follows_the_commands(chat: Callable[..., Terminal]):
    terminal = chat("-n", "12")
    terminal.enter("/draft off")
    terminal.wait_for(PROMPT)
    terminal.enter("def read(path):")
    terminal.wait_for(PROMPT)
    alone = statistics(terminal)
    assert "drafted      0 tokens" in alone and "12 plain" in alone
    terminal.enter("/draft on")
    terminal.wait_for(PROMPT)
    terminal.enter("/k 2")
    terminal.wait_for(PROMPT)
    terminal.enter("/retry")
    terminal.wait_for(PROMPT)
    drafted = statistics(terminal)
    assert "draft length 2 at the end" in drafted and "drafted      0 tokens" not in drafted


def test_what_is_no_command_is_named(chat: Callable[..., Terminal]):
    terminal = chat()
    terminal.enter("/temprature 1")
    assert "there is no command /temprature; did you mean /temperature?" in terminal.wait_for(
        PROMPT
    )


def test_colours_can_be_switched_off(chat: Callable[..., Terminal]):
    terminal = chat("-n", "12")
    terminal.enter("def read(path):")
    terminal.wait_for(PROMPT)
    coloured = terminal.raw
    assert b"\x1b[32m" in coloured
    terminal.enter("/colour")
    assert "colours are off" in terminal.wait_for(PROMPT)
    terminal.enter("/retry")
    terminal.wait_for(PROMPT)
    assert b"\x1b[32m" not in terminal.raw[len(coloured) :]


# --- Ctrl-C and Ctrl-D ---


def test_ctrl_c_stops_the_answer_and_not_the_chat(chat: Callable[..., Terminal], orchestrator: str):
    terminal = chat(*ENDLESS)
    terminal.enter("def read(path):")
    terminal.wait_for("def read(path):\n")
    before = len(terminal.shown)
    until(lambda: len(terminal.shown) > before + 20)
    began = time.monotonic()
    terminal.type(CTRL_C)
    terminal.wait_for("(cut)\n\n> ")
    assert time.monotonic() - began < 1
    assert "before the cut" in statistics(terminal)
    until(lambda: "0 generations in flight" in status(orchestrator).out, seconds=5)
    terminal.enter("/undo")
    terminal.wait_for("taken back: def read(path):")
    terminal.enter("/quit")
    assert terminal.wait_for_end() == 0


def test_ctrl_c_clears_the_line_and_ends_the_chat_at_an_empty_one(chat: Callable[..., Terminal]):
    terminal = chat()
    terminal.type("/quit")
    until(lambda: terminal.shown.endswith("/quit"))
    terminal.type(CTRL_C)
    terminal.wait_for(PROMPT)
    terminal.type(CTRL_C)
    terminal.wait_for("(once more, or Ctrl-D, ends the chat)\n> ")
    terminal.type(CTRL_C)
    assert terminal.wait_for_end() == 0


def test_what_is_typed_during_an_answer_waits_unseen_for_the_prompt(chat: Callable[..., Terminal]):
    terminal = chat(*ENDLESS)
    terminal.enter("def read(path):")
    terminal.wait_for("def read(path):\n")
    before = len(terminal.shown)
    until(lambda: len(terminal.shown) > before + 20)
    terminal.type("/und")
    terminal.type(CTRL_C)
    assert "/und" not in terminal.wait_for("(cut)\n")
    terminal.enter("o")
    terminal.wait_for("taken back: def read(path):")


@pytest.mark.parametrize("surroundings", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_a_terminal_without_colours_gets_none(
    open_chat: Open, orchestrator: str, surroundings: dict[str, str]
):
    terminal = open_chat("--orchestrator", orchestrator, "-n", "4", **surroundings)
    terminal.enter("def read(path):")
    terminal.wait_for(PROMPT)
    terminal.type(f"mistaken{CTRL_C}")
    terminal.wait_for(PROMPT)
    codes = re.findall(rb"\x1b\[([0-9;]*)m", terminal.raw)
    assert {code for code in codes if code.strip(b"0;")} == set()
    if "TERM" in surroundings:
        assert b"\x1b" not in terminal.raw


# --- a pipe ---


def test_every_piped_line_is_a_turn(orchestrator: str, tmp_path: Path):
    path = tmp_path / "chat.json"
    asked = ("--orchestrator", orchestrator, "--temperature", "0", "-n", "6")
    lines = f"import\\\nos\n\nimport sys\n/stats\n/save {path}"
    told = Command("chat", *asked).finish(lines.encode())
    assert told.code == 0
    messages = json.loads(path.read_text())
    assert [m["content"] for m in messages[::2]] == ["import\nos", "import sys"]
    assert told.out.startswith("".join(_ended(m["content"]) for m in messages[1::2]))
    assert " of them cached, " in told.out and "\x1b" not in told.out
    limit = "(cut: token limit)\n"
    assert told.err == f"{NO_TEMPLATE}{limit}{limit}4 messages are in {path}\n"


def _ended(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"


def test_a_piped_line_that_cannot_be_done_shows_in_the_exit_code(orchestrator: str):
    told = Command("chat", "--orchestrator", orchestrator).finish(b"/nope\n/retry\n")
    assert (told.code, told.out) == (1, "")
    assert told.err.splitlines()[1:] == [
        "outrider: there is no command /nope; /help lists them",
        "outrider: nothing has been asked yet",
    ]


# --- services that come and go ---


def test_a_chat_of_its_own_leaves_nothing_behind(open_chat: Open, tiny: tuple[str, ...]):
    terminal = open_chat(*tiny, "-n", "4")
    terminal.enter("read a line")
    terminal.wait_for(PROMPT)
    assert terminal.command.services().keys() == {"target", "orchestrator"}
    terminal.type(CTRL_D)
    assert terminal.wait_for_end() == 0
    assert terminal.command.services() == {}


def test_old_turns_make_room_in_a_full_context(open_chat: Open, tiny: tuple[str, ...]):
    terminal = open_chat(*tiny, "--no-draft", "--ignore-eos")
    terminal.enter("read a line")
    terminal.wait_for("(cut: context full)\n\n> ")
    terminal.enter("and another one")
    terminal.wait_for("the oldest turn is kept, but not sent any more")
    terminal.wait_for("(cut: context full)\n\n> ")


def test_a_service_that_dies_ends_the_chat_in_one_line(open_chat: Open, tiny: tuple[str, ...]):
    terminal = open_chat(*tiny, "--no-draft")
    terminal.command.services()["target"].kill()
    terminal.enter("read a line")
    terminal.wait_for("outrider: target: ended unexpectedly (SIGKILL)")
    assert terminal.wait_for_end() == 1
    assert terminal.command.services() == {}


def test_a_draft_that_dies_is_missed_above_the_line_that_is_typed(
    open_chat: Open, tiny: tuple[str, ...]
):
    terminal = open_chat(*tiny, "--draft-model", tiny[1], "-n", "8")
    terminal.type("read a l")
    until(lambda: terminal.shown.endswith("read a l"))
    terminal.command.services()["draft"].kill()
    note = "note: the draft ended; answers continue without it\n"
    terminal.wait_for(f"{note}> read a l")
    terminal.enter("ine")
    terminal.wait_for("read a line\n")
    terminal.wait_for(PROMPT)
    terminal.enter("/undo")
    terminal.wait_for("taken back: read a line")
    assert terminal.shown.count(note) == 1


def test_a_chat_goes_on_when_its_orchestrator_was_away(open_chat: Open, tiny: tuple[str, ...]):
    target = ServiceProcess("target", *tiny[:4])
    orchestrator = ServiceProcess("orchestrator", "--target", target.address, "--no-draft")
    try:
        for process in (target, orchestrator):
            process.start()
        until(lambda: "\ntarget " in (out := status(orchestrator.address).out) and "ready" in out)
        terminal = open_chat("--orchestrator", orchestrator.address, "--ignore-eos", "-n", "8")
        assert "note: without a draft model: " in terminal.shown
        orchestrator.kill()
        terminal.enter("read a line")
        nobody = f"outrider: no orchestrator answers at {orchestrator.address}"
        told = f"{nobody}: the connection is refused\n> "
        terminal.wait_for(told)
        orchestrator.start()
        until(lambda: "ready" in status(orchestrator.address).out)
        terminal.enter("/retry")
        terminal.wait_for("(cut: ")
    finally:
        orchestrator.stop()
        target.stop()


# --- what was typed ---


def test_what_was_typed_is_kept_only_if_that_is_asked_for(
    chat: Callable[..., Terminal], tmp_path: Path
):
    kept = tmp_path / "typed"
    for options in ((), ("--history", str(kept))):
        terminal = chat(*options)
        terminal.enter("/colour")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
        assert kept.exists() == bool(options)
    assert "/colour" in kept.read_text()
    terminal = chat("--history", str(kept))
    terminal.type("\x1b[A")
    terminal.wait_for("/colour")
