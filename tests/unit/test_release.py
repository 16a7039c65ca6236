"""What refuses a release; its checksums, names and SBOM; how the guides install it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import release
from scripts.sbom_parts import Part, llama_parts, page_parts, with_parts

ROOT = Path(release.__file__).parents[1]
DATED = "# Changelog\n\n## [0.1.0] - 2026-12-01\n\n## [0.0.9] - 2026-11-01\n"
UNDATED = DATED.replace("2026-12-01", "unreleased")
ADDED = {f"outrider[{extra}]" for extra in ("bench", "certs", "teach", "traces")}
"""Beside an Outrider that runs."""
SBOM = {
    "metadata": {"component": {"bom-ref": "root", "name": "outrider", "type": "application"}},
    "components": [{"bom-ref": "llama==1", "name": "llama_cpp_python", "version": "1"}],
    "dependencies": [{"ref": "root", "dependsOn": ["llama==1"]}, {"ref": "llama==1"}],
}


def refused(tag: str, changelog: str, changes: str = "", is_rehearsal: bool = False) -> str:
    return release.refusal(tag, "0.1.0", changelog, changes, is_rehearsal=is_rehearsal)


def test_a_clean_checkout_with_a_dated_section_can_be_released() -> None:
    assert refused("v0.1.0", DATED) == refused("HEAD", DATED) == ""


def test_changes_and_a_missing_date_are_refused_but_for_a_rehearsal() -> None:
    assert "not committed" in refused("HEAD", DATED, changes=" M README.md")
    assert "no date for 0.1.0" in refused("HEAD", UNDATED)
    assert refused("HEAD", UNDATED, changes=" M README.md", is_rehearsal=True) == ""


@pytest.mark.parametrize("is_rehearsal", [True, False])
def test_a_tag_of_another_version_is_refused(is_rehearsal: bool) -> None:
    said = refused("v0.2.0", DATED, is_rehearsal=is_rehearsal)
    assert said == "v0.2.0 is of version 0.1.0; its tag is v0.1.0"


def test_a_tag_that_is_not_there_is_one_line_of_git_s() -> None:
    command = (sys.executable, "-m", "scripts.release", "v9.9.9")
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("release: git rev-parse")


def test_the_version_is_the_package_s() -> None:
    source = (ROOT / "outrider" / "__init__.py").read_text("utf-8")
    assert f'"{release.version_in(source)}"' in source


def test_checksums_are_of_all_files_but_their_own_and_sha256sum_reads_them(tmp_path: Path) -> None:
    for name in ("b.whl", "a.tar.gz", "SHA256SUMS.sig"):
        (tmp_path / name).write_text(name)
    (tmp_path / "SHA256SUMS").write_text(release.checksums(tmp_path))
    command = ("sha256sum", "--check", "--strict", "SHA256SUMS")
    found = subprocess.check_output(command, cwd=tmp_path, text=True)
    assert found == "a.tar.gz: OK\nb.whl: OK\n"
    (tmp_path / "b.whl").write_text("another")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_the_signature_of_a_rehearsal_is_none_of_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key, sums, signers = tmp_path / "key", tmp_path / "SHA256SUMS", tmp_path / "allowed_signers"
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key), check=True)
    signers.write_text(f"outrider {key.with_suffix('.pub').read_text()}")
    monkeypatch.setattr(release, "SIGNERS", signers)
    # As docs/releasing.md has it.
    who = ("-f", signers, "-I", "outrider", "-n", "outrider", "-s", f"{sums}.sig")
    for is_rehearsal in (False, True):
        sums.write_text(f"digest {is_rehearsal}")
        sums.with_suffix(".sig").unlink(missing_ok=True)
        release.sign(sums, key, is_rehearsal)
        with sums.open() as signed:
            verify = ("ssh-keygen", "-Y", "verify", *who)
            ended = subprocess.run(verify, stdin=signed, capture_output=True, check=False)
        assert (ended.returncode != 0) is is_rehearsal
    assert capsys.readouterr().out == "", "each verifies in its own namespace"


def test_parts_are_components_with_licences_that_their_carrier_depends_on() -> None:
    parts = [
        Part("llama.cpp", "b1", "pkg:a/llama", "MIT", "llama_cpp_python"),
        Part("katex", "2", "pkg:npm/katex@2", "", "outrider"),
    ]
    made = with_parts(SBOM, "0.1.0", parts)
    assert made["metadata"]["component"]["version"] == "0.1.0"
    llama, katex = made["components"][1:]
    assert (llama["name"], llama["version"], llama["purl"]) == ("llama.cpp", "b1", "pkg:a/llama")
    assert (llama["licenses"], katex["licenses"]) == ([{"expression": "MIT"}], [])
    assert made["dependencies"] == [
        {"ref": "root", "dependsOn": ["llama==1", "pkg:npm/katex@2"]},
        {"ref": "llama==1", "dependsOn": ["pkg:a/llama"]},
        {"ref": "pkg:a/llama"},
        {"ref": "pkg:npm/katex@2"},
    ]
    references = [each["bom-ref"] for each in made["components"]]
    assert len(set(references)) == len(references)


def test_llama_cpp_is_named_by_its_commit_and_libgomp_by_its_licence(tmp_path: Path) -> None:
    config = tmp_path / "llama_cpp/lib/cmake/llama/llama-config.cmake"
    config.parent.mkdir(parents=True)
    config.write_text("set(LLAMA_VERSION      0.5.0)\nset(LLAMA_BUILD_COMMIT 0c1e570)\n")
    sboms = tmp_path / "llama_cpp_python-1.dist-info/sboms"
    sboms.mkdir(parents=True)
    gomp = {"name": "libgomp1", "version": "12.2", "purl": "pkg:deb/debian/libgomp1@12.2"}
    written = {"components": [{"name": "llama_cpp_python"}, gomp]}
    (sboms / "auditwheel.cdx.json").write_text(json.dumps(written))
    llama, found = llama_parts(tmp_path)
    assert llama.purl == "pkg:github/ggml-org/llama.cpp@0c1e570"
    assert (llama.version, llama.licence) == ("0.5.0 (0c1e570)", "MIT")
    assert (found.name, found.licence) == ("libgomp1", "GPL-3.0-or-later WITH GCC-exception-3.1")


def test_the_page_s_libraries_are_all_listed_each_with_its_licence() -> None:
    folder = ROOT / "gateway" / "page_files" / "libraries"
    packages = json.loads((folder / "manifest.json").read_text("utf-8"))["packages"]
    parts = list(page_parts(folder))
    assert [f"{each.name}@{each.version}" for each in parts] == list(packages)
    assert all(each.licence and each.purl.startswith("pkg:npm/") for each in parts)
    assert list(page_parts(folder.parent)) == []


def test_no_page_installs_outrider_from_an_index_that_does_not_have_it() -> None:
    """An extra of an Outrider that is installed already is found without an index."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]
    for page in (ROOT / "README.md", ROOT / "deploy" / "README.md", *pages):
        named = re.findall(r"pip install[^`\n]* '?(outrider\b[^\s'`]*)", page.read_text("utf-8"))
        assert [each for each in named if each not in ADDED] == [], page.name
