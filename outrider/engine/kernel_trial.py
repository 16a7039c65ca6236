"""Tries a model file with AMX and without, in processes of their own, and says which it is to be.

llama.cpp's kernels for AMX are right for dense models and mixtures, wrong for recurrent ones with
several sessions, and for some shapes they end the process. Where they are right they are not always
the quicker ones: a row of Q6_K takes a third longer with them, sixteen rows half as long. So each
file is tried once, and what was found is kept under its digest.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from outrider.engine import kernels
from outrider.engine.gguf_check import check_gguf
from outrider.engine.identity import FilesDigest
from outrider.engine.kept import KeptFiles
from outrider.engine.layout import PROMPT, SESSIONS, WRITTEN
from outrider.engine.measurements import processor
from outrider.errors import DecodeFailed, OutriderError

MOST_DIFFERENCE = 0.1
"""Of a row's standard deviation, in the mean over its logits: kernels of other shapes make .004 to
.009 of it, a state that is not the right one about 1 (docs/decisions/0043)."""

MOST_TIMES, _LEAST_COMPARED = 3.0, 0.002
"""Times the difference of one session, which is taken for this much at least: rows of several
sessions differ by no more where the kernels are right (docs/decisions/0043)."""

TIMED_ROWS = (1, 4, 8, 32)
TARGET_ROWS = (1, 4, 8)
"""Rows of the decodes in which a target writes: plain, of a draft, of several users."""
DRAFT_ROWS = (1,)

_ONE_SESSION = " of 1 session"

_CONTEXT = 64  # tokens; more than is tried, and no more than any model has positions
_COLUMNS = 4096  # logits of a row that are compared, spread over the vocabulary
_SECONDS = 900.0  # for a child: a large file on a slow disk
_PR_SET_PDEATHSIG = 1  # of Linux, where alone there are plug-ins with AMX
_KEPT = KeptFiles("kernels", most=256)


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one file."""

    fault: str
    """Why the kernels with AMX are not for it; empty where they are right."""
    seconds: Mapping[str, Mapping[int, float]]
    """Of decodes by rows, with each plug-in that was tried and ended."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The plug-in to compute with."""

    name: str
    reason: str
    """Why, and what the other one takes; for people."""


def choose(
    files: Sequence[Path],
    rows: Sequence[int],
    plugins: Sequence[str],
    threads: int,
    library: str,
    on_trial: Callable[[Path], None] = lambda _: None,
) -> KernelChoice | None:
    """Return the kernels for a process that hosts these files, and decodes the first one most.

    `plugins` are what this processor can run, the best first, and `rows` those of the decodes in
    which tokens are written. A file that was not tried yet is loaded twice, after `on_trial` is
    called with it. Returns None where there is no choice between AMX and something else. Raises
    InvalidConfig for a file that cannot be read.
    """
    amx = next((name for name in plugins if name in kernels.AMX), "")
    plain = next((name for name in plugins if name not in kernels.AMX), "")
    if not (amx and plain):
        return None
    trials = [try_file(path, amx, plain, threads, library, on_trial) for path in files]
    faults = [
        f"{path.name}: {trial.fault}"
        for path, trial in zip(files, trials, strict=True)
        if trial.fault
    ]
    if faults:
        return KernelChoice(plain, f"not {amx} for {'; '.join(faults)}")
    seconds = {name: request_seconds(trials[0].seconds[name], rows) for name in (amx, plain)}
    best = min(seconds, key=lambda name: seconds[name])
    [other] = {amx, plain} - {best}
    return KernelChoice(best, f"{other} takes {seconds[other] / seconds[best]:.2f} times as long")


def request_seconds(seconds: Mapping[int, float], rows: Sequence[int]) -> float:
    """Return what a typical request takes: a prompt that is read, and tokens that are written.

    A prompt is read at what the largest decode takes a row; tokens are written in decodes of
    `rows`, each kind as many of them.
    """
    largest = max(seconds)
    reading = PROMPT * seconds[largest] / largest
    return reading + WRITTEN * sum(seconds[count] for count in rows) / len(rows)


def try_file(
    path: Path,
    amx: str,
    plain: str,
    threads: int,
    library: str,
    on_trial: Callable[[Path], None] = lambda _: None,
) -> Trial:
    """Return what became of a file with either kernels, from what is kept if it is known."""
    files = check_gguf(path).files
    with FilesDigest(files) as digest:
        weights = digest.digest()
    method = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    key = repr((method, weights, amx, plain, threads, library, processor()))
    trial = _find(key)
    if trial is None:
        on_trial(path)
        trial = _find(key)  # another process may have tried it meanwhile
    if trial is None:
        trial, is_lasting = _try(path, amx, plain, threads)
        if is_lasting:
            _KEPT.keep(key, json.dumps([trial.fault, trial.seconds]).encode())
    return trial


def _find(key: str) -> Trial | None:
    """Return what is kept; None where nothing is, or what is damaged."""
    content = _KEPT.find(key)
    if content is None:
        return None
    try:
        fault, by_name = json.loads(content)
        seconds = {
            str(name): {int(rows): float(each) for rows, each in its.items()}
            for name, its in by_name.items()
        }
        is_whole = fault or all(set(its) == set(TIMED_ROWS) for its in seconds.values())
    except (ValueError, TypeError, AttributeError):
        return None
    return Trial(str(fault), seconds) if is_whole and (fault or len(seconds) > 1) else None


def _try(path: Path, amx: str, plain: str, threads: int) -> tuple[Trial, bool]:
    """Return what became of a file, and whether that is worth keeping."""
    expected = decode_with(path, plain, threads)
    if isinstance(expected, Failed):  # so it is the file, or the memory: who loads it says so
        return Trial(f"not tried, for {plain} fails too: {expected.reason}", {}), False
    found = decode_with(path, amx, threads)
    if isinstance(found, Failed):
        return Trial(found.reason, {plain: expected.seconds}), not found.was_killed
    fault = difference(expected.rows, found.rows)
    return Trial(fault, {amx: found.seconds, plain: expected.seconds}), True


Logits = Mapping[str, NDArray[np.float32]]
"""By kind of decode: float32[rows, columns]."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What a child found; seconds by rows."""

    rows: Logits
    seconds: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Failed:
    """How a child ended without finding anything."""

    reason: str
    was_killed: bool = False
    """From outside, for want of memory or of time: that says nothing of the kernels."""


def difference(expected: Logits, found: Logits) -> str:
    """Return how two sets of logits differ by more than kernels do; empty where they do not.

    Of each kind of decode the median row counts: where an expert is chosen by a near-tie, a row of
    a mixture may differ by much and both be right. The rows of several sessions, where they are
    enough for that, are compared with those of one, too.
    """
    alone = _LEAST_COMPARED
    for kind, rows in expected.items():
        if kind not in found or found[kind].shape != rows.shape:
            return f"no logits of {kind}"
        right = rows.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            means = np.abs(found[kind] - right).mean(axis=1) / np.maximum(right.std(axis=1), 1e-6)
        median = float(np.median(np.where(np.isfinite(means), means, np.inf)))
        if kind.endswith(_ONE_SESSION):
            alone = max(alone, median)
        is_telling = not kind.endswith(_ONE_SESSION) and len(rows) > SESSIONS
        limit = min(MOST_DIFFERENCE, MOST_TIMES * alone) if is_telling else MOST_DIFFERENCE
        if not median <= limit:
            return f"its logits of {kind} are wrong"
    return ""


def decode_with(path: Path, plugin: str, threads: int) -> Tried | Failed:
    """Return what a process with these kernels found of a file, or how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "tried.npz"
        command = [sys.executable, "-P", "-m", "outrider.engine.kernel_trial"]
        command += [str(path), plugin, str(threads), str(result)]
        try:
            ended = subprocess.run(
                command,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            )
        except subprocess.TimeoutExpired:
            return Failed(f"no end after {_SECONDS:.0f} s", was_killed=True)
        if ended.returncode < 0:
            killed = -ended.returncode in (signal.SIGKILL, signal.SIGTERM)
            return Failed(f"llama.cpp ends with signal {-ended.returncode}", killed)
        try:
            with np.load(result) as found:
                rows = {name: found[name] for name in found.files if name != "seconds"}
                seconds = dict(zip(TIMED_ROWS, found["seconds"].tolist(), strict=True))
        except (OSError, ValueError, KeyError):
            words = ended.stderr.decode("utf-8", "replace").strip().splitlines()
            return Failed(words[-1] if words else f"exit status {ended.returncode}")
        return Tried(rows, seconds)


# --- in the child ---


def main(path: str, plugin: str, threads: str, result: str) -> None:
    """Decode a file's tokens alone and of several sessions, and keep the logits and the times."""
    from outrider.engine.calibrate import history
    from outrider.engine.llama import LlamaModel
    from outrider.engine.llama_library import use_kernels
    from outrider.engine.llama_loading import LlamaConfig
    from outrider.engine.model import Chunk

    # It ends with the process that waits for it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    use_kernels(plugin)
    model = LlamaModel(
        LlamaConfig(
            path=Path(path),
            context=_CONTEXT,
            sequence_count=SESSIONS,
            thread_count=int(threads),
            gpu_layers=0,
            pad_multiple=1,
        )
    )
    ids = history(model, 3 * 33)
    columns = np.linspace(0, model.describe().vocabulary.token_count - 1, _COLUMNS).astype(int)
    found: dict[str, NDArray[np.float32]] = {}

    def decode(kind: str, sessions: int, position: int, count: int) -> None:
        chunks = [
            Chunk(each, position, ids[position + each : position + each + count], count)
            for each in range(sessions)
        ]
        found[kind] = np.array([row[columns] for rows in model.decode(chunks) for row in rows])

    # Of a whole block of rows and one more, and then of as many rows for several sessions.
    for sessions, count in ((1, 33), (2, 9), (SESSIONS, 9)):
        of = _ONE_SESSION if sessions == 1 else f" of {sessions} sessions"
        decode(f"{count} rows{of}", sessions, 0, count)
        decode(f"1 row{of}", sessions, count, 1)
        for each in range(sessions):
            model.truncate(each, 0)
    seconds = []
    for count in TIMED_ROWS:
        model.truncate(0, 0)
        before = perf_counter()
        model.decode([Chunk(0, 0, ids[:count], count)])
        seconds.append(perf_counter() - before)
    np.savez(result, allow_pickle=False, seconds=np.array(seconds), **found)
    model.close()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except DecodeFailed:
        sys.exit("its logits are no numbers")
    except OutriderError as error:
        sys.exit(str(error))
