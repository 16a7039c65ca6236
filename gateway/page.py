"""The page at `/`, its parts at `/page/NAME`, and the headers that hold it to itself."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from starlette.responses import Response

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
    path.relative_to(_FOLDER).as_posix(): path.read_bytes()
    for path in sorted(_FOLDER.rglob("*"))
    if path.suffix in _TYPES
}
"""Every file of the page by its path below `/page/`; `make page-libraries` writes libraries/."""


def answer(name: str, asked: Mapping[str, str]) -> Response:
    """Return a part, compressed where the request's headers allow; 304 where it is known."""
    given = headers(name)
    if given["ETag"] in asked.get("if-none-match", ""):
        return Response(status_code=304, headers=given)
    if "gzip" not in asked.get("accept-encoding", ""):
        return Response(PARTS[name], headers=given)
    return Response(packed(name), headers={**given, "Content-Encoding": "gzip"})


@cache
def packed(name: str) -> bytes:
    """Return a part as gzip."""
    return gzip.compress(PARTS[name], mtime=0)


@cache
def headers(name: str) -> Mapping[str, str]:
    """Return the headers to serve a part with: the page's own files run, and nothing else."""
    return {
        "Content-Type": _TYPES[Path(name).suffix],
        "Content-Security-Policy": "; ".join(f"{key} {value}" for key, value in _POLICY.items()),
        "Cache-Control": "no-cache",
        "ETag": f'W/"{hashlib.sha256(PARTS[name]).hexdigest()[:32]}"',
        "Vary": "Accept-Encoding",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
