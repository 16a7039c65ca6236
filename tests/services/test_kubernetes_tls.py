"""deploy/kubernetes/components/tls with the guide's certificates: what its variables do."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.rpc.channel import open_channel
from outrider.rpc.probe import main as probe
from outrider.rpc.security import ClientSecurity
from tests.support.kustomize import build
from tests.support.processes import DRAFT, ServiceProcess
from tests.support.services import eventually

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0


def secrets(folder: Path) -> dict[str, Path]:
    """Make the files as docs/kubernetes.md says; return a folder for each secret."""
    guide = (ROOT / "docs" / "kubernetes.md").read_text().replace("\\\n", " ")
    [make] = re.findall(r"^outrider (certs .*)$", guide, re.M)
    command = [sys.executable, "-m", "outrider_cli", *shlex.split(make)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    made = {}
    for name, files in re.findall(r"create secret generic (\S+-tls) +(--from.*)$", guide, re.M):
        made[name] = folder / name
        made[name].mkdir()
        for word in files.split():
            _, key, source = word.split("=")
            shutil.copy(folder / source, made[name] / key)
    return made


def variables(deployment: str, container: str, folder: Path) -> dict[str, str]:
    """Return the variables of a container that name files of its secret, as they lie here."""
    [its] = [
        one
        for each in build(ROOT / "deploy" / "kubernetes" / "example-guarded")
        if each["kind"] == "Deployment" and each["metadata"]["name"] == deployment
        for one in each["spec"]["template"]["spec"]["containers"]
    ]
    assert its["name"] == container
    return {
        one["name"]: one["value"].replace("/run/tls", str(folder))
        for one in its["env"]
        if "_TLS_" in one["name"]
    }


async def is_let_in(address: str, security: ClientSecurity, name: str) -> bool:
    asked = health_pb2.HealthCheckRequest()
    async with open_channel(address, security, name=name) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(asked, timeout=SECONDS, wait_for_ready=False)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_orchestrators_and_probes_reach_a_draft_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = secrets(tmp_path)
    serving = variables("outrider-serving", "orchestrator", made["outrider-serving-tls"])
    its = variables("outrider-drafts", "draft", made["outrider-drafts-tls"])
    for name, value in its.items():
        monkeypatch.setenv(name, value)
    draft = ServiceProcess("draft", "--model", str(DRAFT))
    draft.start()
    try:

        async def probed() -> bool:
            return await asyncio.to_thread(probe_ends_well, draft.address)

        await eventually(probed, SECONDS, 0.1)
        shown = ClientSecurity(
            tls_ca=Path(serving["OUTRIDER_TLS_CA"]),
            tls_cert=Path(serving["OUTRIDER_TLS_CERT"]),
            tls_key=Path(serving["OUTRIDER_TLS_KEY"]),
        )
        assert await is_let_in(draft.address, shown, "outrider-drafts")
        assert not await is_let_in(draft.address, shown, "another-name")
        nobody = ClientSecurity(tls_ca=shown.tls_ca)
        assert not await is_let_in(draft.address, nobody, "outrider-drafts")
    finally:
        draft.stop()


def probe_ends_well(address: str) -> bool:
    """Return what the container's probe says, in a thread of its own with the same variables."""
    return probe(address) == 0
