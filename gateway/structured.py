"""vLLM's fields for what a text must be, `structured_outputs` and the older `guided_*`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from gateway.body_fields import Body, ListOf
from outrider.errors import InvalidRequest
from outrider.grammar.json_texts import either, quoted


class StructuredOutputs(Body):
    """One kind of constraint; a grammar is GBNF."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    choice: ListOf[str] | None = None
    grammar: str | None = None
    regex: str | None = Field(None, description="Not supported.")
    structural_tag: Any = Field(None, description="Not supported.")


class GuidedFields(Body):
    """The same constraints under both of the names that vLLM has had for them."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_choice: ListOf[str] | None = None
    guided_grammar: str | None = None
    guided_regex: str | None = Field(None, description="Not supported.")


def constrains(fields: GuidedFields) -> bool:
    """Say whether the text is constrained by one of these fields."""
    return any(_given(fields))


def constraint(fields: GuidedFields, schema: str, grammar: str) -> tuple[str, str]:
    """Return the schema and the grammar that the text must keep, one of them or both empty.

    `schema` and `grammar` are what the request says by other fields. Raises InvalidRequest.
    """
    for field, kind, value in _given(fields):
        if schema or grammar:
            raise InvalidRequest(field, "does not go with another constraint of the text")
        if kind == "json":
            schema = value if isinstance(value, str) else json.dumps(value)
        elif kind == "json_object":
            schema = json.dumps({"type": "object"})
        elif kind == "choice":
            grammar = _grammar_of_choices(field, value)
        elif kind == "grammar":
            grammar = value
        else:
            raise InvalidRequest(field, "is not supported; a grammar can say the same")
    return schema, grammar


def _given(fields: GuidedFields) -> Iterator[tuple[str, str, Any]]:
    """Yield the field, the kind and the value of every constraint that is given."""
    for kind in ("json", "json_object", "choice", "grammar", "regex", "structural_tag"):
        value = getattr(fields.structured_outputs, "json_" if kind == "json" else kind, None)
        if value is not None and value is not False:
            yield f"structured_outputs.{kind}", kind, value
    for kind in ("json", "choice", "grammar", "regex"):
        value = getattr(fields, f"guided_{kind}")
        if value is not None:
            yield f"guided_{kind}", kind, value


def _grammar_of_choices(field: str, choices: list[str]) -> str:
    if not choices or not all(choices):
        raise InvalidRequest(field, "needs texts that are not empty")
    return f"root ::= {either(map(quoted, choices))}\n"
