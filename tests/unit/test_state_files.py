"""The files of a state folder have texts of users in them: their owner alone reads them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gateway.answers_kept import KeptAnswers
from orchestrator.job_store import JobStore
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.services import eventually


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_files_of_a_state_folder_are_for_their_own_user(tmp_path: Path) -> None:
    """Also what SQLite puts beside them, and under a umask that leaves all to everybody."""
    folder = tmp_path / "made" / "state"
    before = os.umask(0)
    try:
        jobs, answers = JobStore(folder), KeptAnswers(folder)
        request = messages.GenerateRequest(prompt_text="a secret", cache_salt="alice")
        jobs.add("id", "caller", "owner", "note", request, messages.GenerationStarted())
        head = {"type": "http.response.start", "status": 200, "headers": []}
        body = {"type": "http.response.body", "body": b"a secret"}
        answers.add(b"name", b"digest", [head, body])

        async def is_kept() -> bool:
            return await answers.find(b"name", b"digest") is not None

        await jobs.file.settle()
        await eventually(is_kept)
        found = sorted(folder.iterdir())
    finally:
        os.umask(before)
    assert {path.name for path in found} >= {"answers.sqlite", "jobs.sqlite"}
    assert b"a secret" in b"".join(path.read_bytes() for path in found), "salt or no salt"
    assert {mode(path) for path in found} == {0o600}
    assert mode(folder) == 0o700
    await jobs.file.close()
    await answers.close()
