"""What the page promises by its source alone."""

from __future__ import annotations

import re

import pytest

from orchestrator.http.page import headers, page

SOURCE = page().decode()


@pytest.mark.parametrize(
    "way",
    [
        *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser"),
        *("createContextualFragment", "srcdoc", "eval(", "Function(", "localStorage", "cookie"),
    ],
)
def test_no_text_can_become_markup_or_code(way: str):
    assert way not in SOURCE


def test_nothing_comes_from_outside():
    assert set(re.findall(r"https?://[^'\" ]*", SOURCE)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"<link[^>]*href=\"([a-z]+:)", SOURCE) == ["data:"]
    assert not re.search(r"\bsrc=|@import|url\(", SOURCE)


def test_no_attribute_holds_code_or_style():
    body = SOURCE[SOURCE.index("<body>") : SOURCE.index("<script>")]
    assert not re.search(r"\s(on[a-z]+|style)=", body)


def test_the_policy_lets_only_the_pages_own_script_and_style_run():
    policy = headers(page())["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'; ")
    assert len(re.findall(r"(?:script|style)-src 'sha256-[A-Za-z0-9+/]{43}='", policy)) == 2
    assert "unsafe" not in policy
    assert headers(page().replace(b'"use strict"', b'"use  strict"')) != headers(page())


def test_a_page_is_small_enough_for_one_answer():
    assert len(page()) < 64 * 1024


def test_an_id_is_given_once_and_every_id_asked_for_is_there():
    given = re.findall(r'\sid="([^"]+)"', SOURCE)
    tiles = [f"{name}-value" for name in re.findall(r'\[\s*"([a-z-]+)",\s*"[A-Z]', SOURCE)]
    assert len(tiles) == 4
    assert len(set(given + tiles)) == len(given + tiles)
    assert set(re.findall(r'\b(?:at|setText|number)\("([^"]+)"', SOURCE)) <= set(given)
