"""Answers in Markdown in a real Chromium: what is shown, and that no text becomes markup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browser import Browser, opened, until
from tests.support.scripted_gateway import serving

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(chrome: Browser) -> Iterator[Browser]:
    """One page for all: each test replaces what the last one rendered."""
    with serving() as gateway, opened(chrome, gateway.url):
        yield chrome


_RENDER = """
return import(new URL("page/markdown.js", document.baseURI)).then(({markdown}) => {
  let box = document.querySelector("#try");
  if (!box) {
    const message = document.createElement("article");
    message.className = "message assistant";
    box = document.createElement("div");
    box.className = "body";
    box.id = "try";
    message.append(box);
    document.body.prepend(message);
  }
  box.replaceChildren(...markdown(arguments[0]));
  return box.innerText;
})"""

# Every prefix; those that differ in structure from what they become are still rendered whole.
_PREFIXES = """
return import(new URL("page/markdown.js", document.baseURI)).then(({markdown}) => {
  for (let end = 0; end <= arguments[0].length; end += 1) {
    const box = document.createElement("div");
    box.append(...markdown(arguments[0].slice(0, end)));
  }
  return true;
})"""

DOCUMENT = """\
# Title

Some **bold**, *slanted*, ~~old~~ and `code`; snake_case_stays. See https://example.org/a?b=c.

1. First
   - inner
     - innermost

       ```python
       def double(x: int) -> int:  # NUMBER
           return 2 * x
       ```
   - [x] done
   - [ ] open
2. Second: $x^2 + \\frac{1}{2}$ and \\(y_NUMBER\\)

| name | price |
|:-----|------:|
| a `|` | $5 |
| b    | $6 |

$$
\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}
$$

\\[
\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}
\\]

> A quote
> > in a quote

![a cat](https://example.org/cat.png) [web](https://example.org "title") <mail@example.org>

```json
{"number": NUMBER, "text": "x"}
```

---
The end.
"""


def render(page: Browser, text: str) -> str:
    """Show a text in Markdown in #try and return what a reader sees."""
    return str(page.run(_RENDER, text))


def links(page: Browser) -> list[list[str]]:
    script = "return [...document.querySelectorAll('#try a')].map((a) => [a.textContent, a.href])"
    return list(page.run(script))


def test_lists_are_in_lists_and_code_is_in_them(page: Browser):
    render(page, DOCUMENT)
    assert page.count("#try > ol > li") == 2
    assert page.texts("#try > ol > li > ul > li > ul > li pre code") == [
        "def double(x: int) -> int:  # NUMBER\n    return 2 * x"
    ]
    done = page.texts("#try > ol > li > ul > li")[1:]
    assert done == ["☑ done", "☐ open"]


def test_a_list_begins_where_its_text_says(page: Browser):
    render(page, "3. three\n4. four")
    assert page.run("return document.querySelector('#try ol').start") == 3


def test_a_table_has_its_cells_and_their_sides(page: Browser):
    render(page, DOCUMENT.replace("a `|`", "a"))
    assert page.texts("#try .table thead th") == ["name", "price"]
    assert page.texts("#try .table tbody td") == ["a", "$5", "b", "$6"]
    assert page.style("#try td:nth-child(2)", "text-align") == "right"


def test_lines_have_their_marks_and_addresses_lead_away(page: Browser):
    render(page, DOCUMENT)
    for selector, texts in {
        "h3": ["Title"],
        "strong": ["bold"],
        "em": ["slanted"],
        "s": ["old"],
        "p > code": ["code"],
    }.items():
        assert page.texts(f"#try {selector}") == texts
    assert links(page) == [
        ["https://example.org/a?b=c", "https://example.org/a?b=c"],
        ["https://example.org/cat.png", "https://example.org/cat.png"],
        ["web", "https://example.org/"],
        ["mail@example.org", "mailto:mail@example.org"],
    ]
    rels = page.run("return [...document.querySelectorAll('#try a')].map((a) => a.rel)")
    assert set(rels) == {"noopener noreferrer"}
    assert "a cat (https://example.org/cat.png)" in page.text("#try")
    assert page.count("#try img") == 0


@pytest.mark.parametrize("rest", ["-", "---", "- item", "==="])
def test_what_begins_below_a_line_makes_no_heading_of_it(page: Browser, rest: str):
    render(page, f"A line\n{rest}")
    assert page.count("#try :is(h3, h4)") == 0


def test_code_is_coloured_by_its_language(page: Browser):
    render(page, "```python\ndef double(x):  # <b>twice</b>\n    return 2 * x\n```")
    until(lambda: page.count("#try pre .hl-keyword") == 2)
    assert page.texts("#try .hl-comment") == ["# <b>twice</b>"]
    assert page.texts("#try .code-head small") == ["python"]
    assert page.count("#try .copy-code") == 1
    assert page.text("#try pre code") == "def double(x):  # <b>twice</b>\n    return 2 * x"


@pytest.mark.parametrize("language", ["", "nonsense", "constructor", "__proto__", '"><img src=x>'])
def test_code_in_no_known_language_is_shown_as_it_is(page: Browser, language: str):
    render(page, "```python\nreturn\n```")
    until(lambda: page.count("#try .hl-keyword") == 1)
    render(page, f"```{language}\nreturn <b>\n```")
    assert page.text("#try pre code") == "return <b>"
    assert page.count("#try :is(pre span, img, b)") == 0


@pytest.mark.parametrize(
    ("text", "inline", "display"),
    [
        ("so $x^2$, and", 1, 0),
        ("the $n$th of \\(a\\) and $\\$5$", 3, 0),
        ("so $$x^2$$ is", 0, 1),
        ("text\n$$\nx\n$$\nmore", 0, 1),
        ("\\[ x\n+ y \\]", 0, 1),
        ("- item\n  $$x$$\n- item", 0, 1),
        ("| a |\n|---|\n| $x$ |", 1, 0),
        ("**$x$**", 1, 0),
    ],
)
def test_formulas_are_mathml(page: Browser, text: str, inline: int, display: int):
    render(page, text)
    until(lambda: page.count("#try math") == inline + display)
    assert page.count("#try math[display=block]") == display
    assert page.count("#try .maths:not(.display)") == inline


@pytest.mark.parametrize(
    "text",
    [
        "$5 and $6",
        "from $5 to $10, or $7.50",
        "$5-$6, US$5 and CA$6$",
        "$5 (or 5$)",
        "$ x $",
        "`$x$`",
        "\\$x\\$",
        "cost: $5",
        "$HOME and $PATH",
        "$$$ and $$",
    ],
)
def test_money_and_code_are_no_formulas(page: Browser, text: str):
    render(page, text)
    assert page.count("#try .maths") == 0


def test_letters_of_formulas_have_their_kind(page: Browser):
    render(page, r"$\mathbb{R} \mathcal{L} \mathbf{x} \mathrm{d} x$")
    until(lambda: page.count("#try math") == 1)
    assert page.texts("#try math mi")[:3] == ["\u211d", "\u2112", "\U0001d431"]


@pytest.mark.parametrize(
    "source",
    [
        "\\frac{1}{",
        "\\nonsense",
        "\\def\\a{\\a\\a}\\a",
        "\\href{javascript:alert(1)}{x}",
        "\\includegraphics{https://example.org/x.png}",
        "\\htmlStyle{color: red}{x}",
        "\\pmb{x} \\fcolorbox{red}{blue}{x}",
        "\\text{<img src=x onerror=alert(1)>}",
        "{" * 3000 + "}" * 3000,
    ],
)
def test_bad_and_hostile_formulas_are_text_or_harmless(page: Browser, source: str):
    render(page, f"$${source}$$ and $x$")
    until(lambda: page.count("#try .maths:not(.display) math") == 1)
    assert page.count("#try :is(img, mglyph, [href], [style], [src], [onerror])") == 0


HOSTILE = """\
<script>document.title = "taken"</script>
<img src=x onerror="document.title = 'taken'">

<b onclick=alert(1)>bold</b> <!-- hidden --> <style>* {display: none}</style>

<iframe src="https://example.org"></iframe>

[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](&#106;avascript:alert(1))
[d](data:text/html,x) [e](vbscript:x)
[f](//example.org) [g](/status) [h](file:///etc/passwd) [i](java\tscript:alert(1))
![j](data:image/png;base64,AAAA) ![k](javascript:alert(1)) <javascript:alert(1)> [l][ref]

[ref]: javascript:alert(1)

[m](https://example.org/"onmouseover="alert(1)) **<u>n</u>** `<i>o</i>` &lt;s&gt;

| <em>p</em> |
|---|
| <svg onload=alert(1)> |
"""


def test_nothing_in_an_answer_is_markup(page: Browser):
    seen = render(page, HOSTILE)
    names = page.run("return [...document.querySelectorAll('#try *')].map((e) => e.localName)")
    assert set(names) <= {
        *("p", "a", "br", "code", "strong", "div", "table", "thead", "tbody", "tr", "th", "td"),
    }
    attributes = page.run(
        "return [...document.querySelectorAll('#try *')].flatMap((e) => e.getAttributeNames())"
    )
    assert set(attributes) <= {"class", "href", "rel", "target", "tabindex"}
    assert [address for _, address in links(page)] == [
        "https://example.org/",  # in the text of the iframe
        "https://example.org/%22onmouseover=%22alert(1)",
    ]
    assert "<script>" in seen and "<!-- hidden -->" in seen and "<em>p</em>" in seen
    assert "taken" not in page.run("return document.title")


def test_every_prefix_of_an_answer_is_rendered(page: Browser):
    assert page.run(_PREFIXES, DOCUMENT) is True
    assert page.run(_PREFIXES, HOSTILE) is True


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("```python\nx = [1](2) **b", "pre code"),
        ("1. a\n   ```\n   x", "li pre code"),
        ("$$\na_1 * b * c_2", ".maths.display"),
        ("\\[ a_1 * b * c_2", ".maths.display"),
        ("so \\(a_1 * b * c_2", "p > .maths"),
        ("| a | b |\n|---|---|\n| 1 |", "tbody td"),
    ],
)
def test_what_is_not_closed_yet_is_shown_as_what_it_becomes(
    page: Browser, text: str, selector: str
):
    render(page, text)
    assert page.count(f"#try {selector}") >= 1
    assert page.count("#try :is(strong, em, a, math)") == 0


def test_a_formula_that_is_never_closed_ends_at_an_empty_line(page: Browser):
    render(page, "$$ is money.\n\nThe **end**.")
    assert page.texts("#try strong") == ["end"]


def test_libraries_come_when_they_are_needed_and_once(page: Browser):
    def fetched() -> list[str]:
        script = "return performance.getEntriesByType('resource').map((e) => e.name)"
        names = [str(name).rpartition("/")[2] for name in page.run(script)]
        return sorted(name for name in names if name in ("katex.js", "highlight.js"))

    page.open(page.run("return document.baseURI"))
    render(page, "**plain** and `code`\n\n```\ncode\n```\n$5")
    assert fetched() == []
    for _ in range(2):
        render(page, "```python\nreturn\n```")
        until(lambda: page.count("#try .hl-keyword") == 1)
        render(page, "$x$")
        until(lambda: page.count("#try math") == 1)
    assert fetched() == ["highlight.js", "katex.js"]


@pytest.mark.parametrize(
    "piece", ["$a ", "\\(", "\\[\n", "[", "**a ", "> ", "`a", "- ", "| a ", "_a*", "$$\n", "<a "]
)
def test_a_repeated_piece_does_not_hang_the_page(page: Browser, piece: str):
    render(page, "$x$")
    until(lambda: page.count("#try math") == 1)  # the library is there
    # Some 100 ms; what grows as the square of the length is ended by the driver, after 30 s.
    render(page, piece * (100_000 // len(piece)))


def test_a_block_with_a_long_line_has_no_colours(page: Browser):
    render(page, "```python\nreturn\n```")
    until(lambda: page.count("#try .hl-keyword") == 1)
    render(page, "```ini\n" + "_a" * 2_000 + "\n```\n\n```python\nreturn\n```")
    until(lambda: page.count("#try .hl-keyword") == 1)
    assert page.count("#try [class^='hl-']") == 1


def test_a_formula_that_defines_macros_is_text(page: Browser):
    render(page, "$\\def\\a{x}\\a$ and $\\left(y\\right)$")
    until(lambda: page.count("#try math") == 1)
    assert "\\def" in page.text("#try")


def test_colours_can_be_read(page: Browser):
    scopes = ("comment", "keyword", "string", "number", "title", "type", "attr", "meta")
    script = """
      const box = document.querySelector("#try");
      const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
      const light = (text) => rgb(text).map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
      const card = getComputedStyle(document.querySelector(".card")).backgroundColor;
      const paper = getComputedStyle(document.body).backgroundColor;
      return arguments[0].flatMap((scope) => {
        const span = document.createElement("span");
        span.className = `hl-${scope}`;
        box.append(span);
        return [card, paper].map((back) => {
          const both = [light(getComputedStyle(span).color), light(back)].sort();
          return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
        });
      });"""
    for scheme in ("light", "dark"):
        page.prefer(prefers_color_scheme=scheme)
        render(page, "x")
        ratios: list[Any] = page.run(script, scopes)
        assert min(ratios) >= 4.5, scheme
