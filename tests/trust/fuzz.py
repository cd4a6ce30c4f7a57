"""Fuzzing: mutated valid files are given to the commands that read them.

    python -m tests.trust.fuzz 10000
    python -m tests.trust.fuzz 3000 --seed 7 --kind tables --kind models

tries N of them and prints the outcomes: every one is accepted or rejected with a message, in bounded time and memory, and what
it leaves is whole.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from tests.conftest import SMALL
from tests.trust import watched
from tests.trust.corpus import FILE, KINDS, OUT, Seed
from tests.trust.mutations import mutated

Tally = Counter[str]
# Faults by their place in the code: input and exception.
Faults = dict[str, tuple[Sequence[str], bytes, BaseException]]


def fuzz(kind: str, examples: int, seed: int | None = None, faults: Faults | None = None) -> Tally:
    """Tries N inputs of a kind, drawn from a seed, or the same each time; counts of accepted and rejected ones.

    Raises what the first faulty one raised, where there are no `faults` to add it to.
    """
    tally: Tally = Counter()
    rights = KINDS[kind]()

    @settings(
        max_examples=examples, deadline=None, derandomize=seed is None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def one(data: st.DataObject) -> None:
        draw: Any = functools.partial(data.draw)
        right = rights[draw(st.integers(0, len(rights) - 1))]
        command = right.commands[draw(st.integers(0, len(right.commands) - 1))]
        content = mutated(draw, right.content, right.form)
        try:
            code = _try(right, command, content)
        except (Exception, watched.OvertimeError) as error:
            if faults is None:
                raise
            tally["faulty"] += 1
            faults.setdefault(_where(error), (command, content, error))
        else:
            tally["accepted" if code in (0, 3) else "refused"] += 1

    (one if seed is None else seeded(seed)(one))()
    return tally


def _where(error: BaseException) -> str:
    """The innermost line of this project that an error passed through."""
    own = [
        one
        for one in traceback.extract_tb(error.__traceback__)
        if ".venv" not in one.filename and "lib/python" not in one.filename
    ]
    return f"{type(error).__name__} at {own[-1].filename}:{own[-1].lineno}"


def _try(seed: Seed, command: Sequence[str], content: bytes) -> int:
    """The exit code of a command that reads this content."""
    with _folder() as folder:
        given = {"small.yaml": SMALL.encode(), **seed.others, seed.name: content}
        for name, its in given.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(its)
        words = {FILE: str(folder / seed.name), OUT: str(folder / "out")}
        arguments = [functools.reduce(lambda text, one: text.replace(*one), words.items(), word) for word in command]
        arguments += _sets(content) if seed.name == "set.json" else []
        ended = watched.run(arguments)
        watched.check(ended, folder / "out", given.values(), seed.keeps)
        return ended.code


def _sets(content: bytes) -> list[str]:
    """--set for each of a JSON list, as far as it is one; what no shell could hand over is left out."""
    try:
        given = json.loads(content)
    except (ValueError, RecursionError):
        given = [content.decode("utf-8", "replace")]
    words = [one if isinstance(one, str) else json.dumps(one) for one in (given if isinstance(given, list) else [given])]
    return [part for word in words if "\0" not in word for part in ("--set", word)]


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Makes a temporary folder the working folder."""
    before, folder = Path.cwd(), Path(tempfile.mkdtemp(prefix="fuzz-"))
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", type=int, help="how many, of all kinds together")
    parser.add_argument("--kind", choices=KINDS, action="append", dest="kinds", help="these alone")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the inputs (another each time)")
    options = parser.parse_args(arguments)
    kinds = options.kinds or list(KINDS)
    shares = [options.inputs * (at + 1) // len(kinds) - options.inputs * at // len(kinds) for at in range(len(kinds))]
    seeds = [options.seed] * len(kinds)
    total, faults, most_bytes, all_s = Tally(), dict[str, str](), 0, 0.0
    print(f"seed {options.seed}")
    print(f"{'input':<12} {'tried':>7} {'accepted':>9} {'refused':>8} {'faulty':>7} {'seconds':>8}")
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as processes:
        for kind, (tally, found, peak_bytes, took_s) in zip(kinds, processes.map(_watched, kinds, shares, seeds), strict=True):
            total, faults, most_bytes, all_s = total + tally, faults | found, max(most_bytes, peak_bytes), all_s + took_s
            _print(kind, tally, took_s)
    _print("all", total, all_s)
    print(f"tracebacks, hangs, half-written files: {total['faulty'] or 'none'}; at most {most_bytes / 2**20:.0f} MiB")
    print("".join(f"{where}: {what}\n" for where, what in faults.items()), end="", file=sys.stderr)
    return 1 if faults else 0


def _watched(kind: str, inputs: int, seed: int) -> tuple[Tally, dict[str, str], int, float]:
    """Outcomes, peak memory and processor time of a kind's inputs, in a separate process."""
    faults: Faults = {}
    tally = fuzz(kind, inputs, seed, faults)
    reported = {
        where: f"{str(error)[:400]}\n  {' '.join(command)} of {content[:2000]!r}"
        for where, (command, content, error) in faults.items()
    }
    return tally, reported, watched.peak_bytes(), time.process_time()


def _print(kind: str, tally: Tally, took_s: float) -> None:
    counts = f"{tally['accepted']:>9} {tally['refused']:>8} {tally['faulty']:>7}"
    print(f"{kind:<12} {tally.total():>7} {counts} {took_s:>8.0f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
