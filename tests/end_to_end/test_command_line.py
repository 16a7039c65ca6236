"""The `outrider` command with the bundled pair, as a user runs it."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from outrider_cli.services.pair import BUNDLED_TARGET
from tests.support.commands import GREEDY, LOCAL, Command, outrider_json, service, status, until
from tests.support.thorough import THOROUGH
from tests.support.tiny_gguf import write_model

# --- the text ---


@pytest.fixture(scope="module")
def alone() -> Any:
    """What the target writes without a draft."""
    return outrider_json(*LOCAL, "--no-draft", "-n", "64")


def test_the_target_alone_drafts_nothing(alone: Any):
    assert len(alone["token_ids"]) == 64
    assert set(alone["origins"]) == {"plain"}
    assert alone["statistics"]["acceptance_rate"] is None
    assert alone["models"].keys() == {"target"}


@pytest.mark.parametrize("length", ["1", "4", "8"] if THOROUGH else ["4"])
def test_greedy_text_is_the_targets_whatever_the_draft_length(alone: Any, length: str):
    command = Command("generate", "--json", *LOCAL, "--n-draft", length, "-n", "64")
    command.wait_for_services("target", "draft", "orchestrator")
    drafted = command.finish().json
    assert command.services() == {}, "a service outlives the command"
    assert drafted["token_ids"] == alone["token_ids"]
    assert drafted["text"] == alone["text"]
    assert drafted["origins"].count("drafted") == drafted["statistics"]["accepted_token_count"] > 20
    assert drafted["statistics"]["draft_length"] == int(length)


def test_what_pays_is_drafted_unless_a_length_is_asked_for(alone: Any):
    measured = outrider_json(*LOCAL, "-n", "64")
    assert measured["token_ids"] == alone["token_ids"]
    controller = measured["statistics"]["controller"]
    assert controller["plain_token_rate"] > 0 and controller["decode_costs"]


def test_equal_bits_can_be_done_without(alone: Any):
    assert alone["models"]["target"]["numerics_profile"] == "exact"
    free = outrider_json(*LOCAL, "--no-draft", "-n", "8", "--numerics", "native")
    assert free["models"]["target"]["numerics_profile"] == "native"
    assert free["statistics"]["controller"]["decode_costs"][0][0] == 1, "single rows, not padded"


def test_a_running_orchestrator_gives_the_same_text(alone: Any, orchestrator: str):
    remote = outrider_json(*GREEDY, "--orchestrator", orchestrator, "-n", "64")
    assert remote["token_ids"] == alone["token_ids"]
    assert remote["statistics"]["accepted_token_count"] > 20
    plain = outrider_json(*GREEDY, "--orchestrator", orchestrator, "-n", "64", "--no-draft")
    assert plain["token_ids"] == alone["token_ids"]
    assert plain["statistics"]["drafted_token_count"] == 0


def test_a_draft_without_a_model_leaves_the_text_and_drafts_what_repeats():
    prompt = 3 * "def read_config(path):\n    return json.loads(path.read_text())\n\n"
    with (
        service("target", "--model", str(BUNDLED_TARGET), "--threads", "1") as target,
        service("draft", "--drafters", "lookup") as draft,
        service("orchestrator", "--target", target, "--draft", draft, "--n-max", "8") as address,
    ):
        until(lambda: "\nspeculating with " in status(address).out)
        asked = ("--orchestrator", address, "--prompt", prompt, "--temperature", "0", "-n", "48")
        drafted = outrider_json(*asked, "--n-draft", "6")
        alone = outrider_json(*asked, "--no-draft")
    assert drafted["text"] == alone["text"]
    assert drafted["statistics"]["accepted_token_count"] > 12
    assert drafted["models"]["draft"]["name"] == "lookup"


def test_the_textbook_mode_gives_the_same_text(alone: Any, orchestrator: str):
    modes = ("--acceptance", "rejection", "--rows", "logits", "--rollback", "rpc")
    textbook = outrider_json(*GREEDY, "--orchestrator", orchestrator, "-n", "64", *modes)
    assert textbook["token_ids"] == alone["token_ids"]
    assert textbook["acceptance"] == "rejection"


def test_text_ends_before_a_stop_sequence(orchestrator: str):
    asked = (*GREEDY, "--orchestrator", orchestrator, "-n", "64")
    whole = outrider_json(*asked)["text"]
    stopped = outrider_json(*asked, "--stop", "return")
    assert stopped["text"] == whole[: whole.index("return")]
    assert stopped["finish_reason"] == "stop sequence"


def test_a_piped_prompt_is_continued_and_the_output_is_plain_text(orchestrator: str):
    command = Command("generate", "--orchestrator", orchestrator, "-n", "8", "--temperature", "0")
    told = command.finish(b"import os\n")
    assert told.code == 0 and told.err == ""
    assert told.out.startswith("import os")
    assert "\nverdict   The text is too short to tell.\n" in told.out
    assert "\x1b" not in told.out


def test_the_status_shows_both_models(orchestrator: str):
    lines = status(orchestrator).out.splitlines()
    assert [line.split()[0] for line in lines] == ["orchestrator", "target", "draft", "speculating"]
    assert re.search(r" ready  stdlib-target-q8_0, \d+\.\d ms away$", lines[1])
    found = status(orchestrator, "--json").json
    assert [peer["role"] for peer in found["peers"]] == ["target", "draft"]
    assert found["peers"][0]["model"]["context_token_count"] == 1021
    assert len(found["peers"][0]["model"]["identity"]) == 64


def test_a_service_that_is_no_orchestrator_is_recognised():
    with service("target", "--model", str(BUNDLED_TARGET)) as target:
        assert status(target).err == (
            f"outrider: what answers at {target} is not an orchestrator\n"
        )


def test_a_draft_with_another_vocabulary_translates(alone: Any, tmp_path: Path):
    draft = write_model(tmp_path / "tiny.gguf")
    drafted = outrider_json(*LOCAL, "-n", "64", "--draft-model", str(draft))
    assert drafted["token_ids"] == alone["token_ids"]


# --- nothing is left behind ---


def test_interrupting_stops_the_services():
    command = Command("generate", *LOCAL, "-n", "900")
    command.wait_for_text()
    command.process.send_signal(signal.SIGINT)
    told = command.finish()
    assert (told.code, told.err) == (130, "")
    assert command.services() == {}


def test_killing_the_command_stops_the_services():
    command = Command("generate", *LOCAL, "-n", "900")
    command.wait_for_text()
    command.process.kill()
    command.finish()
    until(lambda: not command.services())
