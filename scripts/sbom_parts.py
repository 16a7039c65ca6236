"""What packages carry in themselves, for the SBOM of a release (CycloneDX's JSON)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    """A library that a package carries in itself."""

    name: str
    version: str
    purl: str
    licence: str  # an SPDX expression; empty where it is not known
    carrier: str  # the package


def with_parts(sbom: dict[str, Any], version: str, parts: Sequence[Part]) -> dict[str, Any]:
    """Return an SBOM with Outrider's version, and the parts as what their carriers depend on."""
    root = {**sbom["metadata"]["component"], "version": version}
    refs = {each["name"]: each["bom-ref"] for each in (root, *sbom["components"])}
    needs = [
        {**each, "dependsOn": [*each.get("dependsOn", ()), *_carried(each["ref"], parts, refs)]}
        for each in sbom["dependencies"]
    ]
    return {
        **sbom,
        "metadata": {**sbom["metadata"], "component": root},
        "components": [*sbom["components"], *map(_component, parts)],
        "dependencies": [*needs, *({"ref": each.purl} for each in parts)],
    }


def _carried(ref: str, parts: Sequence[Part], refs: dict[str, str]) -> list[str]:
    return [each.purl for each in parts if refs[each.carrier] == ref]


def _component(part: Part) -> dict[str, Any]:
    found = {"type": "library", "bom-ref": part.purl, "name": part.name, "version": part.version}
    licences = [{"expression": part.licence}] if part.licence else []
    return {**found, "purl": part.purl, "licenses": licences}


def page_parts(folder: Path) -> Iterator[Part]:
    """Yield the libraries that the page brings, of the files that list them; none without those."""
    if not (folder / "manifest.json").exists():
        return
    texts = (folder / "LICENSES.txt").read_text("utf-8")
    licences = dict(re.findall(r"^(\S+ \S+) \((.+)\)$", texts, re.MULTILINE))
    for each in json.loads((folder / "manifest.json").read_text("utf-8"))["packages"]:
        name, _, version = each.rpartition("@")
        licence = licences.get(f"{name} {version}", "")
        yield Part(name, version, f"pkg:npm/{name}@{version}", licence, "outrider")


def llama_parts(folder: Path) -> Iterator[Part]:
    """Yield what an installed llama-cpp-python carries: llama.cpp, and libraries of this system."""
    config = (folder / "llama_cpp/lib/cmake/llama/llama-config.cmake").read_text("utf-8")
    about = dict(re.findall(r"^set\((LLAMA_\w+) +(\S+)\)$", config, re.MULTILINE))
    commit = about["LLAMA_BUILD_COMMIT"]
    purl = f"pkg:github/ggml-org/llama.cpp@{commit}"
    yield Part("llama.cpp", f"{about['LLAMA_VERSION']} ({commit})", purl, "MIT", "llama_cpp_python")
    [bundled] = folder.glob("llama_cpp_python-*.dist-info/sboms/auditwheel.cdx.json")
    for each in json.loads(bundled.read_text("utf-8"))["components"][1:]:
        licence = "GPL-3.0-or-later WITH GCC-exception-3.1" if "gomp" in each["name"] else ""
        yield Part(each["name"], each["version"], each["purl"], licence, "llama_cpp_python")
