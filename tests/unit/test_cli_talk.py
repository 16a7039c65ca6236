"""What a line of a chat wants and changes, without a terminal or a model."""

from __future__ import annotations

import json

import pytest

from outrider.client import Request
from outrider.errors import InvalidRequest
from outrider.speculation import Policy
from outrider_cli.chat.state import (
    COMMANDS,
    AskModel,
    ChatState,
    Load,
    Message,
    NotDone,
    Quit,
    Reply,
    Save,
    ShowStatistics,
    read_messages,
    write_messages,
)


@pytest.fixture
def talk() -> ChatState:
    """A chat of two turns."""
    talk = ChatState(Request(""), "Be brief.")
    talk.add_answer("one?", "1", is_cut=False)
    talk.add_answer("two?", "2", is_cut=True)
    return talk


def said(talk: ChatState) -> list[str]:
    return [message.text for message in talk.messages]


# --- lines ---


@pytest.mark.parametrize(
    ("line", "act"),
    [
        ("", None),
        ("  \n ", None),
        (" what?\nthis ", AskModel("what?\nthis")),
        ("//etc/passwd", AskModel("/etc/passwd")),
        ("/stats", ShowStatistics(all_of_them=False)),
        ("/stats all", ShowStatistics(all_of_them=True)),
        ("/quit ", Quit()),
        ("/save a b.json", Save("a b.json", overwrites=False)),
        ("/save! f", Save("f", overwrites=True)),
        ("/load f", Load("f")),
    ],
)
def test_a_line_says_what_it_wants(talk: ChatState, line: str, act: object):
    assert talk.take(line) == act


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/", "there is no command /; /help"),
        ("/stats more", "/stats takes all or nothing after it"),
        ("/stat", "there is no command /stat; did you mean /stats?"),
        ("/etc/passwd", "/help lists them"),
        ("/quit now", "/quit takes nothing after it, not 'now'"),
        ("/draft", "/draft takes on or off"),
        ("/draft maybe", "/draft takes on or off"),
        ("/k many", "/k takes a whole number, not 'many'"),
        ("/k 65", "/k: must be in [0, 64], not 65"),
        ("/temperature", "/temperature takes a number"),
        ("/temperature nan", "temperature: must be in"),
        ("/seed x", "/seed takes a whole number"),
        (f"/seed {2**63}", "seed: must be in"),
        ("/save", "/save takes the name of a file"),
        ("\udc80", "not valid Unicode"),
        ("/system \udc80", "not valid Unicode"),
    ],
)
def test_what_cannot_be_done_changes_nothing(talk: ChatState, line: str, words: str):
    options = talk.options
    with pytest.raises(NotDone) as told:
        talk.take(line)
    assert words in str(told.value)
    assert talk.options == options and talk.system == "Be brief."


def test_every_command_is_in_the_help(talk: ChatState):
    told = talk.take("/help")
    assert isinstance(told, Reply)
    assert [line.split()[0] for line in told.lines[: len(COMMANDS)]] == [f"/{c}" for c in COMMANDS]
    assert max(map(len, told.lines)) <= 80


# --- what the commands change ---


def test_commands_change_how_the_next_answers_are_generated(talk: ChatState):
    for line in ("/draft off", "/k 2", "/temperature 0", "/seed 7"):
        assert isinstance(talk.take(line), Reply)
    options = talk.options
    assert (options.enabled, options.n_max, options.seed) == (False, 2, 7)
    assert options.sampling.temperature == 0
    for line in ("/draft on", "/k", "/seed"):
        talk.take(line)
    options = talk.options
    assert (options.enabled, options.n_max, options.seed) == (True, None, None)
    assert options.policy is Policy.MEASURED
    assert options.parse_special


def test_a_pinned_length_stays_pinned():
    talk = ChatState(Request("", n_max=4, policy=Policy.FIXED))
    assert talk.take("/k 2") == Reply(("drafts have exactly 2 tokens",))
    assert talk.take("/k 1") == Reply(("drafts have exactly 1 token",))
    assert talk.options.policy is Policy.FIXED


def test_colours_are_switched(talk: ChatState):
    assert talk.take("/colour") == Reply(("colours are off",)) and not talk.is_coloured
    assert talk.take("/colour") == Reply(("colours are on",)) and talk.is_coloured


# --- history ---


def test_a_question_is_sent_with_all_that_was_said(talk: ChatState):
    chat = talk.chat("three?")
    assert [message["role"] for message in chat] == ["system", *["user", "assistant"] * 2, "user"]
    assert chat[4] == {"role": "assistant", "content": "2"}, "that it is cut is not sent"
    assert chat[-1] == {"role": "user", "content": "three?"}
    assert talk.chat("four?")[:-1] == chat[:-1], "asking adds nothing"


def test_a_turn_is_taken_back(talk: ChatState):
    assert talk.take("/undo") == Reply(("taken back: two?",))
    assert said(talk) == ["one?", "1"]
    assert talk.take("/retry") == AskModel("one?")
    assert said(talk) == []
    with pytest.raises(NotDone, match="nothing has been asked yet"):
        talk.take("/undo")


def test_an_empty_question_of_a_file_is_taken_back(talk: ChatState):
    talk.replace_messages([Message("user", ""), Message("assistant", "Yes?")])
    assert talk.take("/undo") == Reply(("taken back: ",))


def test_a_question_without_an_answer_can_be_asked_again(talk: ChatState):
    talk.add_failure("three?")
    assert said(talk)[-1] == "2"
    assert talk.all_messages()[-1] == Message("user", "three?")
    assert talk.take("/retry") == AskModel("three?")
    assert said(talk)[-1] == "2"


def test_a_new_chat_keeps_the_system_message(talk: ChatState):
    talk.add_failure("three?")
    talk.take("/reset")
    assert talk.all_messages() == [Message("system", "Be brief.")]
    talk.take("/system")
    assert talk.all_messages() == []
    talk.take("/system Be long.")
    assert talk.chat("x")[0] == {"role": "system", "content": "Be long."}


def test_the_older_half_is_kept_but_not_sent(talk: ChatState):
    talk.add_answer("three?", "3", is_cut=False)
    assert talk.forget() == 2
    assert [message["content"] for message in talk.chat("x")] == ["Be brief.", "three?", "3", "x"]
    assert talk.forget() == 1 and talk.turn_count == 0
    assert [message["content"] for message in talk.chat("x")] == ["Be brief.", "x"]
    assert talk.forget() == 0
    assert len(talk.all_messages()) == 7


def test_what_is_taken_back_makes_no_forgotten_turns(talk: ChatState):
    talk.forget()
    talk.take("/undo")
    talk.take("/undo")
    talk.add_answer("again?", "yes", is_cut=False)
    assert [message["content"] for message in talk.chat("x")][1:] == ["again?", "yes", "x"]


# --- files ---


def test_messages_are_saved_and_loaded(talk: ChatState):
    talk.add_failure("drei: ä?")
    text = write_messages(talk.all_messages())
    assert "ä" in text
    assert json.loads(text)[4] == {"role": "assistant", "content": "2", "cut": True}
    other = ChatState(Request(""))
    other.replace_messages(read_messages(text))
    assert other.all_messages() == talk.all_messages()
    assert (other.system, other.unanswered) == ("Be brief.", "drei: ä?")
    other.replace_messages([])
    assert other.all_messages() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "not a JSON list of messages"),
        ("[1]", "message 1 needs a role"),
        ('[{"role": "user"}]', "message 1 needs a role"),
        ('[{"role": "tool", "content": "x"}]', "one of system, user, assistant"),
        ('[{"role": "user", "content": ["x"]}]', "and a text"),
        ('[{"role": "user", "content": "\\ud800"}]', "not valid Unicode"),
        (
            '[{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]',
            "message 2 is a system message",
        ),
    ],
)
def test_what_are_no_messages_is_refused(text: str, words: str):
    with pytest.raises(NotDone) as told:
        read_messages(text)
    assert words in str(told.value)


def test_a_system_message_must_be_text():
    with pytest.raises(InvalidRequest, match="system: is not valid Unicode"):
        ChatState(Request(""), "\udc80")
