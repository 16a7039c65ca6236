"""The health check of containers: `python -m outrider.rpc.probe HOST:PORT [--live]`.

It says what `outrider health` says at half its cost. The other half goes into reading options, so
here there are none: the same environment variables name the token's file and the certificates.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from outrider.errors import OutriderError
from outrider.rpc.health_check import check
from outrider.rpc.security import ClientSecurity
from outrider.rpc.server import LIVENESS


def read_security(environment: Mapping[str, str]) -> ClientSecurity:
    """Return what `outrider health` would present with this environment."""

    def read(name: str) -> Path | None:
        value = environment.get(f"OUTRIDER_HEALTH_{name}") or environment.get(f"OUTRIDER_{name}")
        return Path(value) if value else None

    return ClientSecurity(
        token_file=read("TOKEN_FILE"),
        tls_ca=read("TLS_CA"),
        tls_cert=read("TLS_CERT"),
        tls_key=read("TLS_KEY"),
    )


def main(address: str, *flags: str) -> int:
    """Print whether the service serves, with --live whether its process is alive.

    Returns the exit code, 0 only if it does.
    """
    if flags not in ((), ("--live",)):
        print("usage: python -m outrider.rpc.probe HOST:PORT [--live]")
        return 2
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    service = LIVENESS if flags else ""
    try:
        answer = asyncio.run(check(address, read_security(os.environ), service=service))
    except OutriderError as error:
        answer = str(error)
    print(answer)
    return 0 if answer == "serving" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
