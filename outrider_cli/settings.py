"""Where option values come from: a flag, else the environment, else a TOML file, else a default.

Every option of every command has two names in the environment, the command's
own first: `OUTRIDER_TARGET_THREADS`, then `OUTRIDER_THREADS`. The file has the
same two places: a section per command, and keys above all sections that mean
every command with such an option.

    threads = 2
    [target]
    model = "large.gguf"
    [draft]
    ctx = 2048

The engine options in [draft] are also those of a draft that another command starts: `--draft-ctx`.

An option that may be repeated takes a list; one text is a list of one. In the environment spaces
are between the values, and colons between files.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outrider.errors import InvalidConfig
from outrider_cli.help import long_flags
from outrider_cli.llama_options import SPELLINGS

FILE_VARIABLE = "OUTRIDER_CONFIG"

_PREFIX = "OUTRIDER_"
# Kubernetes sets the first in every pod beside a service named outrider or outrider-something; the
# last are read inside vLLM.
_FOREIGN = re.compile(
    r"OUTRIDER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)|OUTRIDER_VLLM_\w+"
)

_DRAFT, _MODEL = "draft", "model"
"""[draft] is read by other commands, too, but for which model it is: they have one of their own."""


def commands(root: Any) -> dict[str, Any]:
    """Return the commands of a command line that have options, by their full names."""
    found: dict[str, Any] = {}
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            found |= {f"{name} {inner}": one for inner, one in command.commands.items()}
        else:
            found[name] = command
    return found


def read_environment(root: Any, environment: Mapping[str, str]) -> None:
    """Let every option be set by its two variables. Raises InvalidConfig for unknown ones."""
    known = {FILE_VARIABLE}
    for name, command in commands(root).items():
        for key, parameter in options(command).items():
            parameter.envvar = variables(name, key)
            parameter.show_envvar = False
            known.update(parameter.envvar)
    for variable in environment:
        ours = variable.startswith(_PREFIX) and not _FOREIGN.fullmatch(variable)
        if ours and variable not in known:
            raise InvalidConfig(variable, f"is no option{_meant(variable, known)}")


def variables(command: str, key: str) -> list[str]:
    """Return the variables of an option, the one that wins first."""
    own = f"{_PREFIX}{command}_{key}".upper()
    return [re.sub(r"[ -]", "_", name) for name in (own, f"{_PREFIX}{key}".upper())]


def options(command: Any) -> dict[str, Any]:
    """Return the options of a command by the names of their flags."""
    found = {}
    for parameter in command.params:
        flags = long_flags(parameter)
        if flags and parameter.name not in ("help", None):
            found[flags[0]] = parameter
    return found


class SettingsFile:
    """A TOML file of option values. Raises InvalidConfig for what no command knows."""

    def __init__(self, path: Path, root: Any) -> None:
        self.path = path
        self._known = commands(root)
        self._shared: dict[str, Any] = {}
        self._sections: dict[str, dict[str, Any]] = {}
        for key, value in _read(path).items():
            if isinstance(value, dict):
                self._sections[key] = {_spelled(name): each for name, each in value.items()}
            else:
                self._shared[_spelled(key)] = value
        self._check()

    def _check(self) -> None:
        everywhere = {key for command in self._known.values() for key in options(command)}
        for key in self._shared:
            self._refuse_unknown(key, everywhere)
        for name, section in self._sections.items():
            self._refuse_unknown(name, self._known, "command")
            for key, value in section.items():
                if isinstance(value, dict):
                    raise InvalidConfig("config", f"{self.path}: [{name}.{key}] is no section")
                self._refuse_unknown(key, options(self._known[name]), f"option of {name}")

    def _refuse_unknown(self, key: str, known: Iterable[str], kind: str = "option") -> None:
        names = list(known)
        if key not in names:
            raise InvalidConfig("config", f"{self.path}: {key} is no {kind}{_meant(key, names)}")

    def values(self, name: str) -> dict[str, Any]:
        """Return a command's values by parameter, as a default map takes them."""
        known = options(self._known[name])
        found = self._shared | self._of_draft(known) | self._sections.get(name, {})
        ours = {key: parameter for key, parameter in known.items() if key in found}
        values = {}
        for key, parameter in ours.items():
            value = found[key]
            if parameter.multiple and isinstance(value, str):
                value = [value]
            self._refuse_kind(key, value, parameter)
            values[parameter.name] = value
        return values

    def _of_draft(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return what [draft] says of the engine of a draft that another command starts."""
        section = self._sections.get(_DRAFT, {})
        engine = (key for key in section if key in known and f"{_DRAFT}-{key}" in known)
        return {f"{_DRAFT}-{key}": section[key] for key in engine if key != _MODEL}

    def _refuse_kind(self, key: str, value: Any, parameter: Any) -> None:
        """Raise InvalidConfig for what would be taken for something else: true for 1."""
        if isinstance(value, list) != parameter.multiple:
            kind = "a list" if parameter.multiple else "one value, not a list"
            raise InvalidConfig("config", f"{self.path}: {key} takes {kind}")
        if isinstance(value, bool) and not (parameter.is_flag or parameter.count):
            raise InvalidConfig("config", f"{self.path}: {key} is not true or false")

    def default_map(self) -> dict[str, Any]:
        """Return the values of all commands, nested as the commands are."""
        nested: dict[str, Any] = {}
        for name in self._known:
            *groups, last = name.split()
            place = nested
            for group in groups:
                place = place.setdefault(group, {})
            place[last] = self.values(name)
        return nested


def typed(context: Any) -> set[str]:
    """Return the options that were given as flags, by their names."""
    return {
        name
        for name, parameter in options(context.command).items()
        if origin(context, parameter) == "flag"
    }


def origin(context: Any, parameter: Any) -> str:
    """Return where the value of a parameter came from: "flag", a variable, a file or "default"."""
    source = context.get_parameter_source(parameter.name)
    kind = "DEFAULT" if source is None else source.name
    if kind == "COMMANDLINE":
        return "flag"
    if kind == "ENVIRONMENT":
        return next(str(one) for one in parameter.envvar if os.environ.get(one))
    if kind == "DEFAULT_MAP":
        return str(context.find_root().meta["outrider.settings"].path)
    return "default"


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig("config", f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfig("config", f"{path} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig("config", f"{path} is not TOML: {error}") from None


def _spelled(key: str) -> str:
    return key.replace("_", "-")


def _meant(word: str, known: Iterable[str]) -> str:
    ours = {name.lstrip("-"): key for key, names in SPELLINGS.items() for name in names}
    if ours.get(word) in (known := list(known)):
        return f"; it is called {ours[word]} here"
    close = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {close[0]}?" if close else ""
