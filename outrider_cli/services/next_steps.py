"""What to do with an orchestrator that runs here: its addresses, and commands that work."""

from __future__ import annotations

import shlex
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.rpc.channel import Address, read_address
from outrider_cli.options import ClientOptions, arguments
from outrider_cli.screen import own_command

_SECONDS = 3.0  # for a handshake with this machine
_ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""Where it listens on every address, and where that is reached from here."""

NAMED_TOKEN = "TOKEN"


def from_here(address: str) -> str:
    """Return where this machine reaches what listens at an address."""
    host, _, port = address.rpartition(":")
    return f"{_ANY.get(host, host)}:{port}"


def certified_name(address: str, shown: ClientOptions) -> str:
    """Return a host that the certificate at an address is for, where the address's is not one.

    Empty where the address will do, without TLS, and where the certificate names nobody.
    """
    if shown.tls_ca is None:
        return ""
    to = read_address("listen", address)
    context = ssl.create_default_context(cafile=shown.tls_ca)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it is trusted itself
    context.set_alpn_protocols(["h2"])
    if shown.tls_cert is not None:
        context.load_cert_chain(shown.tls_cert, shown.tls_key)
    try:
        _certified(to, context)
    except ssl.SSLCertVerificationError:
        context.check_hostname = False
        try:
            names = _certified(to, context)
        except OSError:
            return ""
        return next((name for name in names if "*" not in name), "")
    except OSError:
        pass
    return ""


def _certified(to: Address, context: ssl.SSLContext) -> list[str]:
    """Return the hosts that a certificate is for, names first. Raises OSError."""
    host = to.host.strip("[]")
    with (
        socket.create_connection((host, to.port), _SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        certificate: Any = secure.getpeercert()
    names = certificate.get("subjectAltName", ())
    return [name for wanted in ("DNS", "IP Address") for kind, name in names if kind == wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSteps:
    """How an orchestrator is reached from this machine."""

    address: str  # of gRPC
    http: str  # where it serves HTTP; empty where it does not
    name: str  # that a certificate is for, in place of the address's host; or empty
    shown: ClientOptions  # what it wants to be shown over gRPC
    key_file: Path | None  # with the key of HTTP
    tokens: Path | None  # named tokens, one of which a caller must show

    def lines(self) -> list[str]:
        """Return the lines to print, the last one about the end."""
        return [*self._open(), f"try:  {self._command()}", *self._explained(), "stop: Ctrl-C"]

    def _open(self) -> list[str]:
        return [f"open: {self._url()}/ (page; OpenAI API at /v1)"] if self.http else []

    def _url(self) -> str:
        scheme = "https" if self.shown.tls_ca else "http"
        return f"{scheme}://{self._named(self.http)}"

    def _named(self, address: str) -> str:
        port = address.rpartition(":")[2]
        return f"{self.name}:{port}" if self.name else address

    def _command(self) -> str:
        return self._curl() if self.http else self._generate()

    def _generate(self) -> str:
        words = [own_command(), "generate", f"--orchestrator={self._named(self.address)}"]
        words += arguments(self.shown)
        lone = self.tokens is not None and self.shown.token_file is None
        return shlex.join([*words, *([f"--token-file={NAMED_TOKEN}"] if lone else [])])

    def _curl(self) -> str:
        words = ["curl", f"{self._url()}/v1/completions"]
        if self.name:
            host, _, port = self.http.rpartition(":")
            words.append(f"--resolve {self.name}:{port}:{host}")
        for option, path in (
            ("--cacert", self.shown.tls_ca),
            ("--cert", self.shown.tls_cert),
            ("--key", self.shown.tls_key),
        ):
            words += [f"{option} {shlex.quote(str(path))}"] if path else []
        if self.key_file is not None:
            key = f"$(cat {shlex.quote(str(self.key_file))})"
            words.append(f'-H "Authorization: Bearer {key}"')
        elif self.tokens is not None:
            words.append(f'-H "Authorization: Bearer {NAMED_TOKEN}"')
        return " ".join([*words, """-d '{"prompt": "Hello"}'"""])

    def _explained(self) -> list[str]:
        """Return what has to be done before that command works."""
        lines = []
        if self.tokens is not None and not (self.key_file if self.http else self.shown.token_file):
            what = "a token" if self.http else "a file with a token"
            lines.append(f"      {NAMED_TOKEN}: {what} of {self.tokens}")
        if self.name:
            lines.append(f"      The certificate is for {self.name}: that name must lead here.")
        return lines
