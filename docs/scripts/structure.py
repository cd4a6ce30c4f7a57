"""Prints how large and how tangled the source is: `python docs/scripts/structure.py`.

Lines by package, and the largest modules and functions; what one prediction runs, without imports; files that mention an
option; cycles of imports, packages that import each other and by which modules, modules that nothing imports; files of
strategies that the simulator or the validator alone has; and names of classes that occur twice.
"""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import grimp
import networkx as nx

import scaleproof

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("simulator", "validator", "reports", "proof", "commands", "scaleproof")
PREDICTED: Final = "resnet50-ring-p100"
# Lines from which modules and functions are listed.
LONG_MODULE: Final = 450
LONG_FUNCTION: Final = 60
OPTIONS: Final = ("overlap_gather", "reshard", "overlap_tensor", "context_by", "expert_tensor", "split_sends")


def main() -> int:
    """Prints all."""
    lines = {package: sum(map(_lines, _files(package))) for package in PACKAGES}
    print(f"lines: {sum(lines.values()):,} in {sum(len(list(_files(one))) for one in PACKAGES)} files")
    print("  " + ", ".join(f"{package} {count:,}" for package, count in lines.items()))
    _print_largest()
    run = _executed()
    print(
        f"predict {PREDICTED}: {run.functions:,} functions in {len(run.files)} modules "
        f"({sum(map(_lines, run.files)):,} lines), {run.changes:,} changes of module"
    )
    texts = [path.read_text() for package in PACKAGES for path in _files(package)]
    mentions = {option: sum(bool(re.search(rf"\b{option}\b", text)) for text in texts) for option in OPTIONS}
    print("files that mention an option: " + ", ".join(f"{option} {count}" for option, count in mentions.items()))
    _print_imports()
    _print_strategies()
    _print_classes()
    return 0


def _files(package: str) -> Iterator[Path]:
    """Python files of a package, without those that links lead to."""
    folder = ROOT / package
    return (path for path in sorted(folder.rglob("*.py")) if not any(parent.is_symlink() for parent in path.parents))


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


class Executed(NamedTuple):
    """What a command runs of this project: functions, the files that they are in, and calls into another file than before."""

    functions: int
    files: set[Path]
    changes: int


def _executed() -> Executed:
    functions: set[Any] = set()
    visited: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        # modules and classes are executed by imports
        if event == "call" and path.startswith(str(ROOT)) and frame.f_code.co_name != "<module>" and ".venv" not in path:
            functions.add(frame.f_code)
            visited.append(path)

    with contextlib.redirect_stdout(io.StringIO()):
        # imports modules, which is no part of the prediction
        scaleproof.main(["predict", PREDICTED])
        sys.setprofile(note)
        try:
            scaleproof.main(["predict", PREDICTED])
        finally:
            sys.setprofile(None)
    resolved = {path: Path(path).resolve() for path in set(visited)}
    return Executed(len(functions), set(resolved.values()), sum(a != b for a, b in itertools.pairwise(visited)))


def _print_imports() -> None:
    # grimp's cache keeps imports of modules that have moved
    graph = grimp.build_graph("scaleproof", exclude_type_checking_imports=True, cache_dir=None)
    modules: nx.DiGraph[str] = nx.DiGraph()
    for module in graph.modules:
        modules.add_edges_from((module, imported) for imported in graph.find_modules_directly_imported_by(module))
    cycles = [sorted(part) for part in nx.strongly_connected_components(modules) if len(part) > 1]
    print(f"cycles of modules: {len(cycles)}")
    for cycle in cycles:
        print(f"  {', '.join(one.removeprefix('scaleproof.') for one in cycle)}")
    arrows: dict[tuple[str, str], list[str]] = {}
    for a, b in sorted(modules.edges):
        arrows.setdefault((_package(a), _package(b)), []).append(" -> ".join(one.removeprefix("scaleproof.") for one in (a, b)))
    both = sorted((a, b) for a, b in arrows if a < b and (b, a) in arrows)
    print(f"packages that import each other: {len(both)}")
    for a, b in both:
        print(f"  {a} and {b}; the fewer imports are {', '.join(min(arrows[a, b], arrows[b, a], key=len))}")
    texts = [path.read_text() for folder in (*PACKAGES, "docs", "benchmarks", ".ci") for path in _files(folder)]
    imported = {imported for _, imported in modules.edges}
    # others are run, or named by tables
    leaves = {name: name.rpartition(".")[2] for name in (one.removeprefix("scaleproof.") for one in graph.modules - imported)}
    unused = sorted(
        name
        for name, leaf in leaves.items()
        if leaf != "__main__" and not (ROOT / name.replace(".", "/")).is_dir()
        if not any(re.search(rf"(['\"./]|import ){leaf}\b", text) for text in texts)
    )
    print(f"modules that nothing imports or names: {len(unused)} {' '.join(unused)}")


def _package(module: str) -> str:
    """The first two levels below the project of a module: simulator.strategy."""
    return ".".join(module.split(".")[1:3])


def _print_strategies() -> None:
    simulated, real = ({path.name for path in _files(f"{package}/strategy")} for package in ("simulator", "validator"))
    print(f"files of strategies in both the simulator and the validator: {len(simulated & real)}")
    print(f"  in the simulator alone: {', '.join(sorted(simulated - real))}")
    print(f"  in the validator alone: {', '.join(sorted(real - simulated))}")


def _print_largest() -> None:
    modules, functions = list[tuple[int, str]](), list[tuple[int, str]]()
    for path in (path for package in PACKAGES for path in _files(package)):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        modules.append((len(text.splitlines()), name))
        functions += [
            ((node.end_lineno or 0) - node.lineno + 1, f"{name}:{node.name}")
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef)
        ]
    for what, counted, limit in (("modules", modules, LONG_MODULE), ("functions", functions, LONG_FUNCTION)):
        longest = sorted((one for one in counted if one[0] > limit), reverse=True)
        print(f"{what} of more than {limit} lines: {len(longest)}")
        for count, name in longest:
            print(f"  {count} {name}")


def _print_classes() -> None:
    names: Counter[tuple[str, str]] = Counter()
    for package in PACKAGES:
        for path in _files(package):
            tree = ast.parse(path.read_text())
            names.update((package, node.name) for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_")
    twice = sorted(name for (_, name), count in names.items() if count > 1)
    between = sorted(name for name, count in Counter(name for _, name in names).items() if count > 1)
    print(f"classes of one name in a package: {len(twice)} {' '.join(twice)}")
    print(f"classes of one name in two packages: {len(between)} {' '.join(between)}")


if __name__ == "__main__":
    raise SystemExit(main())
