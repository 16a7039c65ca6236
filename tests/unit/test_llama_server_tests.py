"""How llama.cpp's tests of its server are run here: options, outcomes and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.llama_server.expectations import (
    Outcome,
    Row,
    Server,
    compare,
    nameless,
    not_run,
    read_rows,
    report,
)
from tests.llama_server.run import HERE, read_outcomes
from tests.llama_server.shim import DRAFT, TARGET, llama_server_words, outrider_words

KEY_FILE = Path("key")
STARTED_WITH = (
    *("--port", "8090", "--temp", "0.8", "--seed", "-1", "--host", "127.0.0.1", "--offline"),
    *("--hf-repo", "ggml-org/test-model-stories260K", "--batch-size", "32", "--no-slots"),
    *("--alias", "tinyllama-2", "--ctx-size", "512", "--parallel", "2", "--no-jinja"),
)


def option(words: list[str], name: str) -> str:
    """Return the value after an option."""
    return words[words.index(name) + 1]


# --- command lines ---


def test_a_session_gets_its_share_of_the_context():
    assert outrider_words(STARTED_WITH, KEY_FILE) == [
        *("up", "--model", str(TARGET), "--no-draft", "--listen", "127.0.0.1:0"),
        *("--http", "127.0.0.1:8090", "--sessions", "2", "--batch", "68", "--ctx", "256"),
        *("--alias", "tinyllama-2", "--http-cors", "*", "--threads", "1"),
    ]


def test_a_unified_cache_is_open_to_every_session():
    assert option(outrider_words([*STARTED_WITH, "--kv-unified"], KEY_FILE), "--ctx") == "512"


def test_options_with_a_counterpart_are_passed_on():
    words = outrider_words(
        [*STARTED_WITH, "--slots", "--embedding", "-ctk", "f16", "--metrics"], KEY_FILE
    )
    assert {"--http-slots", "--embeddings"} < set(words)
    assert option(words, "--metrics-names") == "llamacpp"
    assert option(words, "--cache-type-k") == "f16"


def test_a_key_is_in_a_file():
    words = outrider_words([*STARTED_WITH, "--api-key", "sk-1"], KEY_FILE)
    assert option(words, "--http-key-file") == "key"
    assert "sk-1" not in words


def test_every_draft_is_the_bundled_one():
    given = [*STARTED_WITH, "--model-draft", "stories15M.gguf", "--spec-draft-n-max", "8"]
    words = outrider_words(given, KEY_FILE)
    assert (option(words, "--draft-model"), option(words, "--n-max")) == (str(DRAFT), "8")
    assert option(llama_server_words(given), "--model-draft") == str(DRAFT)


def test_a_real_server_gets_the_same_options_and_the_bundled_model():
    words = llama_server_words([*STARTED_WITH, "--embedding"])
    assert not {"--hf-repo", "ggml-org/test-model-stories260K", "--offline"} & set(words)
    assert option(words, "--model") == str(TARGET)
    assert (option(words, "--temp"), option(words, "--seed")) == ("0.8", "-1")
    assert option(words, "--pooling") == "mean"


def test_a_router_has_no_model():
    assert "--model" not in llama_server_words(["--port", "8090", "--models-max", "2"])


# --- outcomes ---


def test_outcomes_are_read_from_junit():
    junit = """<testsuites><testsuite>
        <testcase classname="unit.test_basic" name="test_no_ui" />
        <testcase classname="unit.test_basic" name="test_props[a.b]"><failure /></testcase>
        <testcase classname="unit.test_basic" name="test_slots"><error /></testcase>
        <testcase classname="unit.test_basic" name="test_split"><skipped /></testcase>
    </testsuite></testsuites>"""
    assert read_outcomes(junit) == {
        "test_basic.py::test_no_ui": "passed",
        "test_basic.py::test_props[a.b]": "failed",
        "test_basic.py::test_slots": "failed",
        "test_basic.py::test_split": "skipped",
    }


# --- expectations ---

HERE_ONLY = Row("here", "no such route", ("t.py::infill*",))
BOTH = Row("both", "another model", ("t.py::text",))
THERE = Row("there", "no page built in", ("t.py::page",))
LEFT_OUT = Row("not run", "a download", ("t.py::lora",))
ROWS = [HERE_ONLY, BOTH, THERE, LEFT_OUT]


def test_rows_name_tests_or_beginnings_of_them():
    assert HERE_ONLY.names("t.py::infill[1]")
    assert BOTH.names("t.py::text") and not BOTH.names("t.py::text[1]")
    assert nameless(["t.py::infill[1]", "t.py::texts"], [HERE_ONLY, BOTH]) == ["t.py::text"]
    assert not_run(["t.py::lora", "t.py::text", "t.py::health"], ROWS) == ["t.py::lora"]


@pytest.mark.parametrize(
    ("server", "failing"),
    [("outrider", {"infill[1]", "text"}), ("llama-server", {"text", "page"})],
)
def test_a_run_as_expected(server: Server, failing: set[str]):
    names = ("infill[1]", "text", "page", "health")
    outcomes: dict[str, Outcome] = {
        f"t.py::{name}": "failed" if name in failing else "passed" for name in names
    }
    comparison = compare(
        {**outcomes, "t.py::lora": "skipped", "t.py::ipv6": "skipped"}, ROWS, server
    )
    assert comparison.holds
    assert comparison.counts["passed"] == 2
    assert comparison.counts["not run"] == comparison.counts["skipped"] == 1


def test_what_was_not_expected_is_listed():
    comparison = compare({"t.py::health": "failed", "t.py::text": "passed"}, ROWS, "outrider")
    assert not comparison.holds
    assert list(report(comparison)) == [
        *("expected to pass, failed:", "  t.py::health"),
        *("expected to fail, passed:", "  t.py::text"),
        "1 failed, 1 passed",
    ]


def test_a_report_counts_by_reason():
    comparison = compare(
        {"t.py::infill[1]": "failed", "t.py::infill[2]": "failed"}, ROWS, "outrider"
    )
    assert list(report(comparison)) == ["here        2  no such route", "2 here"]


def test_a_row_has_a_kind_and_a_reason():
    for wrong in ('kind = "never"\nreason = "why"', 'kind = "here"\nreason = ""'):
        with pytest.raises(ValueError, match="wrong row"):
            read_rows(f'[[row]]\n{wrong}\ntests = ["t.py::text"]')


def test_no_test_is_in_two_of_our_rows():
    names = [
        name for row in read_rows((HERE / "expectations.toml").read_text()) for name in row.tests
    ]
    assert len(names) == len(set(names))
