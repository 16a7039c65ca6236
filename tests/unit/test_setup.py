"""What `make setup` does anew, with a pip that writes down what it is asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CUDA = "-DGGML_CUDA=on -DCMAKE_INSTALL_RPATH=$ORIGIN"
PYTHON = '#!/bin/sh\necho "$*" >>asked\n'
"""Does nothing and writes down its words, one call a line."""


class Checkout:
    """A checkout whose environment has no packages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "scripts/setup"):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        for name, text in (
            ("scripts/check_llama.py", ""),
            ("scripts/node-clients", "#!/bin/sh\n"),
            ("models/some.gguf", ""),
            (".venv/bin/python", PYTHON),
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def set_up(self, cmake_args: str | None = None) -> tuple[str, list[str]]:
        """Run `make setup`; return what it says, and the calls that ask for llama.cpp."""
        kept = {name: each for name, each in os.environ.items() if name not in _OTHERS}
        given = {} if cmake_args is None else {"CMAKE_ARGS": cmake_args}
        asked = self._folder / "asked"
        asked.write_text("")
        said = subprocess.run(
            ("make", "--silent", "--no-print-directory", "setup"),
            cwd=self._folder,
            env={**kept, **given, "CXX": "true"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        calls = asked.read_text().splitlines()
        return said, [each for each in calls if "llama-cpp-python" in each]


_OTHERS = ("MAKEFLAGS", "MAKELEVEL", "CMAKE_ARGS", "PYTHON", "PIP_FIND_LINKS")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def is_forced(calls: list[str]) -> bool:
    return any("--force-reinstall" in each for each in calls)


def test_a_first_set_up_builds_once_and_a_second_does_nothing(checkout: Checkout) -> None:
    _, calls = checkout.set_up()
    assert calls and not is_forced(calls)
    assert checkout.set_up() == ("", [])
    assert checkout.set_up("") == ("", [])


def test_other_cmake_args_build_anew_and_say_so_in_a_line(checkout: Checkout) -> None:
    checkout.set_up()
    said, calls = checkout.set_up(CUDA)
    assert f"llama.cpp is built with CMAKE_ARGS='{CUDA}', before with ''" in said
    assert is_forced(calls) and "--no-binary llama-cpp-python" in calls[0]
    assert checkout.set_up(CUDA) == ("", [])
    said, calls = checkout.set_up("")
    assert f"CMAKE_ARGS='', before with '{CUDA}'" in said and is_forced(calls)


def test_without_cmake_args_those_before_are_taken_again(
    checkout: Checkout, tmp_path: Path
) -> None:
    checkout.set_up(CUDA)
    assert checkout.set_up() == ("", [])
    (tmp_path / ".venv/ready").unlink()  # or a newer pyproject.toml
    _, calls = checkout.set_up()
    assert calls and not is_forced(calls)
    assert all("--no-binary llama-cpp-python" in each for each in calls)
