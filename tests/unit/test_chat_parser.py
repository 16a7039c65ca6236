"""What a model writes becomes thoughts, content and calls, however its text is cut."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.openai.requests import ChatBody, read_reading
from orchestrator.chat.events import (
    Arguments,
    CallBegun,
    CallEnded,
    Content,
    Mark,
    Thought,
    TurnEvent,
    parse,
)
from orchestrator.chat.format import ChatFormat, Style
from orchestrator.chat.parser import ChatParser
from orchestrator.chat.value_readers import as_json
from tests.support.chat_formats import NAMES, form, template

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)

TOOLS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "where": {"type": "object"},
            "units": {"type": ["string", "null"]},
        },
    },
    "rest": {"type": "object", "properties": {}},
}
QWEN, HERMES, GLM = "Qwen3.5-4B", "Qwen-Qwen3-0.6B", "GLM-4.6"
HARMONY, GEMMA, LLAMA = (
    "openai-gpt-oss-120b",
    "google-gemma-4-31B-it",
    "meta-llama-Llama-3.3-70B-Instruct",
)
MISTRAL, KIMI = "mistralai-Ministral-3-14B-Reasoning-2512", "moonshotai-Kimi-K2"
CALLING = sorted({*NAMES} - {"SmolVLM-Instruct", "deepseek-ai-DeepSeek-V3.1"})

REST = '<tool_call>\n{"name": "rest", "arguments": {}}\n</tool_call>'
FUNCTION = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\n{}\n</parameter>\n</function>\n"
    "</tool_call>"
)

CITY = {
    QWEN: FUNCTION.format("Paris"),
    HERMES: '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    GLM: "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "</tool_call>",
    GEMMA: '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
}

CALL = {
    HERMES: '<tool_call>\n{{"name": "get_weather", "arguments": {}}}\n</tool_call>',
    LLAMA: '{{"name": "get_weather", "parameters": {}}}',
    MISTRAL: "[TOOL_CALLS]get_weather[ARGS]{}",
}

Read = tuple[str, str, list[tuple[str, Any]]]


def events(
    name: str | ChatFormat, *pieces: str | Mark, prompt: str = "", cut: bool = False, **wish: Any
) -> list[TurnEvent]:
    one = form(name) if isinstance(name, str) else name
    parser = ChatParser(one, wish.pop("tools", TOOLS), prompt, **wish)
    return [e for piece in pieces for e in parser.add(piece)] + parser.finish(is_cut=cut)


def read(name: str | ChatFormat, *pieces: str | Mark, **wish: Any) -> Read:
    content, thoughts, calls = parse(events(name, *pieces, **wish))
    return content, thoughts, [(begun.name, json.loads(text)) for begun, text in calls]


def joined(found: list[TurnEvent]) -> list[Any]:
    """Return the events with neighbours of one kind as one."""
    whole: list[Any] = []
    for event in found:
        kind = type(event)
        if isinstance(event, (Content, Thought, Arguments)) and whole and type(whole[-1]) is kind:
            whole[-1] = kind(whole[-1].text + event.text)
        else:
            whole.append(event)
    return whole


def cuts(text: str, seed: int) -> Iterator[str]:
    choose = random.Random(seed)
    while text:
        size = choose.choice((1, 1, 2, 3, 8, 40))
        yield text[:size]
        text = text[size:]


@pytest.mark.fault(
    "crash",
    'A tool whose schema is none, such as `"properties": []` from PHP, or null from Go',
    before="A call of it ended in an internal error, of models that write no JSON.",
    now="What has the wrong type says nothing of the arguments; where calls must come it is a 400.",
)
@pytest.mark.parametrize(
    "schema",
    [
        "x",
        {"properties": []},
        {"properties": None},
        {"properties": {"city": "x"}},
        {"properties": {"city": {"type": {"a": 1}}}},
        {"properties": {"city": {"type": [{}, None]}}},
        {"properties": {"city": {"enum": None}}},
        {"properties": {"city": {"anyOf": None, "oneOf": 1, "allOf": {}}}},
        {"properties": {"city": {"$ref": 5}}},
    ],
    ids=json.dumps,
)
def test_a_call_is_read_with_any_schema_of_its_tool(schema: Any) -> None:
    for name in (QWEN, HERMES, GLM, GEMMA):
        reading = read_reading(ChatBody(messages=[], tools=[tool_of(schema)]), form(name), "")
        assert form(name).calls, name
        parser = ChatParser(form(name), reading.tools)
        _, _, calls = parse([*parser.add(CITY[name]), *parser.finish()])
        ((begun, arguments),) = calls
        assert (begun.name, json.loads(arguments)) == ("get_weather", {"city": "Paris"})


HALF = r"\ud83d"
ODD: dict[str, tuple[str, list[Any]]] = {
    # by what stands for a text and for a number: the calls that are read
    r"Par\ud83d\ude00is 2": ("Par\U0001f600is", [2]),
    rf"Par{HALF}is 2": ("Par\ufffdis", [2]),
    rf"{HALF}{HALF}\ude00\ude00 2": ("\ufffd\U0001f600\ufffd", [2]),
    "Paris 1e999": ("Paris", []),
    f"Paris {'9' * 5000}": ("Paris", []),
}


@pytest.mark.fault(
    "crash",
    "Arguments of a call in which a number is infinite, or half of a character stands",
    before="Anthropic's and Ollama's APIs ended in an internal error after the generation.",
    now="The half is U+FFFD, and a call with such a number is text.",
)
@pytest.mark.parametrize("name", [HERMES, LLAMA, MISTRAL])
@pytest.mark.parametrize("values", ODD, ids=lambda values: values[:12])
def test_arguments_are_json_that_can_be_written(name: str, values: str) -> None:
    city, days = values.split()
    text = CALL[name].format(f'{{"city": "{city}", "days": {days}}}')
    expected = [("get_weather", {"city": ODD[values][0], "days": each}) for each in ODD[values][1]]
    for seed in range(9):
        content, _, calls = read(name, *cuts(text, seed))
        assert calls == expected
        assert bool(content) != bool(calls)


@pytest.mark.parametrize("value", ["1e999", "-1e999", r'"\ud83d"', r"'\ud83d'", "[1e999]", "NaN"])
def test_a_value_that_json_cannot_hold_is_a_text(value: str) -> None:
    for types in (set(), {"integer"}, {"object"}):
        assert json.loads(as_json(value, types)) == value


def tool_of(schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "get_weather", "parameters": schema}}


# what a template writes of a turn is read as that turn

ARGUMENTS = {"city": 'Köln\n"am" <b>Rhein</b>', "days": 2, "where": {"x": ["a", True, 1.5]}}


def turn_of(name: str) -> tuple[str, int]:
    """Return a turn of a thought, a text and calls as the template writes it."""
    one = template(name)
    assert one.form.calls
    calls = [
        {
            "id": f"abcdefgh{i}",
            "type": "function",
            "function": {"name": n, "arguments": json.dumps(a)},
        }
        for i, (n, a) in enumerate([("get_weather", ARGUMENTS), ("rest", {})])
    ][: 2 if one.form.calls.several else 1]
    tools = [
        {"type": "function", "function": {"name": n, "description": "x", "parameters": s}}
        for n, s in TOOLS.items()
    ]
    user = {"role": "user", "content": "Weather?"}
    said = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": calls}
    whole = one.render(
        [user, said],
        tools=tools,
        strftime_now=str,
        add_generation_prompt=False,
        chat_template_kwargs={"enable_thinking": True, "thinking": True},
    )
    start = whole.index("Weather?") + len("Weather?")
    start = whole.index(one.form.turn, start) + len(one.form.turn) if one.form.turn else start
    return whole[start:], len(calls)


SHOWN = [
    name
    for name in CALLING
    if name not in ("LFM2-8B-A1B", "ibm-granite-granite-3.3-2B-Instruct")  # they show no call
]


@pytest.mark.parametrize("name", SHOWN)
def test_a_turn_as_the_template_writes_it_is_read_back(name: str) -> None:
    text, count = turn_of(name)
    found = read(name, text)
    expected = [("get_weather", ARGUMENTS), ("rest", {})][:count]
    assert found[2] == expected
    assert found[1] in ("Hm.", "") and (found[1] or not form(name).thoughts_as)


@pytest.mark.parametrize("name", SHOWN)
def test_it_does_not_matter_how_a_turn_is_cut(name: str) -> None:
    text, _ = turn_of(name)
    whole = joined(events(name, text))
    for seed in range(12):
        assert joined(events(name, *cuts(text, seed))) == whole, seed


@pytest.mark.parametrize("name", SHOWN)
def test_marks_may_be_control_tokens(name: str) -> None:
    text, count = turn_of(name)
    one = form(name)
    marks = [mark for mark in one.marks if mark in text]
    pieces: list[str | Mark] = [text]
    for mark in marks:
        split = [[piece] if isinstance(piece, Mark) else piece.split(mark) for piece in pieces]
        pieces = []
        for parts in split:
            for i, part in enumerate(parts):
                pieces += [Mark(mark)] if i else []
                pieces += [part] if part else []
    controlled = replace(one, controls=tuple(marks))
    assert len(read(controlled, *pieces)[2]) == count


@SETTINGS
@given(st.data())
def test_any_text_at_all_is_read_the_same_however_it_is_cut(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(CALLING))
    words = [
        *form(name).marks,
        "get_weather",
        "rest",
        '{"name": "rest", "arguments": {}}',
        "{",
        "}",
    ]
    words += [
        "(",
        ")",
        "[",
        "]",
        "\n",
        " ",
        '"',
        "'",
        "`",
        "```",
        "x",
        "city",
        "Köln",
        "=",
        ":",
        ",",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=24)))
    cut = data.draw(st.booleans())
    whole = joined(events(name, text, cut=cut))
    assert joined(events(name, *text, cut=cut)) == whole
    assert joined(events(name, *cuts(text, 1), cut=cut)) == whole
    for begun, ended in pairwise(whole):
        assert not isinstance(ended, Arguments) or isinstance(begun, CallBegun)
    for _, arguments in parse(whole)[2]:
        assert isinstance(json.loads(arguments), dict)


# thoughts


def test_a_thought_that_the_prompt_opened_is_apart() -> None:
    text = "The user wants a sum.\n</think>\n\nIt is 4."
    assert read(QWEN, text, prompt="<think>\n") == ("It is 4.", "The user wants a sum.", [])


def test_a_thought_that_the_prompt_closed_is_none() -> None:
    assert read(QWEN, "It is 4.", prompt="<think>\n\n</think>\n\n")[:2] == ("It is 4.", "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (HERMES, "<think>\nHm.\n</think>\n\nIt is 4."),
        (MISTRAL, "[THINK]Hm.[/THINK]It is 4."),
        (GEMMA, "<|channel>thought\nHm.\n<channel|>It is 4."),
        (
            "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
            "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>It is 4.<|END_RESPONSE|>",
        ),
        (
            HARMONY,
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
            "It is 4.",
        ),
        (LLAMA, "<think>Hm.</think>It is 4."),  # tuned to think, under a template of before
    ],
)
def test_a_thought_that_the_model_opens_is_apart(name: str, text: str) -> None:
    assert read(name, text) == ("It is 4.", "Hm.", [])


def test_a_thought_that_was_cut_is_a_thought() -> None:
    assert read(QWEN, "The user", prompt="<think>\n", cut=True) == ("", "The user", [])


def test_a_thought_begins_where_no_text_has_begun() -> None:
    text = "Reasoning models write <think> first."
    assert read(HERMES, text) == (text, "", [])


def test_a_call_that_is_only_thought_of_is_none() -> None:
    thought = f"I could write {REST} but no."
    found = read(HERMES, f"<think>\n{thought}\n</think>\n\nShall I?")
    assert found == ("Shall I?", thought, [])


def test_a_call_after_which_the_text_ends_ends_a_thought() -> None:
    found = read(QWEN, "Look.\n" + FUNCTION.format("Rome"), prompt="<think>\n")
    assert found == ("", "Look.", [("get_weather", {"city": "Rome"})])
    cut = read(QWEN, "Look.\n" + FUNCTION.format("Rome"), prompt="<think>\n", cut=True)
    assert cut[2] == [] and "Rome" in cut[1]


# what is no call


@pytest.mark.parametrize(
    "text",
    [
        f"A call looks like this:\n```\n{REST}\n```\nSo.",
        f"~~~xml\n{REST}\n~~~",
        f"Write `{REST}`.",
        REST.replace("rest", "unknown"),
        REST.replace('"arguments": {}', '"arguments": 5'),
        "<tool_call>no JSON</tool_call>",
        'Use `a < b` and {"x": [1, 2]}; a <tag> is no call.',
    ],
)
def test_what_is_no_call_is_text_as_it_was_written(text: str) -> None:
    for pieces in ([text], list(text)):
        assert read(HERMES, *pieces) == (text, "", [])


def test_a_call_after_a_code_fence_is_one() -> None:
    assert read(HERMES, f"```\nx\n```\n{REST}") == ("```\nx\n```", "", [("rest", {})])


def test_without_tools_all_is_text() -> None:
    assert read(HERMES, REST, tools={}) == (REST, "", [])


def test_json_that_is_no_call_is_text_to_a_model_that_writes_calls_bare() -> None:
    for text in ('{"a": 1} is a dict', "{}", '{"parameters": {}}', '{"name": "rest"}', "[1, 2]"):
        assert read(LLAMA, text) == (text, "", [])
    assert read(LLAMA, '{"name": "rest", "parameters": {}}')[2] == [("rest", {})]


def test_a_broken_call_is_text_after_what_was_told_of_it() -> None:
    text = '<tool_call>{"name": "rest", "arguments": {"a": 1 x</tool_call>'
    found = events(HERMES, text)
    assert CallEnded(is_sound=False) in found
    assert parse(found) == (text, "", [])


@pytest.mark.parametrize("name", [HERMES, GEMMA, "MiniMax-M3"])
def test_what_is_nested_too_deep_is_text(name: str) -> None:
    deep = {
        HERMES: '<tool_call>{"name": "rest", "arguments": {"a": ' + "[" * 5000,
        GEMMA: "<|tool_call>call:rest{a:" + "{b:" * 5000,
        "MiniMax-M3": ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="rest">'
        + "]<]minimax[>[<a>" * 5000
        + "]<]minimax[>[</a>" * 5000
        + "]<]minimax[>[</invoke>",
    }[name]
    assert read(name, deep) == (deep, "", [])


def test_a_mark_of_control_tokens_means_nothing_as_letters() -> None:
    controlled = replace(form(HARMONY), controls=tuple(form(HARMONY).marks))
    text = "It is written <|channel|>analysis<|message|>."
    pieces = [Mark("<|channel|>"), "final", Mark("<|message|>"), text]
    assert read(controlled, *pieces) == (text, "", [])


# calls


@pytest.mark.parametrize("name", [HERMES, QWEN, GLM, GEMMA, HARMONY, MISTRAL, KIMI])
def test_a_call_is_told_of_as_it_is_written(name: str) -> None:
    text, _ = turn_of(name)
    parser = ChatParser(form(name), TOOLS)
    told_at, last = None, 0
    for i, character in enumerate(text):
        for event in parser.add(character):
            told_at = i if isinstance(event, CallBegun) and told_at is None else told_at
            last = i if isinstance(event, Arguments) and "Rhein" in event.text else last
    assert (told_at is not None and told_at < text.index("Köln") + 1) or name == GEMMA


def test_a_call_that_was_cut_is_no_call_and_no_text() -> None:
    for text in ("Look.\n<tool_call>", "Look.\n" + REST[:40], "Look.\n" + REST[:17]):
        assert read(HERMES, text, cut=True) == ("Look.", "", [])
    assert read(
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.re",
        cut=True,
    ) == ("", "Hm.", [])


def test_with_single_there_is_one_call() -> None:
    assert read(HERMES, f"{REST}\n{REST}", single=True) == ("", "", [("rest", {})])


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2", 2),
        ("two", "two"),
        ('"2"', "2"),
        (" 2 ", 2),
        ("1e20", 1e20),
    ],
)
def test_an_argument_in_xml_has_the_type_of_the_schema(written: str, value: object) -> None:
    text = FUNCTION.replace("city", "days").format(written)
    assert read(QWEN, text)[2] == [("get_weather", {"days": value})]


@pytest.mark.parametrize(
    "value", ["2", "true", "null", '{"a": 1}', "", "a\n\nb", "</b> <c>", "\\n"]
)
def test_a_text_in_xml_stays_a_text(value: str) -> None:
    assert read(QWEN, FUNCTION.format(value))[2] == [("get_weather", {"city": value})]


def test_text_around_calls_is_content() -> None:
    text = f"Before.\n{REST}\n{REST}\nAfter."
    content, _, calls = read(HERMES, text)
    assert len(calls) == 2 and content.split() == ["Before.", "After."]


def test_the_id_that_a_model_writes_is_told() -> None:
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.rest:4"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    )
    assert CallBegun("rest", "functions.rest:4") in events(KIMI, text)


def test_these_templates_are_those_that_take_tools() -> None:
    """They are named: to learn all templates takes seconds of every worker that collects this."""
    assert [name for name in NAMES if form(name).calls and template(name).takes_tools] == CALLING


def test_every_style_of_call_is_among_these_templates() -> None:
    styles = {form(name).calls.style for name in CALLING}  # type: ignore[union-attr]
    assert styles == set(Style)


# five turns


ASKED = {"role": "user", "content": "Weather in Paris, then in Rome?"}
WORDS = {
    # by template: a thought and a call, a thought and an answer, as the model writes them
    HARMONY: (
        "<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant to=functions.get_weather"
        '<|channel|>commentary json<|message|>{{"city": "{city}"}}',
        "<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final"
        "<|message|>{text}",
    ),
    QWEN: (
        "{thought}\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\n{city}\n"
        "</parameter>\n</function>\n</tool_call>",
        "{thought}\n</think>\n\n{text}",
    ),
    GLM: (
        "\n<think>{thought}</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
        "<arg_value>{city}</arg_value>\n</tool_call>",
        "\n<think>{thought}</think>\n{text}",
    ),
    "Kimi-K2-Thinking": (
        "<think>{thought}</think><|tool_calls_section_begin|><|tool_call_begin|>"
        'functions.get_weather:{number}<|tool_call_argument_begin|>{{"city": "{city}"}}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "<think>{thought}</think>{text}",
    ),
    GEMMA: (
        "<|channel>thought\n{thought}\n<channel|>"
        '<|tool_call>call:get_weather{{city:<|"|>{city}<|"|>}}<tool_call|>',
        "<|channel>thought\n{thought}\n<channel|>{text}",
    ),
    MISTRAL: (
        '[THINK]{thought}[/THINK][TOOL_CALLS]get_weather[ARGS]{{"city": "{city}"}}',
        "[THINK]{thought}[/THINK]{text}",
    ),
    LLAMA: ('{{"name": "get_weather", "parameters": {{"city": "{city}"}}}}', "{text}"),
}


@pytest.mark.parametrize("name", WORDS)
def test_each_of_five_turns_goes_back_as_the_model_wrote_it(name: str) -> None:
    one, (calling, answering) = template(name), WORDS[name]
    tools = [
        {"type": "function", "function": {"name": n, "description": "x", "parameters": s}}
        for n, s in TOOLS.items()
    ]
    variables = {"enable_thinking": True, "reasoning_effort": "high"}
    chat: list[dict[str, Any]] = [ASKED]
    written: list[str] = []
    asked = 0  # calls before the last question: templates leave out what was thought before it
    for turn in range(5):
        prompt = one.render(chat, tools=tools, strftime_now=str, chat_template_kwargs=variables)
        assert all(text in prompt for text in written[asked:])
        said = {"thought": f"Thought {turn}.", "text": f"Text {turn}.", "city": f"City {turn}"}
        is_call = turn in (0, 1, 3)
        text = (calling if is_call else answering).format(**said, number=len(written))
        found = events(name, text, prompt=one.form.written(prompt, chat[-1]["content"]))
        content, thoughts, calls = parse(found)
        assert (thoughts.strip(), bool(calls)) == (
            said["thought"] * ("{thought}" in calling),
            is_call,
        )
        answer: dict[str, Any] = {"role": "assistant", "content": content}
        answer |= {"reasoning_content": thoughts} if thoughts else {}
        chat.append(answer)
        if is_call:
            ((begun, arguments),) = calls
            assert json.loads(arguments) == {"city": said["city"]}
            function = {"name": begun.name, "arguments": arguments}
            id_ = begun.id or f"abcdefgh{turn}"
            answer["tool_calls"] = [{"id": id_, "type": "function", "function": function}]
            chat.append({"role": "tool", "tool_call_id": id_, "content": "sunny"})
            written.append(text.strip())
        else:
            assert content.strip() == said["text"]
            chat.append({"role": "user", "content": "And then?"})
            asked = len(written)
