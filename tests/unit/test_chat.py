"""Messages become the prompt that a model's template makes of them; what is wrong is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Template
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from orchestrator.chat.template import CHATML, ChatTemplate
from outrider.errors import InvalidRequest
from tests.support import chat_formats

TEMPLATES = Path(__file__).parents[1] / "support" / "templates"

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": " Hi "}
ASSISTANT = {"role": "assistant", "content": "Yes?"}
BYE = {"role": "user", "content": "Bye"}
CHAT = [SYSTEM, USER, ASSISTANT, BYE]

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells <b>weather</b>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TOOL_JSON = (
    '{"type": "function", "function": {"name": "weather", "description": "Tells <b>weather</b>", '
    '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}'
)
TOOL_INDENTED = """\
{
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells <b>weather</b>",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {
                    "type": "string"
                }
            }
        }
    }
}"""


def called(arguments: object) -> dict[str, Any]:
    """Return an assistant message with one call."""
    call = {"id": "abcdefghi", "type": "function"}
    function = {"name": "weather", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{**call, "function": function}]}


CALLED = [
    BYE,
    called('{"city": "K\u00f6ln"}'),
    {"role": "tool", "content": "rain", "tool_call_id": "abcdefghi"},
]


def source(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def template(name: str) -> ChatTemplate:
    return ChatTemplate(source(name), bos_token="<s>", eos_token="</s>")


def date(form: str) -> str:
    """Say the same date always, in the one form that is asked for."""
    assert form == "%d %b %Y"
    return "01 Feb 2025"


def render(chat_template: ChatTemplate | str, messages: object, **options: Any) -> str:
    known = template(chat_template) if isinstance(chat_template, str) else chat_template
    return known.render(messages, strftime_now=date, **options)


def refused(call: Callable[[], object]) -> tuple[str, str]:
    """Return the field and the message of the refusal, which has one line."""
    with pytest.raises(InvalidRequest) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1
    return caught.value.field, str(caught.value)


# templates in use


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        (
            "qwen",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
            "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            "llama3",
            "<s><|start_header_id|>system<|end_header_id|>\n\n"
            "Today Date: 01 Feb 2025\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("mistral", "<s>[INST]  Hi [/INST] Yes?</s>[INST] Be brief.\n\nBye[/INST]"),
        (
            "gemma",  # which knows no system message
            "<s><start_of_turn>user\nBe brief.\n Hi<end_of_turn>\n"
            "<start_of_turn>model\nYes?<end_of_turn>\n"
            "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
        ),
        (
            "phi3",
            "<|system|>\nBe brief.<|end|>\n<|user|>\n Hi <|end|>\n"
            "<|assistant|>\nYes?<|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n",
        ),
        (
            "zephyr",
            "<|system|>\nBe brief.</s>\n<|user|>\n Hi </s>\n"
            "<|assistant|>\nYes?</s>\n<|user|>\nBye</s>\n<|assistant|>\n",
        ),
        (
            "deepseek",
            "<s>Be brief.<\uff5cUser\uff5c> Hi <\uff5cAssistant\uff5c>Yes?"
            "<\uff5cend\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>Bye<\uff5cAssistant\uff5c>"
            "<think>\n",
        ),
        (
            "thinking",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
            "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
    ],
)
def test_a_chat_becomes_the_prompt_of_the_model(name: str, prompt: str) -> None:
    assert render(name, CHAT) == prompt


def test_qwen_is_shown_tools_calls_and_results() -> None:
    assert render("qwen", CALLED, tools=[TOOL]) == (
        "<|im_start|>system\nYou help.\n\n# Tools\n\nSignatures are within <tools></tools>:\n"
        f"<tools>\n{TOOL_JSON}\n</tools>\n\nReturn a call as JSON within tags:\n"
        '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "weather", "arguments": {"city": "K\u00f6ln"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_llama_is_shown_tools_calls_and_results() -> None:
    assert render("llama3", CALLED, tools=[TOOL]) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\n"
        "Environment: ipython\nToday Date: 01 Feb 2025\n\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n"
        'Answer with {"name": function name, "parameters": dictionary of arguments}.\n\n'
        f"{TOOL_INDENTED}\n\nBye<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "weather", "parameters": {"city": "K\u00f6ln"}}<|eot_id|>'
        "<|start_header_id|>ipython<|end_header_id|>\n\nrain<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_mistral_is_shown_tools_calls_and_results() -> None:
    assert render("mistral", CALLED, tools=[TOOL]) == (
        f"<s>[AVAILABLE_TOOLS] [{TOOL_JSON}][/AVAILABLE_TOOLS][INST] Bye[/INST][TOOL_CALLS] "
        '[{"name": "weather", "arguments": {"city": "K\u00f6ln"}, "id": "abcdefghi"}]</s>'
        '[TOOL_RESULTS] {"content": rain, "call_id": "abcdefghi"}[/TOOL_RESULTS]'
    )


def test_a_template_that_adds_arguments_to_text_is_given_text() -> None:
    prompt = render("deepseek", CALLED)
    assert 'weather\n```json\n{"city": "K\u00f6ln"}\n```' in prompt
    assert render("deepseek", [BYE, called({"city": "K\u00f6ln"}), CALLED[2]]) == prompt


@pytest.mark.parametrize("name", sorted(path.stem for path in TEMPLATES.glob("*.jinja")))
@pytest.mark.parametrize("messages", [[USER], CHAT[1:], CALLED], ids=["one", "turns", "call"])
def test_the_prompt_is_what_an_unbounded_sandbox_gives(name: str, messages: list[Any]) -> None:
    """The settings of transformers, and messages in the form that they reach the template."""
    chat = template(name)
    tools = [TOOL] if chat.takes_tools else None
    given = json.loads(json.dumps(messages).replace("null", '""'))
    if name != "deepseek":
        for call in (call for message in given for call in message.get("tool_calls", [])):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    try:
        expected = plain(source(name)).render(
            messages=given,
            tools=tools,
            bos_token="<s>",
            eos_token="</s>",
            add_generation_prompt=True,
            strftime_now=date,
        )
    except ZeroDivisionError:
        assert refused(lambda: render(chat, messages, tools=tools))[0] == "messages"
    else:
        assert render(chat, messages, tools=tools) == expected


def plain(text: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    environment.globals["raise_exception"] = lambda message: 1 / 0
    untagged = text.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    return environment.from_string(untagged)


# without a template


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_model_without_a_template_gets_chatml(nothing: str | None) -> None:
    fallback = ChatTemplate(nothing, bos_token="<s>")
    assert fallback.source == CHATML
    assert render(fallback, [SYSTEM, USER, ASSISTANT, BYE]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
        "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_model_with_a_template_gets_no_fallback() -> None:
    assert template("zephyr").source == source("zephyr")


# variables


def test_without_a_generation_prompt_nothing_follows_the_messages() -> None:
    prompt = render("qwen", [SYSTEM, USER, ASSISTANT], add_generation_prompt=False)
    assert prompt.endswith("<|im_start|>assistant\nYes?<|im_end|>\n")


def test_further_variables_reach_the_template() -> None:
    off = {"enable_thinking": False}
    prompt = render("thinking", [USER], chat_template_kwargs=off)
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n")
    prompt = render("llama3", [USER], chat_template_kwargs={"date_string": "Monday"})
    assert "Today Date: Monday" in prompt


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "raise_exception"])
def test_the_variables_of_the_chat_itself_cannot_be_set(name: str) -> None:
    assert refused(lambda: render("qwen", [USER], chat_template_kwargs={name: "x"})) == (
        "chat_template_kwargs",
        f"chat_template_kwargs: must not hold {name}",
    )


def test_a_variable_may_have_any_other_name() -> None:
    for name in ("self", "variables", "context"):
        assert render(ChatTemplate("{{ 1 }}"), [USER], chat_template_kwargs={name: 2}) == "1"


def test_the_time_is_what_is_given() -> None:
    chat = ChatTemplate("{{ strftime_now('%Y') }}")
    assert chat.render([USER], strftime_now=lambda form: form + "!") == "%Y!"


def test_the_template_sees_nothing_of_the_clock_but_its_text() -> None:
    class Clock:
        zone = "UTC"

        def __call__(self, form: str) -> str:
            return "noon"

    chat = ChatTemplate("{{ strftime_now.zone }}{{ strftime_now('') }}")
    assert chat.render([USER], strftime_now=Clock()) == "noon"


def test_without_tools_they_are_none_and_not_undefined() -> None:
    chat = ChatTemplate("{{ tools is defined }} {{ tools }} {{ documents }}")
    assert render(chat, [USER]) == "True None None"


# forms of messages


def test_the_text_parts_of_a_message_are_lines() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "user\none\ntwo<" in render("qwen", [{"role": "user", "content": parts}])


def test_a_developer_is_the_system() -> None:
    developer = {"role": "developer", "content": "Be brief."}
    assert render("qwen", [developer, USER]) == render("qwen", [SYSTEM, USER])


def test_what_is_null_is_undefined() -> None:
    chat = ChatTemplate("{% for m in messages %}{{ m.keys() | sort | join(' ') }};{% endfor %}")
    nulls = {"name": None, "tool_calls": None, "refusal": None}
    assert render(chat, [{**USER, **nulls}, {**ASSISTANT, "tool_calls": []}, BYE]) == (
        "content role;content role;content role;"
    )


def test_names_and_ids_reach_the_template() -> None:
    chat = ChatTemplate("{% for m in messages %}{{ m.name }}/{{ m.tool_call_id }};{% endfor %}")
    tool = {"role": "tool", "content": "x", "tool_call_id": "1"}
    assert render(chat, [{**USER, "name": "Ada"}, tool]) == "Ada/;/1;"


def test_a_call_without_text_has_empty_text() -> None:
    chat = ChatTemplate("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}")
    assert render(chat, CALLED) == "[Bye][][rain]"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ('{"city": "K\u00f6ln"}', '{"city": "K\u00f6ln"}'),
        ({"city": "K\u00f6ln"}, '{"city": "K\u00f6ln"}'),
        ("", "{}"),
        (None, "{}"),
    ],
)
def test_arguments_are_an_object_for_the_template(given: object, shown: str) -> None:
    assert f'"arguments": {shown}}}' in render("qwen", [BYE, called(given), CALLED[2]])


def test_arguments_are_an_object_where_they_do_not_show() -> None:
    chat = ChatTemplate("{{ messages[1].tool_calls[0].function.arguments is mapping }}")
    assert render(chat, CALLED) == "True"


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        (None, "messages"),
        ([], "messages"),
        ("Hi", "messages"),
        (["Hi"], "messages[0]"),
        ([USER, {"content": "x"}], "messages[1].role"),
        ([{"role": "king", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([{"role": "assistant", "content": None}, USER], "messages[0].content"),
        ([{**USER, "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{**USER, "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{**USER, "content": ["x"]}], "messages[0].content[0]"),
        ([{**USER, "name": 1}], "messages[0].name"),
        ([{**USER, "tool_call_id": 1}], "messages[0].tool_call_id"),
        ([{**ASSISTANT, "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{**ASSISTANT, "tool_calls": ["x"]}], "messages[0].tool_calls[0]"),
        ([{**ASSISTANT, "tool_calls": [{"type": "x"}]}], "messages[0].tool_calls[0].type"),
        ([{**ASSISTANT, "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        ([called("[]")], "messages[0].tool_calls[0].function.arguments"),
        ([called([])], "messages[0].tool_calls[0].function.arguments"),
        ([called("x")], "messages[0].tool_calls[0].function.arguments"),
        ([{**USER, "content": "\ud800"}], "messages"),
    ],
)
def test_a_message_that_is_none_is_refused(messages: object, field: str) -> None:
    assert refused(lambda: render("qwen", messages))[0] == field


def test_the_refusal_names_the_kind_of_part() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "x"}}]
    assert refused(lambda: render("qwen", [{"role": "user", "content": parts}]))[1] == (
        "messages[0].content[0].type: must be 'text', not 'image_url'"
    )


# templates that lack something


def test_a_system_message_goes_before_the_user_where_it_has_no_place() -> None:
    assert not template("gemma").takes_system
    assert "user\nBe brief.\n Hi<end" in render("gemma", [SYSTEM, USER])
    assert "user\nBe brief.<end" in render("gemma", [SYSTEM])
    assert "user\nBe brief.<end_of_turn>\n<start_of_turn>model\nYes?<" in (
        render("gemma", [SYSTEM, ASSISTANT, BYE])
    )
    assert template("zephyr").takes_system


def test_a_later_system_message_joins_the_users_where_the_template_takes_none() -> None:
    assert not template("gemma").takes_late_system
    said = {"role": "system", "content": "Mind."}
    for chat in ([USER, ASSISTANT, said, BYE], [USER, ASSISTANT, BYE, said]):
        assert render("gemma", chat).count("Mind.") == 1
    assert "user\nMind.\n\nBye<" in render("gemma", [USER, ASSISTANT, said, BYE])
    assert "user\nBye\n\nMind.<" in render("gemma", [USER, ASSISTANT, BYE, said])
    assert "user\nMind.<" in render("gemma", [USER, ASSISTANT, said])


def test_users_messages_in_a_row_are_one_where_roles_must_alternate() -> None:
    assert not template("gemma").takes_users_in_a_row
    first = {"role": "user", "content": "Hi"}
    assert "user\nHi\n\nBye<" in render("gemma", [first, BYE])
    assert "user\nBe brief.\nHi\n\nHi\n\nBye<" in render("gemma", [SYSTEM, first, first, BYE])
    assert template("zephyr").takes_users_in_a_row
    assert "<|user|>\nHi</s>\n<|user|>\nBye" in render("zephyr", [first, BYE])


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("before", "role"), [([], "user"), ([SYSTEM], "system"), ([USER, ASSISTANT], "system")]
)
def test_very_many_messages_in_a_row_are_joined_once(before: list[Any], role: str) -> None:
    # Each joined to all before it would be a terabyte of copies.
    many = [{"role": role, "content": "x" * 50}] * 200_000
    last = [*before, *many, {"role": "user", "content": "Bye"}]
    assert render("gemma", last).count("x" * 50) == len(many)


def test_system_messages_in_a_row_are_one_where_the_template_takes_one() -> None:
    chat = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('first') }}{% endif %}{{ m.role }}: {{ m.content }};{% endfor %}"
    )
    assert render(chat, [SYSTEM, {**SYSTEM, "content": "Mind."}, USER]).count("system") == 1


def test_a_later_system_message_stays_where_the_template_takes_it() -> None:
    assert template("zephyr").takes_late_system
    shown = render("zephyr", [USER, ASSISTANT, {"role": "system", "content": "Mind."}, BYE])
    assert "<|system|>\nMind.</s>\n<|user|>\nBye" in shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ('{"city": "K', '{"city": "K"}'),
        ('{"city": ', "{}"),
        ("{", "{}"),
        ('{"a": [1, ', '{"a": [1]}'),
    ],
)
@pytest.mark.fault(
    "text",
    "a call that the token limit cut and the client sends back",
    before="The chat was refused: the arguments are no JSON.",
    now="The template gets them as far as they were written.",
)
def test_a_call_that_was_cut_comes_back(given: str, shown: str) -> None:
    assert f'"arguments": {shown}}}' in render("qwen", [BYE, called(given), CALLED[2]])


@pytest.mark.parametrize("member", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_of_the_history_are_shown_whatever_they_are_called(member: str) -> None:
    chat = [USER, {"role": "assistant", "content": "Yes?", member: "Hm."}]
    for name, thought in (
        ("Qwen3.5-4B", "<think>\nHm.\n</think>"),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "[THINK]Hm.[/THINK]"),
    ):
        one = chat_formats.template(name)
        assert thought in render(one, chat, add_generation_prompt=False)


def test_thoughts_and_text_before_a_call_are_one_thought_where_the_template_takes_one() -> None:
    one = chat_formats.template("openai-gpt-oss-120b")
    said = {**called('{"city": "Rome"}'), "content": "I look.", "reasoning_content": "Hm."}
    shown = one.render([USER, said, CALLED[2]], strftime_now=str)
    assert "analysis<|message|>Hm.\nI look.<|end|>" in shown


def test_content_is_in_parts_where_the_template_takes_them_alone() -> None:
    one = chat_formats.template("SmolVLM-Instruct")
    assert not one.takes_texts
    assert "User: Hi" in render(one, [{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("Qwen3.5-4B", "<think>\n\n</think>\n\nIt is 4"),
        ("openai-gpt-oss-120b", "<|start|>assistant<|channel|>final<|message|>It is 4"),
        ("meetkai-functionary-medium-v3.2", ">>>all\nIt is 4"),
        ("GLM-4.7-Flash", "<|assistant|></think>It is 4"),
    ],
)
def test_a_text_is_continued_within_the_turn_that_the_template_writes(name: str, end: str) -> None:
    chat = [USER, {"role": "assistant", "content": "It is 4"}]
    assert chat_formats.template(name).render(chat, strftime_now=str).endswith(end)


def test_a_thought_without_a_text_is_continued() -> None:
    chat = [USER, {"role": "assistant", "content": "", "reasoning_content": "Hm, 2"}]
    one = chat_formats.template("Qwen3.5-4B")
    assert one.render(chat, strftime_now=str).endswith("<think>\nHm, 2")


def test_ids_are_such_as_the_template_takes() -> None:
    one = chat_formats.template("mistralai-Mistral-Nemo-Instruct-2407")
    call = {**called('{"a": 1}')["tool_calls"][0], "id": "call_of-another-model"}
    result = {"role": "tool", "content": "ok", "tool_call_id": call["id"]}
    shown = one.render(
        [USER, {"role": "assistant", "tool_calls": [call]}, result], strftime_now=str
    )
    ids = re.findall(r'id": "(\w+)"', shown)
    assert len(ids) == 2 and len(set(ids)) == 1 and len(ids[0]) == 9


def test_a_template_that_goes_through_its_tools_gets_a_list() -> None:
    chat = ChatTemplate("{% for tool in tools %}{% endfor %}{{ messages[0].content }}")
    assert render(chat, [USER]) == " Hi "


def test_tools_are_refused_where_the_template_does_not_show_them() -> None:
    assert [template(name).takes_tools for name in ("qwen", "llama3", "mistral")] == [True] * 3
    assert not template("zephyr").takes_tools
    assert refused(lambda: render("zephyr", [USER], tools=[TOOL]))[0] == "tools"
    assert render("zephyr", [USER], tools=[]) == render("zephyr", [USER])


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ("x", "tools"),
        (["x"], "tools[0]"),
        ([TOOL, {"type": "retrieval"}], "tools[1].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
    ],
)
def test_a_tool_that_is_none_is_refused(tools: object, field: str) -> None:
    assert refused(lambda: render("qwen", [USER], tools=tools))[0] == field


def test_what_the_template_refuses_is_told() -> None:
    two = called("{}")
    two["tool_calls"] = [*two["tool_calls"], *two["tool_calls"]]
    assert refused(lambda: render("llama3", [USER, two, CALLED[2]])) == (
        "messages",
        "messages: One tool call at a time",
    )


# continuing a message


@pytest.mark.parametrize("text", ["Yes, ", "", " \n", "<think>\n"])
def test_a_last_assistant_message_is_continued(text: str) -> None:
    begun = {"role": "assistant", "content": text}
    assert render("gemma", [USER, begun]) == render("gemma", [USER]) + text
    assert render("qwen", [SYSTEM, USER, begun]) == render("qwen", [SYSTEM, USER]) + text


def test_what_cannot_be_continued_is_refused() -> None:
    assert refused(lambda: render("qwen", [BYE, called("{}")]))[0] == "messages"
    assert refused(lambda: render("qwen", [BYE, ASSISTANT, ASSISTANT]))[0] == "messages"


# templates that are broken


def test_a_template_that_does_not_compile_is_refused_when_it_is_loaded() -> None:
    assert refused(lambda: ChatTemplate("{{ messages")) == (
        "chat_template",
        "chat_template: does not compile, line 1: unexpected end of template, "
        "expected 'end of print statement'.",
    )


def test_a_template_that_fails_is_refused_when_it_is_used() -> None:
    chat = ChatTemplate("{{ messages[0].content + 1 }}")
    assert refused(lambda: render(chat, [USER]))[0] == "chat_template"


def test_a_template_says_whether_it_keeps_thoughts() -> None:
    shown = "{% for m in messages %}{{ m.content }}{{ m.reasoning_content }}{% endfor %}"
    thought = "{{ m.reasoning_content }}"
    asked = shown.replace(thought, f"{{% if not clear_thinking %}}{thought}{{% endif %}}")
    assert ChatTemplate(shown).keeps_thoughts
    assert ChatTemplate(asked).keeps_thoughts
    assert not template("qwen").keeps_thoughts


def test_a_template_says_whether_it_takes_an_effort() -> None:
    assert ChatTemplate("{{ messages[0].content }}{{ reasoning_effort }}").takes_effort
    assert ChatTemplate("{% if reasoning_strength == 'high' %}hard{% endif %}").takes_effort
    assert not template("thinking").takes_effort
