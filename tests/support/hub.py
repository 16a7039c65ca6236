"""A small server that speaks what a download needs of Hugging Face's API."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "c" * 40
TOKEN = "hf_token_of_a_test"

_FILE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/main/(?P<file>.+)")
_MODEL = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)")
_RANGE = re.compile(r"bytes=(\d+)-")


@dataclass
class Hub:
    """What it has, how it behaves, and what it was asked."""

    repositories: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)  # wants TOKEN
    cut: int = 0  # bytes after which a connection breaks; 0: never
    breaks: int = 0  # that many connections do
    continues: bool = True  # takes a Range
    damages: bool = False  # sends other bytes than it says
    status: int = 200
    cdn: str = ""  # where it redirects downloads, as the real one does
    tokens: set[str] = field(default_factory=set)  # that it was shown; "" for none
    asked: list[str] = field(default_factory=list)  # "METHOD path range"
    url: str = ""

    def files(self, repository: str) -> list[dict[str, object]]:
        """Return the files of a repository as the API lists them."""
        listed = []
        for name, content in self.repositories[repository].items():
            entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": "b"}
            if name.endswith(".gguf"):
                checksum = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": checksum, "size": len(content), "pointerSize": 134}
            listed.append(entry)
        return listed


@contextmanager
def running_hub(**options: object) -> Iterator[Hub]:
    """Give a hub that listens on this machine."""
    hub = Hub(**options)  # type: ignore[arg-type]
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _answer(self, with_body: bool) -> None:
        path, hub = unquote(self.path.partition("?")[0]), self.hub
        hub.asked.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if hub.status != 200:
            return self._refuse(hub.status, "")
        for form in (_MODEL, _FILE):
            if found := form.fullmatch(path):
                return self._give(found.groupdict(), with_body)
        self._refuse(404, "EntryNotFound")

    def _give(self, wanted: Mapping[str, str], with_body: bool) -> None:
        repository, hub = wanted["repository"], self.hub
        said = self.headers.get("Authorization", "")
        hub.tokens.add(said.removeprefix("Bearer "))
        if said and said != f"Bearer {TOKEN}":
            return self._refuse(401, "", "Invalid credentials in Authorization header")
        if repository not in hub.repositories:
            return self._refuse(401, "RepoNotFound")
        if "file" not in wanted:
            return self._list(repository)
        if repository in hub.gated and not said:
            return self._refuse(401, "GatedRepo")
        if wanted["file"] not in hub.repositories[repository]:
            return self._refuse(404, "EntryNotFound")
        if hub.cdn and with_body:
            return self._begin(302, 0, {"Location": hub.cdn + self.path})
        self._send(hub.repositories[repository][wanted["file"]], with_body)

    def _list(self, repository: str) -> None:
        body = {"id": repository, "sha": COMMIT, "siblings": self.hub.files(repository)}
        content = json.dumps(body).encode()
        self._begin(200, len(content), {"Content-Type": "application/json"})
        self.wfile.write(content)

    def _send(self, content: bytes, with_body: bool) -> None:
        hub, start, status = self.hub, 0, 200
        checksum = hashlib.sha256(content).hexdigest()
        if hub.continues and (found := _RANGE.fullmatch(self.headers.get("Range", ""))):
            start, status = int(found[1]), 206
        named = {"X-Repo-Commit": COMMIT, "ETag": f'"{checksum}"', "X-Linked-Etag": checksum}
        self._begin(status, len(content) - start, {**named, "X-Linked-Size": str(len(content))})
        if not with_body:
            return
        rest = content[start:]
        if hub.damages:
            rest = bytes(len(rest))
        if hub.breaks:
            hub.breaks -= 1
            self.wfile.write(rest[: hub.cut])
            self.close_connection = True
        else:
            self.wfile.write(rest)

    def _begin(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def _refuse(self, status: int, code: str, message: str = "") -> None:
        self._begin(status, 0, {"X-Error-Code": code, "X-Error-Message": message})
