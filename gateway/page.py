"""The page at `/`, its parts at `/page/NAME`, and the headers that hold it to itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).with_name("page_files")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_POLICY = {
    "default-src": "'none'",
    "connect-src": "'self'",
    "img-src": "data:",  # the icon
    "script-src": "'self'",
    "style-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",  # and no text can become markup
}

INDEX = "index.html"

PARTS: Mapping[str, bytes] = {
    path.name: path.read_bytes() for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES
}
"""Every file of the page by its name."""


def headers(name: str) -> dict[str, str]:
    """Return the headers to serve a part with: the page's own files run, and nothing else."""
    return {
        "Content-Type": _TYPES[Path(name).suffix],
        "Content-Security-Policy": "; ".join(f"{key} {value}" for key, value in _POLICY.items()),
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
