"""What the command refuses: one line, an exit code, no traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import outrider
from outrider.cli import run
from outrider.cli.generate import BUNDLED_TARGET

NOT_A_COMMAND_LINE = [
    (["generate", "--acceptance", "hope"], "'hope' is not one of 'match', 'shared-noise'"),
    (["generate", "--rows", "all"], "'all' is not one of 'sampled', 'distributions', 'logits'"),
    (["generate", "--n-predict", "many"], "--n-predict"),
    (["generate", "--no-such-option"], "--no-such-option"),
    (["generate", "--no-draft", "--draft-model", "d.gguf"], "exclude each other"),
    (["generate", "--orchestrator", "127.0.0.1:1", "--model", "m.gguf"], "--orchestrator"),
    (["no-such-command"], "no-such-command"),
    (["target"], "--model"),
]
OUT_OF_RANGE = [
    (["generate", "--n-predict", "-2"], "n_predict: must be in [-1, "),
    (["generate", "--n-draft", "65"], "n_draft: must be in [0, 64], not 65"),
    (["generate", "--temperature", "nan"], "temperature: must be in [0, 1000], not nan"),
    (["generate", "--temperature", "-0.1"], "temperature: must be in [0, 1000], not -0.1"),
    (["generate", "--top-p", "0"], "top_p: must be above 0"),
    (["generate", "--min-p", "inf"], "min_p: must be in [0, 1], not inf"),
    (["generate", "--top-k", "-1"], "top_k: must be in [0, "),
    (["generate", "--seed", str(2**63)], "seed: must be in ["),
    (["generate", "--model", "/no/such.gguf"], "model: there is no file /no/such.gguf"),
    (["generate", "--draft-model", "/no/such.gguf"], "draft-model: there is no file /no/such"),
    (["generate", "--orchestrator", "127.0.0.1:1"], "no orchestrator answers at 127.0.0.1:1"),
    (["status", "--orchestrator", "127.0.0.1:1"], "no orchestrator answers at 127.0.0.1:1"),
    (["target", "--model", "m.gguf", "--sessions", "0"], "sessions: must be in [1, 256], not 0"),
    (["draft", "--model", "m.gguf", "--nice", "20"], "nice: must be in [0, 19], not 20"),
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


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_file_that_is_no_model_is_one_line(role: str, tmp_path: Path):
    path = tmp_path / "text.gguf"
    path.write_text("GGML, almost")
    refuse(f"model: {path} is not a GGUF file", role, "--model", str(path))


def test_a_truncated_model_is_one_line(tmp_path: Path):
    refuse("model: llama.cpp cannot load", "target", "--model", str(truncated(tmp_path)))


def test_a_service_that_refuses_speaks_through_generate(tmp_path: Path):
    path = truncated(tmp_path)
    refuse(f"draft: model: llama.cpp cannot load {path}", "generate", "--draft-model", str(path))


def test_a_port_in_use_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refuse(f"listen: cannot listen on {address}: in use", "orchestrator", "--listen", address)


def test_bytes_that_are_no_text_are_one_line():
    told = command("generate", input=b"\xff\xfe")
    assert told.returncode == 1
    assert told.stderr == b"outrider: prompt: standard input is not UTF-8 text\n"


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"outrider {outrider.__version__}\n"


def test_help_comes_at_once():
    command("--help")
    begin = time.perf_counter()
    assert b"generate" in command("--help").stdout
    # 0.15 s on an idle machine; importing any service would cost twice the bound.
    assert time.perf_counter() - begin < 2.0


def test_help_imports_neither_grpc_nor_numpy():
    code = "import sys; from outrider.cli.app import app; print({'grpc', 'numpy'} & {*sys.modules})"
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, env=environment()) == b"set()\n"


def truncated(folder: Path) -> Path:
    path = folder / "half.gguf"
    path.write_bytes(BUNDLED_TARGET.read_bytes()[:200_000])
    return path


def refuse(words: str, *arguments: str) -> None:
    """Expect a refusal by a process of its own."""
    told = command(*arguments)
    error = told.stderr.decode()
    assert told.returncode == 1
    assert error.startswith("outrider: ") and words in error
    assert error.count("\n") == 1


def command(*arguments: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "outrider.cli", *arguments],
        input=input,
        capture_output=True,
        env=environment(),
        timeout=60,
        check=False,
    )


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(outrider.__file__).parents[1])}
