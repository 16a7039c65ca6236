"""Counts what a reader of this repository has to carry: lines, constants, classes, names, words.

    python tools/counts.py                        # the working tree
    python tools/counts.py --at main~30           # a revision, and the working tree beside it

Only sources are read, and nothing of them is run. Generated stubs are left out.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SERVICES = ("draft_service", "target_service", "orchestrator")
MAIN = ("outrider", *SERVICES, "gateway", "outrider_cli")
BESIDE = ("tools", "integrations", "benchmarks", "models")
"""Folders of satellites; the last two are where older revisions have them."""
GENERATED = "outrider/v1"
HEART = ("outrider/core", "outrider/engine", *SERVICES)
"""Whose constants steer how tokens are made: core, engine and services."""

CONVENTIONAL = ("main.py", "config.py", "servicer.py", "command.py")
"""File names that mean the same in every folder: how a service is started, its settings, its gRPC
edge, and a sub-command. Who knows one service finds these of another."""

BOUND = re.compile(
    r"(?:^|_)(?:MAX|MOST|LIMITS?|BYTES|BITS|PORT|MODE|WIDTH|SIZE|VERSION|SEED|CODE)(?:_|$)"
)
"""A part of a constant's name by which it is a bound or a format, and not tuned."""

REQUEST_FORMS = (
    *("GenerationFields", "ChatBody", "CompletionBody", "MessagesBody", "ResponseBody"),
    *("CompletionFields", "Ask", "Request", "GenerateRequest", "Plan"),
    *("SessionParameters", "Control", "Generation", "OpenSession", "Verifier"),
    *("SamplingOptions", "DraftingOptions"),
)
ROUND_FORMS = (
    *("Choice", "Line", "Round", "RoundInFlight", "SentRound", "VerifyRound"),
    *("_Waiting", "Ticket", "Lease", "Step", "Pending", "Offer", "Share", "Awaited", "Chunk"),
    *("Batch", "Rows", "Answer", "OwnTokens", "VerifyResponse", "Decode", "Verdict"),
    *("Outcome", "Report", "Commit", "GenerationDelta", "Addition", "CommittedToken"),
    *("RoundDraft", "Continuation"),
)
TIME_FORMS = (
    *("EngineTime", "ServiceTime", "Timings", "RoundTimes", "Durations"),
    *("GenerationStatistics", "Statistics", "Counters"),
)
"""Classes and messages that a request, a round and a round's seconds are, one after the other."""


@dataclass
class Module:
    """A source file: where it is, how long it is, and its syntax."""

    path: str
    lines: int
    tree: ast.Module


@dataclass
class Class:
    """A class: where it is, and the names of its fields."""

    path: str
    name: str
    fields: set[str] = field(default_factory=set)


def read_modules(root: Path, folder: str) -> list[Module]:
    """Return the sources below a folder, none where it is not there."""
    found = []
    for path in sorted((root / folder).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(GENERATED):
            text = path.read_text(encoding="utf-8")
            found.append(Module(name, text.count("\n"), ast.parse(text)))
    return found


def classes_of(modules: Iterable[Module]) -> list[Class]:
    """Return all classes, those within others too."""
    return [
        Class(module.path, node.name, fields_of(node))
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    ]


def fields_of(node: ast.ClassDef) -> set[str]:
    """Return what a class declares with a type and what its methods set on `self`."""
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return declared | {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def numeric_constants(tree: ast.Module) -> Iterator[str]:
    """Yield the names in capitals that a module or a class gives a number, or several."""
    bodies = [tree.body, *(n.body for n in ast.walk(tree) if isinstance(n, ast.ClassDef))]
    for statement in (each for body in bodies for each in body):
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper() and is_numeric(value):
                yield target.id
            elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                for name, one in zip(target.elts, value.elts, strict=False):
                    if isinstance(name, ast.Name) and name.id.isupper() and is_numeric(one):
                        yield name.id


def is_numeric(value: ast.expr) -> bool:
    """Return whether an expression is made of numbers alone, several of them in a row included."""
    match value:
        case ast.Constant(value=number):
            return isinstance(number, int | float) and not isinstance(number, bool)
        case ast.UnaryOp(operand=operand):
            return is_numeric(operand)
        case ast.BinOp(left=left, right=right):
            return is_numeric(left) and is_numeric(right)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return bool(parts) and all(map(is_numeric, parts))
        case _:
            return False


def shared(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return those of (name, path) that stand in several files, with these."""
    places = defaultdict(set)
    for name, path in names:
        places[name].add(path)
    return {name: sorted(where) for name, where in sorted(places.items()) if len(where) > 1}


def words_of(paths: Iterable[Path]) -> int:
    """Return the words of some pages: whatever stands between blanks."""
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def messages_of(root: Path) -> set[str]:
    """Return the names of the messages of the protocol."""
    texts = (path.read_text(encoding="utf-8") for path in (root / "protos").rglob("*.proto"))
    return {name for text in texts for name in re.findall(r"^\s*message (\w+)", text, re.M)}


@dataclass
class Counts:
    """What one tree holds: numbers by what they count, lines by folder, names by what they are."""

    numbers: dict[str, int]
    lines: dict[str, int]
    names: dict[str, list[str]]


def count(root: Path) -> Counts:
    """Return the counts of a tree of sources."""
    main = [module for folder in MAIN for module in read_modules(root, folder)]
    beside = [module for folder in BESIDE for module in read_modules(root, folder)]
    tests = read_modules(root, "tests")
    numbers: dict[str, int] = {}
    for title, modules in (("main package", main), ("satellites", beside), ("tests", tests)):
        numbers[f"lines: {title}"] = sum(module.lines for module in modules)
    heart = [module for module in main if module.path.startswith(HEART)]
    numbers["lines: core, engine and services"] = sum(module.lines for module in heart)
    numbers["files: main package"] = len(main)
    numbers["files: core, engine and services"] = len(heart)

    constants = {module.path: list(numeric_constants(module.tree)) for module in (*main, *beside)}
    of_heart = [name for module in heart for name in constants[module.path]]
    numbers["constants: tuned, of core, engine and services"] = sum(
        not BOUND.search(name) for name in of_heart
    )
    numbers["constants: core, engine and services"] = len(of_heart)
    numbers["constants: main package"] = sum(len(constants[module.path]) for module in main)

    classes = classes_of(main)
    known = {each.name for each in classes} | messages_of(root)
    numbers["classes: main package"] = len(classes)
    numbers["functions: main package"] = sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for module in main
        for node in ast.walk(module.tree)
    )
    names: dict[str, list[str]] = {}
    for title, forms in (
        ("a request", REQUEST_FORMS),
        ("a round", ROUND_FORMS),
        ("a round's seconds", TIME_FORMS),
    ):
        gone = [name for name in forms if name not in known]
        numbers[f"forms of {title}"] = len(forms) - len(gone)
        names[f"forms of {title} that are gone: take them out of tools/counts.py"] = gone
    twice = {
        "class names for two things": shared((each.name, each.path) for each in classes),
        "file names for two things": shared(
            (Path(module.path).name, module.path)
            for module in main
            if not Path(module.path).name.startswith("__")
            and Path(module.path).name not in CONVENTIONAL
        ),
    }
    for title, found in twice.items():
        numbers[title] = len(found)
        names[title] = [f"{name}: {', '.join(where)}" for name, where in found.items()]
    largest = sorted(classes, key=lambda each: -len(each.fields))[:12]
    numbers["fields of the largest class"] = len(largest[0].fields) if largest else 0
    names["most fields"] = [f"{len(each.fields)} {each.name}: {each.path}" for each in largest]

    pages = sorted((root / "docs").rglob("*.md"))
    numbers["words: docs"] = words_of(pages)
    numbers["words: docs without decisions"] = words_of(
        page for page in pages if "decisions" not in page.relative_to(root / "docs").parts
    )
    return Counts(numbers, lines_by_folder([*main, *beside]), names)


def lines_by_folder(modules: Sequence[Module]) -> dict[str, int]:
    """Return the lines of each folder and, apart from it, of each one directly below."""
    lines = Counter[str]()
    for module in modules:
        lines["/".join(module.path.split("/")[:-1][:2])] += module.lines
    return {f"{folder}/": lines[folder] for folder in sorted(lines)}


def checked_out(revision: str, action: Callable[[Path], Counts]) -> Counts:
    """Do something with the files of a revision, which are taken away again."""
    packed = subprocess.run(
        ("git", "archive", revision), cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        return action(Path(folder))


def table(columns: Mapping[str, Counts]) -> Iterator[str]:
    """Yield the numbers of each tree side by side, and the names of the last one."""
    trees = list(columns.values())
    folders = sorted({folder for counts in trees for folder in counts.lines})
    widest = max(map(len, (*trees[-1].numbers, *folders)))
    yield " " * widest + "".join(f"{name[:12]:>14}" for name in columns)
    for title in trees[-1].numbers:
        yield f"{title:<{widest}}" + "".join(f"{each.numbers[title]:>14,}" for each in trees)
    yield ""
    for folder in folders:
        yield f"{folder:<{widest}}" + "".join(f"{each.lines.get(folder, 0):>14,}" for each in trees)
    for title, names in trees[-1].names.items():
        if names:
            yield from ("", f"{title}:", *(f"    {name}" for name in names))


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--at", metavar="REV", action="append", default=[], help="a revision; repeatable"
    )
    columns = {revision: checked_out(revision, count) for revision in parser.parse_args().at}
    for line in table({**columns, "now": count(ROOT)}):
        print(line)


if __name__ == "__main__":
    main()
