"""axe-core finds nothing wrong with the page, in both views, light and dark, wide and narrow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.test_chat import ask, finish, press
from tests.support.browser import Browser, until
from tests.support.clients import NODE
from tests.support.scripted_gateway import Gateway, Round, Script

AXE = NODE / "node_modules/axe-core/axe.min.js"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not AXE.is_file(), reason="scripts/node-clients has not installed axe-core"),
]

ANSWER = "Some **bold**, `code` and [a link](https://example.org).\n\n```python\nx = 1  # one\n```"
ROUNDS = (
    Round([], 0, "A thought. ", "prompt"),
    Round([" And", " one"], 1, " more"),
    Round([], 0, ANSWER),
)
FIND = """
const done = arguments[0];
axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) =>
  done(violations.map(({ id, nodes }) => [id, nodes.map((node) => node.html)])));
"""


def violations(page: Browser) -> list[Any]:
    page.run(AXE.read_text(encoding="utf-8") + "; window.axe = axe")
    return list(page.wait_for(FIND))


@pytest.fixture(params=["light", "dark"])
def chat(page: Browser, gateway: Gateway, request: pytest.FixtureRequest) -> Browser:
    page.prefer(prefers_color_scheme=request.param, prefers_reduced_motion="reduce")
    calls = [("weather", '{"city": "Paris"}')]
    gateway.script = Script(ROUNDS, stop_type="limit", thought_count=2, calls=calls)
    until(lambda: page.count("#peers li") == 2)
    return page


def test_the_chat_is_accessible(chat: Browser):
    assert violations(chat) == []
    ask(chat, "Hi")
    finish(chat)
    chat.run("for (const each of document.querySelectorAll('details')) each.open = true")
    assert violations(chat) == []
    press(chat, "edit", 0)
    chat.run("document.querySelector('#chats [data-act=\"delete\"]').click()")
    assert violations(chat) == []
    chat.click("#open-settings")
    assert violations(chat) == []


def test_the_chat_is_accessible_on_a_phone(chat: Browser):
    chat.resize(390, 780)
    ask(chat, "Hi")
    finish(chat)
    assert violations(chat) == []
    chat.click("#menu")
    assert violations(chat) == []


def test_the_instrument_is_accessible(chat: Browser):
    chat.click("#instrument-tab")
    assert violations(chat) == []
    chat.click("#generate")
    finish(chat)
    assert violations(chat) == []
    chat.hover(".token.corrected")
    assert chat.shown("#tip")
    assert violations(chat) == []
