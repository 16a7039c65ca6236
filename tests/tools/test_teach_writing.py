"""What a target writes to teach a head from, with real services and a tiny model."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import zlib
from pathlib import Path

import psutil
import pytest

from outrider.errors import InvalidConfig
from outrider.kept_rows import Kept, folder_bytes
from outrider.model_service.config import ModelOptions
from outrider_cli.screen import Progress
from outrider_cli.services.local import HostedModel
from outrider_teach import writing
from outrider_teach.prompts import OWN, Prompt, is_held_out, own
from outrider_teach.writing import Writing, answered, write
from tests.support.commands import environment, until
from tests.support.tiny_heads import write_llama

ROOT = Path(writing.__file__).parents[2]
WRITER = """
import asyncio, sys
from pathlib import Path
from outrider_cli.screen import Progress
from outrider_teach.writing import write
from tests.tools.test_teach_writing import plan
asyncio.run(write(plan(Path(sys.argv[1]), 10**6), Progress()))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("target") / "target.gguf")


def passage(number: int) -> Prompt:
    """Return a prompt that no other number has."""
    return Prompt(OWN, passage=f"{number:06} {zlib.crc32(bytes([number % 251]))}")


def plan(folder: Path, tokens: int, **changes: object) -> Writing:
    """Return what a target beside the folder is to write, into `rows` in it."""
    values: dict[str, object] = {
        "target": HostedModel(
            folder / "target.gguf", ModelOptions(sessions=4, context=256, threads=1)
        ),
        "folder": folder / "rows",
        "prompts": passage,
        "tokens": tokens,
        "most_bytes": 10**9,
        "token_limit": 24,
    }
    return Writing(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    (tmp_path / "target.gguf").symlink_to(model)
    return tmp_path


def written(writing: Writing) -> int:
    return asyncio.run(write(writing, Progress()))


def test_the_orchestrator_takes_as_many_prompts_as_are_asked_at_once(tmp_path: Path) -> None:
    many = HostedModel(tmp_path / "target.gguf", ModelOptions(sessions=100))
    assert "--generations=100" in plan(tmp_path, 1, target=many).plan().orchestrator


def prompts_in(folder: Path) -> list[bytes]:
    """Return the tokens of each text up to the first that was answered."""
    texts = Kept(folder / "rows").texts
    return [text.tokens[: int((text.top_ids[:, 0] < 0).sum())].tobytes() for text in texts]


def next_in(folder: Path) -> int:
    try:
        return int(json.loads((folder / "rows" / "prompts.json").read_text())["next"])
    except FileNotFoundError:
        return 0


@pytest.mark.timeout(300)  # on a busy machine; else some seconds
def test_after_a_kill_it_goes_on_and_asks_no_prompt_twice(folder: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)],
        env=environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tools'}"),
        stderr=subprocess.DEVNULL,
    )
    until(lambda: next_in(folder) > 30, 120.0)
    services = psutil.Process(writer.pid).children(recursive=True)
    writer.kill()
    writer.wait()
    gone, alive = psutil.wait_procs(services, 30.0)
    assert len(gone) == 2 and not alive, "no service outlives it"
    before, asked = answered(folder / "rows"), next_in(folder)
    assert before > 0

    assert written(plan(folder, before + 300)) >= before + 300
    assert next_in(folder) > asked
    prompts = prompts_in(folder)
    assert len(set(prompts)) == len(prompts)
    kept = Kept(folder / "rows")
    assert (kept.source.width, len(kept.source.layers)) == (kept.texts[0].rows.shape[1] // 3, 3)
    # Enough is there: the target is not even started.
    assert written(plan(folder, before, target=HostedModel(Path("none"), ModelOptions()))) > before


@pytest.mark.timeout(300)
def test_own_prompts_are_asked_eight_times_at_most_and_none_that_is_held_out(folder: Path) -> None:
    prompts = [passage(number) for number in range(40)]
    learned = [prompt for prompt in prompts if not is_held_out(prompt.text)]
    assert 30 < len(learned) < 40
    few = plan(folder, 10**6, prompts=own(prompts, 1), prompt_count=40, token_limit=8)
    kept = written(few)
    assert kept >= answered(folder / "rows") > 0.9 * 8 * 8 * len(learned) * 0.5
    assert len(set(prompts_in(folder))) == len(learned)
    assert next_in(folder) > 7 * 40


def test_a_full_budget_or_disk_ends_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = written(plan(folder, 100))
    assert kept >= 100
    size = folder_bytes(folder / "rows")
    assert size > kept * Kept(folder / "rows").source.row_bytes
    # The target is not even started.
    none = HostedModel(Path("none"), ModelOptions())
    assert written(plan(folder, 10**6, most_bytes=size, target=none)) == kept
    monkeypatch.setattr(writing, "_LEAST_FREE", 1 << 60)
    with pytest.raises(InvalidConfig, match=r"^work: the disk of .* is full: .* MB are left$"):
        written(plan(folder, 10**6))


def test_a_folder_of_something_else_is_one_line(folder: Path) -> None:
    (folder / "rows").mkdir()
    (folder / "rows" / "source.json").write_text("{}")
    with pytest.raises(InvalidConfig, match=r"holds no rows of a target: its source\.json"):
        written(plan(folder, 10))


def test_temperatures_take_turns_and_own_prompts_are_greedy_once() -> None:
    endless = plan(Path("x"), 1)
    assert [endless.temperature(n) for n in (0, 1, 2, 10**6)] == [0.0, 0.8, 0.0, 0.0]
    few = plan(Path("x"), 1, prompt_count=3)
    assert [few.temperature(n) for n in range(7)] == [0.0, 0.8, 0.0, 0.8, 0.8, 0.8, 0.8]
