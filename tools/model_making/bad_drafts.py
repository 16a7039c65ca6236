"""Drafts that are of no use, to see that they cost nothing.

    python -m model_making.bad_drafts junk DRAFT OUT
    python -m model_making.bad_drafts stall -- outrider bench ...

The first writes a draft that knows nothing. The second runs a command and stops whatever draft
service is among its children for two seconds at a time, by signal.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
from gguf import GGMLQuantizationType, GGUFReader

_SCALE_BYTES = 2  # of a block: a half-precision number, then the weights
_BLOCK_BYTES = {GGMLQuantizationType.Q8_0: 34, GGMLQuantizationType.Q4_0: 18}


def write_junk(source: Path, destination: Path, seed: int = 1) -> Path:
    """Copy a model in Q8_0 or Q4_0 with the weights of every block matrix in another order."""
    shutil.copy(source, destination)
    generator = np.random.default_rng(seed)
    for tensor in GGUFReader(destination, "r+").tensors:
        size = _BLOCK_BYTES.get(tensor.tensor_type)
        if size is not None:
            weights = tensor.data.reshape(-1, size)[:, _SCALE_BYTES:]
            weights[:] = generator.permuted(weights, axis=0)
    return destination


def run_with_stalls(command: Sequence[str], every: float, stall: float, seed: int = 1) -> int:
    """Run a command; stop its draft for `stall` seconds, `every` seconds apart on average.

    Returns the command's exit status.
    """
    dice = random.Random(seed)
    with subprocess.Popen(command) as process:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(dice.uniform(0.5, 1.5) * every)
            drafts = _drafts_of(process.pid)
            _signal(drafts, signal.SIGSTOP)
            with suppress(subprocess.TimeoutExpired):
                process.wait(stall)
            _signal(drafts, signal.SIGCONT)


def _drafts_of(pid: int) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            if {"outrider_cli", "draft"} <= set(child.cmdline()):
                found.append(child)
    return found


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ways = parser.add_subparsers(dest="way", required=True)
    junk = ways.add_parser("junk", help="write a draft with its weights in another order")
    junk.add_argument("draft", type=Path)
    junk.add_argument("out", type=Path)
    stall = ways.add_parser("stall", help="run a command and stop its draft now and then")
    stall.add_argument("--every", type=float, default=8.0, help="seconds between two stalls")
    stall.add_argument("--stall", type=float, default=2.0, help="seconds")
    stall.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    if arguments.way == "junk":
        print(write_junk(arguments.draft, arguments.out))
    else:
        raise SystemExit(run_with_stalls(arguments.command, arguments.every, arguments.stall))


if __name__ == "__main__":
    main()
