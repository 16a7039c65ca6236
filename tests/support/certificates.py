"""Tokens and certificates, made for one run of the tests."""

from __future__ import annotations

import secrets
from pathlib import Path

import trustme


def token_of(name: str) -> str:
    """Return the token that `write_tokens` gives a name."""
    return f"the-token-of-{name}"


def write_tokens(path: Path, **more: str) -> Path:
    """Write tokens of two clients, a draft and an operator; `more` are lines of some of them."""
    rights = {
        "alice": '"client"',
        "bob": '"client"',
        "laptop": '"draft"',
        "olga": '"operator"',
    }
    tables = [
        f'[tokens.{name}]\ntoken = "{token_of(name)}"\nrights = [{its}]\n{more.get(name, "")}\n'
        for name, its in rights.items()
    ]
    path.write_text("\n".join(tables))
    return path


def write_certificates(folder: Path) -> None:
    """Write ca, other-ca, server and client in PEM, keys beside them, and two tokens.

    `server` and `client` are signed by `ca`, `foreign` by `other-ca`.
    """
    ca, other = trustme.CA(), trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    other.cert_pem.write_to_path(folder / "other-ca.pem")
    for name, leaf in (
        ("server", ca.issue_cert("127.0.0.1", "localhost")),
        ("client", ca.issue_cert("client.example")),
        ("foreign", other.issue_cert("client.example")),
    ):
        leaf.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        leaf.private_key_pem.write_to_path(folder / f"{name}.key")
    for name in ("right", "wrong"):
        (folder / f"{name}.token").write_text(secrets.token_urlsafe(32) + "\n")
