"""Mutation testing: what share of small faults, put into the engines and the clusters, do tests find?

mutmut puts them there, in a copy of the tree (`mutants/`), and runs the tests that reach each; [tool.mutmut] in pyproject.toml
names modules and tests. All of them take a night and more, so that a random sample gives an estimate with its interval.

    python -m tests.mutants                        # 300 of them, seed 1
    python -m tests.mutants --sample 50 --seed 2
    python -m tests.mutants --all
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

HOME: Final = Path(__file__).parent.parent
COPY: Final = HOME / "mutants"
# The share of faults that tests are to find.
AIM: Final = 0.8
# mutmut's exit codes: tests passed, or there was none that reaches it.
_SURVIVED: Final = (0, 5, 33)
# Selecting one fault that one test reaches makes mutmut create all of them and time the tests.
_ONE: Final = "scaleproof.simulator.cluster.quantities.x__measured__mutmut_1"


def interval(found: int, of: int, z: float = 1.645) -> tuple[float, float]:
    """Wilson's 90 % interval of a share found in a random sample."""
    share, spread = found / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / of + spread / (4 * of))
    return middle - half, middle + half


def results(copy: Path) -> dict[str, int | None]:
    """Result of each fault by name: an exit code, or None where tests have not run yet."""
    files = sorted(copy.glob("simulator/**/*.meta"))
    return {name: code for file in files for name, code in json.loads(file.read_text())["exit_code_by_key"].items()}


def sample(names: Sequence[str], size: int, seed: int) -> list[str]:
    return sorted(random.Random(seed).sample(sorted(names), min(size, len(names))))


def table(codes: Mapping[str, int | None]) -> str:
    """By module: how many were put in, how many were found; then all, with the interval; then those that were not found."""
    made, found = Counter[str](), Counter[str]()
    for name, code in codes.items():
        module = name.split(".x")[0]
        made[module] += 1
        found[module] += code not in _SURVIVED
    lines = [f"{module:<34}{found[module]:5} of {made[module]:4}" for module in sorted(made)]
    low, high = interval(found.total(), made.total())
    share = found.total() / made.total()
    lines.append(f"{'all':<34}{found.total():5} of {made.total():4}: {share:.1%}, 90 % between {low:.1%} and {high:.1%}")
    return "\n".join([*lines, "not found:", *(f"  {name}" for name, code in codes.items() if code in _SURVIVED)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=300, metavar="N", help="how many faults (300)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the sample (1)")
    parser.add_argument("--all", action="store_true", help="every fault, some 7,500, which takes many hours")
    options = parser.parse_args()
    _mutmut(_ONE)
    made = results(COPY)
    names = sorted(made) if options.all else sample(list(made), options.sample, options.seed)
    _mutmut(*names)
    codes = {name: code for name, code in results(COPY).items() if name in set(names)}
    print(table(codes))
    return int(sum(code not in _SURVIVED for code in codes.values()) < AIM * len(codes))


def _mutmut(*names: str) -> None:
    subprocess.run([Path(sys.executable).parent / "mutmut", "run", *names], cwd=HOME, check=True)


if __name__ == "__main__":
    sys.exit(main())
