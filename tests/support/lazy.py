"""Large libraries that a few tests need, imported when those run: every worker collects all."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Lazy:
    """A module that is imported when an attribute of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks at every global for marks of its own
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
