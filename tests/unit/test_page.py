"""What the page promises by its source alone."""

from __future__ import annotations

import re

import pytest

from gateway.page import INDEX, PARTS, headers
from outrider.speculation import DRAFTERS, MODELS

HTML = PARTS[INDEX].decode()
SCRIPTS = {name: text.decode() for name, text in PARTS.items() if name.endswith(".js")}
SOURCE = "\n".join(text.decode() for text in PARTS.values())


@pytest.mark.parametrize(
    "way",
    [
        *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser"),
        *("createContextualFragment", "srcdoc", "eval(", "Function(", "cookie", "import("),
    ],
)
def test_no_text_can_become_markup_or_code(way: str):
    assert way not in SOURCE


def test_one_part_alone_keeps_anything_in_the_browser():
    assert [name for name, text in SCRIPTS.items() if "localStorage" in text] == ["chats.js"]


def test_nothing_comes_from_outside():
    addresses = set(re.findall(r"https?://[^'\" ]*", SOURCE))
    assert addresses == {"http://www.w3.org/2000/svg"}
    own = re.findall(r"<(?:link|script)[^>]*(?:href|src)=\"([^\"]+)\"", HTML)
    assert [each for each in own if not each.startswith("data:")] == [
        *("page/style.css", "page/main.js")
    ]
    imported = {each for text in SCRIPTS.values() for each in re.findall(r'from "([^"]+)"', text)}
    assert imported <= {f"./{name}" for name in SCRIPTS}
    assert not re.search(r"@import|url\(", SOURCE)


def test_every_part_is_used():
    assert set(PARTS) == {INDEX, "style.css", *SCRIPTS}
    imported = {each for text in SCRIPTS.values() for each in re.findall(r'"\./([^"]+)"', text)}
    assert imported | {"main.js"} == set(SCRIPTS)


def test_every_source_has_a_letter_words_and_a_colour():
    known = SCRIPTS["sources.js"]
    table = known[known.index("const SOURCES") : known.index("};")]
    told = re.findall(r'^  ([a-z0-9]+): \["([A-Z])", "[^"]+"\],$', table, re.MULTILINE)
    assert [name for name, _ in told] == list(DRAFTERS)
    assert len({letter for _, letter in told}) == len(told)
    coloured = re.findall(r"\.drafted\.from-([a-z]+) {", PARTS["style.css"].decode())
    assert {*MODELS, *coloured} == set(DRAFTERS)  # models have the colour of all that is drafted


def test_no_attribute_holds_code_or_style():
    assert not re.search(r"\s(on[a-z]+|style)=", HTML[HTML.index("<body>") :])
    assert "<style" not in HTML and not re.search(r"<script[^>]*>[^<]", HTML)


def test_the_policy_lets_only_the_pages_own_files_run():
    policy = headers(INDEX)["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'; ")
    assert "script-src 'self'; style-src 'self'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy


def test_the_page_is_small():
    assert sum(map(len, PARTS.values())) < 96 * 1024


def test_an_id_is_given_once_and_every_id_asked_for_is_there():
    given = re.findall(r'\sid="([^"]+)"', HTML)
    tiles = [f"{name}-value" for name in re.findall(r'\[\s*"([a-z-]+)",\s*"[A-Z]', SOURCE)]
    assert len(set(given)) == len(given)
    assert {"acceptance-value", "per-round-value", "rate-value", "speedup-value"} <= set(tiles)
    assert set(re.findall(r'\b(?:at|setText|number)\("([^"]+)"', SOURCE)) <= set(given)
