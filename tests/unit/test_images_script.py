"""`make images` builds what a tag holds, whatever is checked out; with a docker that only notes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import outrider

ROOT = Path(outrider.__file__).parents[1]
TAG = f"v{outrider.__version__}"
COPIED = ("scripts/images", "outrider/__init__.py", "deploy/Dockerfile")
NOTING = f"""#!{sys.executable}
import json, os, pathlib, sys
context = pathlib.Path(sys.argv[-1])
files = sorted(str(one.relative_to(context)) for one in context.rglob("*") if one.is_file())
with open(os.environ["NOTED"], "a") as file:
    print(json.dumps([sys.argv[1:], files]), file=file)
"""

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or shutil.which("bash") is None, reason="needs git and bash"
)


class Checkout:
    """A small repository with a tag, and a docker that notes what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.root, self._noted = folder / "checkout", folder / "noted"
        for name in COPIED:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        docker = folder / "bin" / "docker"
        docker.parent.mkdir()
        docker.write_text(NOTING)
        docker.chmod(0o755)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "OUTRIDER"))}
        for left_out in ("PIP_CERT", "SSL_CERT_FILE", "KINDS", "REGISTRY"):
            kept.pop(left_out, None)
        path = f"{docker.parent}{os.pathsep}{kept['PATH']}"
        self._environment = {**kept, "PATH": path, "NOTED": str(self._noted)}
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("commit", "--quiet", "--no-gpg-sign", "--message", "All")
        self.git("tag", TAG)

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=T", "-c", "user.email=t@example.invalid")
        command = ("git", *who, "-C", str(self.root), *words)
        return subprocess.check_output(command, text=True, env=self._environment).strip()

    def build(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ("bash", str(self.root / "scripts" / "images"), *words),
            env=self._environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def noted(self) -> list[tuple[list[str], list[str]]]:
        """Return the words and the files in the context of every build."""
        if not self._noted.exists():
            return []
        lines: list[Any] = [json.loads(line) for line in self._noted.read_text().splitlines()]
        return [(words, files) for words, files in lines]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def after(words: list[str], option: str) -> list[str]:
    return [words[i + 1] for i, word in enumerate(words) if word == option]


def test_both_images_are_built_from_the_tag_and_named_by_its_version(checkout: Checkout) -> None:
    (checkout.root / "deploy" / "Dockerfile").unlink()  # what is checked out is another matter
    (checkout.root / "new").write_text("")
    done = checkout.build(TAG)
    assert done.returncode == 0, done.stderr
    cpu, cuda = checkout.noted()
    version = outrider.__version__
    assert after(cpu[0], "--tag") == [f"outrider:{version}"]
    assert after(cuda[0], "--tag") == [f"outrider-cuda:{version}"]
    for words in (cpu[0], cuda[0]):
        assert after(words, "--file")[0].endswith("/deploy/Dockerfile")
    assert after(cpu[0], "--build-arg") == ["LLAMA=cpu", "FOR=service"]
    assert after(cuda[0], "--build-arg") == ["LLAMA=cuda", "FOR=service"]
    assert cpu[1] == sorted(COPIED)
    commit = checkout.git("rev-parse", TAG)
    labels = after(cpu[0], "--label")
    assert labels == [
        f"org.opencontainers.image.version={version}",
        f"org.opencontainers.image.revision={commit}",
    ]
    assert not Path(cpu[0][-1]).exists()  # the context was for the build alone


def test_a_registry_one_kind_and_options_of_docker_are_passed_on(checkout: Checkout) -> None:
    done = checkout.build(TAG, "--push", KINDS="cpu", REGISTRY="registry.example/team")
    assert done.returncode == 0, done.stderr
    [(words, _)] = checkout.noted()
    assert after(words, "--tag") == [f"registry.example/team/outrider:{outrider.__version__}"]
    assert "--push" in words


def test_images_for_ray_are_of_the_same_file(checkout: Checkout) -> None:
    done = checkout.build(TAG, KINDS="ray ray-cuda", DOCKER_BUILD_OPTIONS="--network host")
    assert done.returncode == 0, done.stderr
    cpu, cuda = (words for words, _ in checkout.noted())
    assert [after(each, "--build-arg") for each in (cpu, cuda)] == [
        ["LLAMA=cpu", "FOR=ray"],
        ["LLAMA=cuda", "FOR=ray"],
    ]
    assert after(cuda, "--tag") == [f"outrider-ray-cuda:{outrider.__version__}"]
    assert after(cuda, "--network") == ["host"]
    assert checkout.build(TAG, KINDS="tpu").returncode == 1


def test_a_tag_of_another_version_or_none_builds_nothing(checkout: Checkout) -> None:
    checkout.git("tag", "v9.9.9")
    wrong, missing = checkout.build("v9.9.9"), checkout.build("v1.2.3")
    assert f"v9.9.9 is of version {outrider.__version__}" in wrong.stderr
    assert "there is no tag v1.2.3" in missing.stderr
    assert wrong.returncode == missing.returncode == 1
    assert checkout.noted() == []
