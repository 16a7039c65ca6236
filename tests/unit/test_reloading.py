"""Settings that are read again: what changed, what is taken, and what needs a restart."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typer

from gateway.config import HttpConfig
from orchestrator.config import OrchestratorConfig
from orchestrator.main import make_pool
from orchestrator.reloading import _LIMITS, take
from orchestrator.service import Orchestrator
from outrider.errors import InvalidConfig
from outrider.rpc.server import ServerConfig
from outrider.settings_reload import Settings, changed, option
from outrider.speculation import Speculation
from outrider_cli import rereading, run, settings
from outrider_cli.app import app

COMMANDS = settings.commands(typer.main.get_command(app))
CONFIG = OrchestratorConfig(
    server=ServerConfig(), targets=["127.0.0.1:1"], drafts=["127.0.0.1:2"], jobs=7
)


@pytest.fixture(autouse=True)
def _keep_level() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


def test_what_changed_is_named_also_within() -> None:
    server = ServerConfig(log_level="debug", settings=Settings(None, lambda: None))
    after = replace(CONFIG, jobs=8, server=server, speculation=Speculation(n_max=3))
    assert sorted(changed(CONFIG, after)) == ["jobs", "log_level", "n_max"]
    assert not list(changed(CONFIG, CONFIG))


def lines_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [getattr(each, "fields", {}) for each in caplog.records if each.name == "outrider.rpc"]


def test_one_line_says_what_was_taken_and_what_needs_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    after = replace(
        CONFIG, server=ServerConfig(listen="127.0.0.1:9", log_level="warning"), job_seconds=1.0
    )
    settings = Settings(CONFIG, lambda: after)

    def take_jobs(config: Any, names: Collection[str]) -> Collection[str]:
        assert config is after
        return {"job_seconds"}

    settings.reload(take_jobs)
    [line] = lines_of(caplog)
    assert line == {"changed": ["--job-keep", "--log-level"], "needs_restart": ["--listen"]}
    assert logging.getLogger().level == logging.WARNING


@pytest.mark.parametrize("error", [InvalidConfig("jobs", "no"), ValueError("a line\nof a file")])
def test_settings_that_are_wrong_change_nothing(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def read() -> Any:
        raise error

    level = logging.getLogger().level
    Settings(CONFIG, read).reload(lambda *_: pytest.fail("nothing is to be taken"))
    [line] = lines_of(caplog)
    assert line == {"detail": " ".join(str(error).split())}
    assert logging.getLogger().level == level


def test_the_same_settings_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Settings(CONFIG, lambda: CONFIG).reload()
    assert lines_of(caplog) == [{"changed": [], "needs_restart": []}]


def test_settings_of_the_gateway_are_named_as_its_options(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    before = replace(CONFIG, gateway=HttpConfig(listen="127.0.0.1:1", slots=True))
    http = HttpConfig(listen="127.0.0.1:2", body_bytes=9, cors_origins=("*",), stall_seconds=3.0)
    after = replace(before, gateway=http)
    Settings(before, lambda: after).reload(lambda config, names: {"http_body_bytes"})
    Settings(before, lambda: CONFIG).reload()
    needs_restart = ["--http", "--http-cors", "--http-slots", "--stall-timeout"]
    assert lines_of(caplog) == [
        {"changed": ["--http-body-limit"], "needs_restart": needs_restart},
        {"changed": [], "needs_restart": ["--http"]},
    ]


UNSET = {
    *("enabled", "is_draft", "mtp", "no_pings", "support", "tail"),
    *("http_api_key", "http_body_seconds", "http_ping_seconds", "http_state"),
}
"""Fields that no option of their name sets."""


def every_name(config: Any) -> Iterator[str]:
    """Yield what `changed` may call the fields of a configuration."""
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            yield from every_name(value)
        elif each.compare:
            yield getattr(type(config), "PREFIX", "") + each.name


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("target --model m", "--draft-model d --keep-rows k"),
        ("draft --model m", ""),
        ("orchestrator", "--http 8080"),
    ],
)
def test_every_setting_of_a_service_has_an_option(command: str, more: str) -> None:
    def read(*words: str) -> Any:
        rereading.note(words)
        return rereading.read()

    bare, full = read(*command.split()), read(*command.split(), *more.split())
    names = {*every_name(bare), *every_name(full)} - UNSET | set(changed(bare, full))
    known = COMMANDS[command.partition(" ")[0]].params
    assert {option(name) for name in names} <= {flag for each in known for flag in each.opts}


async def test_an_orchestrator_takes_limits_and_lists() -> None:
    orchestrator = Orchestrator(CONFIG, make_pool(CONFIG))
    after = replace(
        CONFIG,
        targets=["127.0.0.1:1", "127.0.0.1:3"],
        drafts=["127.0.0.1:4", "localhost:5"],
        request_seconds=3.0,
        jobs=9,
        speculation=Speculation(n_max=3),
        accept_drafts=True,
    )
    names = set(changed(CONFIG, after))
    taken = set(take(orchestrator, after, names))
    assert names - taken == {"accept_drafts"}
    addresses = [(peer.role, peer.address) for peer in orchestrator.pool.dialled]
    assert sorted(addresses) == [
        ("draft", "127.0.0.1:4"),
        ("draft", "localhost:5"),
        ("target", "127.0.0.1:1"),
        ("target", "127.0.0.1:3"),
    ]
    assert orchestrator.config.request_seconds == 3.0
    assert orchestrator.config.speculation.n_max == 3
    assert not orchestrator.config.accept_drafts, "what needs a restart stays as it was"
    assert orchestrator._completions._config is orchestrator.config
    assert orchestrator._completions.planner._config is orchestrator.config
    assert orchestrator._jobs._log.retention.count == 9
    again = replace(after, targets=["127.0.0.1:3"], drafts=[])
    take(orchestrator, again, {"targets", "drafts"})
    assert [peer.address for peer in orchestrator.pool.dialled] == ["127.0.0.1:3"]
    await orchestrator.pool.stop()
    await orchestrator.close()


@pytest.mark.fault(
    "restart",
    "a setting is put back in the file while another one of it needs a restart, and SIGHUP",
    before="it was compared with what the process began with, and the other value stayed",
    now="it is compared with what the process runs with, and taken",
)
async def test_what_is_put_back_is_taken_although_something_else_needs_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    before = replace(CONFIG, gateway=HttpConfig(listen="127.0.0.1:1"))
    orchestrator = Orchestrator(before, make_pool(before))
    http = HttpConfig(listen="127.0.0.1:2", body_bytes=9)
    after = replace(
        before,
        server=ServerConfig(log_level="warning"),
        targets=["127.0.0.1:1", "127.0.0.1:3"],
        request_seconds=300.0,
        speculation=Speculation(n_max=3),
        gateway=http,
    )
    files = [after, after, replace(before, accept_drafts=True), before]
    settings = Settings(before, lambda: files.pop(0))
    bodies: list[int] = []

    def take_all(config: Any, names: Collection[str]) -> Collection[str]:
        taken = set(take(orchestrator, config, names))
        if "http_body_bytes" in names:
            bodies.append(config.gateway.body_bytes)
            taken.add("http_body_bytes")
        return taken

    for _ in range(4):
        settings.reload(take_all)
        logging.getLogger().setLevel(logging.INFO)
    every = ["--http-body-limit", "--log-level", "--n-max", "--request-timeout", "--target"]
    assert lines_of(caplog) == [
        {"changed": every, "needs_restart": ["--http"]},
        {"changed": [], "needs_restart": ["--http"]},
        {"changed": every, "needs_restart": ["--accept-drafts"]},
        {"changed": [], "needs_restart": []},
    ]
    assert orchestrator.config.request_seconds == CONFIG.request_seconds
    assert orchestrator.config.speculation.n_max == CONFIG.speculation.n_max
    assert [peer.address for peer in orchestrator.pool.dialled if peer.role == "target"] == [
        "127.0.0.1:1"
    ]
    assert bodies == [9, before.gateway.body_bytes]  # type: ignore[attr-defined]
    await orchestrator.pool.stop()
    await orchestrator.close()


def test_the_guide_names_every_setting_that_is_taken() -> None:
    folder = Path(__file__).parents[2] / "docs" / "reference"
    guide = (folder / "configuration.md").read_text("utf-8")
    [section] = [part for part in guide.split("\n## ") if part.startswith("Settings that are read")]
    named = section.partition("Everything else needs a restart")[0]
    assert [option(name) for name in sorted(_LIMITS) if f"`{option(name)}`" not in named] == []


async def test_a_name_goes_with_all_of_its_records() -> None:
    orchestrator = Orchestrator(CONFIG, make_pool(CONFIG))
    named = replace(CONFIG, targets=["127.0.0.1:1", "targets.invalid:7"])
    take(orchestrator, named, {"targets"})
    pool = orchestrator.pool
    name = pool.names[-1]
    name._take(["10.0.0.1", "10.0.0.2"], pool.dial, pool.leave)
    found = {peer.address for peer in orchestrator.pool.dialled if peer.role == "target"}
    assert found == {"127.0.0.1:1", "10.0.0.1:7", "10.0.0.2:7"}
    take(orchestrator, CONFIG, {"targets"})
    found = {peer.address for peer in orchestrator.pool.dialled if peer.role == "target"}
    assert found == {"127.0.0.1:1"} and name not in pool.names
    await orchestrator.pool.stop()
    await orchestrator.close()


def test_the_command_is_read_again_with_the_file_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flags of the process stay, what the file says may be another."""
    file = tmp_path / "outrider.toml"
    file.write_text("[orchestrator]\njobs = 5\n")
    served: list[Any] = []

    def serve(coroutine: Any) -> None:
        served.append(coroutine)
        coroutine.close()

    monkeypatch.setattr("asyncio.run", serve)
    monkeypatch.setattr("outrider.logs.start_logging", lambda level: None)
    command = ["--config", str(file), "orchestrator", "--target", "127.0.0.1:1", "--no-draft"]
    assert run(command) == 0 and len(served) == 1
    file.write_text('[orchestrator]\njobs = 6\nlog-level = "debug"\n')
    config = rereading.read()
    assert (config.jobs, config.server.log_level) == (6, "debug")
    assert list(config.targets) == ["127.0.0.1:1"]
    assert len(served) == 1, "nothing is served a second time"
    file.write_text("[orchestrator]\njobs = 0\n")
    with pytest.raises(InvalidConfig, match="jobs"):
        rereading.read()
    assert run([*command, "--log-level", "loud"]) == 1
