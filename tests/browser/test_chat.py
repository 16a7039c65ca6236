"""The page's chat in a real Chromium, against a gateway that plays scripted generations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser, chromium, opened, until
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


KEPT_CHATS = """
return Object.keys(localStorage).filter((key) => key.startsWith("outrider.chat."))
  .map((key) => JSON.parse(localStorage[key]));
"""


def ask(page: Browser, question: str) -> None:
    page.fill("#question", question)
    page.press("Enter")


def finish(page: Browser, word: str = "Done") -> None:
    until(lambda: page.text("#chat-state").startswith(word))
    until(lambda: not page.run("return document.body.classList.contains('running')"))


def said(page: Browser) -> list[str]:
    return page.texts(".message .body")


def press(page: Browser, act: str, number: int = -1) -> None:
    """Press the button of this act below a message, the last one if nothing else is said."""
    script = """
    const messages = [...document.querySelectorAll(".message")];
    messages.at(arguments[1]).querySelector(`[data-act="${arguments[0]}"]`).click();
    """
    page.run(script, act, number)


def kept(page: Browser) -> list[dict[str, Any]]:
    return list(page.run(KEPT_CHATS))


@pytest.fixture
def chat(page: Browser, gateway: Gateway) -> Browser:
    """The chat, which is what the page opens."""
    gateway.script = Script(HELLO, stop_type="eos")
    return page


# --- Asking ---


def test_a_question_gets_an_answer_and_the_instrument_shows_its_tokens(
    chat: Browser, gateway: Gateway
):
    assert chat.shown("#chat-view") and not chat.shown("#instrument-view")
    ask(chat, "Hi")
    finish(chat)
    assert said(chat) == ["Hi", "Hello to you"]
    assert gateway.chats == [[{"role": "user", "content": "Hi"}]]
    assert "max_tokens" not in gateway.requests[0] and "n_predict" not in gateway.requests[0]
    assert chat.texts(".speed") == ["3 tokens, 21.5 tokens/s"]
    press(chat, "tokens")
    until(lambda: chat.count(".token.drafted") == 1)
    assert chat.text("#text") == "Hello to you"
    chat.click("#chat-tab")
    ask(chat, "And?")
    finish(chat)
    assert [each["content"] for each in gateway.chats[1]] == ["Hi", "Hello to you", "And?"]


def test_the_tokens_of_an_earlier_answer_are_still_there(chat: Browser, gateway: Gateway):
    ask(chat, "Hi")
    finish(chat)
    gateway.script = Script((Round([], 0, "Later", "prompt"),), stop_type="eos")
    ask(chat, "And?")
    finish(chat)
    press(chat, "tokens", 1)
    until(lambda: chat.text("#text") == "Hello to you")
    chat.click("#chat-tab")
    press(chat, "tokens", 3)
    until(lambda: chat.text("#text") == "Later")


def test_the_model_is_in_the_title_and_in_the_header(chat: Browser):
    until(lambda: chat.text("#model") == "stdlib-target-q8_0")
    assert chat.run("return document.title") == "stdlib-target-q8_0 \u2013 Outrider"


def test_a_model_without_a_template_opens_the_instrument(page: Browser, gateway: Gateway):
    gateway.stands_in = True
    page.open(gateway.url)
    until(lambda: page.shown("#instrument-view"))
    page.click("#chat-tab")
    assert "no chat template of its own" in page.text("#chat-note")
    gateway.script = Script(HELLO, stop_type="word")
    ask(page, "Hi")
    finish(page)
    assert gateway.requests[0]["stop"] == ["<|im_start|>", "<|im_end|>"]


def test_thoughts_are_folded_and_calls_are_shown(chat: Browser, gateway: Gateway):
    calls = [("weather", '{"city": "Paris"}'), ("time", "{}")]
    gateway.script = Script(HELLO, stop_type="eos", thought_count=1, calls=calls)
    ask(chat, "Hi")
    finish(chat)
    assert chat.texts(".thoughts pre") == ["Hello"]
    assert not chat.run("return document.querySelector('.thoughts').open")
    assert said(chat) == ["Hi", "to you"]
    assert [text.removeprefix("calls ") for text in chat.texts(".call")] == [
        *('weather{"city": "Paris"}', "time{}")
    ]
    ask(chat, "And?")
    finish(chat)
    asked = gateway.chats[1][1]["tool_calls"]
    assert [each["function"]["name"] for each in asked] == ["weather", "time"]


def test_stopping_keeps_what_is_there_and_frees_the_models(chat: Browser, gateway: Gateway):
    gateway.script = Script((*HELLO, *(Round([], 0, " more") for _ in range(500))), pace=0.05)
    ask(chat, "Hi")
    until(lambda: "more" in chat.text("#messages"))
    chat.click("#stop")
    finish(chat, "Cancelled")
    assert chat.run("return document.activeElement.id") == "question"
    assert gateway.left.wait(10)
    assert said(chat)[1].startswith("Hello to you more")
    assert chat.texts(".cut-note") == ["Stopped."]


def test_what_came_of_an_answer_is_there_after_a_reload_and_continues(
    chat: Browser, gateway: Gateway
):
    gateway.script = Script((*HELLO, *(Round([], 0, " more") for _ in range(500))), pace=0.05)
    ask(chat, "Hi")
    until(lambda: "more" in chat.text("#messages"))
    chat.open(gateway.url)
    assert said(chat)[1].startswith("Hello to you more")
    gateway.script = Script((Round([], 0, " end"),), stop_type="eos")
    press(chat, "continue")
    until(lambda: said(chat)[1].endswith("more end"))
    finish(chat)


def test_an_answer_at_the_token_limit_says_so_and_continues(chat: Browser, gateway: Gateway):
    chat.click("#open-settings")
    chat.fill("#chat-limit", "3")
    chat.click("#close-settings")
    gateway.script = Script(HELLO, stop_type="limit")
    ask(chat, "Hi")
    finish(chat)
    assert gateway.requests[0]["max_tokens"] == 3
    assert chat.texts(".cut-note") == ["The answer reached its token limit."]
    gateway.script = Script((Round([], 0, ", friend"),), stop_type="eos")
    press(chat, "continue")
    until(lambda: said(chat) == ["Hi", "Hello to you, friend"])
    finish(chat)
    assert gateway.requests[1]["continue_final_message"] is True
    assert gateway.chats[1][-1] == {"role": "assistant", "content": "Hello to you"}
    assert chat.count(".cut-note") == 0 and chat.text(".speed").startswith("4 tokens")
    press(chat, "tokens")
    until(lambda: chat.text("#text") == "Hello to you, friend")


def test_without_a_limit_the_context_ends_an_answer(chat: Browser, gateway: Gateway):
    gateway.script = Script(HELLO, stop_type="limit")
    ask(chat, "Hi")
    finish(chat)
    assert chat.texts(".cut-note") == ["The context is full."]
    assert chat.count('[data-act="continue"]') == 0


def test_an_answer_that_ends_in_calls_is_not_continued(chat: Browser, gateway: Gateway):
    calls = [("weather", '{"city": "Par')]
    gateway.script = Script((*HELLO, *HELLO), stop_type="limit", calls=calls)
    chat.run("document.querySelector('#chat-limit').value = '6'")
    ask(chat, "Hi")
    finish(chat)
    assert chat.texts(".cut-note") == ["The answer reached its token limit."]
    assert chat.count('[data-act="again"]') == 1 and chat.count('[data-act="continue"]') == 0


def test_a_refused_continuation_leaves_an_answer_its_tokens(chat: Browser, gateway: Gateway):
    chat.run("document.querySelector('#chat-limit').value = '3'")
    gateway.script = Script(HELLO, stop_type="limit")
    ask(chat, "Hi")
    finish(chat)
    gateway.refuses = "no"
    press(chat, "continue")
    until(lambda: chat.text("#alert") == "no")
    finish(chat, "Failed")
    press(chat, "tokens")
    until(lambda: chat.count(".token") == 3)
    # The console of a browser names every answer of 400.
    assert all("400" in complaint for complaint in chat.complaints())


def test_a_refused_question_stays_and_can_be_asked_again(chat: Browser, gateway: Gateway):
    gateway.refuses = "the prompt is too long"
    ask(chat, "Hi")
    until(lambda: chat.text("#alert") == gateway.refuses)
    until(lambda: said(chat) == ["Hi"])
    gateway.refuses = ""
    press(chat, "again")
    until(lambda: said(chat) == ["Hi", "Hello to you"])
    finish(chat)
    # The console of a browser names every answer of 400.
    assert all("400" in complaint for complaint in chat.complaints())


def test_an_answer_comes_while_another_chat_is_read(chat: Browser, gateway: Gateway):
    ask(chat, "First")
    finish(chat)
    chat.click("#new-chat")
    gateway.script = Script((*HELLO, *(Round([], 0, " more") for _ in range(20))), pace=0.05)
    ask(chat, "Second")
    until(lambda: "more" in chat.text("#messages"))
    chat.click("#chats li:last-child .chat-name")
    assert said(chat) == ["First", "Hello to you"]
    finish(chat)
    assert said(chat) == ["First", "Hello to you"]
    chat.click("#chats li:first-child .chat-name")
    until(lambda: said(chat) == ["Second", "Hello to you" + 20 * " more"])


# --- Versions ---


def test_an_answer_that_is_written_again_is_a_version_beside_the_old_one(
    chat: Browser, gateway: Gateway
):
    ask(chat, "Hi")
    finish(chat)
    gateway.script = Script((Round([], 0, "Other", "prompt"),), stop_type="eos")
    press(chat, "again")
    until(lambda: said(chat) == ["Hi", "Other"])
    finish(chat)
    assert gateway.chats[1] == gateway.chats[0]
    assert chat.text(".versions").strip() == "\u2039 2 / 2 \u203a"
    press(chat, "before")
    until(lambda: said(chat) == ["Hi", "Hello to you"])
    assert chat.text(".versions").strip() == "\u2039 1 / 2 \u203a"
    assert chat.run("return document.activeElement.dataset.act") == "after"
    chat.open(gateway.url)
    until(lambda: said(chat) == ["Hi", "Hello to you"])


def test_an_edited_question_is_a_branch(chat: Browser, gateway: Gateway):
    ask(chat, "Hi")
    finish(chat)
    ask(chat, "And?")
    finish(chat)
    press(chat, "edit", 0)
    chat.fill(".edit textarea", "Bye")
    chat.press("Enter")
    until(lambda: said(chat) == ["Bye", "Hello to you"])
    finish(chat)
    assert gateway.chats[2] == [{"role": "user", "content": "Bye"}]
    press(chat, "before", 0)
    until(lambda: said(chat) == ["Hi", "Hello to you", "And?", "Hello to you"])
    press(chat, "edit", 0)
    chat.press("Escape")
    assert chat.count(".edit") == 0 and chat.shown(".message.user .body")


# --- Kept ---


def test_a_system_prompt_comes_first_and_new_chats_take_it(chat: Browser, gateway: Gateway):
    chat.click("#open-settings")
    chat.fill("#system", "Be brief.")
    chat.click("#close-settings")
    ask(chat, "Hi")
    finish(chat)
    assert gateway.chats[0][0] == {"role": "system", "content": "Be brief."}
    chat.open(gateway.url)
    chat.click("#new-chat")
    assert chat.run("return document.querySelector('#system').value") == "Be brief."


def test_settings_are_there_after_a_reload_until_they_are_reset(chat: Browser, gateway: Gateway):
    chat.click("#open-settings")
    chat.fill("#temperature", "0.25")
    chat.fill("#chat-limit", "99")
    chat.run("document.querySelector('#all-samplers').open = true")
    chat.fill("#sampler-top_k", "7")
    chat.click("#close-settings")
    chat.open(gateway.url)
    ask(chat, "Hi")
    finish(chat)
    sent = gateway.requests[0]
    assert (sent["temperature"], sent["max_tokens"], sent["top_k"]) == (0.25, 99, 7)
    chat.click("#open-settings")
    chat.click("#reset-settings")
    chat.click("#close-settings")
    ask(chat, "Hi")
    finish(chat)
    assert gateway.requests[1]["temperature"] == 0.8 and "top_k" not in gateway.requests[1]


def test_chats_are_there_after_a_reload_and_found_by_words(chat: Browser, gateway: Gateway):
    ask(chat, "First chat")
    finish(chat)
    chat.click("#new-chat")
    assert chat.count(".message") == 0
    ask(chat, "Second chat")
    finish(chat)
    chat.open(gateway.url)
    assert chat.texts(".chat-name") == ["Second chat", "First chat"]
    assert chat.texts(".message.user .body") == ["Second chat"]
    chat.fill("#search", "FIRST")
    assert chat.texts(".chat-name") == ["First chat"]
    chat.fill("#search", "nowhere")
    assert chat.text("#no-chats") == "No chat has these words."


def test_a_deleted_chat_can_be_brought_back(chat: Browser, gateway: Gateway):
    ask(chat, "First chat")
    finish(chat)
    chat.run("document.querySelector('#chats [data-act=\"delete\"]').click()")
    assert said(chat) == [] and kept(chat) == []
    chat.click("#undo button")
    assert said(chat) == ["First chat", "Hello to you"] and len(kept(chat)) == 1
    assert chat.text("#undo") == ""


def test_chats_that_were_deleted_one_after_the_other_come_back_together(chat: Browser):
    for name in ("One", "Two"):
        keep(chat, id=name, messages=turns(name, "Hello"))
    for _ in range(2):
        chat.run("document.querySelector('#chats [data-act=\"delete\"]').click()")
    assert kept(chat) == [] and chat.text("#undo span") == "Deleted 2 chats."
    chat.click("#undo button")
    assert sorted(each["id"] for each in kept(chat)) == ["One", "Two"]
    assert sorted(chat.texts(".chat-name")) == ["One", "Two"] and chat.text("#undo") == ""
    chat.run("document.querySelector('#chats [data-act=\"delete\"]').click()")
    assert chat.text("#undo span").startswith("Deleted \u201c")


def test_a_chat_can_be_renamed(chat: Browser, gateway: Gateway):
    ask(chat, "First chat")
    finish(chat)
    chat.run("document.querySelector('#chats [data-act=\"rename\"]').click()")
    chat.run("document.activeElement.value = 'My name'")  # clearing it would leave it
    chat.press("Enter")
    assert chat.texts(".chat-name") == ["My name"]
    chat.open(gateway.url)
    assert chat.texts(".chat-name") == ["My name"]


def test_what_is_exported_can_be_imported(chat: Browser, gateway: Gateway, tmp_path: Path):
    ask(chat, "First chat")
    finish(chat)
    chat.run("URL.createObjectURL = (blob) => { window.saved = blob; return 'data:,' }")
    chat.run("document.querySelector('#sidebar details').open = true")
    chat.click("#export-markdown")
    text = chat.run("return window.saved.text()")
    assert text == "# First chat\n\n## You\n\nFirst chat\n\n## Model\n\nHello to you\n"
    chat.click("#export-all")
    file = tmp_path / "chats.json"
    file.write_text(chat.run("return window.saved.text()"), encoding="utf-8")
    assert json.loads(file.read_text())["chats"] == kept(chat)
    chat.run("document.querySelector('#chats [data-act=\"delete\"]').click()")
    chat.attach("#import", file)
    until(lambda: said(chat) == ["First chat", "Hello to you"])
    chat.attach("#import", file)
    until(lambda: chat.texts(".chat-name") == ["First chat", "First chat"])
    file.write_text('{"chats": [{}]}')
    chat.attach("#import", file)
    until(lambda: chat.text("#alert") == "The file has no chats of this page.")


@pytest.mark.parametrize(
    "stored",
    [
        "nonsense",
        "{}",
        '{"id": "x", "name": "", "system": "", "changed": 1, "shown": 7, "messages": []}',
        '{"id": "x", "name": "", "system": "", "changed": 1, "shown": 0, "messages": [3]}',
        '{"id": "x", "name": "", "system": "", "changed": 1, "shown": 0, "messages": '
        '[{"role": "assistant", "content": "a", "parent": -1, "end": {"toString": 1}}]}',
    ],
)
def test_what_a_browser_keeps_and_others_wrote_harms_nothing(
    chat: Browser, gateway: Gateway, stored: str
):
    for name in ("chat.x", "settings", "theme", "system"):
        chat.run(f"localStorage.setItem('outrider.{name}', arguments[0])", stored)
    chat.open(gateway.url)
    assert chat.texts(".chat-name") == []
    ask(chat, "Hi")
    finish(chat)
    assert said(chat) == ["Hi", "Hello to you"]


def keep(page: Browser, **changed: Any) -> None:
    """Keep a chat as another tab of this browser would, which lets the others know."""
    chat = {"id": "x", "name": "", "system": "", "changed": 1e15, "shown": 1, **changed}
    script = """
    const key = "outrider.chat." + arguments[0].id;
    localStorage.setItem(key, JSON.stringify(arguments[0]));
    dispatchEvent(new StorageEvent("storage", { key }));
    """
    page.run(script, chat)


def turns(*texts: str) -> list[dict[str, Any]]:
    """Return a question, and answers as versions beside each other."""
    question, *answers = texts
    first = {"parent": -1, "role": "user", "content": question}
    return [
        first,
        *(
            {"parent": 0, "role": "assistant", "content": each, "end": "stopped"}
            for each in answers
        ),
    ]


def test_what_another_tab_does_to_a_chat_is_taken_over(chat: Browser):
    keep(chat, messages=turns("Hi", "Hello"))
    assert chat.texts(".chat-name") == ["Hi"]
    chat.click("#chats .chat-name")
    keep(chat, messages=turns("Hi", "Hello", "Good day"), shown=2)
    assert said(chat) == ["Hi", "Good day"]
    chat.run("localStorage.removeItem('outrider.chat.x')")
    chat.run("dispatchEvent(new StorageEvent('storage', {key: 'outrider.chat.x'}))")
    assert said(chat) == chat.texts(".chat-name") == []


@pytest.mark.parametrize("further", [[], [{"parent": 1, "role": "user", "content": "And?"}]])
def test_two_tabs_that_write_in_a_chat_both_keep_their_answers(
    chat: Browser, gateway: Gateway, further: list[dict[str, Any]]
):
    keep(chat, messages=turns("Hi", "Hello"))
    chat.click("#chats .chat-name")
    gateway.script = Script(tuple(Round([], 0, " more") for _ in range(500)), pace=0.05)
    press(chat, "continue")
    until(lambda: "more" in chat.text("#messages"))
    theirs = [*turns("Hi", "Hello there"), *further]  # continued there as well, or asked further
    keep(chat, messages=theirs, changed=2e15)
    assert chat.texts(".chat-name") == ["Hi", "Hi"]
    assert said(chat)[1].startswith("Hello more")
    chat.click("#stop")
    finish(chat, "Cancelled")
    one, other = sorted(kept(chat), key=lambda each: each["id"] == "x")
    assert one["messages"][1]["content"].startswith("Hello more")
    assert other["messages"] == theirs


def test_a_chat_that_another_tab_renames_or_deletes_stays_one_while_it_is_answered(
    chat: Browser, gateway: Gateway
):
    keep(chat, messages=turns("Hi", "Hello"))
    chat.click("#chats .chat-name")
    gateway.script = Script(tuple(Round([], 0, " more") for _ in range(500)), pace=0.05)
    press(chat, "continue")
    until(lambda: "more" in chat.text("#messages"))
    (before,) = kept(chat)
    keep(chat, **{**before, "name": "Renamed there"})
    chat.run("localStorage.removeItem('outrider.chat.x')")
    chat.run("dispatchEvent(new StorageEvent('storage', {key: 'outrider.chat.x'}))")
    chat.click("#stop")
    finish(chat, "Cancelled")
    assert [each["id"] for each in kept(chat)] == ["x"]
    assert kept(chat)[0]["messages"][1]["content"].startswith("Hello more")


def test_on_a_touch_screen_enter_begins_a_line_in_an_edited_question(
    chat: Browser, gateway: Gateway
):
    ask(chat, "Hi")
    finish(chat)
    chat.devtools("Emulation.setTouchEmulationEnabled", enabled=True)
    size = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    chat.devtools("Emulation.setDeviceMetricsOverride", **size)
    try:
        assert chat.run("return matchMedia('(pointer: coarse)').matches")
        for act, field in (("", "#question"), ("edit", ".edit textarea")):
            if act:
                press(chat, act, 0)
            chat.fill(field, "one")
            chat.press("Enter")
            value = chat.run("return document.querySelector(arguments[0]).value", field)
            assert value == "one\n", field
    finally:
        chat.devtools("Emulation.setTouchEmulationEnabled", enabled=False)
    assert len(gateway.chats) == 1


def test_escape_ends_the_composition_of_a_character_and_nothing_else(
    chat: Browser, gateway: Gateway
):
    escape = """
    const init = { key: "Escape", isComposing: arguments[0], bubbles: true };
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", init));
    """
    keep(chat, messages=turns("Hi", "Hello"))
    chat.click("#chats .chat-name")
    press(chat, "edit", 0)
    chat.run(escape, True)
    assert chat.count(".edit") == 1
    chat.run(escape, False)
    assert chat.count(".edit") == 0
    chat.run("document.querySelector('#chats [data-act=\"rename\"]').click()")
    chat.run(escape, True)
    assert chat.count("#chats input") == 1
    chat.run(escape, False)
    assert chat.count("#chats input") == 0
    gateway.script = Script(tuple(Round([], 0, " more") for _ in range(500)), pace=0.05)
    ask(chat, "And?")
    until(lambda: "more" in chat.text("#messages"))
    chat.run(escape, True)
    assert chat.run("return document.body.classList.contains('running')")
    chat.run(escape, False)
    finish(chat, "Cancelled")


def test_an_earlier_version_comes_back_with_the_newest_of_what_followed(chat: Browser):
    first = turns("Hi", "Old", "New")
    further = {"parent": 2, "role": "user", "content": "And?"}
    edited = {"parent": -1, "role": "user", "content": "Bye"}
    keep(chat, messages=[*first, further, edited], shown=4)
    chat.click("#chats .chat-name")
    assert said(chat) == ["Bye"]
    press(chat, "before")
    assert said(chat) == ["Hi", "New", "And?"]


def test_a_refused_continuation_takes_no_other_answer_back(chat: Browser, gateway: Gateway):
    keep(chat, messages=turns("Hi", "", "Good day"))
    chat.click("#chats .chat-name")
    gateway.refuses = "no"
    press(chat, "continue")
    until(lambda: chat.text("#alert") == "no")
    finish(chat, "")
    assert [each["content"] for each in kept(chat)[0]["messages"]] == ["Hi", "", "Good day"]
    # The console of a browser names every answer of 400.
    assert all("400" in complaint for complaint in chat.complaints())


def test_an_edited_question_waits_for_the_answer_that_is_written(chat: Browser, gateway: Gateway):
    ask(chat, "Hi")
    finish(chat)
    press(chat, "edit", 0)
    chat.fill(".edit textarea", "Bye")
    gateway.script = Script(tuple(Round([], 0, " more") for _ in range(20)), pace=0.05)
    ask(chat, "Second")
    until(lambda: len(gateway.chats) == 2)
    chat.run("document.querySelector('.edit').requestSubmit()")
    finish(chat)
    assert len(gateway.chats) == 2 and chat.count(".edit") == 1
    chat.run("document.querySelector('.edit').requestSubmit()")
    until(lambda: len(gateway.chats) == 3)
    finish(chat)
    assert gateway.chats[2] == [{"role": "user", "content": "Bye"}]


def test_a_chat_is_renamed_while_an_answer_comes(chat: Browser, gateway: Gateway):
    gateway.script = Script(tuple(Round([], 0, " more") for _ in range(20)), pace=0.05)
    ask(chat, "Hi")
    until(lambda: "more" in chat.text("#messages"))
    chat.run("document.querySelector('#chats [data-act=rename]').click()")
    chat.press(*"My ")
    finish(chat)
    chat.press(*"name", "Enter")
    assert chat.texts(".chat-name") == ["My name"]


def test_a_browser_without_room_says_so(chat: Browser, gateway: Gateway):
    chat.run("Storage.prototype.setItem = () => { throw new Error('full') }")
    ask(chat, "Hi")
    finish(chat)
    assert chat.text("#alert").startswith("This browser has no room for more")
    assert said(chat) == ["Hi", "Hello to you"]
    gateway.script = Script(HELLO, error="The target is lost.")
    ask(chat, "And?")
    finish(chat, "Failed")
    assert chat.text("#alert") == "The target is lost."


def test_a_browser_that_keeps_nothing_for_pages_has_the_chat_all_the_same(gateway: Gateway):
    gateway.key = "open sesame"
    gateway.script = Script(HELLO, stop_type="eos")
    blocks_site_data = {"profile.default_content_setting_values.cookies": 2}
    with chromium(prefs=blocks_site_data) as page, opened(page, gateway.url):
        until(lambda: page.shown("#key-form"))
        page.fill("#key", gateway.key)
        page.click("#key-form button")
        ask(page, "Hi")
        finish(page)
        assert said(page) == ["Hi", "Hello to you"]
        assert page.text("#alert").startswith("This browser keeps nothing for pages")
        # The console of a browser names every answer of 401.
        assert all("401" in complaint for complaint in page.complaints())


def test_deleting_a_chat_keeps_one_that_had_no_room(chat: Browser, gateway: Gateway):
    keep(chat, messages=turns("Large", "Hello"))
    chat.run("window.setItem = Storage.prototype.setItem")
    chat.run("Storage.prototype.setItem = () => { throw new Error('full') }")
    ask(chat, "Hi")
    finish(chat)
    assert "export chats and delete some" in chat.text("#alert")
    chat.run("Storage.prototype.setItem = window.setItem")
    chat.run("document.querySelector('#chats [data-id=x] [data-act=delete]').click()")
    assert chat.text("#alert") == ""
    chat.open(gateway.url)
    assert said(chat) == ["Hi", "Hello to you"] and chat.count("#chats li") == 1


# --- What is shown ---


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
    assert chat.run("return document.title") != "taken"


def test_every_sampler_is_sent(chat: Browser, gateway: Gateway):
    chat.click("#open-settings")
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
    chat.click("#close-settings")
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
    assert chat.shown("#sampler-top_p")
    assert gateway.chats == []


def test_a_draft_length_out_of_range_is_shown_and_not_sent(chat: Browser, gateway: Gateway):
    chat.run("document.querySelector('#n-max').value = '100'")
    ask(chat, "Hi")
    until(lambda: chat.run("return document.activeElement.id") == "n-max")
    assert chat.run("return document.querySelector('#drafting').open")
    assert gateway.chats == []


def test_a_limit_of_the_other_view_stops_nothing(chat: Browser, gateway: Gateway):
    chat.run("document.querySelector('#n-predict').value = '2000000'")
    ask(chat, "Hi")
    finish(chat)
    chat.run("document.querySelector('#chat-limit').value = '0'")
    chat.click("#instrument-tab")
    chat.fill("#n-predict", "9")
    chat.click("#generate")
    finish(chat)
    assert [each.get("n_predict") for each in gateway.requests] == [None, 9]


def test_a_theme_is_kept(chat: Browser, gateway: Gateway):
    paper = chat.style("body", "backgroundColor")
    chat.click("#open-settings")
    chat.choose("#theme", "dark")
    assert chat.style("body", "backgroundColor") != paper
    chat.open(gateway.url)
    assert chat.style("body", "backgroundColor") != paper
    chat.run("localStorage.clear()")
    chat.open(gateway.url)
    assert chat.style("body", "backgroundColor") == paper


def test_a_chat_is_led_by_the_keyboard_alone(chat: Browser, gateway: Gateway):
    chat.run("document.querySelector('#chat-tab').focus()")
    chat.press("ArrowRight")
    assert chat.shown("#instrument-view")
    chat.press("ArrowLeft")
    assert chat.shown("#chat-view")
    reached = set()
    for _ in range(12):
        chat.press("Tab")
        reached.add(chat.run("return document.activeElement.id"))
    assert {"open-settings", "new-chat", "search", "messages", "question", "send"} <= reached
    ask(chat, "Hi")
    finish(chat)
    assert chat.run("return document.activeElement.id") == "question"


def test_the_browsers_own_button_leads_back_to_the_chat(chat: Browser):
    chat.click("#instrument-tab")
    chat.run("history.back()")
    until(lambda: chat.shown("#chat-view"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("enough", "by what was measured so far, waiting for a draft would not have paid"),
        ("late", "the draft was too late every time"),
        ("absent", "waiting for the draft at 10.0.0.3:50052 (the connection is dead)"),
    ],
)
def test_the_page_says_why_nothing_was_drafted(
    page: Browser, gateway: Gateway, change: str, sentence: str
):
    reason = "waiting for the draft at 10.0.0.3:50052 (the connection is dead)"
    gateway.status = {**gateway.status, "speculating": False, "reason": reason}
    page.open(gateway.url)
    until(lambda: reason in page.text("#pair"))
    gateway.script = Script((Round([], 0, "a", "prompt"), Round([], 0, "b", change)))
    page.click("#instrument-tab")
    page.click("#generate")
    finish(page)
    until(lambda: page.shown("#why"))
    assert page.text("#why") == f"Nothing was drafted: {sentence}."


def test_nothing_is_explained_where_something_was_drafted(page: Browser, gateway: Gateway):
    gateway.script = Script(HELLO)
    page.click("#instrument-tab")
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
    assert chat.run("return document.documentElement.scrollHeight") == 740
    assert not chat.shown("#sidebar")
    heights = chat.run(
        "return ['#send', '#question', '#menu', '#open-settings'].map((s) =>"
        " document.querySelector(s).getBoundingClientRect().height)"
    )
    assert min(heights) >= 40, "a finger needs so much"


def test_the_drawer_of_a_phone_opens_and_closes(chat: Browser, gateway: Gateway):
    ask(chat, "First")
    finish(chat)
    chat.resize(360, 740)
    chat.click("#menu")
    assert chat.run("return document.activeElement.id") == "new-chat"
    chat.press("Escape")
    assert not chat.shown("#sidebar")
    assert chat.run("return document.activeElement.id") == "menu"
    chat.click("#menu")
    chat.click(".chat-name")
    assert not chat.shown("#sidebar") and said(chat) == ["First", "Hello to you"]
