"""What people may have written down under an old name says in one line what it is called now."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_old_package_of_the_command_names_the_command():
    with pytest.raises(ModuleNotFoundError, match="is the command `outrider` now"):
        importlib.import_module("outrider.cli")


@pytest.mark.parametrize("module", ["bench.synthetic", "bench.grammar"])
def test_a_script_of_the_old_bench_folder_names_the_new_ones(module: str):
    done = subprocess.run(
        [sys.executable, "-m", module], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "bench is now benchmarks/ (measurements) and models/ (synthetic pairs)" in line


def test_who_looks_for_the_old_bench_folder_does_not_find_it_and_goes_on():
    with pytest.raises(ModuleNotFoundError, match="bench is now benchmarks/"):
        importlib.import_module("bench.shaper")
