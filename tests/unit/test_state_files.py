"""The files of a state folder have texts of users in them: their owner alone reads them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gateway.repeats import answer_log
from orchestrator.jobs import job_log


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_files_of_a_state_folder_are_for_their_own_user(tmp_path: Path) -> None:
    """Also what SQLite puts beside them, and under a umask that leaves all to everybody."""
    folder = tmp_path / "made" / "state"
    before = os.umask(0)
    try:
        jobs, answers = job_log(1, 60.0, folder), answer_log(folder)
        for log in (jobs, answers):
            log.keep(log.begin(b"digest"), b"a secret")
            await log.settle()
        found = sorted(folder.iterdir())
    finally:
        os.umask(before)
    assert {path.name for path in found} >= {"answers.sqlite", "jobs.sqlite"}
    assert b"a secret" in b"".join(path.read_bytes() for path in found), "salt or no salt"
    assert {mode(path) for path in found} == {0o600}
    assert mode(folder) == 0o700
    await jobs.close()
    await answers.close()
