"""Renders a jinja2 template that nobody vetted: it reaches nothing and its work is bounded. Pure.

A template comes with a model file, so it is a stranger's program. The sandbox
of jinja2 keeps it inside; here its loops, calls and all it writes or builds are
counted. What one operation reads is not (a search in a long text, comparing
lists that hold each other many times over), so that a template made for it can
still hang the thread it runs in.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateSyntaxError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from outrider.errors import InvalidRequest

MAX_SOURCE = 2**18
"""Characters of a template; long ones have 30,000."""

MAX_WORK = 2**25
"""Characters and elements that one rendering may make; a conversation has a few million."""

STEP = 64
"""What a call, a filter or a turn of a loop costs of that: all of it is gone in a few seconds."""

_ITEM = 16  # what an element costs where each is looked at

_COPIED = 4  # characters that are copied as one; some templates append to all there is so far

_TEXT_METHODS = {name for name in dir(str) if name[0] != "_"}
# A width may be in the text of `format_map`; what `expandtabs` and `translate` make is counted too
# late, and what `encode` makes never.
_TEXT_METHODS -= {"encode", "expandtabs", "format_map", "maketrans", "translate"}
_LIST_METHODS = frozenset({"append", "pop"})  # Kimi's templates keep a queue
_NO_FILTERS = frozenset({"format", "random"})


class Template:
    """A compiled template, good for any number of renderings at once.

    What goes wrong is an InvalidRequest for `chat_template`, or for
    `messages` when the template itself refuses with raise_exception.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE:
            raise InvalidRequest("chat_template", f"too long ({len(source)}, max {MAX_SOURCE})")
        try:
            environment = _Environment()
            self._code = environment.compile(_Counting().visit(environment.parse(source)))
        except TemplateSyntaxError as error:
            where = f"does not compile, line {error.lineno}: "
            raise InvalidRequest("chat_template", where + _one_line(error)) from None
        except Exception as error:  # deep nesting ends in RecursionError, MemoryError, ...
            raise InvalidRequest("chat_template", f"does not compile: {_one_line(error)}") from None

    def render(self, variables: Mapping[str, object]) -> str:
        """Return the text that the template makes of `variables`, which are plain data."""
        environment = _Environment()
        globals_ = environment.make_globals(None)
        try:
            template = environment.template_class.from_code(environment, self._code, globals_)
            return template.render({name: _given(each) for name, each in variables.items()})
        except InvalidRequest:
            raise
        except Exception as error:  # any error at all, says the documentation of the sandbox
            raise InvalidRequest("chat_template", f"fails: {_one_line(error)}") from None


def _one_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


class _Given(list[Any]):
    """A list that a template was given and does not change."""


def _given(value: object) -> object:
    if isinstance(value, dict):
        return {name: _given(each) for name, each in value.items()}
    return _Given(map(_given, value)) if isinstance(value, list) else value


def _as_list(value: object) -> list[object]:
    """Return what a filter such as `map` makes, which is no list yet."""
    if not isinstance(value, Iterator):
        raise TypeError(f"{type(value).__name__} is not JSON")
    return list(value)


def _raise_exception(message: object = "refused by the chat template") -> NoReturn:
    raise InvalidRequest("messages", _one_line(message))


_KEEPERS = (dict, Namespace, Cycler, Joiner, _raise_exception)
"""Functions that keep or print the numbers they are given. To any other one a number may be a
width that is padded to, so each costs as much as it says; so, too, for filters and methods."""
_OWN_KEEPERS = (dict, list, LoopContext, Cycler)  # whose methods do
_CHOOSING = frozenset({"groupby", "map", "reject", "rejectattr", "select", "selectattr"})
_KEEPING_FILTERS = _CHOOSING | {"d", "default", "float", "int", "sum"}


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on and changes no text."""

    tags = {"generation"}  # noqa: RUF012  # as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Counting(NodeTransformer):
    """Puts a filter of _Environment wherever jinja2 offers it no hook."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_step()))
        if node.test is not None:
            node.test = nodes.And(_step(), node.test)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "join", [], [], None, None)

    def visit_List(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(node, "made", [], [], None, None)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self.visit_List(node) if node.ctx == "load" else self.generic_visit(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        is_copy = isinstance(node.arg, nodes.Slice)
        return self.visit_List(node) if is_copy else self.generic_visit(node)

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data)  # only expressions pass through `finalize`


def _step() -> nodes.Expr:
    return nodes.Filter(nodes.Const(True), "step", [], [], None, None)


class _Environment(ImmutableSandboxedEnvironment):
    """What one rendering runs in, and what is left of its work.

    A template also compiles in one, and then computes nothing: it would not count.
    """

    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self) -> None:
        extensions = (loopcontrols, _Generation)
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=extensions
        )
        self._left = MAX_WORK
        self.finalize = self._emit  # needs a context, hence not at compile time
        self.globals["raise_exception"] = _raise_exception
        del self.globals["lipsum"]  # random
        known = {k: self._counted(k, v) for k, v in self.filters.items() if k not in _NO_FILTERS}
        own = {"tojson": self._to_json, "join": self._join, "replace": self._replace}
        self.filters = {**known, **own, "indent": self._indent}
        self.filters |= {"made": self._made, "step": self._step}

    def _spend(self, work: int) -> None:
        self._left -= abs(work)  # a template may have chosen the number
        if self._left < 0:
            raise InvalidRequest("chat_template", "takes too much work for one prompt")

    def _step(self, value: object) -> object:
        self._spend(STEP)
        return value

    def _made(self, value: object) -> object:
        self._spend_made(value)
        return value

    @pass_context
    def _emit(self, context: Context, value: object) -> object:
        self._weigh(value)
        return value

    def _weigh(self, value: object) -> None:
        """Spend what the text of a value takes, before there is one."""
        self._spend(len(value) if isinstance(value, str) else _ITEM)
        if isinstance(value, dict):
            value = list(value.items())
        if isinstance(value, (list, tuple)):
            for item in value:
                self._weigh(item)

    def _spend_made(self, value: object) -> None:
        if isinstance(value, (str, list, tuple, dict)):
            self._spend(len(value))
        elif isinstance(value, int):
            self._spend(value.bit_length() ** 2 // 64)  # as multiplication takes

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise InvalidRequest("chat_template", f"uses {operator}, which is not supported here")
        for one, other in ((left, right), (right, left)):
            if operator == "*" and isinstance(one, (str, list, tuple)) and isinstance(other, int):
                self._spend(len(one) * other)
        made = super().call_binop(context, operator, left, right)
        if isinstance(made, str):
            self._spend(len(made) // _COPIED)
        else:
            self._spend_made(made)
        return made

    def wrap_str_format(self, value: Any) -> None:
        return None  # the method is then judged like any other, below

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is list and attr in _LIST_METHODS:
            return True  # the template made it
        if isinstance(obj, (str, int, float)):
            return isinstance(obj, str) and attr in _TEXT_METHODS
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str) and function.__name__ == "join":
            return self._join(args[0], owner)
        if isinstance(owner, str) and function.__name__ == "replace":
            return self._replace(owner, *args)
        if isinstance(owner, str) and function.__name__ == "format":
            return self._format(owner, args)
        keeps = isinstance(function, Macro) or isinstance(owner, _OWN_KEEPERS)
        if keeps or function in _KEEPERS:  # what a macro does with a number is counted there
            self._spend(STEP + _ITEM * (len(args) + len(kwargs)))
        else:
            self._spend_widths(args, kwargs)
        made = super().call(context, function, *args, **kwargs)
        self._spend_made(made)
        if isinstance(owner, str) and isinstance(made, (list, tuple)):
            self._spend(len(owner) // _COPIED)  # the parts are a copy of it, few as they may be
        return made

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        has_widths = name not in _KEEPING_FILTERS

        @functools.wraps(function)  # with the marks that say what jinja2 passes first
        def counted(*args: Any, **kwargs: Any) -> Any:
            if has_widths:
                self._spend_widths(args[1:], kwargs)
            else:
                self._spend(STEP)
            made = function(*args, **kwargs)
            self._spend_made(made)
            return made

        return counted

    def _spend_widths(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Spend a step, and every number given: it may be a width that is padded to."""
        numbers = [n for n in (*args, *kwargs.values()) if isinstance(n, int)]
        self._spend(STEP + sum(map(abs, numbers)))

    def _join(self, items: Iterable[Any], separator: str = "", attribute: Any = None) -> str:
        if attribute is not None:
            items = map(make_attrgetter(self, attribute), items)
        texts = list(items)
        copied = sum(len(text) for text in texts if isinstance(text, str))
        self._spend(copied // _COPIED)
        self._weigh([text for text in texts if not isinstance(text, str)])
        self._spend(len(texts) * (_ITEM + len(separator)))
        return separator.join(map(str, texts))

    def _format(self, text: str, args: Sequence[Any]) -> str:
        parts = text.split("{}")
        if any("{" in part or "}" in part for part in parts) or len(parts) != len(args) + 1:
            raise InvalidRequest("chat_template", "fails: it formats with more than {}")
        return self._join([each for pair in zip(parts, [*args, ""], strict=True) for each in pair])

    def _replace(self, text: object, old: object, new: object, count: int | None = None) -> str:
        self._weigh(text)
        text, old, new = str(text), str(old), str(new)
        self._spend(STEP + text.count(old) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _indent(
        self, text: str, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        size = len(width) if isinstance(width, str) else width
        self._spend(STEP + len(text) + (1 + text.count("\n")) * size)
        return do_indent(text, width, first, blank)

    def _to_json(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Return JSON as transformers writes it: characters as they are, no HTML escapes."""
        self._weigh(value)
        self._spend(indent if isinstance(indent, int) else 0)
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
            default=_as_list,
        )
        pieces = []
        for piece in encoder.iterencode(value):
            self._spend(_ITEM + len(piece))
            pieces.append(piece)
        return "".join(pieces)
