"""Turns a JSON schema into GBNF. Pure.

Every text of the grammar is valid under the schema, but for what `passed_over` names; not every
valid text is in the grammar. Properties come in the schema's order, and no others unless
`additionalProperties` is a schema; whitespace is at most a space, or a line break and 20 spaces.
Keywords that would need more than a grammar are refused by name.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NoReturn

from outrider.errors import InvalidRequest
from outrider.grammar.formats import FORMATS
from outrider.grammar.gbnf import MAX_BYTES, read_grammar
from outrider.grammar.json_texts import (
    FIXED,
    GREATEST,
    MOST_DIGITS,
    MOST_PLACES,
    decimal,
    either,
    literal,
    numbers,
)
from outrider.grammar.pattern import read_pattern
from outrider.grammar.regular import ALL, Expression, Expressions, NodeKind, TooLarge, often
from outrider.grammar.schema_reader import (
    ABOUT,
    ANNOTATIONS,
    MAX_COUNT,
    OF_NUMBERS,
    UNEVALUATED,
    Schema,
    SchemaReader,
    invalid,
    is_of,
    shown,
    text_of,
)

_MAX_DEPTH = 64  # levels of schemas in each other
_MAX_RULES = 1000  # different schemas within one
_MAX_LISTED = 200  # numbers or values of an item that are written one by one
_MAX_CHAIN = 1000  # values of an item times how many are counted
_FEWEST_DIGITS = 4  # of the multiples of a number, where nothing bounds them
_MOST_REMAINDERS = 400  # times digits
_WORDS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|([a-z][a-z0-9-]*)')
_COMMA = '"," ws'


def grammar_of_schema(schema: str) -> str:
    """Return the GBNF of the texts that a schema, given as JSON, may let a model write.

    Raises InvalidRequest for what is no schema, has keywords that are not supported, or is too
    large. Nothing is fetched.
    """
    grammar = written(rules_of_schema(schema))
    try:
        read_grammar(grammar)
    except InvalidRequest as refusal:
        raise invalid(f"its grammar is refused: {refusal}") from None
    return grammar


def rules_of_schema(schema: str, name: str = "root", prefix: str = "s") -> dict[str, str]:
    """Return the GBNF rules by name, of which `name` is the schema's own.

    Other names are `prefix` with a number, or a rule of JSON that means the same to every schema,
    so that the rules of several schemas go into one grammar. Raises InvalidRequest as
    `grammar_of_schema` does.
    """
    return _convert(schema, name, prefix)[0]


@lru_cache(maxsize=16)
def passed_over(schema: str) -> tuple[str, ...]:
    """Return what the grammar of a schema does not keep: keywords in ASCII, with their places.

    Raises InvalidRequest as `grammar_of_schema` does.
    """
    return _convert(schema, "root", "s")[1]


def _convert(schema: str, name: str, prefix: str) -> tuple[dict[str, str], tuple[str, ...]]:
    if len(schema) > MAX_BYTES:
        raise invalid(f"{len(schema)} characters, {MAX_BYTES} at most")
    try:
        whole = json.loads(schema, parse_float=_whole_if_equal, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise invalid(f"is not JSON: {error}") from None
    _check_depth(whole)
    converter = _Converter(whole, prefix)
    try:
        return converter.rules(name), tuple(converter.reader.passed_over)
    except RecursionError:
        raise invalid("refers to itself without end, or has a pattern that is too long") from None
    except TooLarge:
        raise invalid("what its texts must be is too much for a grammar") from None


def written(rules: Mapping[str, str]) -> str:
    """Return the GBNF text of rules by name."""
    return "".join(f"{name} ::= {body}\n" for name, body in rules.items())


class _Converter:
    """Gives every schema it meets a rule; schemas of the same content share one."""

    def __init__(self, document: Any, prefix: str) -> None:
        self.reader = SchemaReader(document)
        self._document = document
        self._prefix = prefix
        self._made = Expressions()
        self._names: dict[str, str] = {}  # by the schema's JSON
        self._todo: deque[tuple[str, Any, str]] = deque()
        self._rules: dict[str, str] = {}

    def rules(self, root: str) -> dict[str, str]:
        """Return the rules that the root needs, itself first."""
        self._define(root, self._rule(self._document, ""))
        while self._todo:
            name, schema, self.reader.path = self._todo.popleft()
            self._define(name, self._body(name, schema))
        needed: dict[str, str] = {}
        todo = [root]
        seen = {*todo}
        for name in todo:
            needed[name] = self._rules.get(name) or FIXED[name]
            for word in _WORDS.finditer(needed[name]):
                if word[1] and word[1] not in seen:
                    seen.add(word[1])
                    todo.append(word[1])
        return needed

    def _define(self, name: str, body: str) -> None:
        assert name not in self._rules, name  # or two parts of a schema would write one rule
        self._rules[name] = body

    def _rule(self, schema: Any, step: str) -> str:
        """Return the name of the rule of a schema that stands `step` below this one."""
        content = json.dumps(schema)
        if content not in self._names:
            if len(self._names) == _MAX_RULES:
                self.reader.refuse(f"more than {_MAX_RULES} different schemas in it")
            if len(content) > MAX_BYTES:
                self.reader.refuse("its parts grow without end")
            self._names[content] = f"{self._prefix}{len(self._names)}"
            self._todo.append((self._names[content], schema, self.reader.path + step))
        return self._names[content]

    def _body(self, name: str, schema: Any) -> str:
        if schema is True:
            return "value"
        rest = self.reader.checked(schema)
        for key in sorted(ANNOTATIONS & rest.keys()):
            self.reader.pass_over(key)
            del rest[key]
        if "$ref" in rest or "allOf" in rest:
            if len(rest) == 1 and "$ref" in rest:
                return self._rule(self.reader.target(rest["$ref"]), "")
            return self._rule(self.reader.merged([rest]), "")
        if "anyOf" in rest:
            return self._alternatives("anyOf", rest.pop("anyOf"), rest)
        if "oneOf" in rest:
            name = self.reader.discriminator(schema)
            return self._alternatives("oneOf", rest.pop("oneOf"), rest, name)
        if "enum" in rest or "const" in rest:
            return self._values(rest)
        types = self.reader.types(rest)
        if "format" in rest and "string" not in types:
            self.reader.pass_over("format", rest["format"])
        # Each type has names of its own for the rules that it needs.
        return either(self._typed(f"{name}{kind[0]}", kind, rest) for kind in types)

    def _typed(self, name: str, kind: str, schema: Schema) -> str:
        if kind == "object":
            return self._object(name, schema)
        if kind == "array":
            return self._array(name, schema)
        if kind == "string":
            return self._string(name, schema)
        if kind in ("integer", "number"):
            return self._numeric(name, kind, schema)
        return kind

    def _write(self, part: Expression, name: str) -> str | None:
        try:
            return self._made.write(part, self._rules, f"{name}-t")
        except TooLarge:
            self.reader.refuse("what its texts must be is too much for a grammar")

    # --- constants and alternatives ---

    def _values(self, schema: Schema) -> str:
        for key in sorted(schema.keys() - ABOUT["string"] - {"enum", "const", "type"}):
            self.reader.refuse(f"`{key}` is not supported beside `enum` or `const`")
        values = self._listed(schema)
        if not values:
            self.reader.refuse("no value is left of `enum` or `const`")
        return self._either_of(values)

    def _listed(self, schema: Schema) -> list[Any] | None:
        """Return the values that a schema lists, if it does, without those it does not let.

        A format takes none away: not every text that it lets is known here.
        """
        values, form = self.reader.constants(schema), schema.get("format")
        if values is None:
            return None
        types = self.reader.types(schema) if "type" in schema else ["value"]
        values = [value for value in values if any(is_of(value, kind) for kind in types)]
        rest = {key: schema[key] for key in ABOUT["string"] - {"format"} if key in schema}
        text = self._text(rest) if rest else self._made.anything
        values = [v for v in values if not isinstance(v, str) or self._made.lets(text, v)]
        texts = [value for value in values if isinstance(value, str)]
        if form is not None and not self._are_of_format(form, texts):
            self.reader.pass_over("format", form)
        return values

    def _are_of_format(self, form: Any, texts: Sequence[str]) -> bool:
        known = FORMATS.get(form, []) if isinstance(form, str) else []
        whole = self._made.either(read_pattern(each, self._made) for each in known)
        return all(self._made.lets(whole, text) for text in texts)

    def _either_of(self, values: Sequence[Any]) -> str:
        try:
            return either(literal(value) for value in values)
        except ValueError as error:
            self.reader.refuse(f"a value of `enum` or `const`: {error}")

    def _alternatives(self, key: str, alternatives: Any, rest: Schema, name: str = "") -> str:
        """`name`: the property by which the alternatives differ, and so is required."""
        parts = [p for p in self.reader.listed(key, alternatives) if not self.reader.is_never(p)]
        if not parts:
            self.reader.refuse(f"no alternative is left of `{key}`")
        if name:
            rest = {**rest, "required": [*self.reader.required(rest), name]}
        # What is not evaluated is said of an alternative and the rest together.
        unevaluated = {key: rest.pop(key) for key in sorted(UNEVALUATED & rest.keys())}
        if rest or unevaluated:
            parts = [{"allOf": [part, rest], **unevaluated} for part in parts]
        if key == "oneOf":
            self.reader.check_apart(parts)
        return either(self._rule(part, f"/{key}/{i}") for i, part in enumerate(parts))

    # --- objects ---

    def _object(self, name: str, schema: Schema) -> str:
        reader, made = self.reader, self._made
        properties, required = reader.properties(schema), reader.required(schema)
        extra = reader.extra(schema)
        keys, allowed = self._property_names(schema)
        patterns = [
            (read_pattern(key, made), part)
            for key, part in reader.properties(schema, "patternProperties").items()
        ]

        def part_of(key: str) -> Any:
            parts = [properties[key]] if key in properties else []
            parts += [part for each, part in patterns if made.lets(each, key)]
            if any(map(reader.is_never, parts)) or not made.lets(keys, key):
                return False
            return {"allOf": parts} if len(parts) > 1 else parts[0] if parts else extra

        members = {key: part_of(key) for key in [*properties, *sorted(required), *(allowed or [])]}
        members = {key: part for key, part in members.items() if part is not False}
        for key in sorted(required - members.keys()):
            reader.refuse(f"`required` names {shown(key)}, which is not allowed")
        low, high = reader.counts(schema, "minProperties", "maxProperties")
        is_free = extra is True and not properties and not members and not patterns
        if is_free and keys is made.anything and not low and high is None:
            return "object"
        if is_free or not isinstance(extra, bool):
            patterns.append((made.no(made.either(each for each, _ in patterns)), extra))
        other = ""
        if patterns and allowed is None:
            taken = made.either(made.text(key) for key in {**members, **properties})
            other = self._pairs(name, made.both([keys, made.no(taken)]), patterns)
        for i, (key, part) in enumerate(members.items()):
            value = self._rule(part, f"/properties/{key}")
            self._define(f"{name}-{i}", f'{literal(key)} ":" ws {value}')
        if other and low > len(required) + 1:
            reader.pass_over("minProperties", low)  # one name may be written twice
        body = self._chain(name, [key in required for key in members], other, low, high)
        if body is None:
            reader.refuse("`minProperties` or `maxProperties` is not to be reached")
        return f'"{{" ws {body} "}}"'

    def _property_names(self, schema: Schema) -> tuple[Expression, list[str] | None]:
        """Return what names may be, and all of them where they are listed."""
        made = self._made
        names = schema.get("propertyNames", True)
        if names is True:
            return made.anything, None
        if self.reader.is_never(names):
            return made.never, None
        names = self.reader.merged([names])
        if "type" in names and "string" not in self.reader.types(names):
            return made.never, None
        for key in sorted(names.keys() - ABOUT["string"] - {"enum", "const", "type"}):
            self.reader.refuse(f"`{key}` is not supported in `propertyNames`")
        listed = self._listed(names)
        if listed is None:
            return self._text(names), None
        allowed = [key for key in listed if isinstance(key, str)]
        return made.either(map(made.text, allowed)), allowed

    def _pairs(self, name: str, keys: Expression, kinds: Sequence[tuple[Expression, Any]]) -> str:
        """Return GBNF for a pair of a name that is of one kind only, and a value of this kind."""
        made, found = self._made, []
        for i, (kind, part) in enumerate(kinds):
            clash = made.either(other for j, (other, _) in enumerate(kinds) if j != i)
            never = self.reader.is_never(part)
            text = None if never else self._write(made.both([keys, kind, made.no(clash)]), name)
            if text is not None:
                value = self._rule(part, "/additionalProperties")
                self._define(f"{name}-x{i}", f'"\\"" {text} "\\"" ":" ws {value}')
                found.append(f"{name}-x{i}")
        return either(found) if found else ""

    def _chain(
        self, name: str, required: Sequence[bool], other: str, low: int, high: int | None
    ) -> str | None:
        """Return GBNF for `name-0`, `name-1` ..., in this order, then others, with blanks after.

        There are `low` to `high` together. None where that is not possible.
        """
        if high is not None and high >= len(required) and not other:
            high = None
        most = max(1, low, high or 0)  # from which on it makes no difference how many there are
        if most > 1 and most * len(required) > _MAX_CHAIN:
            self.reader.refuse(f"{most} of {len(required)} are too many to count")
        following: list[str | None] = []  # by how many there are already
        for count in range(most + 1):
            need, room = max(0, low - count), None if high is None else max(0, high - count)
            body = None if need and not other else ""
            if other and room != 0:
                rest = None if room is None else room - 1
                more = f"{other} ( {_COMMA} {other} ){often(max(0, need - 1), rest)}"
                more = f"{_COMMA} {more}" if count else more
                optional = f"( {more} )? ws" if count else f"( {more} ws )?"
                body = f"{more} ws" if need else optional
            elif body is not None:
                body = "ws" if count else ""
            following.append(body)
        for i in reversed(range(len(required))):
            before: list[str | None] = []
            for count in range(most + 1):
                pair = f"{_COMMA} {name}-{i}" if count else f"{name}-{i}"
                using = following[min(count + 1, most)] if high is None or count < high else None
                leaving = None if required[i] else following[count]
                if using is not None and using == leaving and count:
                    body = f"( {pair} )? {using}"
                else:
                    ways = [f"{pair} {using}"] if using is not None else []
                    ways += [leaving or '""'] if leaving is not None else []
                    body = either(ways) if ways else None
                if body is not None:
                    self._define(f"{name}-r{i}-{count}", body)
                before.append(None if body is None else f"{name}-r{i}-{count}")
            following = before
        return following[0]

    # --- arrays ---

    def _array(self, name: str, schema: Schema) -> str:
        prefix, items = schema.get("prefixItems", []), schema.get("items")
        if isinstance(items, list):
            prefix, items = items, schema.get("additionalItems")
        first = [self._rule(part, "/items") for part in self.reader.listed("prefixItems", prefix)]
        low, high = self.reader.counts(schema, "minItems", "maxItems")
        if schema.get("uniqueItems") and (high is None or high > 1):
            values = None if first else self._listed_items(items)
            if values is not None and len(values) * max(1, low, high or 0) <= _MAX_CHAIN:
                for i, value in enumerate(values):
                    self._define(f"{name}-{i}", self._either_of([value]))
                body = self._chain(name, [False] * len(values), "", low, high)
                if body is None:
                    self.reader.refuse("`minItems` is not to be reached: too few values")
                return f'"[" ws {body} "]"'
            self.reader.pass_over("uniqueItems")
        first = first[:high]
        low = max(low - len(first), 0)
        high = None if high is None else high - len(first)
        if items is None:
            items = low > 0 or not first
        if self.reader.is_never(items):
            high = 0
        if high is not None and high < low:
            self.reader.refuse(f"`minItems` is not to be reached: {low - high} more are needed")
        body = f" {_COMMA} ".join(first)
        if high != 0:
            item = self._rule(items, "/items")
            if first:
                body += f" ( {_COMMA} {item} ){often(low, high)}"
            else:
                more = often(max(low - 1, 0), None if high is None else high - 1)
                body = f"{item} ( {_COMMA} {item} ){more}"
        if not body:
            return '"[" ws "]"'
        return f'"[" ws {body} ws "]"' if low or first else f'"[" ws ( {body} ws )? "]"'

    def _listed_items(self, items: Any) -> list[Any] | None:
        """Return all values that an item may have; None where they are not listed."""
        if not isinstance(items, dict):
            return None
        item = self.reader.merged([items])
        if item.keys() - {"enum", "const", "type"}:
            return None
        values = [False, True] if item == {"type": "boolean"} else self._listed(item)
        if values is None or len(values) > _MAX_LISTED:
            return None
        return [*{text_of(value): value for value in values}.values()]

    # --- strings and numbers ---

    def _string(self, name: str, schema: Schema) -> str:
        if not ABOUT["string"] & schema.keys():
            return "string"
        text = self._text(schema)
        if text.kind is NodeKind.REPEATED and text.parts[0] is self._made.chars(ALL):
            return f'"\\"" char{often(*text.parts[1:])} "\\""'
        body = self._write(text, name)
        if body is None:
            self.reader.refuse("no text is left")
        return f'"\\"" {body} "\\""'

    def _text(self, schema: Schema) -> Expression:
        """Return what the texts of strings may be.

        A format is passed over where it is unknown, or beside keywords that no text of it has.
        """
        made = self._made
        low, high = self.reader.lengths(schema)
        most = math.inf if high is None or high > MAX_COUNT else high
        form = schema.get("format")
        known = FORMATS.get(form, []) if isinstance(form, str) else []
        parts = []
        for each in self.reader.patterns(schema):
            try:
                parts.append(read_pattern(each, made))
            except InvalidRequest:
                if not known:
                    raise
                self.reader.pass_over("pattern", each)
        text = self._of_format(known, parts, low, most)
        if text is None:
            text = made.limited(made.both(parts), low, most)
            alone = None
            if known and not self._can_be_written(text) and not made.lets_nothing(text):
                alone = self._of_format(known, [], low, most)
            if alone is not None:
                text = alone
                self.reader.pass_over("pattern", schema["pattern"])
            elif form is not None:
                self.reader.pass_over("format", form)
        if high is not None and text.longest > high:
            self.reader.pass_over("maxLength", high)
        return text

    def _of_format(
        self, known: Sequence[str], parts: Sequence[Expression], low: int, most: float
    ) -> Expression | None:
        """Return the texts of a format that all parts let, if a grammar can say that."""
        made = self._made
        texts = [read_pattern(each, made) for each in known]
        for each in sorted(texts, key=lambda text: text.longest > most):
            narrower = [p for p in parts if not made.lets_nothing(made.both([each, made.no(p)]))]
            text = made.limited(made.both([each, *narrower]), low, most)
            if self._can_be_written(text):
                return text
        return None

    def _can_be_written(self, part: Expression) -> bool:
        rules: dict[str, str] = {}
        try:
            body = self._made.write(part, rules, "")
        except TooLarge:
            return False
        return body is not None and sum(map(len, rules.values())) <= MAX_BYTES // 2

    def _numeric(self, name: str, kind: str, schema: Schema) -> str:
        if not OF_NUMBERS & schema.keys():
            return kind
        low, low_open, high, high_open = self.reader.bounds(schema, GREATEST)
        step = self.reader.step(schema)
        if kind == "integer":
            step = Fraction(step.numerator or 1)  # 1.5 divides no whole number that 3 does not
        if step:
            part = self._multiples(step, low, low_open, high, high_open)
        else:
            text = numbers(low, high, MOST_PLACES, low_open, high_open)
            part = read_pattern(f"^{text}$", self._made) if text else self._made.never
        body = self._write(part, name)
        if body is None:
            self.reader.refuse("no number is within the bounds, or in 64 bits")
        return body

    def _multiples(
        self, step: Fraction, low: Fraction, low_open: bool, high: Fraction, high_open: bool
    ) -> Expression:
        """Return the multiples of a step within bounds; large ones may be left out."""
        made = self._made
        first, last = math.ceil(low / step), math.floor(high / step)
        first += low_open and first * step == low
        last -= high_open and last * step == high
        places = next((n for n in range(MOST_PLACES + 1) if not step * 10**n % 1), None)
        if places is None:
            self.reader.refuse(f"`multipleOf` {decimal(step)} has too many places")
        if last - first < _MAX_LISTED and first <= last:
            return made.either(made.text(decimal(n * step)) for n in range(first, last + 1))
        zeros = 0
        while not step * 10**places % 10 ** (zeros + 1):
            zeros += 1
        step /= 10**zeros
        part = int(step * 10**places)
        remainders = part // math.gcd(part, 10**places)
        digits = min(MOST_DIGITS - zeros, _MOST_REMAINDERS // remainders)
        if digits < _FEWEST_DIGITS and remainders > 1:
            self.reader.refuse(f"`multipleOf` {decimal(step)} is not supported with so wide bounds")
        most = (10**digits - 1) // step
        first, last = max(first, -most), min(last, most)

        def between(one: int, other: int) -> Expression:
            text = numbers(one * step, other * step, places)
            found = read_pattern(f"^{text}$", made) if text else made.never
            return found if part == 1 else made.both([found, made.multiple(part, places)])

        if not zeros:
            return between(first, last)
        nothing = made.text("0") if first <= 0 <= last else made.never
        others = made.either([between(max(1, first), last), between(first, min(-1, last))])
        return made.either([nothing, made.sequence([others, made.text("0" * zeros)])])


def _whole_if_equal(digits: str) -> int | float:
    """Return the number of a JSON text: 1.0 is 1, as in a schema."""
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is too large")
    return int(number) if number.is_integer() else number


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _check_depth(whole: Any) -> None:
    level = [whole]
    for _ in range(_MAX_DEPTH):
        nested = [part for part in level if isinstance(part, dict | list)]
        level = [x for part in nested for x in (part.values() if isinstance(part, dict) else part)]
    if level:
        raise invalid(f"more than {_MAX_DEPTH} levels deep")
