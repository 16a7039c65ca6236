"""Fires every alert of deploy/prometheus/outrider.rules.yaml by the fault that it is for.

    make alerts

A real Prometheus scrapes a real `outrider up` over the bundled pair. The rules are those of the
file, with every duration divided by 20, so that five minutes are a quarter of one.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from model_making.bad_drafts import write_junk
from outrider.client import CallFailed, OutriderClient, Request
from tests.support.tiny_gguf import write_model

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "deploy" / "prometheus" / "outrider.rules.yaml"
TARGET, DRAFT = (ROOT / "models" / f"stdlib-{role}-q8_0.gguf" for role in ("target", "draft"))
FASTER = 20
PATIENCE = 180.0
SESSIONS = 2
COMMAND = (sys.executable, "-m", "outrider_cli")

_DURATION = re.compile(r"\b(\d+)([mh])\b")
_SECONDS = {"m": 60, "h": 3600}
_CODE = "import os\nimport sys\n\n\ndef read_config(path):\n"


def scaled(rules: str) -> str:
    """Return the rules with every duration as much shorter as `FASTER` says."""
    return _DURATION.sub(lambda m: f"{int(m[1]) * _SECONDS[m[2]] // FASTER}s", rules)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> float:
    """Wait for a condition; return how long that took. Raises TimeoutError."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() > begin + seconds:
            raise TimeoutError(what)
        time.sleep(0.25)
    return time.monotonic() - begin


class Link:
    """A way to a service that can be made slow: bytes wait for so many seconds each way."""

    def __init__(self, port: int, upstream: int) -> None:
        self.port = port
        self.delay = 0.0
        self._upstream = upstream
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._join, "127.0.0.1", self.port)
        await server.serve_forever()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up, down = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.close()
            return
        ways = [self._carry(reader, down), self._carry(up, writer)]
        await asyncio.gather(*ways, return_exceptions=True)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            self._loop.call_later(self.delay, sink.write, data)
        self._loop.call_later(self.delay, sink.close)


class Users:
    """Clients that ask for one text after the other, by HTTP; `count` may change."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.count = 0
        self.body: dict[str, Any] = {}
        for number in range(16):
            threading.Thread(target=self._ask, args=(number,), daemon=True).start()

    def work(self, count: int, prompt: str = _CODE, **options: Any) -> None:
        """Let so many clients ask for this from now on."""
        self.body = {"prompt": prompt, "temperature": 0, "n_predict": 8, **options}
        self.count = count

    def _ask(self, number: int) -> None:
        with httpx.Client(timeout=20) as client:
            while True:
                if number >= self.count:
                    time.sleep(0.1)
                    continue
                with suppress(httpx.HTTPError):
                    client.post(f"{self._url}/completion", json=self.body)


class Prometheus:
    """A Prometheus that scrapes an orchestrator every second."""

    def __init__(self, folder: Path, scraped: str) -> None:
        (folder / RULES.name).write_text(scaled(RULES.read_text()))
        config = yaml.safe_load((RULES.parent / "prometheus.yaml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [scraped]
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [
                *("prometheus", f"--config.file={folder / 'prometheus.yaml'}"),
                *(
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ),
                "--log.level=error",
            ]
        )
        self._client = httpx.Client()

    def ask(self, path: str, **query: str) -> Any:
        """Return the data that an API call gives; an empty one while nobody answers."""
        try:
            return self._client.get(f"{self.url}/api/v1/{path}", params=query).json()["data"]
        except httpx.HTTPError:
            return {"alerts": [], "result": []}

    def value(self, query: str) -> float | None:
        """Return the value of a query; None where there is none."""
        found = self.ask("query", query=query)["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> dict[str, str]:
        """Return the summaries of what fires, by alert."""
        alerts = self.ask("alerts")["alerts"]
        return {
            each["labels"]["alertname"]: each["annotations"]["summary"]
            for each in alerts
            if each["state"] == "firing"
        }


@dataclass(slots=True)
class Machine:
    """Everything that runs, and how to break it."""

    folder: Path
    stack: ExitStack
    link: Link
    draft_port: int
    http_port: int
    grpc_port: int
    draft: subprocess.Popen[bytes]
    up: subprocess.Popen[bytes]
    users: Users
    prometheus: Prometheus

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a service that is ended with everything else."""
        return started(self.stack, *words)

    def restart_draft(self, model: Path = DRAFT) -> None:
        """Let the draft come back, with another model if one is given."""
        end(self.draft)
        self.draft = self.start("draft", f"--model={model}", *_draft_words(self.draft_port))

    def of_up(self, role: str) -> psutil.Process:
        """Return a process of `outrider up`."""
        for child in psutil.Process(self.up.pid).children(recursive=True):
            if role in child.cmdline()[:5]:
                return child
        raise LookupError(role)

    def joining(self, model: Path) -> subprocess.Popen[bytes]:
        """Start a draft that dials in."""
        words = ("--threads=1", "--nice=19", f"--join=127.0.0.1:{self.grpc_port}")
        return self.start("draft", f"--model={model}", *words)


def _draft_words(port: int) -> tuple[str, ...]:
    return ("--threads=1", "--nice=19", f"--sessions={SESSIONS}", f"--listen=127.0.0.1:{port}")


def started(stack: ExitStack, *words: str) -> subprocess.Popen[bytes]:
    """Start a command that is ended with the stack; its standard input holds it."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*COMMAND, *words], stdout=quiet, stderr=quiet)
    stack.callback(end, process)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, stopped ones too."""
    with suppress(psutil.Error):
        for each in psutil.Process(process.pid).children(recursive=True):
            each.send_signal(signal.SIGCONT)
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
        process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def running() -> Iterator[Machine]:
    """Run the services, a client of them and Prometheus."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="alerts-")))
        draft_port, link_port, http_port, grpc_port = (free_port() for _ in range(4))
        link = Link(link_port, draft_port)
        draft = started(stack, "draft", f"--model={DRAFT}", *_draft_words(draft_port))
        up = started(
            *(stack, "up", f"--model={TARGET}", f"--draft=127.0.0.1:{link_port}", "--threads=1"),
            *(f"--listen=127.0.0.1:{grpc_port}", f"--http=127.0.0.1:{http_port}"),
            *("--accept-drafts", "--same-vocabulary", f"--sessions={SESSIONS}", "--ctx=512"),
            "--n-draft=4",
        )
        prometheus = Prometheus(folder, f"127.0.0.1:{http_port}")
        stack.callback(end, prometheus.process)
        url = f"http://127.0.0.1:{http_port}"
        until(lambda: _is_well(url), "the services are not ready")
        users = Users(url)
        yield Machine(
            *(folder, stack, link, draft_port, http_port, grpc_port, draft, up, users, prometheus)
        )
        users.count = 0


def _is_well(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


# --- the faults ---


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done so that an alert fires; what it returns mends that again."""

    alert: str
    said: str
    do: Callable[[Machine], Callable[[], None]]
    is_remembered: bool = False  # the alert fires on for a while when the fault is mended


def lose_draft(machine: Machine) -> Callable[[], None]:
    end(machine.draft)
    return machine.restart_draft


def lose_joined_draft(machine: Machine) -> Callable[[], None]:
    joined = machine.joining(DRAFT)
    before = "count(outrider_draft_used offset 30s == 1)"  # ten minutes of the rule
    until(lambda: (machine.prometheus.value(before) or 0) == 2, "the draft did not join")
    end(joined)
    return lambda: None


def refuse_draft(machine: Machine) -> Callable[[], None]:
    other = machine.joining(write_model(machine.folder / "other.gguf", seed=1))
    return lambda: end(other)


def spoil_draft(machine: Machine) -> Callable[[], None]:
    machine.users.work(1)
    acceptance = "outrider:acceptance:ratio_rate5m"
    until(lambda: (machine.prometheus.value(acceptance) or 0) > 0.2, "nothing is accepted")
    time.sleep(15)  # so that there is something to have fallen from
    machine.restart_draft(write_junk(DRAFT, machine.folder / "junk.gguf"))
    return machine.restart_draft


def slow_link(machine: Machine) -> Callable[[], None]:
    machine.link.delay = 0.15

    def mend() -> None:
        machine.link.delay = 0.0

    return mend


def ask_much(machine: Machine) -> Callable[[], None]:
    machine.users.work(10, n_predict=400)
    return lambda: machine.users.work(1)


def fill_cache(machine: Machine) -> Callable[[], None]:
    machine.users.work(SESSIONS + 1, n_predict=400)
    return lambda: machine.users.work(1)


def write_long(machine: Machine) -> Callable[[], None]:
    machine.users.work(1, prompt=_CODE * 20, n_predict=-1, ignore_eos=True)
    return lambda: machine.users.work(1)


def hurry(machine: Machine) -> Callable[[], None]:
    machine.users.work(0)
    stopping = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_hurry(machine.grpc_port, stopping)))
    thread.start()

    def mend() -> None:
        stopping.set()
        thread.join()
        machine.users.work(1)

    return mend


async def _hurry(port: int, stopping: threading.Event) -> None:
    """Ask for texts that take longer than they may."""
    options = Request(_CODE, token_limit=400)
    async with OutriderClient(f"127.0.0.1:{port}") as client:
        while not stopping.is_set():
            with suppress(CallFailed):
                async for _ in client.generate(options, timeout_seconds=0.5):
                    pass


def stop_process(role: str) -> Callable[[Machine], Callable[[], None]]:
    def do(machine: Machine) -> Callable[[], None]:
        process = machine.of_up(role)
        process.send_signal(signal.SIGSTOP)
        return lambda: process.send_signal(signal.SIGCONT)

    return do


FAULTS = (
    Fault("OutriderDraftLost", "the draft's process is killed", lose_draft),
    Fault("OutriderFewerDrafts", "a draft that had joined is killed", lose_joined_draft),
    Fault("OutriderDraftRefused", "a draft with other tokens dials in", refuse_draft, True),
    Fault("OutriderAcceptanceFell", "the draft comes back with shuffled weights", spoil_draft),
    Fault("OutriderLinkSlow", "the link to the draft delays by 150 ms each way", slow_link),
    Fault("OutriderKvFull", f"{SESSIONS + 1} users of {SESSIONS} sessions", fill_cache),
    Fault("OutriderQueueGrowing", f"10 users of {SESSIONS} sessions", ask_much),
    Fault("OutriderContextFull", "texts are written until the context is full", write_long),
    Fault("OutriderRequestsFail", "texts take longer than their callers allow", hurry),
    Fault("OutriderTargetDown", "the target's process is stopped", stop_process("target")),
    Fault("OutriderDown", "the orchestrator's process is stopped", stop_process("orchestrator")),
)


def fire(machine: Machine, fault: Fault) -> tuple[float, str]:
    """Do what a fault is, and mend it; return after how long its alert fired, and what it said."""
    prometheus = machine.prometheus
    until(lambda: fault.alert not in prometheus.firing(), f"{fault.alert} fires already")
    mend = fault.do(machine)
    said: dict[str, str] = {}

    def has_fired() -> bool:
        said.update(prometheus.firing())
        return fault.alert in said

    try:
        seconds = until(has_fired, "it did not fire")
    finally:
        mend()
    if not fault.is_remembered:
        until(lambda: fault.alert not in prometheus.firing(), "it does not end")
    return seconds, said[fault.alert]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD", help="alerts whose name has it")
    only = parser.parse_args().only
    if shutil.which("prometheus") is None:
        sys.exit("alerts: needs Prometheus on the path")
    named = {rule.get("alert") for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
    missing = named - {None} - {fault.alert for fault in FAULTS}
    if missing:
        sys.exit(f"alerts: no fault fires {', '.join(sorted(map(str, missing)))}")
    failed = 0
    with running() as machine:
        machine.users.work(1)
        print(f"| alert | fault | fires after, s x {FASTER} | what it says |\n|---|---|---|---|")
        for fault in FAULTS:
            if only not in fault.alert:
                continue
            try:
                seconds, said = fire(machine, fault)
                print(f"| {fault.alert} | {fault.said} | {seconds:.0f} | {said} |", flush=True)
            except TimeoutError as error:
                failed += 1
                print(f"| {fault.alert} | {fault.said} | never: {error} | |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
