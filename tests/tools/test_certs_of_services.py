"""Services with certificates of `outrider certs`: each shows its own to the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outrider.client import Finished, OutriderClient, Request
from outrider.errors import PeerUnavailable
from outrider.rpc.health_check import check
from outrider.rpc.security import ClientSecurity, ServerSecurity
from outrider_cli import run
from tests.support.services import (
    DRAFT,
    TARGET,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    running,
    toy,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")  # as in tests/services/conftest.py

WAIT = 60.0
NAMES = ("target", "draft", "orchestrator")


def demanded(folder: Path, name: str) -> ServerSecurity:
    return ServerSecurity(
        tls_cert=folder / f"{name}.pem",
        tls_key=folder / f"{name}.key",
        tls_client_ca=folder / "ca.pem",
    )


def shown(folder: Path, name: str, ca: str = "ca") -> ClientSecurity:
    return ClientSecurity(
        tls_ca=folder / f"{ca}.pem",
        tls_cert=folder / f"{name}.pem",
        tls_key=folder / f"{name}.key",
    )


async def test_all_services_trust_each_other_and_go_on_when_the_certificates_are_renewed(
    tmp_path: Path,
):
    folder = tmp_path / "certs"
    words = [word for name in NAMES for word in ("--server", name)]
    assert run(["certs", str(folder), *words, "--client", "laptop"]) == 0
    peers = shown(folder, "orchestrator")
    security = demanded(folder, "orchestrator")
    async with (
        running(ModelProcess(TARGET, toy, security=demanded(folder, "target"))) as target,
        running(ModelProcess(DRAFT, toy, security=demanded(folder, "draft"))) as draft,
        running(
            OrchestratorProcess(
                target.address, draft.address, security=security, peer_security=peers
            )
        ) as orchestrator,
    ):
        await eventually(lambda: not orchestrator.pool.obstacle(), WAIT)
        await write(orchestrator.address, folder)
        before = (folder / "target.pem").read_bytes()
        renew = ["certs", str(folder), "--renew", "3000", "--days", "500"]
        assert await asyncio.to_thread(run, renew) == 0
        assert (folder / "target.pem").read_bytes() != before
        await write(orchestrator.address, folder)
        # A target that comes back is dialled with the new ones.
        await target.restart()
        await eventually(lambda: orchestrator.pool.target.ready, WAIT)
        await write(orchestrator.address, folder)


async def write(address: str, folder: Path) -> None:
    async with OutriderClient(address, shown(folder, "laptop")) as client:
        events = [e async for e in client.generate(Request("ab", token_limit=4))]
    assert isinstance(events[-1], Finished)


async def test_a_client_of_another_authority_is_not_let_in(tmp_path: Path):
    for name in ("ours", "theirs"):
        words = ["--server", "orchestrator", "--client", "laptop"]
        assert run(["certs", str(tmp_path / name), *words]) == 0
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    (theirs / "our-ca.pem").write_bytes((ours / "ca.pem").read_bytes())
    security = demanded(ours, "orchestrator")
    async with running(OrchestratorProcess("127.0.0.1:1", security=security)) as orchestrator:
        assert await check(orchestrator.address, shown(ours, "laptop"), WAIT) == "not serving"
        try:
            await check(orchestrator.address, shown(theirs, "laptop", "our-ca"), WAIT)
        except PeerUnavailable as refused:
            assert "a client certificate that it accepts" in str(refused)
        else:
            raise AssertionError("it was let in")
