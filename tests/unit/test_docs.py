"""The documents say what is there: links lead somewhere, options exist, the guides are short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from outrider_cli import settings
from outrider_cli.app import app

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "docs").glob("*.md"))
REFERENCES = sorted((ROOT / "docs" / "reference").glob("*.md"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *GUIDES,
    *REFERENCES,
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
    *(ROOT / name / "README.md" for name in ("deploy", "models")),
]
GUIDE_WORDS = 20_000  # of all guides together; neither references nor decisions are among them
REFERENCE_WORDS = 8_000  # of what is looked up, so that no guide grows there
README_LINES = 120  # so that it is read to its end
SENTENCE_WORDS = 40  # in a sentence of what users read; a span of code is one word
PROSE = [ROOT / "README.md", ROOT / "deploy" / "README.md", *GUIDES, *REFERENCES]

_NO_SENTENCES = [
    (re.compile(r"<!-- figures -->.*?<!-- end of figures -->", re.S), ""),
    (re.compile(r"^ *```.*?^ *```$", re.M | re.S), "\n\n"),
    (re.compile(r"<!--.*?-->", re.S), ""),
    (re.compile(r"^(?:\|.*|#+ .*| {4,}\S.*)$", re.M), "\n"),
    (re.compile(r"!?\[([^]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"`[^`]*`"), "code"),
    (re.compile(r"[*]{2}"), ""),
    (re.compile(r"^ *(?:[-*]|\d+\.) ", re.M), "\n\n"),
]
"""What is not part of a sentence, and what stands in its place."""

_FULL_STOP = re.compile(r"(?<=[.!?])[)\"]*\s+")

_LABELLED = re.compile(r"\[([\w ]+)\]\((?!https?:)[^)#\s]*?([\w-]*)\.md")
"""The label of a link, and the name of the page to which it leads."""

_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_COMMAND = re.compile(
    r"^(?:! |\w+=\S+ |\.venv/bin/|/\S+/)*outrider (?P<words>(?:--config |[a-z]).*)$"
)
_OTHERS = {
    *("--api-key", "--beside", "--gpus"),
    *("--spec-type", "--host", "--port"),  # stand for options of ours
}
"""Options of other programs that the guides name by themselves."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    for name, heading in _LINK.findall(_without_code(page.read_text("utf-8"))):
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not heading or heading in _anchors(target.resolve()), f"{name}#{heading}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_that_is_called_as_a_page_leads_to_it(page: Path) -> None:
    pages = {each.stem for each in (*GUIDES, *REFERENCES)}
    links = [(label.lower(), name) for label, name in _LABELLED.findall(page.read_text("utf-8"))]
    assert [(label, name) for label, name in links if label in pages and label != name] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_printed_commands_have_no_letters_for_options_with_a_name(page: Path) -> None:
    known = {"-h", "-v", "-vv"}  # the last one has no other spelling
    letters = [
        word
        for words in _commands(page.read_text("utf-8"))
        for word in words
        if re.fullmatch("-[a-z]{1,3}", word) and word not in known
    ]
    assert letters == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_option_of_a_printed_command_is_one_of_that_command(page: Path) -> None:
    for words in _commands(page.read_text("utf-8")):
        command, rest = _command(words)
        named = [word.partition("=")[0] for word in rest if word.startswith("--")]
        # `config show` takes another command's options.
        known = _known()[rest[0] if command == "config show" else command] | _known()[command]
        assert [name for name in named if name not in known] == [], words


@pytest.mark.parametrize("page", [*GUIDES, *REFERENCES], ids=lambda page: page.name)
def test_every_option_that_a_guide_names_exists(page: Path) -> None:
    spans = re.findall(r"`(--[a-z][a-z0-9-]+)", page.read_text("utf-8"))
    known = frozenset[str]().union(*_known().values())
    assert [name for name in spans if name not in known | _OTHERS] == []


@pytest.mark.parametrize(
    ("pages", "most"),
    [(GUIDES, GUIDE_WORDS), (REFERENCES, REFERENCE_WORDS)],
    ids=["guides", "references"],
)
def test_the_pages_are_short(pages: list[Path], most: int) -> None:
    assert sum(len(page.read_text("utf-8").split()) for page in pages) <= most


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= README_LINES


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_long(page: Path) -> None:
    found = [
        each for each in sentences(page.read_text("utf-8")) if len(each.split()) > SENTENCE_WORDS
    ]
    assert found == []


def test_a_sentence_is_what_stands_between_full_stops_outside_of_code_and_tables() -> None:
    text = """# A heading
One `span of code` and [a link](to/a/page.md). Two
lines!

| a table. | here |

<!-- a comment. -->
```sh
code. here
```
- An item
- **Bold.** After it
"""
    expected = ["One code and a link.", "Two lines!", "An item", "Bold.", "After it"]
    assert list(sentences(text)) == expected


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page; its code, tables, headings and comments are none.

    The figures of the README are printed by a program and left out.
    """
    for pattern, words in _NO_SENTENCES:
        text = pattern.sub(words, text)
    for paragraph in re.split(r"\n\s*\n", text):
        yield from filter(None, _FULL_STOP.split(" ".join(paragraph.split())))


def _without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$|`[^`\n]*`", "", text, flags=re.M | re.S)


@cache
def _anchors(page: Path) -> frozenset[str]:
    """Return what GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.M)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each).lower() for each in headings]
    return frozenset(re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in plain)


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the words after `outrider` of every command in a block or a code span."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```$", text, re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    spans = re.findall(r"`([^`\n]+)`", _without_blocks(text))
    for line in [*lines, *spans]:
        if found := _COMMAND.match(line.strip()):
            words = re.split(r"\s#|\s[|>&]", found["words"].partition(" (")[0])[0]
            if "--" in words:
                yield words.split()


def _without_blocks(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)


def _command(words: list[str]) -> tuple[str, list[str]]:
    """Return the name of a command and the words after it."""
    rest = words[2:] if words[0] == "--config" else words
    for size in (2, 1):
        if (name := " ".join(rest[:size])) in _known():
            return name, rest[size:]
    raise AssertionError(f"no command {words}")


@cache
def _known() -> dict[str, frozenset[str]]:
    """Return every command with the names of its options."""
    always = {"--help", "--help-all", "--config", "--install-completion"}
    return {
        name: frozenset(
            always.union(*((*each.opts, *each.secondary_opts) for each in command.params))
        )
        for name, command in settings.commands(typer.main.get_command(app)).items()
    }
