"""Who drafted, on the page in a real Chromium."""

from __future__ import annotations

import pytest

from outrider.speculation import DRAFTERS, LOCAL_DRAFTERS
from tests.browser.test_page import CONTRAST
from tests.support.browser import Browser, until
from tests.support.scripted_gateway import Gateway, Round, Script

pytestmark = pytest.mark.browser

ROUNDS = (
    Round([], 0, " upon", "prompt"),
    Round([" a", " time", ","], 3, " there", sources=["model", "suffix", "suffix"]),
    Round([" was", " one", " dog"], 1, " a", sources=["suffix", "suffix", "prediction"]),
    Round([" fox", "!"], 2, " and", sources=["suffix", "model"]),
)
LETTER = "return getComputedStyle(document.querySelector(arguments[0]), '::before').content"


def generate(page: Browser, gateway: Gateway, script: Script) -> None:
    gateway.script = script
    page.click("#instrument-tab")
    page.click("#generate")
    until(lambda: page.text("#state").startswith("Done"))


def table(page: Browser) -> list[list[str]]:
    script = """
    const rows = [...document.querySelectorAll("#source-rows tr")];
    return rows.map((row) => [...row.cells].map((cell) => cell.textContent));
    """
    return list(page.run(script))


def test_drafted_tokens_are_told_apart_by_colour_and_by_letter(page: Browser, gateway: Gateway):
    generate(page, gateway, Script(ROUNDS))
    assert page.texts(".token.drafted.from-model") == [" a", "!"]
    assert page.texts(".token.drafted.from-suffix") == [" time", ",", " was", " fox"]
    model, suffix = (page.style(f".token.from-{name}", "color") for name in ("model", "suffix"))
    assert model != suffix
    assert page.run(LETTER, ".token.from-suffix") == '"S"'
    assert page.run(LETTER, ".token.from-model") == "none"
    # The first of a run, and the model where it goes on behind another.
    assert page.texts(".token[data-mark]") == [" time", " was", " fox", "!"]
    assert page.run(LETTER, ".token.from-suffix + .token.from-model") == '"M"'
    assert page.texts("#legend li")[0] == "6 drafted"
    assert page.texts("#source-legend li") == ["2 model", "4 suffix"]
    page.hover(".token.from-suffix")
    told = dict(zip(page.texts("#tip dt"), page.texts("#tip dd"), strict=True))
    assert told["source"] == "suffix: what followed the same words before"


BRANCHED = (
    Round([], 0, " upon", "prompt"),
    Round([" a", " time", ","], 3, " there", lines=[0, 2, 2]),
    Round([" was", " one", " dog"], 2, " a", lines=[2, 3, 3]),
    Round([" fox", "!"], 2, " and"),
)


def test_branches_of_the_draft_have_colours_of_their_own(page: Browser, gateway: Gateway):
    generate(page, gateway, Script(BRANCHED))
    assert page.texts(".token.branch-2") == [" time", ",", " was"]
    assert page.texts(".token.branch-3") == [" one"]
    names = (".token.from-model:not([class*=branch])", ".token.branch-2", ".token.branch-3")
    assert len({page.style(each, "color") for each in names}) == 3
    assert page.texts('.token[data-mark="R"]') == [" time", " was", " one"]
    legend = [each.strip() for each in page.texts("#source-legend li")]
    assert legend == ["7 model", "4 of runner-up lines"]
    page.hover(".token.branch-3")
    told = dict(zip(page.texts("#tip dt"), page.texts("#tip dd"), strict=True))
    assert told["line"].startswith("3, a runner-up line")
    for scheme in ("light", "dark"):
        page.prefer(prefers_color_scheme=scheme)
        for number in (2, 3):
            assert page.run(CONTRAST, f".token.branch-{number}") >= 4.5


def test_the_table_tells_what_each_source_did_and_cost(page: Browser, gateway: Gateway):
    generate(page, gateway, Script(ROUNDS))
    until(lambda: page.text("#steps") == "9 draft steps")
    assert table(page) == [
        ["model", "2", "2", "\u2013", "5200"],
        ["suffix", "5", "4", "9 of 10", "31"],
        ["prediction", "1", "0", "1 of 2", "31"],
    ]
    assert not page.shown("#no-sources")


def test_the_table_is_live_as_far_as_the_rounds_tell(page: Browser, gateway: Gateway):
    gateway.script = Script(ROUNDS * 40, pace=0.1)
    page.click("#instrument-tab")
    page.click("#generate")
    until(lambda: len(table(page)) == 3)
    assert [row[3:] for row in table(page)] == [["\u2013", "\u2013"]] * 3
    assert page.text("#steps") == ""
    page.press("Escape")
    until(lambda: page.text("#state").startswith("Cancelled"))


def test_where_the_model_drafts_alone_no_letter_and_no_second_legend_is_there(
    page: Browser, gateway: Gateway
):
    generate(page, gateway, Script([Round([" a"], 1, " b")]))
    assert not page.shown("#source-legend")
    assert page.count(".token[data-mark]") == 0
    assert [row[0] for row in table(page)] == ["model"]


def test_where_a_head_drafts_alone_the_legend_names_it_and_no_letter_is_there(
    page: Browser, gateway: Gateway
):
    generate(page, gateway, Script([Round([" a", " b"], 2, " c", sources=["mtp", "mtp"])] * 2))
    assert [each.strip() for each in page.texts("#source-legend li")] == ["4 mtp"]
    assert page.count(".token[data-mark]") == 0
    assert [row[0] for row in table(page)] == ["mtp"]
    page.hover(".token.from-mtp")
    told = dict(zip(page.texts("#tip dt"), page.texts("#tip dd"), strict=True))
    assert told["source"] == "mtp: the target's MTP head"


def test_a_gateway_that_names_no_sources_is_not_said_to_have_drafted_nothing(
    page: Browser, gateway: Gateway
):
    assert page.text("#no-sources") == "nothing drafted yet"
    generate(page, gateway, Script(ROUNDS, names_sources=False))
    until(lambda: page.text("#no-sources") == "not told")
    assert page.count(".token.drafted") == 6 and page.count(".token[class*=from-]") == 0
    assert not page.shown("#sources") and not page.shown("#source-legend")


def test_a_source_of_a_later_version_is_shown_with_its_name(page: Browser, gateway: Gateway):
    image = "<img src=x onerror='window.hit=1'>"
    generate(page, gateway, Script([Round([" a"], 1, " b", sources=[image])]))
    assert page.run(LETTER, ".token.drafted") == '"?"'
    assert table(page)[0][0] == image and page.count("img") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1100])
def test_every_source_can_be_read_and_fits(
    page: Browser, gateway: Gateway, scheme: str, width: int
):
    page.resize(width, 700)
    page.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    rounds = [Round([" word", "\n"] * 9, 18, " b", sources=[name] * 18) for name in DRAFTERS]
    generate(page, gateway, Script(rounds, times=60))
    until(lambda: table(page)[0][2] == str(60 * 18))
    for name in DRAFTERS:
        for place in (f".token.from-{name}", f"#sources .from-{name}"):
            assert 4.5 <= page.run(CONTRAST, place) <= 21, (name, place)
    colours = {page.style(f".token.from-{name}", "color") for name in DRAFTERS}
    letters = {page.run(LETTER, f"#sources .from-{name}") for name in DRAFTERS}
    assert len(letters) == len(DRAFTERS)
    assert len(colours) == 1 + len(LOCAL_DRAFTERS)  # models have the colour of all that is drafted
    assert page.run("return document.documentElement.scrollWidth") == width
    box, rows = page.run(
        "return ['section:has(#sources)', '#sources'].map((s) =>"
        " document.querySelector(s).getBoundingClientRect().right)"
    )
    assert rows < box
