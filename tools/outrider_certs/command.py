"""The command that makes certificates for a few machines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_cli.terminal import say

if TYPE_CHECKING:
    from outrider_certs.authority import Made

_MOST_DAYS = 3650


def certs(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the authority is, or is to be.")
    ] = Path("certs"),
    server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=HOST,...]",
            help="Make NAME.pem and NAME.key for a service with these names and addresses."
            " Repeatable.",
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Make NAME.pem and NAME.key for who only calls. Repeatable."
        ),
    ] = None,
    days: Annotated[int, typer.Option(help="They are valid for so long.")] = 365,
    renew: Annotated[
        int | None,
        typer.Option(metavar="DAYS", help="Make those again that end within so many days."),
    ] = None,
) -> None:
    """Make an authority, and certificates that it signs.

    Services trust each other by ca.pem (--tls-ca, --tls-client-ca). With ca.key anyone can make
    certificates that all trust: keep FOLDER on one machine, and copy from it what each needs.
    """
    from outrider.errors import InvalidConfig
    from outrider.extensions import installing

    try:
        from outrider_certs.authority import Authority, read_wanted
    except ModuleNotFoundError as error:
        if error.name != "cryptography":
            raise
        message = f"needs another package: {installing('certs')}"
        raise InvalidConfig("certs", message) from None

    for name, number in (("days", days), ("renew", 0 if renew is None else renew)):
        least = 1 if name == "days" else 0
        if not least <= number <= _MOST_DAYS:
            raise InvalidConfig(name, f"must be in [{least}, {_MOST_DAYS}], not {number}")
    wanted = [read_wanted("--server", each) for each in server or ()]
    wanted += [read_wanted("--client", each) for each in client or ()]
    names = [each.name for each in wanted]
    if len(set(names)) < len(names):
        raise InvalidConfig("certs", "names one certificate twice")
    authority = Authority(folder)
    if renew is not None:
        authority.renew(renew, days)
    for each in wanted:
        authority.issue(each, days)

    for line in map(made_line, authority.made) if authority.made else ["nothing to make"]:
        say(line, sys.stdout, indent=2)


def made_line(made: Made) -> str:
    """Return what is said of a file that was made."""
    hosts = f" of {', '.join(made.hosts)}" if made.hosts else ""
    return f"{made.path}: {made.kind}{hosts}, until {made.end:%Y-%m-%d}"
