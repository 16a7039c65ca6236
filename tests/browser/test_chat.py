"""The page's chat in a real Chromium, against a gateway that plays scripted generations."""

from __future__ import annotations

import pytest

from tests.support.browser import Browser, until
from tests.support.scripted_gateway import Gateway, Round, Script

pytestmark = pytest.mark.browser

HELLO = (Round([], 0, "Hello", "prompt"), Round([" to"], 1, " you"))
MARKDOWN = """\
# Title
Some **bold**, *slanted* and `code`, snake_case_stays.

```html
<b>not bold</b>
```
- one
- two

| a | b |
|---|---|
| 1 | 2 |

[web](https://example.org/x) [script](javascript:alert(1)) <img src=x onerror=alert(2)>
</script><script>document.title = "taken"</script>"""


def ask(page: Browser, question: str) -> None:
    page.fill("#question", question)
    page.press("Enter")


def finish(page: Browser, word: str = "Done") -> None:
    until(lambda: page.text("#state").startswith(word))
    until(lambda: page.run("return !document.querySelector('#send').ariaDisabled.includes('t')"))


@pytest.fixture
def chat(page: Browser, gateway: Gateway) -> Browser:
    gateway.script = Script(HELLO, stop_type="eos")
    page.click("#chat-tab")
    return page


def test_a_question_gets_an_answer_and_the_instrument_shows_its_tokens(
    chat: Browser, gateway: Gateway
):
    ask(chat, "Hi")
    finish(chat)
    assert chat.texts(".message .body") == ["Hi", "Hello to you"]
    assert gateway.chats == [[{"role": "user", "content": "Hi"}]]
    assert gateway.requests[0]["prompt"] == "<chat of 1>"
    assert chat.count(".token.drafted") == 1
    ask(chat, "And?")
    finish(chat)
    until(lambda: chat.count(".message") == 4)
    assert [each["content"] for each in gateway.chats[1]] == ["Hi", "Hello to you", "And?"]


def test_a_system_prompt_comes_first(chat: Browser, gateway: Gateway):
    chat.run("document.querySelector('#chat-panel details').open = true")
    chat.fill("#system", "Be brief.")
    ask(chat, "Hi")
    finish(chat)
    assert gateway.chats[0][0] == {"role": "system", "content": "Be brief."}


def test_an_answer_can_be_had_again(chat: Browser, gateway: Gateway):
    ask(chat, "Hi")
    finish(chat)
    gateway.script = Script((Round([], 0, "Other", "prompt"),), stop_type="eos")
    chat.click("#regenerate")
    until(lambda: chat.texts(".message .body") == ["Hi", "Other"])
    assert gateway.chats[1] == gateway.chats[0]


def test_stopping_keeps_what_is_there_and_frees_the_models(chat: Browser, gateway: Gateway):
    gateway.script = Script((*HELLO, *(Round([], 0, " more") for _ in range(500))), pace=0.05)
    ask(chat, "Hi")
    until(lambda: "more" in chat.text("#messages"))
    chat.click("#stop")
    finish(chat, "Cancelled")
    assert gateway.left.wait(10)
    assert chat.texts(".message .body")[1].startswith("Hello to you more")
    assert chat.texts(".cut-note") == ["cut off"]


def test_chats_are_there_after_a_reload_until_they_are_deleted(chat: Browser, gateway: Gateway):
    ask(chat, "First chat")
    finish(chat)
    chat.click("#new-chat")
    assert chat.count(".message") == 0
    ask(chat, "Second chat")
    finish(chat)
    chat.open(gateway.url)
    chat.click("#chat-tab")
    assert chat.texts("#chats option") == ["Second chat", "First chat"]
    assert chat.texts(".message.user .body") == ["Second chat"]
    chat.click("#forget-chat")
    assert chat.texts("#chats option") == ["First chat"]
    chat.open(gateway.url)
    assert chat.texts("#chats option") == ["First chat"]


def test_what_a_browser_keeps_and_others_wrote_harms_nothing(chat: Browser, gateway: Gateway):
    for stored in (
        "nonsense",
        "{}",
        '[{"id": 1}, null, {"id": "x", "system": "", "messages": [3]}]',
    ):
        chat.run("localStorage.setItem('outrider.chats', arguments[0])", stored)
        chat.open(gateway.url)
        chat.click("#chat-tab")
        assert chat.texts("#chats option") == ["New chat"]


def test_answers_are_markdown_and_nothing_in_them_is_markup(chat: Browser, gateway: Gateway):
    gateway.script = Script((Round([], 0, MARKDOWN, "prompt"),), stop_type="eos")
    ask(chat, "<b>Hi</b>")
    finish(chat)
    until(lambda: chat.count(".assistant table") == 1)
    assert chat.text(".user .body") == "<b>Hi</b>"
    for selector, texts in {
        "h3": ["Title"],
        "strong": ["bold"],
        "em": ["slanted"],
        "p > code": ["code"],
        "pre code": ["<b>not bold</b>"],
        "li": ["one", "two"],
        "td": ["1", "2"],
        "a": ["web"],
    }.items():
        assert chat.texts(f".assistant {selector}") == texts
    assert chat.run("return document.querySelector('.assistant a').rel") == "noopener noreferrer"
    assert chat.count("#messages :is(img, b, script)") == 0
    assert "snake_case_stays" in chat.text(".assistant")
    assert chat.run("return document.title") == "Outrider"


def test_every_sampler_is_sent(chat: Browser, gateway: Gateway):
    chat.run("document.querySelector('#all-samplers').open = true")
    numbers = chat.run(
        "return [...document.querySelectorAll('#samplers input[type=number]')].map((e) => e.id)"
    )
    assert len(numbers) == 22
    chat.run(
        "for (const id of arguments[0]) { const e = document.getElementById(id);"
        " e.value = e.max === '1' ? '0.5' : '1' }",
        numbers,
    )
    chat.fill("#sampler-stop", "END\nSTOP")
    chat.fill("#sampler-samplers", "top_k;temperature")
    chat.fill("#sampler-json_schema", '{"type": "integer"}')
    chat.click("#sampler-ignore_eos")
    ask(chat, "Hi")
    finish(chat)
    sent = gateway.requests[0]
    assert {name.removeprefix("sampler-") for name in numbers} <= sent.keys()
    assert sent["mirostat"] == 1 and sent["top_p"] == 0.5
    assert sent["stop"] == ["END", "STOP"]
    assert sent["samplers"] == ["top_k", "temperature"]
    assert sent["json_schema"] == {"type": "integer"}
    assert sent["ignore_eos"] is True


def test_a_sampler_out_of_range_is_shown_and_not_sent(chat: Browser, gateway: Gateway):
    chat.run("document.querySelector('#sampler-top_p').value = '2'")
    ask(chat, "Hi")
    until(lambda: chat.run("return document.querySelector('#all-samplers').open"))
    assert gateway.chats == []


def test_a_model_without_a_template_is_one_line(page: Browser, gateway: Gateway):
    gateway.has_no_template = True
    page.click("#chat-tab")
    ask(page, "Hi")
    until(lambda: page.text("#alert") == "the model has no chat template")
    assert page.texts(".message .body") == ["Hi"]
    # The console of a browser names every answer of 400.
    assert all("400" in complaint for complaint in page.complaints())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("enough", "by what was measured so far, waiting for a draft would not have paid"),
        ("late", "the draft was too late every time"),
        ("absent", "waiting for the draft at 10.0.0.3:50052 (UNAVAILABLE)"),
    ],
)
def test_the_page_says_why_nothing_was_drafted(
    page: Browser, gateway: Gateway, change: str, sentence: str
):
    reason = "waiting for the draft at 10.0.0.3:50052 (UNAVAILABLE)"
    gateway.status = {**gateway.status, "speculating": False, "reason": reason}
    page.open(gateway.url)
    until(lambda: reason in page.text("#pair"))
    gateway.script = Script((Round([], 0, "a", "prompt"), Round([], 0, "b", change)))
    page.click("#generate")
    finish(page)
    until(lambda: page.shown("#why"))
    assert page.text("#why") == f"Nothing was drafted: {sentence}."


def test_nothing_is_explained_where_something_was_drafted(page: Browser, gateway: Gateway):
    gateway.script = Script(HELLO)
    page.click("#generate")
    finish(page)
    assert not page.shown("#why")


def test_a_phone_shows_everything_without_scrolling_sideways(chat: Browser, gateway: Gateway):
    gateway.script = Script((Round([], 0, MARKDOWN + "\n" + "x" * 300, "prompt"),), stop_type="eos")
    chat.resize(360, 740)
    ask(chat, "y" * 200)
    finish(chat)
    until(lambda: chat.count(".assistant table") == 1)
    wide, seen = chat.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide == seen == 360
    heights = chat.run(
        "return ['#send', '#question', '#temperature', '#chat-tab'].map((s) =>"
        " document.querySelector(s).getBoundingClientRect().height)"
    )
    assert min(heights) >= 44, "a finger needs so much"
