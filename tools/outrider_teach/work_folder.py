"""The folder in which a run keeps what it has, so that it continues from there after any end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.errors import InvalidConfig

_SETTINGS = "run.json"
_VERSION = 1  # of the folder


class WorkFolder:
    """Rows, checkpoints and the settings of one run.

    Raises InvalidConfig for the folder of a run with other settings, or that cannot be written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.rows, self.training = path / "rows", path / "training"
        self._settings = {"version": _VERSION, **json.loads(json.dumps(settings))}
        try:
            self.training.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidConfig("work", f"{path}: {error.strerror}") from None
        found = self._read()
        for name, value in self._settings.items():
            if found.get(name, value) != value:
                fault = f"{path} is of a run with another {name}: give it, or another folder"
                raise InvalidConfig("work", fault)
        self._found = {**found, **self._settings}
        self._write()

    def steps_over(self, tokens: int | None) -> int | None:
        """Return the steps of the training that has begun over so many tokens; None: none has.

        One over fewer tokens is forgotten, as there is more to learn from; None: they do not count.
        """
        if tokens is not None and self._found.get("tokens", tokens) != tokens:
            shutil.rmtree(self.training)
            self.training.mkdir()
            del self._found["steps"], self._found["tokens"]
            self._write()
        found = self._found.get("steps")
        return found if isinstance(found, int) else None

    def begin_training(self, steps: int, tokens: int) -> None:
        """Write down of how many steps the training is, and over how many tokens."""
        self._found |= {"steps": steps, "tokens": tokens}
        self._write()

    @property
    def learned(self) -> float:
        """When the last text was written that a lesson has learned from; 0 before one has."""
        found = self._found.get("learned")
        return found if isinstance(found, float) else 0.0

    def end_lesson(self, learned: float) -> None:
        """Write down up to when texts are learned from."""
        self._found["learned"] = learned
        self._write()

    def _read(self) -> dict[str, Any]:
        place = self.path / _SETTINGS
        try:
            found = json.loads(place.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if any(self.path.glob("*.*")):
                raise InvalidConfig("work", f"{self.path} has files of something else") from None
            return {}
        except (OSError, ValueError) as error:
            raise InvalidConfig("work", f"{place} cannot be read: {error}") from None
        return found if isinstance(found, dict) else {}

    def _write(self) -> None:
        place = self.path / _SETTINGS
        part = place.with_name(f".{_SETTINGS}")
        try:
            part.write_text(json.dumps(self._found, indent=1), encoding="utf-8")
            os.replace(part, place)
        except OSError as error:
            raise InvalidConfig("work", f"cannot write {place}: {error.strerror}") from None
