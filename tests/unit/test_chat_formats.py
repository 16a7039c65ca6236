"""What is learned of chat templates, that of every template of llama.cpp first of all."""

from __future__ import annotations

import dataclasses
import json
import os
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.chat.events import parse
from orchestrator.chat.format import CallFormat, ChatFormat, Ids, Parameter, Style
from orchestrator.chat.parser import ChatParser
from orchestrator.chat.template import ChatTemplate
from tests.support.chat_formats import LLAMA_CPP, NAMES, source, template

GOLDEN = Path(__file__).parent / "golden" / "chat_formats.json"
"""By the template's name in llama.cpp; LLAMA_CPP_SOURCE=PATH REWRITE_FORMATS=1 writes it anew."""

ALL = sorted(path.stem for path in LLAMA_CPP.glob("*.jinja")) if LLAMA_CPP else []


def written(value: Any) -> Any:
    """Return a format without what says nothing."""
    if isinstance(value, Enum):
        return value.value
    if not dataclasses.is_dataclass(value):
        return list(value) if isinstance(value, tuple) else value
    usual = {CallFormat: CallFormat(Style.JSON), Parameter: Parameter(), ChatFormat: ChatFormat()}
    members = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    usual_of = usual[type(value)]  # type: ignore[index]
    kept = {k: v for k, v in members.items() if k == "style" or v != getattr(usual_of, k)}
    return {name: written(each) for name, each in kept.items()}


def learned(name: str) -> dict[str, Any]:
    digest = sha256(source(name).encode()).hexdigest()[:12]
    one = template(name)
    return {"template": digest, "takes_tools": one.takes_tools, **written(one.form)}


def golden() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return known


def test_rewrite() -> None:
    if not os.environ.get("REWRITE_FORMATS"):
        pytest.skip("REWRITE_FORMATS is not set")
    found = {name: learned(name) for name in sorted({*ALL, *NAMES})}
    text = json.dumps(found, indent=1, ensure_ascii=False)
    GOLDEN.write_text(text + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", sorted({*NAMES, *ALL}))
def test_what_is_learned_of_a_template_is_as_written_down(name: str) -> None:
    assert learned(name) == golden()[name]


def test_of_every_template_that_takes_tools_it_is_known_how_they_are_called() -> None:
    known = golden()
    assert len(known) > 70
    assert [
        name for name, each in known.items() if each["takes_tools"] and "calls" not in each
    ] == []


def test_of_a_template_whose_calls_are_not_shown_there_is_no_format() -> None:
    silent = "{{ tools }}{% for message in messages %}{{ message.content }}{% endfor %}"
    assert ChatTemplate(silent).takes_tools
    assert ChatTemplate(silent).form.calls is None


def test_braces_that_are_deeper_than_json_may_be_are_no_call() -> None:
    form = ChatTemplate(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% for c in m.tool_calls or [] %}"
        "{{ '{\"a\":' * 3000 }}{{ c.function.name }} {{ c.function.arguments|tojson }}"
        "{% endfor %}{% endfor %}{{ tools|tojson if tools }}"
    ).form
    assert form.calls and form.calls.style is Style.NAMED


def test_a_template_without_tools_is_read_for_its_turn_alone() -> None:
    form = ChatTemplate(None).form
    assert (form.turn, form.end, form.calls) == ("<|im_start|>assistant\n", "<|im_end|>", None)


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("mistralai-Mistral-Nemo-Instruct-2407", Ids.NINE),
        ("Mistral-Small-3.2-24B-Instruct-2506", Ids.NINE),
        ("moonshotai-Kimi-K2", Ids.NAMED),
        ("Qwen3.5-4B", Ids.ANY),
    ],
)
def test_it_is_learned_which_ids_a_template_takes(name: str, ids: Ids) -> None:
    assert template(name).form.ids is ids


@pytest.mark.parametrize(
    ("prompt", "rest"),
    [
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("<|im_start|>assistant\nA<|im_end|>\n<|im_start|>assistant\nThe answer", "The answer"),
        ("no turn", ""),
    ],
)
def test_what_the_prompt_holds_of_the_turn_is_behind_its_last_mark(prompt: str, rest: str) -> None:
    assert template("Qwen3.5-4B").form.written(prompt) == rest
    assert template("Qwen3.5-4B").form.written(prompt, "think") == rest


def test_of_a_turn_that_goes_on_behind_a_result_what_is_before_that_does_not_count() -> None:
    prompt = "<|turn>model\n<|tool_call>call:f{}<tool_call|><|tool_response>``` <tool_response|>"
    assert template("google-gemma-4-31B-it").form.written(prompt, "```") == " <tool_response|>"


INVENTED = """\
{%- for message in messages %}<|{{ message.role }}|>
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}
{{- message.content }}{% set calls = message.tool_calls or [] %}
{%- if calls %}{{ parts.begin }}{% for call in calls %}{% set f = call.function %}{{ parts.open }}
{%- if parts.style == 'json' %}{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}
{%- elif parts.style == 'named' %}{{ f.name }}{{ parts.after }}{{ f.arguments | tojson }}
{%- else %}{{ f.name }}{{ parts.after }}{% for name, value in f.arguments.items() %}<arg={{ name }}>
{{- value if value is string else value | tojson }}</arg>{% endfor %}{% endif %}{{ parts.close }}
{{- parts.between if not loop.last }}{% endfor %}{{ parts.end }}{% endif %}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}{{ '' if tools }}"""


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    style=st.sampled_from(["json", "named", "parameters"]),
    around=st.sampled_from(
        [
            ("", ""),
            ("<calls>", "</calls>"),
            ("<|calls|>\n", "\n<|end_calls|>"),
            ("[CALLS]", "[/CALLS]"),
        ]
    ),
    each=st.sampled_from(
        [
            ("<call>", "</call>"),
            ("<|call|>\n", "\n<|end_call|>"),
            ("[CALL]", ""),
            ("<tool><c>", "</c>"),
        ]
    ),
    after=st.sampled_from([">", "[ARGS]", "<|args|>", "<sep>\n"]),
    between=st.sampled_from(["", "\n", ", "]),
)
def test_what_is_learned_of_a_template_reads_what_it_writes(
    style: str, around: tuple[str, str], each: tuple[str, str], after: str, between: str
) -> None:
    parts = {"style": style, "begin": around[0], "end": around[1], "open": each[0]}
    parts |= {"close": each[1], "after": after, "between": between}
    one = ChatTemplate(f"{{%- set parts = {parts!r} %}}{INVENTED}")
    calls = [
        {"id": "abcdefghi", "type": "function", "function": {"name": name, "arguments": given}}
        for name, given in (("go", '{"where": "on", "far": 2}'), ("stay", '{"where": ""}'))
    ]
    said = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": calls}
    chat = [{"role": "user", "content": "Go."}, said]
    text = one.form.written(one.render(chat, strftime_now=str, add_generation_prompt=False))
    schema = {"properties": {"where": {"type": "string"}, "far": {"type": "integer"}}}
    parser = ChatParser(one.form, {"go": schema, "stay": schema})
    content, thoughts, found = parse([*parser.add(text.removesuffix("<|end|>")), *parser.finish()])
    assert (content, thoughts) == ("", "Hm."), one.form
    told = [(begun.name, json.loads(arguments)) for begun, arguments in found]
    assert told == [("go", {"where": "on", "far": 2}), ("stay", {"where": ""})], one.form
