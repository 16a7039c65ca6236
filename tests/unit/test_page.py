"""What the page promises by its source alone."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from gateway import page
from gateway.page import INDEX, answer, headers, packed
from outrider.speculation import DRAFTERS, MODELS

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = {name for name in page.PARTS if name.startswith("libraries/")}
PARTS = {name: text for name, text in page.PARTS.items() if name not in LIBRARIES}
HTML = PARTS[INDEX].decode()
SCRIPTS = {name: text.decode() for name, text in PARTS.items() if name.endswith(".js")}
SOURCE = "\n".join(text.decode() for text in PARTS.values())


@pytest.mark.parametrize(
    "way",
    [
        *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser"),
        *("createContextualFragment", "srcdoc", "eval(", "Function(", "cookie"),
    ],
)
def test_no_text_can_become_markup_or_code(way: str):
    assert way not in SOURCE


def test_two_parts_alone_keep_anything_in_the_browser():
    stores = re.compile("localStorage|sessionStorage|indexedDB")
    keeping = [name for name, text in SCRIPTS.items() if stores.search(text)]
    assert keeping == ["store.js", "theme.js"]


def test_nothing_comes_from_outside():
    addresses = set(re.findall(r"https?://[^'\" ]*", SOURCE))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}
    own = re.findall(r"<(?:link|script)[^>]*(?:href|src)=\"([^\"]+)\"", HTML)
    assert [each for each in own if not each.startswith("data:")] == [
        *("page/style.css", "page/chat.css", "page/theme.js", "page/main.js")
    ]
    imported = {each for text in SCRIPTS.values() for each in re.findall(r'from "([^"]+)"', text)}
    assert imported <= {f"./{name}" for name in {*SCRIPTS, *LIBRARIES}}
    assert not re.search(r"@import|url\(", SOURCE)


def test_every_part_is_used():
    assert set(PARTS) == {INDEX, "chat.css", "style.css", *SCRIPTS}
    imported = {each for text in SCRIPTS.values() for each in re.findall(r'"\./([^"]+)"', text)}
    assert imported | {"main.js", "theme.js"} == {*SCRIPTS, *LIBRARIES}
    assert SOURCE.count("import(") == len(re.findall(r'import\("\./libraries/[a-z.]+"\)', SOURCE))


def test_every_source_has_a_letter_words_and_a_colour():
    known = SCRIPTS["sources.js"]
    table = known[known.index("const SOURCES") : known.index("};")]
    told = re.findall(r'^  ([a-z0-9]+): \["([A-Z])", "[^"]+"\],$', table, re.MULTILINE)
    assert [name for name, _ in told] == list(DRAFTERS)
    assert len({letter for _, letter in told}) == len(told)
    coloured = re.findall(r"\.drafted\.from-([a-z]+) {", PARTS["style.css"].decode())
    assert {*MODELS, *coloured} == set(DRAFTERS)  # models have the colour of all that is drafted


def test_no_attribute_holds_code_or_style():
    assert not re.search(r"\s(on[a-z]+|style)=", HTML[HTML.index("<body") :])
    assert "<style" not in HTML and not re.search(r"<script[^>]*>[^<]", HTML)


def test_the_policy_lets_only_the_pages_own_files_run():
    policy = headers(INDEX)["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'; ")
    assert "script-src 'self'; style-src 'self'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy


def test_the_page_is_small():
    assert sum(map(len, PARTS.values())) < 144 * 1024
    assert sum(len(packed(name)) for name in page.PARTS) < 400_000


def test_libraries_are_those_of_the_manifest():
    folder = Path(page.__file__).with_name("page_files") / "libraries"
    manifest = json.loads((folder / "manifest.json").read_text())
    sums = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "manifest.json"
    }
    assert sums == manifest["files"], "run `make page-libraries`"
    locked = json.loads((ROOT / "scripts/page_libraries/package-lock.json").read_text())["packages"]
    licences = (folder / "LICENSES.txt").read_text()
    for package, integrity in manifest["packages"].items():
        name, _, version = package.rpartition("@")
        entry = locked[f"node_modules/{name}"]
        assert (entry["version"], entry["integrity"]) == (version, integrity)
        assert f"{name} {version} (" in licences


def test_a_part_is_compressed_where_that_is_taken_and_sent_once():
    plain = answer("main.js", {})
    small = answer("main.js", {"accept-encoding": "gzip, br"})
    assert plain.body == PARTS["main.js"] and "content-encoding" not in plain.headers
    assert small.body == packed("main.js") and small.headers["content-encoding"] == "gzip"
    known = answer("main.js", {"if-none-match": plain.headers["etag"]})
    assert (known.status_code, known.body) == (304, b"")


def test_an_id_is_given_once_and_every_id_asked_for_is_there():
    given = re.findall(r'\sid="([^"]+)"', HTML)
    tiles = [f"{name}-value" for name in re.findall(r'\[\s*"([a-z-]+)",\s*"[A-Z]', SOURCE)]
    assert len(set(given)) == len(given)
    assert {"acceptance-value", "per-round-value", "rate-value", "speedup-value"} <= set(tiles)
    assert set(re.findall(r'\b(?:at|setText|number)\("([^"]+)"', SOURCE)) <= set(given)
