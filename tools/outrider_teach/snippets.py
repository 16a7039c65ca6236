"""Functions and documentation of the running Python's standard library, to ask about.

They are as various as what people show, there are thousands of them, and they are on every machine.
"""

from __future__ import annotations

import ast
import textwrap
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_MODULES = """
argparse ast asyncio.queues base64 bisect calendar cmd code codecs collections colorsys
concurrent.futures.thread configparser contextlib copy csv dataclasses datetime decimal difflib dis
doctest email.message email.utils enum filecmp fileinput fnmatch fractions ftplib functools getopt
gettext glob graphlib gzip hashlib heapq hmac html.parser http.client http.cookies http.server
imaplib inspect ipaddress json.decoder json.encoder keyword linecache locale logging
logging.handlers mailbox mimetypes multiprocessing.pool netrc ntpath optparse os pathlib pdb pickle
pickletools pkgutil platform plistlib poplib posixpath pprint profile pstats pyclbr pydoc queue
quopri random re reprlib rlcompleter sched secrets selectors shelve shlex shutil smtplib socket
socketserver ssl stat statistics string subprocess symtable tabnanny tarfile tempfile textwrap
threading timeit tokenize trace traceback tracemalloc turtle types typing unittest.case
unittest.mock urllib.parse urllib.request urllib.robotparser uuid wave weakref webbrowser
wsgiref.headers xml.dom.minidom xml.etree.ElementTree xml.sax.saxutils xmlrpc.client zipapp zipfile
"""
_FUNCTION_LINES = (4, 24)  # lines of a function that is shown
_FUNCTION_CHARACTERS = 900  # characters of it at most, some 300 tokens
_DOCUMENTATION_CHARACTERS = (200, 1400)  # characters of a documentation that is shown
_FAULTS = (
    *((" == ", " != "), (" < ", " <= "), (" > ", " >= "), (" not ", " "), (" and ", " or ")),
    *((" + ", " - "), (" - ", " + "), ("[0]", "[1]"), (" is None", " is not None")),
    *(
        ("range(", "range(1, "),
        ("self.", "self"),
        ("):\n", ")\n"),
        ("else:", "else"),
        ("if ", "of "),
    ),
)
"""What a mistake makes of a piece of a program."""

_Documented = ast.AsyncFunctionDef | ast.FunctionDef | ast.ClassDef | ast.Module


@cache
def functions() -> tuple[str, ...]:
    """Return the source of each function and method of a size to be shown."""
    low, high = _FUNCTION_LINES
    found = (
        textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        for lines, node in _nodes()
        if isinstance(node, ast.FunctionDef) and low <= _line_count(node) <= high
    )
    shown = (source for source in found if len(source) <= _FUNCTION_CHARACTERS)
    return tuple(dict.fromkeys(shown))


@cache
def documentations() -> tuple[str, ...]:
    """Return the documentation of each module, class and function of a length to be shown."""
    low, high = _DOCUMENTATION_CHARACTERS
    found = (ast.get_docstring(node) for _, node in _nodes() if isinstance(node, _Documented))
    return tuple(dict.fromkeys(text for text in found if text and low <= len(text) <= high))


def faults(source: str) -> list[str]:
    """Return a source once with each mistake that can be made in it; itself where there is none."""
    return [source.replace(right, wrong, 1) for right, wrong in _FAULTS if right in source] or [
        source
    ]


def _line_count(node: ast.FunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@cache
def _nodes() -> tuple[tuple[list[str], ast.AST], ...]:
    """Return what is in the modules, each with the lines of its module, in the order of names."""
    return tuple(
        (lines, node)
        for text in _texts()
        for lines in [text.splitlines()]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, _Documented)
    )


def _texts() -> tuple[str, ...]:
    specs = (find_spec(name) for name in sorted(_MODULES.split()))
    places = [Path(spec.origin) for spec in specs if spec is not None and spec.origin]
    return tuple(place.read_text(encoding="utf-8") for place in places if place.suffix == ".py")
