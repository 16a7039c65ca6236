"""Takes the pictures of a real answer: `python -m tests.browser.screenshot URL docs/images`.

Those in docs/images are of SmolLM2-135M-Instruct (Q4_1) as `outrider up --model FILE` runs it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.support.browser import Browser, chromium, until

QUESTIONS = (
    "Write a Python function that reads a JSON file and returns it as a dictionary.",
    "Write the same function again, but name it load_json.",
)
ANSWER_SECONDS = 300  # s; for two answers of a small model on two busy cores 20 were enough


def ask(browser: Browser, question: str) -> None:
    """Ask in the chat, and wait for the answer."""
    browser.fill("#question", question)
    browser.press("Enter")
    until(lambda: browser.text("#chat-state").startswith("Reading"))
    until(lambda: browser.text("#chat-state").startswith("Done"), seconds=ANSWER_SECONDS)


def prepare(browser: Browser, seed: str, limit: str) -> None:
    """Make the answers the same every time, and not too long for a picture."""
    browser.click("#open-settings")
    for field, value in {"#temperature": "0.2", "#seed": seed, "#chat-limit": limit}.items():
        browser.fill(field, value)
    browser.click("#close-settings")


def main() -> None:
    """Write page.png and instrument.png, of the same answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of a gateway that serves a real model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=1100)
    parser.add_argument("--height", type=int, default=820)
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--seed", default="4")
    parser.add_argument("--limit", default="220", help="tokens of an answer")
    options = parser.parse_args()
    with chromium() as browser:
        browser.resize(options.width, options.height)
        browser.prefer(prefers_color_scheme=options.scheme, prefers_reduced_motion="reduce")
        browser.open(options.url)
        until(lambda: browser.count("#peers li"))
        prepare(browser, options.seed, options.limit)
        for question in QUESTIONS:
            ask(browser, question)
        (options.folder / "page.png").write_bytes(browser.screenshot())
        browser.click('.message:last-child [data-act="tokens"]')
        until(lambda: browser.count(".token"))
        browser.hover(".token.corrected:nth-last-child(-n + 30)")  # its tip covers little
        (options.folder / "instrument.png").write_bytes(browser.screenshot())


if __name__ == "__main__":
    main()
