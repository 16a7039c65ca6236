"""What keeps the chat quick: it draws what changed, at most once a frame, and what can be seen."""

from __future__ import annotations

import json

import pytest

from tests.browser.test_chat import ask, finish, said
from tests.support.browser import Browser, until
from tests.support.scripted_gateway import Gateway, Round, Script

pytestmark = pytest.mark.browser

HISTORY = 200  # messages of a long chat
PARAGRAPHS = "\n\n".join(f"Paragraph {i} with **bold** words and `code`." for i in range(8))
LONG_CHAT = {
    "id": "long",
    "name": "",
    "system": "",
    "changed": 1,
    "shown": HISTORY - 1,
    "messages": [
        {"parent": i - 1, "role": "user", "content": f"Question {i}"}
        if i % 2 == 0
        else {"parent": i - 1, "role": "assistant", "content": PARAGRAPHS, "end": "done"}
        for i in range(HISTORY)
    ],
}
WATCH = """
window.seen = { frames: 0, drawings: 0, outside: 0 };
const messages = document.querySelector("#messages");
const frame = () => { window.seen.frames += 1; requestAnimationFrame(frame); };
requestAnimationFrame(frame);
new MutationObserver((records) => {
  window.seen.drawings += 1;
  const last = messages.lastElementChild;
  window.seen.outside += records.filter(({ target }) => !last.contains(target)).length;
}).observe(messages, { childList: true, characterData: true, subtree: true });
"""


GROW = """
const load = (name) => import(new URL(`page/${name}`, document.baseURI));
const parts = Promise.all([load("growing.js"), load("markdown.js")]);
return parts.then(([{ GrowingText }, { markdown }]) => {
  const [text, step] = arguments;
  const [box, fresh] = [document.createElement("div"), document.createElement("div")];
  const growing = new GrowingText(box);
  const wrong = [];
  for (let end = 0; end < text.length; end += step) {
    growing.draw(text.slice(0, end));
    fresh.replaceChildren(...markdown(text.slice(0, end)));
    if (!box.isEqualNode(fresh)) wrong.push(end);
  }
  const { characters } = growing.settled;
  growing.drawWhole(text);
  fresh.replaceChildren(...markdown(text));
  return { wrong, characters, whole: box.isEqualNode(fresh) };
});
"""


def open_long_chat(page: Browser, gateway: Gateway) -> None:
    text = json.dumps(LONG_CHAT)
    page.run("localStorage.setItem('outrider.chat.long', arguments[0])", text)
    page.open(gateway.url)
    until(lambda: page.count(".message") == HISTORY)


def test_of_a_long_chat_only_what_is_near_is_drawn(page: Browser, gateway: Gateway):
    open_long_chat(page, gateway)
    until(lambda: page.count(".assistant .body:not(.plain)") > 0)
    assert page.count(".assistant .body:not(.plain)") < HISTORY / 8
    assert page.style(".message", "contentVisibility") == "auto"
    below = "const m = document.querySelector('#messages');"
    below += " return m.scrollHeight - m.scrollTop - m.clientHeight"
    until(lambda: page.run(below) < 2)  # it opens at its end
    page.run("document.querySelector('#messages').scrollTop = 0")
    until(lambda: page.count(".message:nth-child(2) .body:not(.plain)") == 1)


def test_an_answer_draws_itself_alone_and_at_most_once_a_frame(page: Browser, gateway: Gateway):
    open_long_chat(page, gateway)
    rounds = [Round([], 0, f" word{i}" + "\n\n" * (i % 20 == 19)) for i in range(400)]
    gateway.script = Script(rounds, stop_type="eos", pace=0.002)
    ask(page, "Hi")
    until(lambda: "word25" in said(page)[-1])
    page.run("window.first = document.querySelector('.message:last-child .body p')")
    page.run(WATCH)
    until(lambda: "word390" in said(page)[-1])
    seen = page.run("return window.seen")
    assert seen["outside"] == 0
    assert 0 < seen["drawings"] <= seen["frames"] + 2
    finish(page)
    assert page.run("return document.querySelector('.message:last-child .body p') === window.first")


@pytest.mark.parametrize("step", [97, 1500])
def test_the_settled_beginning_of_an_answer_reads_as_it_would_together(page: Browser, step: int):
    table = "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 40
    items = "\n\n".join(f"{i}. item\n\n   more of it" for i in range(1, 90))
    code = "```python\n" + "\n\n".join(f"x{i} = {i}" for i in range(300)) + "\n```"
    text = "\n\n".join(
        [PARAGRAPHS, table, items, "# Title", code, "> quoted\n> more", *[PARAGRAPHS] * 20]
    )
    grown = page.run(GROW, text, step)
    assert grown["wrong"] == [] and grown["whole"]
    assert grown["characters"] > len(text) - 12_000


def test_what_follows_may_change_the_beginning_of_a_whole_answer(page: Browser):
    text = "See [the page][1].\n\n" + PARAGRAPHS * 20 + "\n\n[1]: https://example.org/\n"
    assert page.run(GROW, text, 500)["whole"]


def test_the_instrument_is_drawn_only_where_it_is_seen(page: Browser, gateway: Gateway):
    gateway.script = Script([Round([], 0, f" word{i}") for i in range(50)], stop_type="eos")
    ask(page, "Hi")
    finish(page)
    assert page.count(".token") == 0
    page.click("#instrument-tab")
    until(lambda: page.count(".token") == 50)
