"""`outrider bench` with the bundled pair: what it runs and writes, never how fast it was."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from model_making.tasks import make_tasks, write_tasks
from outrider_bench.command import _split_pair
from outrider_bench.cores import why_not_apart
from outrider_bench.shaper import why_not
from outrider_cli.services.pair import BUNDLED_DRAFT, BUNDLED_TARGET
from tests.support.commands import Command, Result, run_here

SMALL = (
    *("--threads", "1", "--draft-threads", "1", "--draft-lengths", "", "--prompts", "2"),
    *("--tokens", "16", "--prompt-tokens", "12", "--seed", "3"),
)

SERVER = f"""#!{sys.executable}
import argparse, json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
for flag in ("--model", "--host", "--threads", "--ctx-size", "--cache-ram", "--spec-type",
             "--spec-draft-model"):
    parser.add_argument(flag)
for flag in ("--port", "--parallel", "--spec-draft-n-max"):
    parser.add_argument(flag, type=int, default=0)
options, sizes = parser.parse_known_args()
asked = []


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        # It loads until it is asked for the second time.
        asked.append(self.path)
        self.answer(200 if len(asked) > 1 else 503, b'{{"status": "ok"}}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wrong = self.path != "/completion" or not body["ignore_eos"] or body["cache_prompt"]
        if wrong or not all(isinstance(token, int) for token in body["prompt"]):
            return self.answer(400, b"not what was expected")
        length, count = options.spec_draft_n_max, body["n_predict"]
        self.send_response(200)
        self.end_headers()
        for predicted in range(count + 1):  # the first event begins, without a token
            self.tell(stop=False, tokens_predicted=predicted)
        # After the first token, rounds of one accepted token each, or of none.
        rounds = (count - 1) // 2
        drafts = {{"draft_n": length * rounds, "draft_n_accepted": rounds}} if length else {{}}
        timings = {{"prompt_n": len(body["prompt"]), **drafts}}
        self.tell(stop=True, stop_type="limit", tokens_predicted=count, timings=timings)

    def answer(self, code, text):
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def tell(self, **event):
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")


ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()
"""


def bench(*arguments: str) -> Result:
    command = Command("bench", *SMALL, *arguments)
    told = command.finish()
    assert command.services() == {}
    return told


def measured(path: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Return the JSON document of a run and what it printed."""
    file = path / "bench.json"
    told = bench("--json", str(file), *arguments)
    assert told.code == 0, told.err
    return json.loads(file.read_text()), told.out


def test_variants_and_users_take_turns(tmp_path: Path):
    made, out = measured(tmp_path, "--variants", "plain,serial", "--users", "1,2")
    assert made["command"][1] == "bench" and "--users" in made["command"]
    assert made["machine"]["versions"]["outrider"] and made["machine"]["cpu"]
    (pair,) = made["pairs"]
    assert (pair["target"], pair["draft"]) == (str(BUNDLED_TARGET), str(BUNDLED_DRAFT))
    assert {role: model["thread_count"] for role, model in pair["models"].items()} == {
        "target": 1,
        "draft": 1,
    }
    assert [(b["user_count"], b["round_trip_ms"]) for b in pair["blocks"]] == [(1, None), (2, None)]
    for block in pair["blocks"]:
        turns = block["turns"]
        found = sorted((turn["variant"], turn["repetition"]) for turn in turns)
        assert found == [("plain", 0), ("plain", 1), ("serial", 0), ("serial", 1)]
        assert {len(turn["trials"]) for turn in turns} == {block["user_count"]}
        assert all(
            turn["cpu_seconds"].keys() == {"target", "draft", "orchestrator"} for turn in turns
        )
        for trial in (trial for turn in turns for trial in turn["trials"]):
            assert sum(count for _, count in trial["deltas"]) == 16
            assert trial["reported"]["prompt_token_count"] == 12
        plain, serial = block["variants"]
        assert (plain["variant"], serial["variant"]) == ("plain", "serial")
        assert plain["over_plain"] == {"value": 1.0, "low": 1.0, "high": 1.0}
        assert plain["acceptance"] is None and 0.0 < serial["acceptance"]["value"] <= 1.0
        assert len(serial["acceptance_by_position"]) == 3
        assert serial["token_count"] == 2 * 16 * block["user_count"]
        assert (serial["formula"] is not None) == (block["user_count"] == 1)
    assert "\nserial " in out and "\nusers at once: " in out


PREDICTED = ("accepted_prediction_token_count", "rejected_prediction_token_count")


def test_a_peer_takes_turns_too(tmp_path: Path):
    server = tmp_path / "llama-server"
    server.write_text(SERVER)
    server.chmod(server.stat().st_mode | stat.S_IXUSR)
    tasks, _ = make_tasks(range(500, 3500), each=6, token_count=16)
    write_tasks(tmp_path / "tasks.json", tasks)
    peer = ("--peer", f"llama-server={server}", "--peer-draft-lengths", "2")
    peer += ("--peer-drafters", "ngram-mod/8+draft-simple/3")
    asked = ("--temperature", "0.8", "--users", "2", "--tasks", f"{tmp_path}/tasks.json:extract")
    made, out = measured(tmp_path, "--variants", "plain,rejection,only:prediction", *asked, *peer)
    (block,) = made["pairs"][0]["blocks"]
    summaries = {each["variant"]: each for each in block["variants"]}
    pair = "llama-server ngram-mod/8+draft-simple/3"
    ours = ["plain", "rejection", "only:prediction"]
    assert list(summaries) == [*ours, "llama-server", "llama-server n=2", pair]
    assert summaries[pair]["token_count"] == 2 * 2 * 16
    # All variants of a repetition have the same two prompts.
    mine = [len(task.prompt) for task in tasks if task.kind == "extract"]
    for turn in block["turns"]:
        count = "prompt_n" if "llama-server" in turn["variant"] else "prompt_token_count"
        lengths = [trial["reported"][count] for trial in turn["trials"]]
        first = 2 + 2 * turn["repetition"]  # two were for warming up
        assert lengths == mine[first : first + 2]
        if turn["variant"] in ours:
            predicted = [sum(map(trial["reported"].get, PREDICTED)) for trial in turn["trials"]]
            assert predicted == [16 if turn["variant"] == "only:prediction" else 0] * 2
    drafted = summaries["llama-server n=2"]
    assert drafted["acceptance"]["value"] == 0.5
    assert drafted["tokens_per_round"]["value"] == 15 / 8
    assert drafted["token_count"] == 2 * 2 * 16
    assert drafted["cpu_seconds_per_token"].keys() == {"server", "all"}
    assert summaries["llama-server"]["tokens_per_round"]["value"] == 1.0
    assert "tokens/s over those of llama-server" in out


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_models_far_away_are_measured_at_every_round_trip(tmp_path: Path):
    few = ("--prompts", "1", "--tokens", "8", "--variants", "plain")
    far = ("--round-trips", "0,30", "--target-round-trips", "30")
    made, out = measured(tmp_path, *few, *far)
    here, *away = made["pairs"][0]["blocks"]
    assert here["round_trip_ms"] is None
    places = [(block["far"], block["round_trip_ms"]) for block in away]
    assert places == [("draft", 0), ("draft", 30), ("target", 30)]
    for block in away:
        assert {turn["variant"] for turn in block["turns"]} == {"measured", "plain", "serial"}
        if block["round_trip_ms"]:
            assert min(turn["round_trip_seconds"] for turn in block["turns"]) >= 0.030
    assert "\nround trip to the draft: " in out and "\nround trip to the target: " in out


@pytest.mark.skipif(why_not_apart() is not None, reason=str(why_not_apart()))
def test_services_have_cores_of_their_own_and_other_numerics_stand_beside(tmp_path: Path):
    text = tmp_path / "text.py"
    text.write_text("def add(a, b):\n    return a + b\n" * 4)
    few = ("--prompts", "1", "--tokens", "8", "--prompt-file", str(text))
    made, out = measured(
        tmp_path, "--apart", "--beside-numerics", "exact", "--variants", "plain", *few
    )
    assert made["settings"]["prompt_file"] == str(text)
    assert "\napart    target on " in out
    pair = made["pairs"][0]
    cores = made["settings"]["cores"]
    assert not {*cores["target"]} & {*cores["draft"], *cores["orchestrator"]}
    [block] = pair["blocks"]
    names = sorted(turn["variant"] for turn in block["turns"])
    assert names == ["measured, exact", "plain", "plain, exact"]
    assert {each["variant"] for each in block["variants"]} == set(names)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--variants", "fast"), 1, "variants: has fast, which is none of plain, serial, "),
        (("--beside-numerics", "fast"), 1, "beside_numerics: has fast, neither exact nor native"),
        (("--users", "one"), 1, "users: is not numbers such as 1,2,3: one"),
        (("--users", "0"), 1, "users: must be at least 1, not 0"),
        (("--draft-lengths", "99"), 1, "draft_lengths: must be in [1, 64], not 99"),
        (("--tokens", "1"), 1, "tokens: must be at least 2, not 1"),
        (("--peer", "vllm=/bin/true"), 1, "peer: must be llama-server=PATH, not vllm=/bin/true"),
        (("--pair", "a.gguf"), 2, "--pair takes TARGET.gguf:DRAFT.gguf, not a.gguf"),
        (("--json", "no/such/file"), 1, "json: there is no folder no/such"),
        (("--prompt-file", "none"), 1, "prompt-file: there is no file none"),
        (("--pair", "hf:a:b.gguf"), 1, "model: hf:a is no name on Hugging Face"),
        (("--pair", "a.gguf:b.gguf"), 1, "model: there is no file a.gguf"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_line(arguments: tuple[str, ...], code: int, message: str):
    is_one_line(run_here("bench", *SMALL, *arguments), code, message)


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("a.gguf", "b.gguf"),
        ("hf:a/b", "hf:c/d:Q8_0"),
        ("hf:a/b:Q4_K_M", "hf:c/d"),
        ("hf:a/b:Q4_K_M", "/small/x.gguf"),
        ("hf:a/b", "./x.gguf"),
        ("x.gguf", "hf:a/b/x.gguf"),
    ],
)
def test_a_pair_may_have_names_with_colons_of_their_own(target: str, draft: str):
    assert _split_pair(f"{target}:{draft}") == (Path(target), Path(draft))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tokens", "2000"), "tokens: 12 + 2000 do not fit a context of 1021; see --ctx"),
        (("--peer", "llama-server=/bin/true"), "llama-server: it ended"),
    ],
)
def test_what_services_find_wrong_is_one_line_and_leaves_none(
    arguments: tuple[str, ...], message: str
):
    is_one_line(bench(*arguments), 1, message)


def is_one_line(told: Result, code: int, message: str) -> None:
    assert (told.code, told.out) == (code, "")
    assert told.err.startswith("outrider: ") and message in told.err
    assert told.err.count("\n") == 1
