"""How `diagnose` names faults of real runs from their files alone: cause, place and cost.

Run: sudo python -m benchmarks.planted_faults [--seeds N] [--quiet N] [--kinds KIND …] [--out FILE]

Each kind of fault is planted with each seed in a lab of network namespaces: ranks train for real over limited links, with
emulated compute (real compute on a busy core). Each run is written as the traces of its ranks and as a training log, and
`diagnose` reads nothing else. The same job runs once more without the fault, which shows what the fault costs; these runs and
further quiet ones must name nothing. Runs next to other work are repeated up to two times. Results are appended to FILE
(planted_faults.jsonl), and cases in it are not run again.

Named: the first finding has the cause and the place; of two faults both are among the first three. Wrong: a finding names a
rank that has no fault, or there is any finding without a fault.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from scaleproof.proof.planted import job_faults, job_files
from scaleproof.proof.planted.job_faults import JobFault
from scaleproof.proof.planted.kinds import PlantedFault
from scaleproof.proof.planted.plant import recorded
from scaleproof.proof.proving.figures import DISTURBED
from scaleproof.validator.diagnosis.diagnose import diagnose
from scaleproof.validator.record.cpu_usage import Processors
from scaleproof.validator.record.provenance import NOTICED_LOAD, load_of

_ATTEMPTS: Final = 3
_TOLERATED: Final = 0.2
# Kinds of jobs that run without a fault.
_QUIET: Final = ("slow device", "slow link one way")
_QUIET_SEED: Final = 1000


def measured(fault: JobFault, planted: PlantedFault) -> dict[str, Any]:
    """Findings from the files of a run, and its seconds per step from the first step with the fault on."""
    for _ in range(_ATTEMPTS):
        meanwhile = Processors()
        run, ranks = recorded(planted)
        # a busy core is other work, too
        is_disturbed = meanwhile.taken() > DISTURBED or (planted.busy is None and load_of(run.provenance) > NOTICED_LOAD)
        if not is_disturbed:
            break
    with tempfile.TemporaryDirectory() as folder:
        job_files.write(planted.scenario, ranks, Path(folder))
        faults = diagnose([Path(folder)], lambda _: None)[0].findings
    step_s = float(np.mean(job_files.step_seconds(ranks)[fault.since :]))
    found = [(one.cause, one.ranks, one.loss_s, one.words) for one in faults if one.is_fault]
    return {"step_s": step_s, "found": found, "disturbed": is_disturbed}


def judged(fault: JobFault, with_it: dict[str, Any], without: dict[str, Any]) -> dict[str, Any]:
    """Whether the fault is named, what is wrong, and both losses in seconds."""
    found = [(cause, frozenset(ranks)) for cause, ranks, *_ in with_it["found"]]
    first = found[:1] if len(fault.expected) == 1 else found[:3]
    guilty = frozenset[int]().union(*(ranks for _, ranks in fault.expected))
    is_named = set(fault.expected) <= set(first)
    return {
        "named": is_named,
        "wrong": [own[3] for own in with_it["found"] if not set(own[1]) <= guilty],
        "loss_s": with_it["step_s"] - without["step_s"],
        # what two faults cost together depends on how they overlap
        "found_s": with_it["found"][0][2] if is_named and len(fault.expected) == 1 else None,
    }


def cases(kinds: Sequence[str], seeds: int, quiet: int) -> Iterator[tuple[str, int]]:
    """Kind and seed of each case; a kind without a fault is quiet."""
    yield from ((kind, seed) for seed in range(1, seeds + 1) for kind in kinds)
    yield from (("quiet", _QUIET_SEED + number) for number in range(quiet))


def result_of(kind: str, seed: int) -> dict[str, Any]:
    """The result of a case."""
    if kind == "quiet":
        fault = job_faults.drawn(_QUIET[seed % len(_QUIET)], seed)
        return {"quiet": [measured(fault, fault.without)]}
    fault = job_faults.drawn(kind, seed)
    without, with_it = measured(fault, fault.without), measured(fault, fault.planted)
    return judged(fault, with_it, without) | {"with": with_it, "quiet": [without]}


def table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines of the table for the guide."""
    yield "| fault | named first | wrong | cost within 20 % | median error of the cost, worst |"
    yield "|---|---|---|---|---|"
    kinds = dict.fromkeys(one["kind"] for one in results if one["kind"] != "quiet")
    for kind in kinds:
        own = [one for one in results if one["kind"] == kind]
        errors = [abs(one["found_s"] / one["loss_s"] - 1) for one in own if one["loss_s"] and one["found_s"]]
        close = f"{sum(error <= _TOLERATED for error in errors)} of {len(errors)}" if errors else ""
        cost = f"{statistics.median(errors):.1%}, {max(errors):.1%}" if errors else ""
        wrong = sum(len(one["wrong"]) for one in own)
        yield f"| {kind} | {sum(one['named'] for one in own)} of {len(own)} | {wrong} | {close} | {cost} |"
    quiet = [one for result in results for one in result["quiet"]]
    yield f"| quiet runs | nothing in {sum(not one['found'] for one in quiet)} of {len(quiet)} | | | |"
    disturbed = sum(one["disturbed"] for one in quiet) + sum(one["with"]["disturbed"] for one in results if "with" in one)
    yield f"\n{disturbed} runs were disturbed by other work"


def main() -> None:
    """Runs the cases that are not in the file, and prints the table of all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted_faults", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quiet", type=int, default=10, help="runs without a fault in addition to one for each case")
    parser.add_argument("--kinds", nargs="+", choices=job_faults.KINDS, default=list(job_faults.KINDS))
    parser.add_argument("--out", type=Path, default=Path("planted_faults.jsonl"))
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    results = {(one["kind"], one["seed"]): one for one in map(json.loads, lines)}
    wanted = list(cases(options.kinds, options.seeds, options.quiet))
    for number, (kind, seed) in enumerate(wanted, start=1):
        if (kind, seed) not in results:
            began_s = time.monotonic()
            result: dict[str, Any] = {"kind": kind, "seed": seed} | result_of(kind, seed)
            results[kind, seed] = result
            with options.out.open("a") as file:
                file.write(json.dumps(result) + "\n")
            first = next((own[3] for own in result.get("with", result["quiet"][0])["found"]), "nothing")
            place = f"{number} of {len(wanted)}, {time.monotonic() - began_s:.0f} s: {kind}, seed {seed}"
            print(f"{place}: {first}", file=sys.stderr, flush=True)
    print("\n".join(table([results[case] for case in wanted])))


if __name__ == "__main__":
    main()
