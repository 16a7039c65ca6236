"""Generates outrider/v1 from protos/; --check says whether the committed stubs are current.

`--keep NAME` keeps the protocol of now for the tests of what must stay readable.
"""

from __future__ import annotations

import filecmp
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "protos/outrider/v1").glob("*.proto"))
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


def generate(destination: Path) -> None:
    """Write the stubs under `destination`/outrider/v1."""
    outputs = [f"--{kind}={destination}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    includes = [f"-I{ROOT / 'protos'}", f"-I{WELL_KNOWN}"]
    if protoc.main(["protoc", *includes, *outputs, *map(str, SOURCES)]) != 0:
        sys.exit("protoc failed")


def keep(name: str) -> None:
    """Write the protocol, its imports included, where the tests find it."""
    path = ROOT / "tests/support/protocols" / f"{name}.binpb"
    includes = [f"-I{ROOT / 'protos'}", f"-I{WELL_KNOWN}"]
    out = ["--include_imports", f"--descriptor_set_out={path}"]
    if protoc.main(["protoc", *includes, *out, *map(str, SOURCES)]) != 0:
        sys.exit("protoc failed")


def stale_files() -> list[str]:
    """Return the committed stubs that differ from freshly generated ones."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = {path.name for path in (Path(folder) / "outrider/v1").iterdir()}
        committed = {p.name for p in (ROOT / "outrider/v1").glob("*_pb2*")}
        same, _, _ = filecmp.cmpfiles(
            Path(folder) / "outrider/v1", ROOT / "outrider/v1", fresh, shallow=False
        )
        return sorted((fresh | committed) - set(same))


def main() -> None:
    if "--keep" in sys.argv:
        keep(sys.argv[sys.argv.index("--keep") + 1])
    elif "--check" not in sys.argv:
        generate(ROOT)
    elif stale := stale_files():
        sys.exit(f"stale stubs: {', '.join(stale)}; run `make protos`")


if __name__ == "__main__":
    main()
