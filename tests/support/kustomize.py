"""What `kubectl kustomize` makes of the files in deploy/kubernetes, where there is no kubectl.

As much of kustomize as those files use: resources, components, strategic merge patches, images,
labels, a namespace. What a kustomization has beyond that is refused. Where kubectl is installed,
tests/unit/test_kubernetes.py compares the two.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

_KNOWN = {
    *("apiVersion", "kind", "resources", "components", "patches", "images", "labels"),
    "namespace",
}

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
"""Lists of which a patch names single entries, and by what; any other list it replaces."""


def build(folder: Path) -> list[Document]:
    """Return the documents that a kustomization stands for."""
    return _apply(folder, [])


def _apply(folder: Path, documents: list[Document]) -> list[Document]:
    its = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert its.keys() <= _KNOWN, f"{folder} has more than this knows: {its.keys() - _KNOWN}"
    for name in its.get("resources", ()):
        path = folder / name
        documents = documents + (build(path) if path.is_dir() else _read(path))
    for name in its.get("components", ()):
        documents = _apply(folder / name, documents)
    for patch in its.get("patches", ()):
        for change in _read(folder / patch["path"]):
            documents = _patched(documents, change)
    for document in documents:
        _add(document, its)
    return documents


def _read(path: Path) -> list[Document]:
    return list(yaml.safe_load_all(path.read_text()))


def _identity(document: Document) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def _patched(documents: list[Document], change: Document) -> list[Document]:
    assert _identity(change) in map(_identity, documents), f"nothing to patch: {_identity(change)}"
    return [
        merged(one, change) if _identity(one) == _identity(change) else one for one in documents
    ]


def merged(base: Any, change: Any, key: str = "") -> Any:
    """Return the base with a strategic merge patch; a value of None takes the base's away."""
    if isinstance(base, dict) and isinstance(change, dict):
        result = copy.deepcopy(base)
        for name, value in change.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = merged(result.get(name), value, name)
        return result
    if isinstance(base, list) and key in MERGE_KEYS:
        by = "port" if key == "ports" and "port" in change[0] else MERGE_KEYS[key]
        entries = {one[by]: one for one in base}
        entries |= {one[by]: merged(entries.get(one[by]), one) for one in change}
        return list(entries.values())
    return copy.deepcopy(change)


def _add(document: Document, its: Document) -> None:
    metadata = document["metadata"]
    if "namespace" in its:
        metadata["namespace"] = its["namespace"]
    for label in its.get("labels", ()):
        metadata["labels"] = metadata.get("labels", {}) | label["pairs"]
    pod = document["spec"].get("template", {}).get("spec", {})
    for container in (*pod.get("containers", ()), *pod.get("initContainers", ())):
        for image in its.get("images", ()):
            name, _, tag = container["image"].partition(":")
            if name == image["name"]:
                container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"
