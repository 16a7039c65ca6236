"""The page in a real Chromium, against a gateway that tells scripted generations."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.browser import Browser, until
from tests.support.scripted_gateway import STATUS, Gateway, Round, Script

pytestmark = pytest.mark.browser

PROMPT = "Once"
ROUNDS = (
    Round([], 0, " upon", "prompt"),
    Round([" a", " time", ","], 3, " there"),
    Round([" was", " one", " dog"], 1, " a", "enough"),
    Round([], 0, " fox", "short"),
)
NOTHING = "\u2013"
TEXT = " upon a time, there was a fox"
CONTROLS = (
    *("#prompt", "#acceptance", "#enabled", "#n-max", "#temperature", "#n-predict", "#seed"),
    *("#generate", "#cancel", "#show-rejected", "#copy", "#key"),
)
CONTRAST = """
const [text, under] = [document.querySelector(arguments[0]), document.querySelector(".card")];
const pixel = (...colours) => {
  const brush = new OffscreenCanvas(1, 1).getContext("2d");
  for (const colour of colours) { brush.fillStyle = colour; brush.fillRect(0, 0, 1, 1); }
  return brush.getImageData(0, 0, 1, 1).data;
};
const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const [card, own] = [getComputedStyle(under).backgroundColor, getComputedStyle(text)];
const [a, b] = [pixel(card, own.backgroundColor), pixel(own.color)].map(light);
return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
"""


@pytest.fixture
def page(page: Browser, gateway: Gateway) -> Browser:
    """The instrument of a gateway that plays these rounds."""
    gateway.script = Script(ROUNDS)
    page.click("#instrument-tab")
    return page


def generate(page: Browser, prompt: str = PROMPT) -> None:
    page.fill("#prompt", prompt)
    page.click("#generate")


def finish(page: Browser, word: str = "Done") -> None:
    until(lambda: page.text("#state").startswith(word))


def tip(page: Browser) -> dict[str, str]:
    return dict(zip(page.texts("#tip dt"), page.texts("#tip dd"), strict=True))


def tile(page: Browser, name: str) -> str:
    return page.text(f"#{name}-value")


def test_coloured_tokens_arrive_before_the_end(page: Browser, gateway: Gateway):
    gateway.script = Script(ROUNDS * 40, pace=0.1)
    generate(page)
    until(lambda: page.count(".token.bonus") >= 2)
    assert page.text("#state") == "Generating …"
    assert page.text("#text").startswith(PROMPT + TEXT)
    until(lambda: tile(page, "acceptance") == "66.7 %")
    assert page.count("#chart .kept") >= 2
    page.click("#cancel")
    finish(page, "Cancelled")


def test_every_origin_is_told_by_colour_and_by_line(page: Browser):
    generate(page)
    finish(page)
    origins = ("drafted", "corrected", "bonus", "plain")
    assert [page.count(f".token.{origin}") for origin in origins] == [4, 1, 1, 2]
    assert len({page.style(f".token.{origin}", "color") for origin in origins}) == 4
    lines = {page.style(f".token.{origin}", "borderBottomStyle") for origin in origins}
    assert lines == {"solid", "dashed", "double", "dotted"}
    assert page.texts("#legend li") == ["4 drafted", "1 corrected", "1 bonus", "2 plain"]


def test_the_request_says_what_was_chosen(page: Browser, gateway: Gateway):
    generate(page)
    finish(page)
    page.choose("#acceptance", "rejection")
    page.fill("#temperature", "0.25")
    page.fill("#n-predict", "9")
    page.fill("#seed", "7")
    page.fill("#n-max", "5")
    page.click("#generate")
    until(lambda: len(gateway.requests) == 2)
    common = {"prompt": PROMPT, "stream": True, "report": True, "n_probs": 1}
    assert gateway.requests == [
        {**common, "n_predict": 512, "temperature": 0.8, "speculative": {"enabled": True}},
        {
            **common,
            **{"n_predict": 9, "temperature": 0.25, "seed": 7},
            "speculative": {"enabled": True, "acceptance": "rejection", "n_max": 5},
        },
    ]
    finish(page)
    page.click("#enabled")
    page.choose("#acceptance", "shared-noise")
    assert "same noise" in page.text("#rule-hint")
    page.click("#generate")
    until(lambda: len(gateway.requests) == 3)
    assert gateway.requests[2]["speculative"] == {
        **{"enabled": False, "acceptance": "shared-noise", "n_max": 5}
    }
    finish(page)


def test_a_value_out_of_range_is_not_sent(page: Browser, gateway: Gateway):
    page.fill("#temperature", "-1")
    page.click("#generate")
    assert page.run("return document.querySelector('#temperature').validity.rangeUnderflow")
    assert gateway.requests == [] and page.text("#state") == "Ready."


def test_pointing_at_a_token_tells_its_round(page: Browser):
    generate(page)
    finish(page)
    page.hover(".token.corrected")
    assert page.shown("#tip")
    told = tip(page)
    assert told["origin"].startswith("corrected: the target's own")
    assert (told["position"], told["round"]) == ("6", "3, 50 ms")
    assert 0.55 < float(told["probability"]) < 0.95
    assert told["rejected"] == "␣one from the draft"
    assert told["draft"] == "␣was␣one␣dog"
    assert page.texts("#tip .kept") == ["␣was"]
    assert page.texts("#tip .unseen") == ["␣dog"]
    assert told["draft end"] == "more would not have paid"
    assert page.texts(".token.mate") == [" was", " a"]
    page.press("Escape")
    assert not page.shown("#tip") and page.count(".mate") == 0


def test_the_keyboard_reaches_every_token(page: Browser):
    generate(page)
    finish(page)
    assert page.count('.token[tabindex="0"]') == 1
    page.run("document.querySelector('#copy').focus()")
    page.press("Tab")
    assert tip(page)["position"] == "0"
    page.press("ArrowRight")
    page.press("ArrowRight")
    page.press("ArrowLeft")
    assert tip(page)["origin"].startswith("drafted")
    page.press("End")
    assert page.text("#tip code") == "␣fox" and tip(page)["draft end"].startswith("no more was")
    assert page.count('.token[tabindex="0"]') == 1
    page.press("Tab")
    assert not page.shown("#tip")


def test_the_tip_stays_with_a_token_that_is_scrolled_to(page: Browser, gateway: Gateway):
    gateway.script = Script([Round([], 0, f" word{i}\n") for i in range(200)])
    generate(page)
    finish(page)
    page.run("document.querySelector('#text').scrollTop = 0")
    page.run("document.querySelector('.token').focus()")
    page.press("End")
    page.run("return new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
    assert tip(page)["position"] == "199" and page.shown("#tip")
    page.run("document.querySelector('#text').scrollTop = 0")
    until(lambda: not page.shown("#tip"))


def test_new_tokens_scroll_into_sight_unless_the_reader_went_back(page: Browser, gateway: Gateway):
    gateway.script = Script([Round([], 0, f" word{i}\n") for i in range(500)], pace=0.01)
    generate(page)
    place = "return document.querySelector('#text').scrollTop"
    until(lambda: page.run(place) > 300)
    page.run("document.querySelector('#text').scrollTop = 0")
    count = page.count(".token")
    until(lambda: page.count(".token") > count + 20)
    assert page.run(place) == 0
    page.press("Escape")
    finish(page, "Cancelled")


def test_control_and_enter_generate(page: Browser):
    page.fill("#prompt", PROMPT)
    page.press("Control", "Enter")
    finish(page)


def test_text_is_never_markup(page: Browser, gateway: Gateway):
    image, script = "<img src=x onerror='window.hit=1'>", "<script>window.hit=1</script>"
    gateway.script = Script([Round([image, "&lt;"], 1, script), Round([], 0, "</div>")])
    gateway.status = {**STATUS, "reason": image, "speculating": False}
    gateway.status["peers"] = [{"role": script, "address": image, "state": image, "detail": image}]
    generate(page, prompt=image)
    finish(page)
    assert page.text("#text") == image * 2 + script + "</div>"
    page.click("#show-rejected")
    page.hover(".token.corrected")
    assert page.texts("#tip .rejected")[0] == "&lt;"
    until(lambda: image in page.text("#pair") and image in page.text("#peers"))
    assert page.count("img") == 0 and page.count("script") == 2
    assert page.run("return window.hit === undefined")


def test_rejected_drafts_can_be_shown_in_their_places(page: Browser):
    generate(page)
    finish(page)
    shown = "return getComputedStyle(document.querySelector(arguments[0]), '::before').content"
    assert page.run(shown, ".token.corrected") == "none"
    page.click("#show-rejected")
    assert page.run(shown, ".token.corrected") == '"␣one"'
    assert page.text("#text") == PROMPT + TEXT


@pytest.mark.parametrize("how", ["button", "key"])
def test_cancelling_hangs_up_at_once_and_keeps_the_text(page: Browser, gateway: Gateway, how: str):
    gateway.script = Script(ROUNDS * 500, pace=0.05)
    generate(page)
    until(lambda: page.count(".token.corrected"))
    if how == "key":
        page.press("Escape")
    else:
        page.click("#cancel")
    assert gateway.left.wait(2.0)
    finish(page, "Cancelled after ")
    count = page.count(".token")
    assert count and page.text("#state") == f"Cancelled after {count} tokens."
    assert page.text("#alert") == ""
    gateway.script = Script(ROUNDS)
    generate(page)
    finish(page)
    assert page.count(".token") == 8


def test_the_last_numbers_are_those_of_the_statistics(page: Browser):
    generate(page)
    finish(page)
    # 8 tokens in 4 rounds, 0.031 s each, of which the first is free; the target alone: 22.2/s
    until(lambda: tile(page, "speedup") == "1.27\u00d7")
    assert tile(page, "acceptance") == "66.7 %"
    assert tile(page, "per-round") == "2.00"
    assert tile(page, "rate") == "28.2"
    assert page.text("#state") == "Done: 8 tokens, 248 ms, the token limit, seed 42."
    # as `outrider generate` splits it: 81 ms of prompt, 248 ms of generation
    assert page.text("#phases-total") == "329 ms with the prompt"
    times = [row.removesuffix(" %") for row in page.texts("#phases li")]
    assert times == ["draft wait30 ms9", "verify252 ms77", "network37 ms11", "other9.9 ms3"]


def test_the_speed_up_is_live_only_where_the_speed_of_the_target_alone_is_known(
    page: Browser, gateway: Gateway
):
    gateway.script = Script(ROUNDS * 40, pace=0.05)
    until(lambda: page.count("#peers li") == 2)
    generate(page)
    until(lambda: tile(page, "speedup").endswith("\u00d7"))
    assert "over 22.2 of the target alone" in page.text("#tiles")
    page.press("Escape")
    finish(page, "Cancelled")
    gateway.status = {**STATUS, "controller": {}}
    page.open("about:blank")
    page.open(f"{gateway.url}#instrument")
    until(lambda: page.count("#peers li") == 2)
    generate(page)
    until(lambda: tile(page, "rate") != NOTHING)
    assert tile(page, "speedup") == NOTHING
    page.press("Escape")
    finish(page, "Cancelled")


def test_a_draft_that_is_off_has_no_acceptance(page: Browser, gateway: Gateway):
    gateway.script = Script([Round([], 0, word, "off") for word in TEXT.split()])
    generate(page)
    finish(page)
    until(lambda: tile(page, "per-round") == "1.00")
    assert tile(page, "acceptance") == tile(page, "speedup") == NOTHING
    assert page.count("#chart .none") == 7


def test_what_a_stop_sequence_swallows_is_struck_out(page: Browser, gateway: Gateway):
    gateway.script = Script(ROUNDS, stop_type="word", hidden=" fox")
    generate(page)
    finish(page)
    assert page.texts(".token.cut") == [" fox"]
    assert "a stop sequence" in page.text("#state")


def test_the_end_token_is_named(page: Browser, gateway: Gateway):
    gateway.script = Script([*ROUNDS, Round([], 0, "", "prompt")], stop_type="eos")
    generate(page)
    finish(page)
    assert page.count(".token.end") == 1
    assert "the model ended the text" in page.text("#state")


def test_a_character_of_several_tokens_is_shown_with_its_last(page: Browser, gateway: Gateway):
    gateway.script = Script([Round(["", "", "\u6f22"], 2, "\u6f22"), Round([], 0, "!")])
    generate(page)
    finish(page)
    assert page.texts(".token") == ["", "", "\u6f22", "!"]
    assert page.count(".token.blank") == 2 and page.count(".token.cut") == 0
    page.hover(".token.blank")
    assert page.text("#tip code") == "(no whole character)"


def test_a_server_that_reports_nothing_is_shown_without_origins(page: Browser, gateway: Gateway):
    gateway.script = Script(ROUNDS, reports=False)
    generate(page)
    finish(page)
    assert page.text("#text") == PROMPT + TEXT
    page.hover(".token")
    assert tip(page)["origin"] == tip(page)["probability"] == "not reported"


def test_a_failure_in_the_middle_is_told_and_the_text_stays(page: Browser, gateway: Gateway):
    gateway.script = Script(ROUNDS, error="The target at 10.0.0.2:50051 is lost.")
    generate(page)
    finish(page, "Failed")
    assert page.text("#alert") == "The target at 10.0.0.2:50051 is lost."
    assert page.text("#text") == PROMPT + TEXT
    assert page.text("#state") == "Failed after 8 tokens."
    gateway.script = Script(ROUNDS)
    generate(page)
    finish(page)
    assert page.text("#alert") == ""


def test_a_stream_that_just_ends_is_a_failure(page: Browser, gateway: Gateway):
    gateway.script = Script(ROUNDS, cut=True)
    generate(page)
    finish(page, "Failed")
    assert page.text("#alert") == "The stream ended before the generation did."


def test_a_refused_request_is_told(page: Browser, gateway: Gateway):
    gateway.refuses = "temperature is -1; it must be at least 0."
    generate(page)
    finish(page, "Failed")
    assert page.text("#alert") == gateway.refuses
    (complaint,) = page.complaints()
    assert "400" in complaint


def test_events_are_put_together_from_any_pieces(page: Browser, gateway: Gateway):
    rounds = [Round([" größer", " 🦊"], 1, "漢字"), Round([], 0, " ñ")]
    gateway.script = Script(rounds, piece=3)
    generate(page)
    finish(page)
    assert page.text("#text") == f"{PROMPT} größer漢字 ñ"


def test_the_key_is_asked_for_when_it_is_wanted(page: Browser, gateway: Gateway):
    assert not page.shown("#key-form")
    gateway.key = "open sesame"
    until(lambda: page.shown("#key-form"))
    assert page.text("#alert") == "The gateway wants an API key."
    page.fill("#key", "wrong")
    page.click("#key-form button")
    until(lambda: page.text("#alert") == "Wrong API key.")
    page.fill("#key", gateway.key)
    page.click("#key-form button")
    until(lambda: page.count("#peers li") == 2)
    generate(page)
    finish(page)
    assert not page.shown("#key-form")
    assert page.run("return [sessionStorage.length, localStorage.length]") == [1, 0]
    assert page.run("return document.cookie") == ""
    assert all("401" in complaint for complaint in page.complaints())


def test_a_key_with_a_hidden_character_is_asked_for_again(page: Browser, gateway: Gateway):
    gateway.key = "open sesame"
    until(lambda: page.shown("#key-form"))
    page.run("document.querySelector('#key').value = 'open\\u200b sesame'")
    page.click("#key-form button")
    assert page.text("#alert").startswith("This cannot be an API key")
    assert page.shown("#key-form") and page.run("return document.activeElement.id") == "key"
    page.run("document.querySelector('#key').value = '\\ufeff open sesame\\n'")
    page.click("#key-form button")
    until(lambda: page.count("#peers li") == 2)
    # The console of a browser names every answer of 401.
    assert all("401" in complaint for complaint in page.complaints())


def test_peers_are_followed(page: Browser, gateway: Gateway):
    until(lambda: page.count("#peers li") == 2)
    assert page.text("#pair") == "stdlib-draft-q8_0 → stdlib-target-q8_0, speculating"
    assert page.texts("#trips li") == ["target0.9ping", "draft6.4ping"]
    target, draft = STATUS["peers"]
    lost = {**draft, "state": "PEER_STATE_LOST", "detail": "connection refused"}
    why = {"speculating": False, "reason": "the draft is lost"}
    gateway.status = {**STATUS, **why, "peers": [target, lost]}
    until(lambda: "draft lost" in page.text("#peers"))
    assert "connection refused" in page.text("#peers")
    assert page.text("#pair").endswith("not speculating: the draft is lost")
    gateway.status = {**gateway.status, "text_sources": ["suffix", "copy"]}
    itself = "drafts from the text itself (suffix, copy): the draft is lost"
    until(lambda: page.text("#pair").endswith(itself))
    model = {**target["model"], "rollback_capability": "ROLLBACK_CAPABILITY_CHECKPOINTS"}
    translation = {"level": "TRANSLATION_LEVEL_STRINGS"}
    peers = [{**target, "model": model}, {**draft, "translation": translation}]
    gateway.status = {**STATUS, "peers": peers}
    until(lambda: "memory checkpoints" in page.text("#peers"))
    assert "translates, string level" in page.text("#peers")


def test_drafts_that_dialled_in_are_shown_one_by_one(page: Browser, gateway: Gateway):
    target, draft = STATUS["peers"]
    near = {**draft, "joined": True, "address": "10.0.0.9:4711", "generation_count": 2}
    trusted = {**near, "trusted": True, "address": "10.0.0.8:4711"}
    gateway.status = {**STATUS, "peers": [target, draft, near]}
    until(lambda: page.count("#peers li") == 3)
    assert "dialled in, not for rejection · drafts for 2 generations" in page.text("#peers")
    gateway.status = {**STATUS, "peers": [target, draft, trusted]}
    until(lambda: "10.0.0.8:4711 · dialled in · drafts for 2" in page.text("#peers"))
    assert page.text("#pair") == "2 drafts → stdlib-target-q8_0, speculating"


def test_drafts_that_were_sent_away_are_shown_with_the_reason(page: Browser, gateway: Gateway):
    script = "<img src=x onerror=alert(1)>"
    refused = {
        "address": "10.0.0.9:4711",
        "model_name": script,
        "reason": "token 17 differs",
        "attempt_count": 3,
        "since_duration": "12.3s",
    }
    gateway.status = {**STATUS, "refused_drafts": [refused]}
    until(lambda: page.count("#peers li") == 3)
    assert f"draft sent away {script}" in page.text("#peers")
    assert "10.0.0.9:4711 · token 17 differs · 3 attempts, 12 s ago" in page.text("#peers")
    gateway.status = STATUS
    until(lambda: page.count("#peers li") == 2)


def test_a_page_that_nobody_sees_asks_nothing(page: Browser, gateway: Gateway):
    until(lambda: gateway.polls)
    hide = """
    Object.defineProperty(document, "hidden", { value: arguments[0], configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
    """
    page.run(hide, True)
    asked = gateway.polls
    with pytest.raises(AssertionError, match="not within"):
        until(lambda: gateway.polls > asked, seconds=2.5)
    page.run(hide, False)
    until(lambda: gateway.polls > asked)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_can_be_read(page: Browser, scheme: str):
    page.prefer(prefers_color_scheme=scheme)
    generate(page)
    finish(page)
    places = [f".token.{name}" for name in ("drafted", "corrected", "bonus", "plain")]
    places += ["#state", "#rule-hint", ".tiles dd.note", ".prompt", "#generate"]
    assert {place: page.run(CONTRAST, place) for place in places} == {
        place: pytest.approx(12.75, abs=8.25)  # 4.5 to 21
        for place in places
    }


@pytest.mark.parametrize("width", [360, 700, 1600])
def test_it_fits(page: Browser, width: int, gateway: Gateway):
    page.resize(width, 700)
    gateway.script = Script([*ROUNDS, Round([], 0, "x" * 300)])
    generate(page)
    finish(page)
    page.hover(".token.corrected")
    assert page.run("return document.documentElement.scrollWidth") == width


def test_motion_is_a_preference(page: Browser):
    generate(page)
    finish(page)
    assert page.style(".token", "animationName") == "none"
    page.prefer(prefers_reduced_motion="no-preference")
    assert page.style(".token", "animationName") == "arrive"


def test_every_control_has_a_name(page: Browser):
    page.run("document.querySelector('#key-form').hidden = false")
    names: dict[str, Any] = {control: page.label(control) for control in CONTROLS}
    assert all(names.values()), names
    assert len(set(names.values())) == len(CONTROLS)
    roles = page.run("return ['state', 'alert'].map((id) => document.getElementById(id).role)")
    assert roles == ["status", "alert"]


def test_a_control_with_the_focus_shows_it(page: Browser):
    page.run("document.querySelector('#prompt').focus()")
    page.press("Tab")
    assert page.style("#generate", "outlineStyle") == "solid"
