"""Writes a grammar in the syntax that llguidance reads, so that both let the same texts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from outrider.errors import InvalidRequest
from outrider.grammar.lexemes import Lexicon, Part, Shape, find_lexemes
from outrider.grammar.rules import CharSet, Element, Grammar

_MAX_DEPTH = 400  # llguidance reads rules by recursion: about 5 kB of stack each
# With forcing, a mask would be of the token after a text that the grammar forces.
_HEADER = '%llguidance {"no_forcing": true}'


def write_lark(grammar: Grammar) -> str:
    """Return rules and lexemes that let the grammar's texts, and no zero byte.

    Raises InvalidRequest for rules that are too deep in each other.
    """
    lexicon = find_lexemes(grammar)
    if _depth(lexicon, grammar.root) > _MAX_DEPTH:
        raise InvalidRequest("grammar", f"more than {_MAX_DEPTH} rules in each other")
    names: dict[Part, str] = {}

    def written(pieces: Iterable[tuple[int, Part | int]]) -> str:
        words = (
            f"r{piece}" if isinstance(piece, int) else names.setdefault(piece, f"L{len(names)}")
            for _, piece in pieces
        )
        return " ".join(words) or '""'

    rules = []
    for symbol, shape in lexicon.shapes.items():
        parts = [written(pieces) for pieces in lexicon.splits[symbol]]
        rules.append(f"r{symbol}: {_body(shape, parts, ' ')}")
    lexemes = [f"{name}: /{_pattern(piece, lexicon.within)}/" for piece, name in names.items()]
    return "\n".join([_HEADER, f"start: r{grammar.root}", *rules, *lexemes, ""])


def _depth(lexicon: Lexicon, root: int) -> int:
    """Return how deep the rules are in each other, each as it is met first."""
    below: dict[int, Iterator[int]] = {}
    path = [root]
    deepest = 0
    while path:
        deepest = max(deepest, len(path))
        symbol = path[-1]
        if symbol not in below:
            pieces = [piece for parts in lexicon.splits[symbol] for _, piece in parts]
            below[symbol] = iter([piece for piece in pieces if isinstance(piece, int)])
        following = next((other for other in below[symbol] if other not in below), None)
        if following is None:
            path.pop()
        else:
            path.append(following)
    return deepest


def _body(shape: Shape, parts: Sequence[str], between: str) -> str:
    """Return a rule, or a part of a regular expression, of the parts of a shape."""
    count = len(shape.repeated)
    repeated, last = (f"({'|'.join(some)})" for some in (parts[:count], parts[count:]))
    if not count:
        return last
    often = "*" if shape.most is None else f"{{0,{shape.most}}}"
    return f"{repeated}{often}{between}{last}"


def _pattern(part: Part, shapes: dict[int, Shape]) -> str:
    return "".join(_element_pattern(element, shapes) for element in part)


def _element_pattern(element: Element, shapes: dict[int, Shape]) -> str:
    if isinstance(element, CharSet):
        return _character_class(element)
    shape = shapes[element]
    return _body(shape, [_pattern(part, shapes) for part in shape.parts], "")


def _character_class(chars: CharSet) -> str:
    spans = chars.spans()
    if not spans:
        return r"[^\u{0}-\u{10ffff}]"
    return "[" + "".join(f"\\u{{{low:x}}}-\\u{{{high:x}}}" for low, high in spans) + "]"
