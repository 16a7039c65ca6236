"""Tokens and certificates in a folder, made for one run of the tests."""

from __future__ import annotations

import secrets
from pathlib import Path

import trustme


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
