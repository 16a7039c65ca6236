"""When the file of a head is taken, and when it is not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from outrider import logs
from outrider.engine.host import EngineHost
from outrider.engine.own_draft import DraftCosts
from outrider.errors import Draining, InvalidConfig
from outrider.file_values import state_of
from outrider.model_service.config import ModelConfig
from outrider.model_service.new_heads import HeadFile
from outrider.speculation import HeadKind


class Draft:
    """What an engine has taken."""

    head_kind, weight_bytes, costs = HeadKind.EAGLE3, 1000, DraftCosts(0.001, 0.0)


class Host:
    """An engine that takes what it is given, or says why not."""

    def __init__(self) -> None:
        self.taken = 0
        self.fault: Exception | None = None

    def replace_draft(self, load: Callable[..., Any]) -> Draft:
        """Take it."""
        if self.fault is not None:
            raise self.fault
        self.taken += 1
        return Draft()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "head.gguf"


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    said: list[object] = []
    monkeypatch.setattr(logs, "warning", lambda *_, **values: said.append(values["detail"]))
    yield said


def head_file(path: Path, known: Any = None) -> HeadFile:
    return HeadFile(ModelConfig(model=path, is_draft=True), known)


def looks(file: HeadFile, host: Host, count: int = 2) -> list[bool]:
    """Return of each of some looks whether it took the head."""
    return [file.look(cast(EngineHost, host)) is not None for _ in range(count)]


def replace(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


def test_a_head_that_comes_later_is_taken_once_it_is_written(path: Path) -> None:
    file, host = head_file(path), Host()
    assert looks(file, host, 3) == [False, False, False]
    path.write_text("half")
    assert looks(file, host, 1) == [False]
    path.write_text("a whole one")
    assert looks(file, host, 4) == [False, True, False, False]
    assert host.taken == 1


def test_the_head_that_the_target_was_loaded_with_is_not_taken_again(path: Path) -> None:
    path.write_text("old")
    file, host = head_file(path, state_of(path)), Host()
    assert not any(looks(file, host, 3))
    replace(path, "new")
    assert looks(file, host, 3) == [False, True, False]
    path.unlink()
    assert not any(looks(file, host, 3))
    path.write_text("back")
    assert any(looks(file, host, 2))


def test_what_is_no_good_is_said_once_and_the_next_one_is_taken(
    path: Path, warned: list[object]
) -> None:
    file, host = head_file(path), Host()
    path.write_text("damaged")
    host.fault = InvalidConfig("model", "is damaged")
    assert not any(looks(file, host, 5))
    assert warned == ["model: is damaged"]
    host.fault = None
    replace(path, "sound")
    assert any(looks(file, host))


def test_a_target_that_stops_says_nothing_of_it(path: Path, warned: list[object]) -> None:
    file, host = head_file(path), Host()
    path.write_text("new")
    host.fault = Draining("the engine is stopping")
    assert not any(looks(file, host, 3)) and not warned
