"""Tool calls come out of the text whole, text that is no call stays, however it is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.chat.tool_calls import (
    ArgumentsPart,
    CallFormat,
    CallStart,
    Event,
    Mark,
    ToolCall,
    ToolCallParser,
    detect_format,
    mark_names,
    parse,
    text_of,
)

SETTINGS = settings(derandomize=True, deadline=None, max_examples=150)
TEMPLATES = Path(__file__).parents[1] / "support" / "templates"

HERMES, MISTRAL = CallFormat.HERMES, CallFormat.MISTRAL
FUNCTION, LLAMA = CallFormat.FUNCTION, CallFormat.LLAMA
MISTRAL_ARGS = CallFormat.MISTRAL_ARGS

WEATHER = ToolCall("weather", '{"city": "K\u00f6ln"}')
TIME = ToolCall("time", "{}")


def events_of(pieces: Iterable[str | Mark], form: CallFormat) -> list[list[Event]]:
    """Return what is handed out after each piece, and at the end."""
    parser = ToolCallParser(form)
    return [*[parser.add(piece) for piece in pieces], parser.finish()]


def pieces_of(pieces: Iterable[str | Mark], form: CallFormat) -> list[list[str | ToolCall]]:
    """Return the content and the whole calls of it."""
    events = events_of(pieces, form)
    return [[each for each in some if isinstance(each, str | ToolCall)] for some in events]


def calls_as_written(events: Iterable[Event]) -> list[tuple[str, str]]:
    """Return the name and the arguments of every call that was reported to have started."""
    calls: list[tuple[str, str]] = []
    for each in events:
        if isinstance(each, CallStart):
            calls.append((each.name, ""))
        elif isinstance(each, ArgumentsPart):
            name, before = calls[-1]
            calls[-1] = (name, before + each.text)
    return calls


def joined(pieces: Iterable[Sequence[Event]]) -> list[Event]:
    """Return the pieces in order, adjacent texts as one."""
    flat = itertools.chain.from_iterable(pieces)
    groups = itertools.groupby(flat, key=lambda piece: isinstance(piece, str))
    return [
        piece
        for is_text, group in groups
        for piece in (["".join(map(str, group))] if is_text else group)
    ]


def split(text: str, cuts: Sequence[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[left:right] for left, right in itertools.pairwise(edges)]


# each form


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (
            HERMES,
            '<tool_call>\n{"name": "weather", "arguments": {"city": "K\u00f6ln"}}\n</tool_call>',
        ),
        (HERMES, '<tool_call>{"arguments":{"city":"K\\u00f6ln"},"name":"weather"}</tool_call>'),
        (HERMES, '\n<tool_call>\n{"name": "weather", "arguments": {"city": "K\u00f6ln"}}\n'),
        (HERMES, '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"K\u00f6ln\\"}"}'),
        (LLAMA, '{"name": "weather", "parameters": {"city": "K\u00f6ln"}}'),
        (LLAMA, '\n\n{"type": "function", "name": "weather", "parameters": {"city": "K\u00f6ln"}}'),
        (LLAMA, '<|python_tag|>{"name": "weather", "parameters": {"city": "K\u00f6ln"}}'),
        (LLAMA, '{ "name" : "weather", "arguments": {"city": "K\u00f6ln"}} '),
        (MISTRAL, '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "K\u00f6ln"}}]'),
        (
            MISTRAL,
            '[TOOL_CALLS][{"id": "a1", "name": "weather", "arguments": {"city": "K\u00f6ln"}}]',
        ),
        (MISTRAL, '[TOOL_CALLS]{"name": "weather", "arguments": {"city": "K\u00f6ln"}}'),
        (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "K\u00f6ln"}'),
        (MISTRAL, '[TOOL_CALLS]weather[CALL_ID]Ab3dEf9hI[ARGS]{"city": "K\u00f6ln"}'),
        (MISTRAL, '[TOOL_CALLS]weather{"city": "K\u00f6ln"}'),
        (FUNCTION, '<function=weather>{"city": "K\u00f6ln"}</function>'),
        (FUNCTION, '<function=weather>\n{"city": "K\u00f6ln"}\n</function>\n'),
    ],
)
def test_a_call_is_read(form: CallFormat, text: str) -> None:
    assert parse(text, form) == ("", [WEATHER])


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (
            HERMES,
            '<tool_call>\n{"name": "weather", "arguments": {"city": "K\u00f6ln"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
        ),
        (
            HERMES,  # without closing tags
            '<tool_call>{"name": "weather", "arguments": {"city": "K\u00f6ln"}}\n'
            '<tool_call>{"name": "time", "arguments": {}}',
        ),
        (
            LLAMA,
            '{"name": "weather", "parameters": {"city": "K\u00f6ln"}}; '
            '{"name": "time", "parameters": {}}',
        ),
        (
            MISTRAL,
            '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "K\u00f6ln"}}, '
            '{"name": "time", "arguments": {}}]',
        ),
        (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "K\u00f6ln"}[TOOL_CALLS]time[ARGS]{}'),
        (
            FUNCTION,
            '<function=weather>{"city": "K\u00f6ln"}</function><function=time>{}</function>',
        ),
    ],
)
def test_calls_that_follow_each_other_are_read(form: CallFormat, text: str) -> None:
    assert parse(text, form) == ("", [WEATHER, TIME])


def test_text_around_calls_is_content() -> None:
    text = 'I look.\n<tool_call>{"name": "time", "arguments": {}}</tool_call>\n Done.'
    assert parse(text, HERMES) == ("I look.\n\n Done.", [TIME])


def test_white_space_between_calls_is_no_content() -> None:
    call = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    assert parse(f"a {call}\n{call}\n", HERMES) == ("a ", [TIME, TIME])


def test_pieces_keep_their_order() -> None:
    text = 'a<tool_call>{"name": "time", "arguments": {}}</tool_call>b'
    assert joined(pieces_of([text], HERMES)) == ["a", TIME, "b"]


def test_marks_and_brackets_in_strings_are_part_of_them() -> None:
    text = r'<tool_call>{"name": "f", "arguments": {"a": "}</tool_call>\"{[\\"}}</tool_call>!'
    assert parse(text, HERMES) == ("!", [ToolCall("f", r'{"a": "}</tool_call>\"{[\\"}')])


def test_nested_arguments_are_kept() -> None:
    arguments = {"a": [{"b": [1, 2.5, None]}, True], "c": {"d": "e"}}
    text = f"[TOOL_CALLS]f[ARGS]{json.dumps(arguments)}"
    assert parse(text, MISTRAL) == ("", [ToolCall("f", json.dumps(arguments))])


# what is no call


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES, ""),
        (HERMES, " \n"),
        (HERMES, "no call"),
        (HERMES, "a < b, <tool>, <tool_call"),
        (HERMES, "< b"),
        (HERMES, "The tag is `<tool_call>`."),
        (HERMES, "<tool_call>"),
        (HERMES, "<tool_call>\n"),
        (HERMES, '<tool_call>{"name": "f", "arguments": {'),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call> and on'),
        (HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": "x"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "a\\n", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": 1, "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1' + "0" * 5000 + "}}</tool_call>"),
        (HERMES, '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 9999 + "1" + "}" * 10000),
        (HERMES, '<tool_call>{"x": {"name": "f", "arguments": {}}}</tool_call>'),
        (HERMES, "<tool_call>[]</tool_call>"),
        (HERMES, "<tool_call>[1]</tool_call>"),
        (HERMES, "<tool_call>{}</tool_call>"),
        (HERMES, "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>"),
        (HERMES, '{"name": "f", "arguments": {}}'),
        (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {}}, 1]'),
        (MISTRAL, "[TOOL_CALLS]f[ARGS]"),
        (MISTRAL, "[TOOL_CALLS]f[ARGS] none"),
        (MISTRAL, "[TOOL_CALLS]f[OTHER]{}"),
        (MISTRAL, "[TOOL_CALLS]f[ARGS]{1}"),
        (MISTRAL, "[TOOL_CALLS]" + "f" * 200 + "[ARGS]{}"),
        (MISTRAL, '[{"name": "f", "arguments": {}}]'),
        (FUNCTION, "<function=>{}</function>"),
        (FUNCTION, "<function=f{}</function>"),
        (FUNCTION, "<function=f>[]</function>"),
        (LLAMA, '{"name": "Ada", "age": 36}'),
        (LLAMA, '{"answer": {"name": "f", "parameters": {}}}'),
        (LLAMA, 'So: {"name": "f", "parameters": {}}'),
        (LLAMA, "<|python_tag|>print({})"),
        (LLAMA, '; {"name": "f", "parameters": {}}'),
        (LLAMA, "{ int x = 0; }"),
    ],
)
def test_text_that_is_no_call_stays(form: CallFormat, text: str) -> None:
    assert parse(text, form) == (text, [])


def test_a_call_after_a_malformed_one_is_read() -> None:
    good = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    for bad in ("<tool_call>{", "<tool_call>", "<tool_", '<tool_call>{"x": 1}', "<tool_call>{} "):
        assert parse(bad + good, HERMES) == (bad, [TIME])
    assert parse("[TOOL_CALLS][TOOL_CALLS]time[ARGS]{}", MISTRAL) == ("[TOOL_CALLS]", [TIME])
    assert parse("[TOOL_CALLS]f[A[TOOL_CALLS]time[ARGS]{}", MISTRAL) == ("[TOOL_CALLS]f[A", [TIME])


def test_what_was_cut_off_is_text_after_the_calls_before_it() -> None:
    text = '<tool_call>{"name": "time", "arguments": {}}</tool_call>\n<tool_call>{"name": "ti'
    assert parse(text, HERMES) == ('\n<tool_call>{"name": "ti', [TIME])
    text = '<tool_call>{"name": "time", "arguments": {}}\n</tool'
    assert parse(text, HERMES) == ("\n</tool", [TIME])


# streaming


def test_content_is_handed_out_at_once() -> None:
    assert pieces_of(["a", "b ", "c"], HERMES) == [["a"], ["b "], ["c"], []]


def test_a_start_of_a_mark_is_held_back() -> None:
    assert pieces_of(["a<tool", "_c", "up>"], HERMES) == [["a"], [], ["<tool_cup>"], []]


def test_a_call_comes_with_its_last_bracket() -> None:
    texts = ["<tool_call>", '{"name": "time", ', '"arguments": {}', "}", "</tool_", "call>"]
    assert pieces_of(texts, HERMES) == [[], [], [], [TIME], [], [], []]


@pytest.mark.fault(
    "hang",
    "A stream showed nothing of a call while the model wrote its arguments",
    before="The client got the call in one piece, after its last bracket.",
    now="It gets the name where the arguments begin, and they follow as they are written.",
)
@pytest.mark.parametrize(
    ("form", "before", "after"),
    [
        (HERMES, '<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"),
        (MISTRAL, '[TOOL_CALLS] [{"id": "a1", "name": "f", "arguments": ', "}]"),
        (MISTRAL_ARGS, "[TOOL_CALLS]f[ARGS]", ""),
        (FUNCTION, "<function=f>", "</function>"),
        (LLAMA, '{"type": "function", "name": "f", "parameters": ', "}"),
    ],
)
def test_arguments_are_reported_as_they_are_written(
    form: CallFormat, before: str, after: str
) -> None:
    first, second, *rest = events_of([before + "{", '"a": {"b', '": 1}}', after], form)
    assert (first, second) == ([CallStart("f"), ArgumentsPart("{")], [ArgumentsPart('"a": {"b')])
    assert ArgumentsPart('": 1}}') in rest[0]
    assert [each for some in rest for each in some if isinstance(each, ToolCall)] == [
        ToolCall("f", '{"a": {"b": 1}}')
    ]


def test_a_call_whose_name_comes_last_is_reported_once_it_is_whole() -> None:
    text = '<tool_call>{"arguments": {"a": 1}, "name": "f"}'
    call = ToolCall("f", '{"a": 1}')
    assert events_of([text], HERMES) == [
        [CallStart("f"), ArgumentsPart(call.arguments), call],
        [],
    ]


def test_a_call_that_started_and_is_none_is_content_too() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": oh'
    assert joined(events_of([text], HERMES)) == [CallStart("f"), ArgumentsPart('{"a": '), text]


def test_json_that_is_no_call_is_not_held_to_its_end() -> None:
    assert pieces_of(['{"ans', 'wer"', ": 42", "}"], LLAMA) == [
        [],
        ['{"answer"'],
        [": 42"],
        ["}"],
        [],
    ]


def test_white_space_waits_for_what_follows() -> None:
    assert pieces_of(["\n", "a", " ", "b"], HERMES) == [[], ["\na"], [" "], ["b"], []]


MARKS = {
    HERMES: "<tool_call>",
    MISTRAL: "[TOOL_CALLS]",
    MISTRAL_ARGS: "[TOOL_CALLS]",
    FUNCTION: "<function=",
    LLAMA: "<|python_tag|>",
}
FRAGMENTS = {
    HERMES: ["<tool_call>", "</tool_call>", "<tool", "</", '<tool_call>{"name": "h", '],
    MISTRAL: ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL", '[TOOL_CALLS]f[ARGS]{"a": "]}"}'],
    MISTRAL_ARGS: ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL_CALLS]f", "[TOOL", "f[ARGS]"],
    FUNCTION: ["<function=", "</function>", "<fun", "f>", '<function=f>{"a": "text"}'],
    LLAMA: ["<|python_tag|>", "<|", ";", "; ", '{"name": "f", "parameters": {}}'],
}
COMMON = [
    *(" ", "\n", "text", "f", "{", "}", "[", "]", '"', "\\", ",", "{}", '{"a": 1}'),
    *('"arguments": {}}', '{"name": "f", "arguments": {"a": "text"}}'),
]


def texts(form: CallFormat) -> st.SearchStrategy[tuple[CallFormat, str]]:
    fragments = st.sampled_from(FRAGMENTS[form] * 2 + COMMON)
    return st.tuples(st.just(form), st.lists(fragments, max_size=10).map("".join))


CASES = st.sampled_from(CallFormat).flatmap(texts)
CUTS = st.lists(st.integers(0, 400), max_size=20)


@SETTINGS
@given(CASES, CUTS)
def test_every_split_gives_what_the_whole_gives(
    case: tuple[CallFormat, str], cuts: list[int]
) -> None:
    form, text = case
    whole = joined(pieces_of([text], form))
    assert joined(pieces_of(split(text, cuts), form)) == whole
    assert joined(pieces_of(text, form)) == whole


@SETTINGS
@given(CASES, CUTS)
def test_no_text_is_empty_and_nothing_is_taken_back(
    case: tuple[CallFormat, str], cuts: list[int]
) -> None:
    form, text = case
    pieces = [piece for given in pieces_of(split(text, cuts), form) for piece in given]
    assert all(pieces)
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    assert parse(text, form) == (content, [p for p in pieces if isinstance(p, ToolCall)])


@SETTINGS
@given(CASES, CUTS)
def test_what_was_reported_of_a_call_is_the_call(
    case: tuple[CallFormat, str], cuts: list[int]
) -> None:
    form, text = case
    reported: list[Event] = []
    for event in itertools.chain.from_iterable(events_of(split(text, cuts), form)):
        if isinstance(event, str):
            reported = []  # what had started was none
        elif isinstance(event, ToolCall):
            (name, arguments), *_ = calls_as_written(reported)
            assert (name, json.loads(arguments)) == (event.name, json.loads(event.arguments))
            del reported[:2]
            reported = list(
                itertools.dropwhile(lambda each: isinstance(each, ArgumentsPart), reported)
            )
        else:
            reported.append(event)


@SETTINGS
@given(CASES)
def test_without_a_call_the_content_is_the_text(case: tuple[CallFormat, str]) -> None:
    form, text = case
    content, calls = parse(text, form)
    assert calls or content == text


@SETTINGS
@given(CASES)
def test_every_word_is_in_the_content_or_in_a_call(case: tuple[CallFormat, str]) -> None:
    form, text = case
    content, calls = parse(text, form)
    in_calls = sum(call.arguments.count("text") + call.name.count("text") for call in calls)
    assert content.count("text") + in_calls == text.count("text")


@SETTINGS
@given(CASES)
def test_a_start_of_the_mark_is_shown_only_when_it_is_known_to_be_none(
    case: tuple[CallFormat, str],
) -> None:
    form, text = case
    mark = MARKS[form]
    parser = ToolCallParser(form)
    shown = ""
    for count, character in enumerate(text, start=1):
        for piece in parser.add(character):
            if not isinstance(piece, str):
                return
            shown += piece
        held = next(n for n in range(len(mark) - 1, -1, -1) if text[:count].endswith(mark[:n]))
        assert len(shown) <= count - held


@SETTINGS
@given(st.lists(st.text(max_size=8) | st.dictionaries(st.text(), st.text()), max_size=6), CUTS)
def test_calls_that_are_written_are_read_again(
    parts: list[str | dict[str, str]], cuts: list[int]
) -> None:
    """Any content without an angle bracket, any arguments."""
    contents = [part.replace("<", "") for part in parts if isinstance(part, str)]
    arguments = [part for part in parts if isinstance(part, dict)]
    written = "".join(
        part.replace("<", "")
        if isinstance(part, str)
        else f'<tool_call>\n{{"name": "f", "arguments": {json.dumps(part)}}}\n</tool_call>'
        for part in parts
    )
    pieces = joined(pieces_of(split(written, cuts), HERMES))
    read = [json.loads(piece.arguments) for piece in pieces if isinstance(piece, ToolCall)]
    assert read == arguments
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    assert "".join(content.split()) == "".join("".join(contents).split())


# marks that are control tokens


@pytest.mark.parametrize(
    ("form", "pieces"),
    [
        (
            HERMES,
            [Mark("<tool_call>"), '\n{"name": "time", "arguments": {}}\n', Mark("</tool_call>")],
        ),
        (HERMES, [Mark("<tool_call>"), '{"name": "time", "arguments": {}}', "</tool_call>"]),
        (MISTRAL, [Mark("[TOOL_CALLS]"), ' [{"name": "time", "arguments": {}}]']),
        (MISTRAL_ARGS, [Mark("[TOOL_CALLS]"), "time", Mark("[ARGS]"), "{}"]),
        (
            MISTRAL_ARGS,
            [Mark("[TOOL_CALLS]"), "time", Mark("[CALL_ID]"), "Ab3", Mark("[ARGS]"), "{}"],
        ),
        (LLAMA, [Mark("<|python_tag|>"), '{"name": "time", "parameters": {}}']),
        (FUNCTION, [Mark("<function="), "time>{}</function>"]),
    ],
)
def test_a_call_between_marks_is_read(form: CallFormat, pieces: list[str | Mark]) -> None:
    assert parse(pieces, form) == ("", [TIME])
    assert parse([*pieces, *pieces], form) == ("", [TIME, TIME])
    assert parse(["Now", *pieces, "!"], form) == ("Now!", [TIME])


@pytest.mark.parametrize(
    ("form", "pieces", "content"),
    [
        (HERMES, ["a ", Mark("<tool_call>"), "b"], "a b"),
        (HERMES, ["a", Mark("</tool_call>"), "b"], "ab"),
        (HERMES, [Mark("<tool_call>"), '\n{"name": "ti'], '\n{"name": "ti'),
        (HERMES, [Mark("<tool_call>"), "{1}", Mark("</tool_call>")], "{1}"),
        (HERMES, ["<tool", Mark("<tool_call>"), "_call>"], "<tool_call>"),
        (HERMES, [Mark("<tool_call>"), '{"name"', Mark("</tool_call>"), ": 1}"], '{"name": 1}'),
        (MISTRAL_ARGS, [Mark("[TOOL_CALLS]"), "f", Mark("[ARGS]"), "none"], "fnone"),
        (MISTRAL_ARGS, ["a", Mark("[ARGS]"), "{}"], "a{}"),
        (LLAMA, [Mark("<|python_tag|>"), "print({})"], "print({})"),
    ],
)
def test_a_mark_is_no_content(form: CallFormat, pieces: list[str | Mark], content: str) -> None:
    assert parse(pieces, form) == (content, [])


def test_a_mark_in_a_string_is_part_of_it() -> None:
    """A grammar takes a control token in a string for its name."""
    pieces = [
        *(Mark("<tool_call>"), '{"name": "f", "arguments": {"a": "x', Mark("</tool_call>")),
        *(Mark("<tool_call>"), '"}}', Mark("</tool_call>")),
    ]
    assert parse(pieces, HERMES) == ("", [ToolCall("f", '{"a": "x</tool_call><tool_call>"}')])


def test_a_mark_after_a_malformed_call_opens_another() -> None:
    good = [Mark("<tool_call>"), '{"name": "time", "arguments": {}}', Mark("</tool_call>")]
    for bad in ("{", "", '{"x": 1', "{} "):
        assert parse([Mark("<tool_call>"), bad, *good], HERMES) == (bad, [TIME])


def marked(form: CallFormat) -> st.SearchStrategy[tuple[CallFormat, list[str | Mark]]]:
    names = {*mark_names(form)}
    texts = [
        each for each in (*FRAGMENTS[form], *COMMON) if not any(name in each for name in names)
    ]
    pieces = st.one_of(st.sampled_from([Mark(name) for name in names]), st.sampled_from(texts))
    return st.tuples(st.just(form), st.lists(pieces, max_size=12))


MARKED = st.sampled_from(CallFormat).flatmap(marked)


@SETTINGS
@given(MARKED)
def test_marks_never_show(case: tuple[CallFormat, list[str | Mark]]) -> None:
    form, pieces = case
    content, calls = parse(pieces, form)
    assert calls or content == text_of(pieces)
    in_calls = sum(call.arguments.count("text") + call.name.count("text") for call in calls)
    assert content.count("text") + in_calls == text_of(pieces).count("text")


@SETTINGS
@given(MARKED)
def test_however_text_between_marks_is_cut(case: tuple[CallFormat, list[str | Mark]]) -> None:
    form, pieces = case
    characters = [part for each in pieces for part in ([each] if isinstance(each, Mark) else each)]
    assert joined(pieces_of(characters, form)) == joined(pieces_of(pieces, form))


# from the template


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("qwen", HERMES),
        ("llama3", LLAMA),
        ("mistral", MISTRAL),
        ("gemma", None),
        ("zephyr", None),
        ("deepseek", None),
    ],
)
def test_the_template_says_how_calls_are_written(template: str, form: CallFormat | None) -> None:
    assert detect_format((TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")) is form


def test_a_template_with_xml_in_its_tags_is_of_no_known_form() -> None:
    assert detect_format("<tool_call>\n<function=f>\n<parameter=a>") is None
    assert detect_format("<tool_call>f\n<arg_key>a</arg_key>") is None
    assert detect_format("write <function=name>{...}</function>") is FUNCTION


def test_a_template_says_whether_mistral_writes_lists() -> None:
    assert detect_format("[TOOL_CALLS] [") is MISTRAL
    assert detect_format("[TOOL_CALLS]{{ name }}[ARGS]") is MISTRAL_ARGS
