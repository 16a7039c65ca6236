"""Takes the picture of the page: `python -m tests.browser.screenshot docs/images/page.png`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.support.browser import Browser, chromium, until
from tests.support.scripted_gateway import Round, Script, serving

_SUFFIX, _MIXED = ["suffix"] * 6, ["suffix", "suffix", "model", "model", "model", "model"]
_ROUNDS = (
    Round([], 0, "\n   ", "prompt", 0.081),
    Round([' """', "Return", " the", " config"], 2, " a"),
    Round([" dict", "ionary", " from", " path"], 4, '."""'),
    Round(["\n   ", " with", " open", "(path", ")", " as"], 6, " f", "enough"),
    Round([":\n       ", " return", " f", "."], 1, " data"),
    Round([" =", " json", ".", "load", "(f"], 5, ")", "enough"),
    Round(["\n   ", " return"], 1, " if", "doubt"),
    Round([" not", " data"], 1, " isinstance", "doubt"),
    Round(["(data", ",", " dict", "):", "\n       "], 5, " raise"),
    Round([" Value", "Error"], 0, " Type"),
    Round(["Error", "(f", '"', "expected"], 3, "{path", lines=[2, 2, 2, 2]),
    Round([], 0, "}", "short"),
    Round([" is", " not"], 0, " holds"),
    Round([" no", " mapping", '")', "\n   "], 4, " return", lines=[0, 3, 3, 3]),
    Round([" data"], 1, "\n", "end_of_text"),
    Round(["\n\n", "def", " write", "_config", "(path", ","], 6, " data"),
    Round(["):", "\n   ", " with", " open", "(path", ","], 6, ' "w"', "enough", sources=_SUFFIX),
    Round([") as", " f", ":\n       ", " f", ".", "write"], 3, " json", sources=_MIXED),
    Round([".", "dump", "(data", ",", " f", ")"], 5, ",", "enough"),
    Round([" indent", "=", "2", ")"], 2, "4"),
    Round([")", "\n"], 2, "\n"),
)


def generate(browser: Browser, url: str) -> None:
    """Generate, and point at a token in which the target put the draft right."""
    browser.open(url)
    until(lambda: browser.count("#peers li") == 2)
    browser.click("#generate")
    until(lambda: browser.text("#state").startswith("Done"), seconds=120)
    browser.hover(".token.corrected:nth-of-type(n+30)")


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--url", help="of a gateway; default: one that tells a scripted generation")
    parser.add_argument("--width", type=int, default=1100)
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    options = parser.parse_args()
    with serving() as gateway, chromium() as browser:
        gateway.script = Script(_ROUNDS, pace=0.02)
        browser.resize(options.width, 900)
        browser.prefer(prefers_color_scheme=options.scheme, prefers_reduced_motion="reduce")
        generate(browser, options.url or gateway.url)
        options.path.write_bytes(browser.screenshot())


if __name__ == "__main__":
    main()
