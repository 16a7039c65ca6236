"""The command that shows where each value of a command would come from."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Any

import typer

from outrider_cli import settings


def show(
    context: typer.Context,
    command: Annotated[
        str | None, typer.Argument(help="A command, such as target; else all of them.")
    ] = None,
    flags: Annotated[
        list[str] | None, typer.Argument(help="Options as they would be given to it.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Show the value of every option, and where it comes from.

    Flags win over the environment, the environment over the file, the file over the default.
    """
    known = settings.commands(context.find_root().command)
    if command is not None and command not in known:
        raise typer.BadParameter(f"there is no command {command!r}")
    chosen = [command] if command else [name for name in known if " " not in name]
    rows = {name: _rows(context, name, known[name], flags or []) for name in chosen}
    if as_json:
        print(json.dumps(rows))
        return
    for name, values in rows.items():
        print(f"[{name}]")
        for key, (value, origin) in values.items():
            # TOML has no null.
            setting = f"# {key} is not set" if value is None else f"{key} = {json.dumps(value)}"
            print(setting if origin == "default" else f"{setting}  # {origin}")
        print()


def _rows(
    context: typer.Context, name: str, command: Any, flags: list[str]
) -> dict[str, tuple[Any, str]]:
    """Return value and origin of every option of a command."""
    for parameter in command.params:
        parameter.required = False  # it is not run
    made = command.make_context(
        name, list(flags), parent=context.find_root(), default_map=_defaults(context, name)
    )
    return {
        key: (_plain(made.params.get(parameter.name)), settings.origin(made, parameter))
        for key, parameter in settings.options(command).items()
        if not parameter.hidden
    }


def _defaults(context: typer.Context, name: str) -> dict[str, Any]:
    file = context.find_root().meta.get("outrider.settings")
    return {} if file is None else file.values(name)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
