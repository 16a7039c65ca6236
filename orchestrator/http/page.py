"""The page that the gateway serves at `/`, and the headers that hold it to itself."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

_PATH = Path(__file__).with_name("page.html")


def page() -> bytes:
    """Return the page."""
    return _PATH.read_bytes()


def headers(page: bytes) -> dict[str, str]:
    """Return the headers to serve it with: its own script and style run, and nothing else."""
    policy = {
        "default-src": "'none'",
        "connect-src": "'self'",
        "img-src": "data:",  # the icon
        "script-src": _digest(page, b"script"),
        "style-src": _digest(page, b"style"),
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",  # and no text can become markup
    }
    return {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "; ".join(f"{key} {value}" for key, value in policy.items()),
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def _digest(page: bytes, tag: bytes) -> str:
    (content,) = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"
