"""The texts whose n-grams are counted, read as llama.cpp's programs read them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

MOST_BYTES = (1 << 31) - 16
"""llama.cpp takes a length as an int32; a text of its own has never more tokens than that."""

_ESCAPES = {
    **{b"n": b"\n", b"r": b"\r", b"t": b"\t"},
    **{b"'": b"'", b'"': b'"', b"\\": b"\\"},
}
# strtol, which reads the two letters after \x, takes a blank or a sign for the first.
_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f \t\n\v\f\r+-][0-9A-Fa-f])|(.))", re.DOTALL)


def read_text(file: Path | None, prompt: str | None) -> bytes:
    """Return a text that is given, or a file's or standard input's less one final newline.

    Raises InvalidRequest.
    """
    from outrider.errors import InvalidRequest

    if prompt is not None:
        try:
            return prompt.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("prompt", "is not valid Unicode text") from None
    if file is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise InvalidRequest("file", "needs --file, --prompt or a text on standard input")
        content = sys.stdin.buffer.read()
    else:
        content = _read_file(file)
    if len(content) > MOST_BYTES:
        raise InvalidRequest("file", f"has {len(content)} bytes; at most {MOST_BYTES} fit")
    return content.removesuffix(b"\n")


def _read_file(path: Path) -> bytes:
    from outrider.errors import InvalidRequest

    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest("file", f"cannot read {path}: {error.strerror}") from None


def unescaped(text: bytes) -> bytes:
    r"""Return a text in which `\n`, `\r`, `\t`, `\'`, `\"`, `\\` and `\x41` are what they mean.

    llama.cpp's programs do this to every prompt, from a file too, without --no-escape.
    """

    def meant(found: re.Match[bytes]) -> bytes:
        digits, letter = found.groups()
        if digits is not None:
            return bytes([int(digits, 16) & 0xFF])
        return _ESCAPES.get(letter, found[0])

    return _ESCAPE.sub(meant, text)
