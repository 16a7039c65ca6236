"""`outrider doctor` on this machine, as it is and with something broken."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

import outrider
import outrider_cli
from model_making.reordered import shortened
from tests.support.processes import DRAFT, TARGET, ServiceProcess, free_port
from tests.support.tiny_architectures import write_architecture
from tests.support.tiny_gguf import Shape, Vocabulary, write_model, write_pair
from tests.support.tiny_heads import write_eagle3, write_llama, write_mtp

ROOT = Path(outrider.__file__).parents[1]
ELSEWHERE = ("--target", "127.0.0.1:1")
"""The models are somewhere else, so that llama.cpp is not tried."""

OMP = ("GOMP_SPINCOUNT", "OMP_", "OUTRIDER_", "GOMP_")

DYING = """
import importlib, os, signal, sys

here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
del sys.modules["llama_cpp"]
real = importlib.import_module("llama_cpp")
decode = real.llama_decode

def llama_decode(context, batch):
    if batch.n_tokens > 1:
        os.kill(os.getpid(), signal.{name})
    return decode(context, batch)

real.llama_decode = llama_decode
"""

WITH_A_CARD = """
import importlib, os, sys

here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
del sys.modules["llama_cpp"]
real = importlib.import_module("llama_cpp")
library, set_log, callbacks = real.llama_cpp._lib, real.llama_log_set, []

def memory(device, free, total):
    free._obj.value, total._obj.value = {free}, 80 << 30

class Library:
    its = {{
        "ggml_backend_dev_count": lambda: 1,
        "ggml_backend_dev_get": lambda i: i + 1,
        "ggml_backend_dev_type": lambda device: 1,
        "ggml_backend_dev_name": lambda device: b"CUDA0",
        "ggml_backend_dev_description": lambda device: b"A card",
        "ggml_backend_dev_memory": memory,
    }}

    def __getitem__(self, name):
        return self.its.get(name) or library[name]

def llama_log_set(callback, data):
    def said(level, text, _):
        on_card = text.replace(b"device CPU,", b"device CUDA0,").replace(b"= CPU", b"= CUDA0")
        callback(level, on_card, _)

    callbacks.append(real.llama_log_callback(said))
    set_log(callbacks[-1], data)

real.llama_cpp._lib, real.llama_log_set = Library(), llama_log_set
real.llama_supports_gpu_offload = lambda: True
"""


def run(*arguments: str, prefix: tuple[str, ...] = (), **variables: str) -> tuple[int, str]:
    """Return exit code and output of a run; nothing may be on standard error."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OMP)}
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "outrider_cli", "doctor", *arguments],
        capture_output=True,
        env={**kept, "PYTHONPATH": str(ROOT), **variables},
        timeout=100,
        check=False,
    )
    assert done.stderr == b""
    return done.returncode, done.stdout.decode()


def findings(*arguments: str, **more: Any) -> list[dict[str, str]]:
    """Return the findings of a run, whose verdict must fit its exit code."""
    code, out = run("--json", *arguments, **more)
    told = json.loads(out)
    assert told.keys() == {"findings", "ok"} and out.count("\n") == 1
    problems = [one for one in told["findings"] if one["level"] == "problem"]
    assert (code, told["ok"]) == ((1, False) if problems else (0, True))
    return told["findings"]  # type: ignore[no-any-return]


def of(found: list[dict[str, str]], check: str) -> list[dict[str, str]]:
    return [finding for finding in found if finding["check"] == check]


@contextmanager
def taken_port() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@asynccontextmanager
async def service(role: str, *options: str) -> AsyncIterator[ServiceProcess]:
    """Run one service; it serves when it is given, unless it is guarded."""
    process = ServiceProcess(role, *options)
    try:
        process.start()
        if {"--token-file", "--tls-cert"} & set(options):
            await reached(process.address)
        else:
            await process.wait_until_serving()
        yield process
    finally:
        process.stop()


async def reached(address: str) -> None:
    host, _, port = address.partition(":")
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
                return
            except OSError:
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The options that name a pair which loads and decodes at once."""
    target, draft = write_pair(tmp_path_factory.mktemp("small"))
    return ("--model", str(target), "--draft-model", str(draft))


# --- this machine ---


def test_this_machine_is_fine_with_the_bundled_pair():
    listen = ("--listen", f"127.0.0.1:{free_port()}")
    found = findings(*listen)
    # Two threads of one core, which a machine may have, are worth a note.
    assert {finding["level"] for finding in found if finding["check"] != "threads"} == {"ok"}
    assert all(finding.keys() == {"check", "level", "message", "remedy"} for finding in found)
    assert list(dict.fromkeys(finding["check"] for finding in found)) == [
        *("versions", "build", "kernels", "gpu", "models", "memory", "decodes"),
        *("pair", "drafts", "numerics", "rollback", "threads", "openmp", "ports"),
    ]
    assert TARGET.name in of(found, "build")[0]["message"]


def test_a_pipe_gets_one_line_per_finding_and_a_verdict(small: tuple[str, ...]):
    code, out = run("--listen", f"127.0.0.1:{free_port()}", "--threads", "500", *small)
    assert code == 1
    lines = out.splitlines()
    assert lines[-1] == "This set-up does not work yet: mend the PROBLEM above."
    [at] = [n for n, line in enumerate(lines) if line.startswith("PROBLEM")]
    assert lines[at].startswith("PROBLEM threads   target: 500 threads, but only ")
    assert lines[at + 1].strip().startswith("-> --threads ")
    assert {line.split()[0] for line in lines[:-1]} - {"note"} == {"ok", "PROBLEM", "->"}


def test_a_build_that_crashes_is_recognised_and_leaves_the_doctor_alive(tmp_path: Path):
    package = tmp_path / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").write_text(DYING.replace("{name}", "SIGSEGV"))
    found = findings(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    crash = of(found, "build")[0]
    assert crash["level"] == "problem"
    assert crash["message"].startswith(
        f"llama.cpp died of SIGSEGV while decoding several tokens at once ({TARGET.name})"
    )
    assert "setup" in crash["remedy"]
    # What was found before is still told.
    assert of(found, "pair")[0]["level"] == "ok"


@pytest.mark.parametrize(("free", "level"), [(70 << 30, "ok"), (1 << 20, "problem")])
def test_a_card_is_shown_with_the_layers_on_it_and_whether_it_has_room(
    small: tuple[str, ...], tmp_path: Path, free: int, level: str
):
    """The card is a fake of llama.cpp's functions, and the processor computes."""
    package = tmp_path / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").write_text(WITH_A_CARD.format(free=free))
    found = findings(*small, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    card, target, draft = (one["message"] for one in of(found, "gpu"))
    assert card.startswith("CUDA0 is A card, ") and " of 85.9 GB free" in card
    assert target == "target: of 5 layers 5 on CUDA0" and draft.startswith("draft: of ")
    on_card, on_cpu = of(found, "memory")
    assert on_card["level"] == level
    assert " that CUDA0 has free (target: weights " in on_card["message"]
    assert on_cpu["level"] == "ok" and " that the " in on_cpu["message"]


def test_a_library_that_does_not_load_is_a_problem(tmp_path: Path):
    package = tmp_path / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").write_text("raise OSError('libllama.so: wrong ELF class')")
    found = findings(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert "libllama.so: wrong ELF class" in of(found, "build")[0]["message"]


def test_threads_over_the_affinity_are_a_problem(small: tuple[str, ...]):
    found = findings("--threads", "2", *small, prefix=("taskset", "-c", "0"))
    assert of(found, "threads")[0] == {
        "check": "threads",
        "level": "problem",
        "message": "target: 2 threads, but only 1 core in the affinity mask",
        "remedy": "--threads 1, or leave it out",
    }


def test_waiting_that_makes_processes_fight_is_a_problem(small: tuple[str, ...]):
    problem = of(findings(*small, OMP_WAIT_POLICY="active"), "openmp")[0]
    assert problem["level"] == "problem"
    assert problem["remedy"].startswith("unset OMP_WAIT_POLICY")


# --- models ---


def test_a_pair_that_does_not_match_is_told_with_the_token(tmp_path: Path):
    other = Vocabulary(changed={100: "other"})
    target, draft = write_pair(tmp_path, draft_vocabulary=other)
    found = findings("--model", str(target), "--draft-model", str(draft))
    problem = of(found, "pair")[0]
    assert problem["level"] == "note"
    assert "(rule: token text): token 100 differs: target " in problem["message"]
    assert (
        "draft 'other'; of the draft's 320 tokens the target, which has 320, has 319"
        in (problem["message"])
    )


@pytest.mark.fault(
    "crash",
    "`outrider doctor` with a hybrid target, such as Qwen3.5",
    before="it took the target for one that may run under `exact`, and called llama.cpp broken",
    now="bits are compared where `exact` may be offered alone",
)
def test_a_hybrid_target_is_fine(tmp_path: Path):
    path = write_architecture(tmp_path / "m.gguf", "qwen35")
    found = findings("--model", str(path), "--listen", f"127.0.0.1:{free_port()}")
    assert not [each for each in found if each["level"] == "problem"]
    assert of(found, "numerics")[0]["message"].startswith("native")


def test_heads_are_told_with_their_targets_and_counted_in_the_memory(tmp_path: Path):
    listen = ("--listen", f"127.0.0.1:{free_port()}")
    target = ("--model", str(write_mtp(tmp_path / "m.gguf", "qwen35")), *listen)
    own = findings(*target)
    [head] = of(own, "head")
    assert head["level"] == "ok" and "an MTP head in its file, 1 block of" in head["message"]
    assert "draft " in of(own, "decodes")[0]["message"] and len(of(own, "drafts")) == 1
    eagle3 = ("--draft-model", str(write_eagle3(tmp_path / "e.gguf", (1, 2, 3))))
    beside = findings("--model", str(write_llama(tmp_path / "l.gguf")), *listen, *eagle3)
    [file] = of(beside, "head")
    assert file["level"] == "ok" and "reads the layers 1, 2, 3" in file["message"]
    [gain] = of(beside, "drafts")
    assert re.search("The head is (not )?expected to|too busy to say", gain["message"])
    assert re.search(r"draft: weights .*, 4 sessions of", of(beside, "memory")[0]["message"])
    alone = findings(*eagle3, *listen)
    assert not of(alone, "drafts") and not any("target:" in each["message"] for each in alone)
    other = ("--draft-model", str(write_mtp(tmp_path / "h.gguf", "glm4moe", is_alone=True)))
    wrong = [each for each in findings(*target, *other) if each["level"] == "problem"]
    told = "draft: h.gguf is an MTP head of glm4moe, and the target is qwen35"
    assert [each["message"] for each in wrong] == [told]


def test_a_small_context_and_a_large_draft_are_notes(tmp_path: Path):
    target = write_model(tmp_path / "target.gguf", shape=Shape(context=512))
    draft = write_model(tmp_path / "draft.gguf", shape=Shape(context=256))
    found = findings("--model", str(target), "--draft-model", str(draft))
    assert [one["level"] for one in of(found, "pair")] == ["ok", "note", "note"]


def test_files_that_are_no_models_are_problems(tmp_path: Path):
    text = tmp_path / "text.gguf"
    text.write_text("GGML, almost")
    half = tmp_path / "half.gguf"
    half.write_bytes(DRAFT.read_bytes()[:200_000])
    found = findings("--model", str(text), "--draft-model", str(half))
    assert [one["level"] for one in of(found, "models")] == ["problem", "problem"]
    # The build is tried all the same, with a model that is bundled.
    assert of(found, "build")[0]["level"] == "ok"
    missing = findings("--model", str(tmp_path / "missing.gguf"))
    assert "there is no file" in of(missing, "models")[0]["message"]


# --- ports ---


def test_a_strangers_port_is_a_problem():
    with taken_port() as address:
        problem = of(findings(*ELSEWHERE, "--listen", address), "ports")[0]
    assert (problem["level"], "ss -ltnp" in problem["remedy"]) == ("problem", True)


async def test_a_port_of_ours_is_a_note():
    async with service("draft", "--model", str(DRAFT)) as draft:
        note = of(await doctor(*ELSEWHERE, "--listen", draft.address), "ports")[0]
    assert note["level"] == "note"
    assert note["message"] == f"{draft.address} is taken: a draft serves there"


def test_an_address_of_another_machine_is_a_problem():
    problem = of(findings(*ELSEWHERE, "--listen", "192.0.2.1:50062"), "ports")[0]
    assert problem["level"] == "problem" and "cannot be listened on" in problem["message"]


# --- peers ---


async def doctor(*arguments: str) -> list[dict[str, str]]:
    return await asyncio.to_thread(findings, *arguments)


def levels(found: list[dict[str, str]]) -> list[str]:
    """Return how the peers are judged, but for a link that is slow on a busy machine."""
    peers = [one for one in of(found, "peers") if "the link sets the speed" not in one["message"]]
    return [one["level"] for one in peers]


async def test_running_services_are_visited():
    async with (
        service("target", "--model", str(TARGET), "--threads", "1") as target,
        service("draft", "--model", str(DRAFT), "--threads", "1") as draft,
        service("orchestrator", "--target", target.address, "--draft", draft.address) as front,
    ):
        found = await doctor("--target", target.address, "--draft", draft.address)
        assert levels(found) == ["ok", "ok"]
        first = of(found, "peers")[0]["message"]
        assert f"target at {target.address}, {TARGET.stem}, numerics " in first
        assert ", round trip " in first
        assert of(found, "pair")[0]["level"] == "ok"
        # Nothing is hosted here, so nothing is asked of this machine.
        assert {one["check"] for one in found} == {"versions", "peers", "pair"}

        asked = ("--orchestrator", front.address)
        found = await doctor(*asked)
        assert levels(found) == ["ok", "ok", "ok"]
        assert of(found, "pair")[0]["message"] == "the orchestrator uses its draft"

        wrong = of(await doctor("--draft", target.address), "peers")[0]
        assert wrong["message"] == (
            f"draft at {target.address}: a target listens there, not a draft"
        )

        draft.kill()
        found = await doctor(*asked, "--draft", draft.address)
        refused = [one for one in found if "the connection is refused" in one["message"]]
        assert any(
            "start it there" in one["remedy"] for one in refused if one["level"] == "problem"
        )
        assert any("its draft is " in one["message"] for one in of(found, "peers"))


async def test_a_wrong_token_is_told_apart(tmp_path: Path):
    for name in ("right", "wrong"):
        (tmp_path / name).write_text(name * 8)
    os.chmod(tmp_path / "right", 0o600)
    os.chmod(tmp_path / "wrong", 0o644)
    guarded = ("--model", str(DRAFT), "--token-file", str(tmp_path / "right"))
    async with service("draft", *guarded) as draft:
        asked = ("--draft", draft.address, "--token-file")
        right = await doctor(*asked, str(tmp_path / "right"))
        assert {one["level"] for one in of(right, "token")} == {"ok"}
        assert "problem" not in {one["level"] for one in of(right, "peers")}
        wrong = await doctor(*asked, str(tmp_path / "wrong"))
        assert of(wrong, "token")[0]["remedy"] == f"chmod 600 {tmp_path / 'wrong'}"
        assert of(wrong, "peers")[0]["message"] == (
            f"draft at {draft.address}: does not accept this token (--token-file)"
        )
        none = await doctor("--draft", draft.address)
        assert "wants a token" in of(none, "peers")[0]["message"]


async def test_failures_of_tls_are_told_apart(tmp_path: Path):
    ca, other = trustme.CA(), trustme.CA()
    for name, authority in (("ca", ca), ("other", other)):
        authority.cert_pem.write_to_path(tmp_path / f"{name}.pem")
    soon = datetime.now(UTC) + timedelta(days=9)
    leaf = ca.issue_cert("127.0.0.1", not_after=soon)
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    files = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    async with service("draft", "--model", str(DRAFT), *files) as draft:
        asked = ("--draft", draft.address)
        told = await doctor(*asked, "--tls-ca", str(tmp_path / "ca.pem"), *files)
        assert "problem" not in {one["level"] for one in of(told, "peers")}
        ca_file, ours, theirs = of(told, "tls")
        assert ca_file["level"] == "ok"
        assert "cert.pem (--tls-cert) expires in 8 days" in ours["message"]
        assert f"draft at {draft.address} expires in 8 days" in theirs["message"]
        told = await doctor(*asked, "--tls-ca", str(tmp_path / "other.pem"))
        assert "cannot be trusted: its certificate is not signed" in theirs_of(told)["message"]
        assert "it may want TLS (--tls-ca)" in theirs_of(await doctor(*asked))["message"]
        told = await doctor(*asked, "--tls-ca", str(tmp_path / "key.pem"))
        assert "there is no PEM certificate in" in of(told, "tls")[0]["message"]


@pytest.mark.parametrize("is_foreign", [True, False])
def test_of_a_large_target_what_the_draft_alone_says_is_said(
    is_foreign: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The bundled target counts as one that is not loaded just to look."""
    monkeypatch.setattr("outrider_cli.doctor.checks.MEASURABLE_BYTES", TARGET.stat().st_size)
    draft = shortened(tmp_path / "few.gguf", 512) if is_foreign else DRAFT
    outrider_cli.run(["doctor", "--json", "--model", str(TARGET), "--draft-model", str(draft)])
    pair = of(json.loads(capsys.readouterr().out)["findings"], "pair")[0]["message"]
    shares = "so it translates at string level" in pair and "on a sample of text they are" in pair
    assert shares is is_foreign
    assert "not measured: how often the draft is right (a target of 22.4 MB is loaded only" in pair


def test_a_large_target_is_loaded_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("outrider_cli.doctor.checks.MEASURABLE_BYTES", TARGET.stat().st_size)
    words = ["doctor", "--json", "--model", str(TARGET), "--draft-model", str(DRAFT)]
    outrider_cli.run([*words, "--measure"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert "; the draft is right in " in of(found, "pair")[0]["message"]
    assert of(found, "decodes")[0]["message"].startswith("target 1:")


def theirs_of(found: list[dict[str, str]]) -> dict[str, str]:
    [problem] = of(found, "peers")
    assert problem["level"] == "problem"
    return problem


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", "the connection is refused"),
        ("no-such-host.invalid:50062", "no-such-host.invalid: "),
        ("nowhere", "target: must be HOST:PORT, not 'nowhere'"),
    ],
)
def test_peers_that_cannot_be_reached_are_told_apart(address: str, words: str):
    problem = of(findings("--target", address), "peers")[0]
    assert problem["level"] == "problem" and words in problem["message"]


def test_a_stranger_that_never_answers_is_told_in_time():
    with taken_port() as address:
        problem = of(findings("--target", address), "peers")[0]
    assert problem["level"] == "problem"
