"""A hostile template reaches nothing, and its work has an end."""

from __future__ import annotations

import threading

import pytest

from orchestrator.chat import sandbox
from orchestrator.chat.sandbox import MAX_SOURCE, MAX_WORK, STEP, Template
from outrider.errors import InvalidRequest

LOOP = "{% for i in range(100000) %}"
END = "{% endfor %}"


def render(source: str, **variables: object) -> str:
    return Template(source).render(variables)


def refusal(source: str, **variables: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        render(source, **variables)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# the ways out


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ self.__init__.__globals__.os }}",
        "{{ self._TemplateReference__context.environment.filters }}",
        "{{ messages.append.__self__ }}",
        "{{ given.__globals__.os }}",
        "{{ (messages|map(attribute='__class__')|list)[0].__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'x' %}",
    ],
)
def test_there_is_no_way_out(source: str) -> None:
    def given() -> str:
        return "x"

    assert refusal(source, messages=[{}], given=given).startswith("chat_template: fails: ")


@pytest.mark.parametrize("source", ["{{ ''['__class__'] }}", "{{ ''|attr('__class__') }}"])
def test_a_private_attribute_is_nothing(source: str) -> None:
    assert render(source) == ""


@pytest.mark.parametrize("source", ["messages.append(1)", "messages[0].update({'a': 1})"])
def test_the_messages_cannot_be_changed(source: str) -> None:
    messages: list[object] = [{}]
    assert "is unsafe" in refusal("{{ " + source + " }}", messages=messages)
    assert messages == [{}]


@pytest.mark.parametrize("source", ["{{ [1, 2]|random }}", "{{ lipsum() }}"])
def test_nothing_is_random(source: str) -> None:
    assert refusal(source).startswith("chat_template: ")


# bounds


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the bound come sooner; it is the same one."""
    monkeypatch.setattr(sandbox, "MAX_WORK", 2**20)


@pytest.mark.usefixtures("little_work")
@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "source",
    [
        LOOP * 3 + END * 3,
        "{% set r = range(99999) %}{% for i in r %}{% for j in r %}" + END * 2,
        "{% set r = range(99999) %}{% for i in r %}{% for j in r if false %}" + END * 2,
        "{% for i in [1] recursive %}{{ loop(range(99999)) if loop.depth < 3 }}" + END,
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(99) }}",
        LOOP + "x" * 1000 + END,
        LOOP + "{{ 'x' * 1000 }}" + END,
        "{% set x %}" + LOOP + "x" * 1000 + END + "{% endset %}",
        "{% set x = 'x' * 20000 %}{{ x|replace('x', x)|length }}",
        "{{ 'x' * 1000000000000 }}",
        "{{ 1000000000000 * [1] }}",
        "{{ 'x'|center(1000000000000) }}",
        "{{ 'x'.ljust(1000000000000) }}",
        "{{ ('x'|attr('zfill'))(1000000000000) }}",
        "{{ ['x']|map('center', 1000000000000)|list }}",
        "{{ [1]|batch(1000000000000, 2)|list }}",
        "{{ 'a\\nb'|indent(1000000000000) }}",
        "{{ [1]|tojson(indent=1000000000000) }}",
        "{{ 1.5|round(1000000000000, 'floor') }}",
        "{{ [1]|tojson(indent=-1000000000000) }}",
        "{{ 'a'|indent(-1000000000000) }}",
        "{{ 'a' * -1000000000000 }}",
    ],
)
def test_work_without_end_is_refused(source: str) -> None:
    assert refusal(source) == "chat_template: takes too much work for one prompt"


@pytest.mark.fault(
    "hang",
    "A chat template that copies a list, or makes bytes or tabs of a text, again and again",
    before="That was not counted: it took as much memory as there is.",
    now="Lists are counted wherever they are made, and such methods of texts are refused.",
)
@pytest.mark.usefixtures("little_work")
@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "copied",
    [
        "[" + "0, " * 999 + "]",
        "(" + "0, " * 999 + ")",
        "{" + ", ".join(f"{i}: 0" for i in range(999)) + "}",
        "many[1:]",
        "('x' * 1000)[1:]",
        "pairs.copy()",
        "dict(pairs)",
        "text.partition(',')",
        "text.split(',')",
        "text.rsplit(',', 1)",
        "text.splitlines()",
    ],
)
def test_every_copy_of_a_list_is_counted(copied: str) -> None:
    source = "{% set kept = [] %}{% for i in range(2000) %}{{ kept.append(" + copied + ") }}" + END
    given = {"many": [0] * 1000, "pairs": {str(i): 0 for i in range(1000)}}
    given["text"] = 4000 * "x" + ",\nx"
    assert refusal(source, **given) == "chat_template: takes too much work for one prompt"


def test_what_a_macro_is_given_is_counted_one_by_one() -> None:
    source = (
        "{% macro m() %}{{ varargs|length }}{% endmacro %}{% set r = range(50000)|list %}"
        "{% for i in range(1000) %}{{ m(*r) }}{% endfor %}"
    )
    assert refusal(source) == "chat_template: takes too much work for one prompt"


def test_a_number_is_no_width_to_a_macro_until_something_is_padded_to_it() -> None:
    largest = 2**53 - 1  # of JavaScript, which agents have as a `maximum` of their schemas
    shown = "{% macro show(n) %}up to {{ n }}{% endmacro %}{{ show(n) }}"
    assert render(shown, n=largest) == f"up to {largest}"
    padded = "{% macro pad(n) %}{{ 'x'.ljust(n) }}{% endmacro %}{{ pad(n) }}"
    assert refusal(padded, n=largest) == "chat_template: takes too much work for one prompt"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% set ns = namespace(x=n) %}{{ ns.x }}", "n"),
        ("{{ nothing|default(n) }}{{ nothing|d(n) }}", "nn"),
        ("{{ {}.get('maximum', n) }}{{ dict(a=n).a }}", "nn"),
        ("{% set x = [] %}{% set _ = x.append(n) %}{{ x[0] }}", "n"),
        ("{% for i in [n] %}{{ loop.changed(i) }}{{ loop.cycle(n, 1) }}" + END, "Truen"),
        ("{{ [{'a': n}]|selectattr('a', 'equalto', n)|map(attribute='a')|first }}", "n"),
        ("{{ [1]|sum(start=n - 1) }}{{ 'x'|int(n) }}{{ [1]|reject('gt', n)|list }}", "nn[1]"),
    ],
)
def test_a_number_that_is_kept_or_compared_costs_no_more_than_a_small_one(
    source: str, text: str
) -> None:
    largest = 2**53 - 1
    assert render(source, n=largest) == text.replace("n", str(largest))


@pytest.mark.usefixtures("little_work")
@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "doubled",
    [
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x * 2 %}",
        "{% set ns.x = [ns.x, ns.x]|join %}",
        "{% set ns.x = ''.join([ns.x, ns.x]) %}",
        "{% set ns.x = ns.x.replace('x', 'xx') %}",
        "{% set ns.x = ns.x|replace('x', ns.x) %}",
        "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
        "{% set ns.y = [ns.y, ns.y] %}{{ ns.y|tojson|length if i > 90 }}",
        "{% set ns.y = [ns.y, ns.y] %}{{ ns.y if i > 90 }}",
        "{% set ns.y = {'a': ns.y, 'b': ns.y} %}{{ ns.y if i > 90 }}",
        "{% set ns.n = ns.n * ns.n %}",
    ],
)
def test_what_doubles_is_refused(doubled: str) -> None:
    source = "{% set ns = namespace(x='xx', y=[1], n=3) %}{% for i in range(100) %}"
    assert refusal(source + doubled + END) == "chat_template: takes too much work for one prompt"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 9**9 }}", "uses **"),
        ("{{ '%9d' % 1 }}", "uses %"),
        ("{{ '%9d'|format(1) }}", "No filter named 'format'"),
        ("{{ '{:9}'.format(1) }}", "it formats with more than {}"),
        ("{{ ('{:9}'|attr('format'))(1) }}", "it formats with more than {}"),
        ("{{ '{a:9}'.format_map({'a': 1}) }}", "'format_map' of 'str' object is unsafe"),
        ("{{ 'a'.encode() * 9 }}", "'encode' of 'str' object is unsafe"),
        ("{{ ('a'|attr('encode'))() }}", "unsafe"),
        ("{{ '\t'.expandtabs(9) }}", "'expandtabs' of 'str' object is unsafe"),
        ("{{ 'a'.translate({97: 'b'}) }}", "'translate' of 'str' object is unsafe"),
        ("{{ (1).to_bytes(9, 'big') }}", "'to_bytes' of 'int' object is unsafe"),
        ("{{ (1.5).hex() }}", "'hex' of 'float' object is unsafe"),
    ],
)
def test_what_cannot_be_counted_is_refused(source: str, reason: str) -> None:
    assert reason in refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
        "{% set ns = namespace(x=1) %}" + LOOP + "{% set ns.x = [ns.x] %}" + END + "{{ ns.x }}",
    ],
)
def test_nesting_without_end_is_refused(source: str) -> None:
    assert "recursion" in refusal(source)


def test_a_long_template_is_refused() -> None:
    assert refusal("x" * (MAX_SOURCE + 1)) == "chat_template: too long (262145, max 262144)"
    assert render("x" * MAX_SOURCE) == "x" * MAX_SOURCE


def test_the_work_is_counted_to_the_last_character() -> None:
    source = "{% for i in 'x' %}{{ text }}{% endfor %}"
    left = MAX_WORK - STEP
    assert len(render(source, text="x" * left)) == left
    assert "too much work" in refusal(source, text="x" * (left + 1))


def test_each_rendering_has_work_of_its_own() -> None:
    template = Template("{{ text }}")
    text = "x" * (MAX_WORK * 2 // 3)
    assert all(template.render({"text": text}) == text for _ in range(3))


def test_a_template_renders_in_many_threads() -> None:
    template = Template("{% for i in range(n) %}{{ i }},{% endfor %}")
    made: dict[int, str] = {}

    def make(n: int) -> None:
        made[n] = template.render({"n": n})

    threads = [threading.Thread(target=make, args=(n,)) for n in range(500, 504)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == {n: "".join(f"{i}," for i in range(n)) for n in range(500, 504)}


# what templates use


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ {'a': '\u00e9<&>', 'c': [1, none]}|tojson }}", '{"a": "\u00e9<&>", "c": [1, null]}'),
        ("{{ {'b': 1, 'a': 2}|tojson(indent=2) }}", '{\n  "b": 1,\n  "a": 2\n}'),
        ("{{ [1, 2]|tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ {'b': '\u00e9', 'a': 2}|tojson(true, sort_keys=true) }}", '{"a": 2, "b": "\\u00e9"}'),
        ("a{% generation %}{{ x }}{% set x = 2 %}{% endgeneration %}{{ x }}", "a11"),
        ("{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}" + END, "134"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}" + END, "1"),
        (
            "{% for i in 'ab' %}{{ loop.index }}{{ loop.length }}{{ loop.last }} " + END,
            "12False 22True ",
        ),
        ("{% for i in [1, 2, 3] if i != 2 %}{{ loop.index }}{{ i }} {% else %}no" + END, "11 23 "),
        ("{% for i in [] %}x{% else %}none" + END, "none"),
        ("{{ 'a' ~ 1 ~ none ~ nothing }}", "a1None"),
        ("{{ 'a-b'.split('-')|join('+') }}{{ ','.join(['c', 'd']) }}", "a+bc,d"),
        ("{{ [{'n': 1}, {'n': 2}]|join(',', attribute='n') }}", "1,2"),
        ("{{ 'abab'|replace('a', 'c') }}{{ 'abab'.replace('a', 'c', 1) }}", "cbcbcbab"),
        ("{{ 'a\\nb'|indent(2) }}", "a\n  b"),
        ("{{ 7 % 4 }}{{ 2 * 3 }}{{ 'x' * 3 }}{{ [1] + [2] }}", "36xxx[1, 2]"),
        ("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}", "2"),
        ("{{ 'abc'[1:] }}{{ 'abc'[::-1] }}{{ ' a '|trim }}{{ 'a'|upper }}", "bccbaaA"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ 1700000000|string }}{{ {'a': 1} }}", "1700000000{'a': 1}"),
    ],
)
def test_what_templates_use_works(source: str, text: str) -> None:
    assert render(source, x=1) == text


def test_a_refusal_of_the_template_is_one_for_the_messages() -> None:
    assert refusal("{{ raise_exception('No way.\\nReally') }}") == "messages: No way."
    assert refusal("{{ raise_exception() }}") == "messages: refused by the chat template"
    assert len(refusal("{{ raise_exception('x' * 1000) }}")) == len("messages: ") + 200


def test_an_error_of_the_template_is_told() -> None:
    assert refusal("{{ a.b }}") == "chat_template: fails: 'a' is undefined"
    assert refusal("{{ 'a'|b }}") == "chat_template: does not compile, line 1: No filter named 'b'."
    assert refusal("a\n{% if %}").startswith("chat_template: does not compile, line 2: ")


def test_a_template_may_keep_a_list_of_its_own() -> None:
    queue = (
        "{% set q = [] %}{% set _ = q.append(1) %}{% set _ = q.append(2) %}{{ q.pop(0) }}{{ q }}"
    )
    assert render(queue) == "1[2]"


def test_texts_are_put_into_braces() -> None:
    assert render("{{ '<{}>{}'.format(a, 1) }}", a="x") == "<x>1"


def test_what_a_filter_goes_through_is_a_list_in_json() -> None:
    assert render("{{ messages|map(attribute='a')|tojson }}", messages=[{"a": 1}]) == "[1]"


def test_a_text_that_grows_by_appending_is_not_too_much_work() -> None:
    growing = (
        "{% set n = namespace(t='') %}{% for _ in range(300) %}{% set n.t = n.t ~ a %}{% endfor %}"
    )
    assert len(render(growing + "{{ n.t }}", a="x" * 1000)) == 300_000
