"""What the command refuses: one line, an exit code, no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import outrider
from outrider_cli import run
from tests.support.commands import environment

NOT_A_COMMAND_LINE = [
    (["generate", "--acceptance", "hope"], "'hope' is not one of 'match', 'shared-noise'"),
    (["generate", "--rows", "all"], "'all' is not one of 'sampled', 'distributions', 'logits'"),
    (["generate", "--n-predict", "many"], "--n-predict"),
    (["generate", "--no-such-option"], "--no-such-option"),
    (["generate", "--no-draft", "--draft-model", "d.gguf"], "--no-draft excludes"),
    (["generate", "--no-draft", "--compare"], "--no-draft excludes"),
    (["generate", "--orchestrator", "127.0.0.1:1", "--draft-ctx", "9"], "--orchestrator"),
    (["chat", "--no-draft", "--draft-model", "d.gguf"], "--no-draft excludes"),
    (["chat", "--orchestrator", "127.0.0.1:1", "--ctx", "9"], "--orchestrator excludes --ctx"),
    (["up", "--target", "127.0.0.1:1", "--model", "m.gguf"], "--target and --model exclude"),
    (["up", "--draft", "127.0.0.1:1", "--no-draft"], "exclude each other"),
    (["config", "show", "targt"], "there is no command 'targt'"),
    (["config", "show", "target", "--threads", "nine"], "--threads"),
    (["generate", "--orchestrator", "127.0.0.1:1", "--model", "m.gguf"], "--orchestrator"),
    (["no-such-command"], "no-such-command"),
    (["target"], "--model"),
]
OUT_OF_RANGE = [
    (["generate", "--n-predict", "-2"], "n_predict: must be in [-1, "),
    (["generate", "--n-draft", "65"], "n_draft: must be in [0, 64], not 65"),
    (["generate", "--temperature", "nan"], "temperature: must be in [0, 1000], not nan"),
    (["generate", "--temperature", "-0.1"], "temperature: must be in [0, 1000], not -0.1"),
    (["generate", "--top-p", "1.1"], "top_p: must be in [0, 1], not 1.1"),
    (["generate", "--min-p", "inf"], "min_p: must be in [0, 1], not inf"),
    (["generate", "--top-k", "-1"], "top_k: must be in [0, "),
    (["generate", "--seed", str(2**63)], "seed: must be in ["),
    (["orchestrator", "--generations", "0"], "generations: must be in [1, 65536], not 0"),
    (["generate", "--model", "/no/such.gguf"], "model: there is no file /no/such.gguf"),
    (["generate", "--draft-model", "/no/such.gguf"], "draft-model: there is no file /no/such"),
    (["up", "--model", "/no/such.gguf"], "model: there is no file /no/such.gguf"),
    (["generate", "--prompt", "\udc80"], "prompt: is not valid Unicode text"),
    (["generate", "--orchestrator", "127.0.0.1:1", "--tls-cert", "c"], "--tls-cert: needs --tls"),
    (["generate", "--orchestrator", "127.0.0.1:1"], "no orchestrator answers at 127.0.0.1:1"),
    (["chat", "--orchestrator", "127.0.0.1:1"], "no orchestrator answers at 127.0.0.1:1"),
    (["chat", "--system", "\udc80"], "system: is not valid Unicode text"),
    (["chat", "--temperature", "nan"], "temperature: must be in [0, 1000], not nan"),
    (["chat", "--model", "/no/such.gguf"], "model: there is no file /no/such.gguf"),
    (["status", "--orchestrator", "127.0.0.1:1"], "no orchestrator answers at 127.0.0.1:1"),
    (["target", "--model", "m.gguf", "--sessions", "0"], "sessions: must be in [1, 256], not 0"),
    (["draft", "--model", "m.gguf", "--nice", "20"], "nice: must be in [-1, 19], not 20"),
    (["orchestrator", "--target", "nowhere"], "target: must be HOST:PORT, not 'nowhere'"),
    (["orchestrator", "--n-draft", "65"], "n_draft: must be in [0, 64], not 65"),
]
CASES = [(*case, 2) for case in NOT_A_COMMAND_LINE] + [(*case, 1) for case in OUT_OF_RANGE]


@pytest.mark.parametrize(("arguments", "words", "code"), CASES)
def test_a_wrong_command_line_is_one_line(
    arguments: list[str],
    words: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sys, "stdin", None)
    assert run(arguments) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("outrider: ") and words in told.err
    assert told.err.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk always full")
@pytest.mark.parametrize("command", ["--version", "pair qwen3-8b"])
def test_a_full_disk_behind_standard_output_is_one_line(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert run(command.split()) == 1
        full.write("the rest")  # is lost, and no further error
    assert capsys.readouterr().err == "outrider: cannot write: No space left on device\n"


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"outrider {outrider.__version__}\n"


def test_help_imports_neither_grpc_nor_numpy():
    code = "import sys; from outrider_cli.app import app; print({'grpc', 'numpy'} & {*sys.modules})"
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, env=environment()) == b"set()\n"


def test_a_status_where_nothing_runs_suggests_what_to_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("outrider_cli.status.ORCHESTRATOR_ADDRESS", "127.0.0.1:1")
    assert run(["status", "--orchestrator", "127.0.0.1:1"]) == 1
    told = capsys.readouterr().err
    refused = "no orchestrator answers at 127.0.0.1:1: the connection is refused"
    assert told == f"outrider: {refused}; `outrider up` starts one\n"


def test_a_second_ctrl_c_while_the_command_exits_ends_it_without_a_traceback() -> None:
    program = """
import atexit, os, signal, outrider_cli
atexit.register(os.kill, os.getpid(), signal.SIGINT)
outrider_cli.run = lambda arguments: 130
outrider_cli.main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")
