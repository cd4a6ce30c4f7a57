"""The GPU check: calibrates, reconciles, measures and reports by the commands that users have, within a time budget.

What is calibrated or measured already is not measured again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scaleproof.proof.gpu_check import plan, scenarios
from scaleproof.proof.gpu_check.archive import pack
from scaleproof.proof.gpu_check.ledger import CLUSTER_FILE, DEVICE, FUNCTIONAL, Ledger
from scaleproof.proof.gpu_check.plan import Plan
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_bytes
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration import gpu_sizes
from scaleproof.validator.calibration.fit.gpu import machine as description_of
from scaleproof.validator.kernels.devices import shipped
from scaleproof.validator.kernels.from_points import kernels_path
from scaleproof.validator.launch.launch import run_on_ranks

if TYPE_CHECKING:
    from scaleproof.proof.gpu_check.machine import Machine

# Seconds for a page that is made when time is out.
_PAGE_S: Final = 30.0


def check(out: Path, dry: bool, limit_s: float | None, site: Path | None, again: bool = False) -> int:
    """Runs all commands that fit into `limit_s` seconds, by default those of the plan; returns the exit code, 1 if one failed.

    site: folder of packages that this Python lacks. again: replaces the results of an earlier check. Raises InputError for
    such results otherwise, and where there is no GPU.
    """
    if limit_s is not None and limit_s <= 0:
        raise InputError(f"--limit {limit_s:g}: give a number of seconds above 0, or leave it out")
    sizes, trainings = (gpu_sizes.TINY, scenarios.DRY) if dry else (gpu_sizes.FULL, scenarios.FULL)
    machine = described()
    devices = description_of(machine["device"], sizes)["node"]["devices"]
    planned = Plan.of(trainings, machine["device"]["name"], devices, f"../{CLUSTER_FILE}", sizes.label)
    limit_s = limit_s or planned.limit_s
    ledger = Ledger.opened(out, sizes.label, time.monotonic() + limit_s, site, again)
    # pages are made again
    done = [part.name for part in planned.parts if part.name != plan.PAGE and ledger.has_done(part.name)]
    print(*planned.lines(limit_s, done), sep="\n", flush=True)
    code = calibrate(ledger, "tiny" if dry else "full")
    if code is not None:
        return code
    if ledger.has_done(plan.CALIBRATE):
        cluster = load_cluster(out / CLUSTER_FILE)
        known = shipped(cluster.device.name)
        fit_kernels(ledger, out / CLUSTER_FILE, known)
        reconciled = _PartReconciliation(ledger, planned, known)
        reconciled.add(plan.FIRST)
        reconciled.add(plan.FAMILIES)
        measure_shared(ledger, planned)
        reconciled.add(plan.REST)
    else:
        measure_shared(ledger, planned)
    for name, folder, runs in ((plan.PAGE, out, "runs"), (f"{FUNCTIONAL} page", out / FUNCTIONAL, "*/measured")):
        if any(folder.glob(runs)):
            ledger.run(name, "report", folder, least_s=_PAGE_S)
    code = ledger.verdict()
    archive = pack(out, machine, ledger.begun)
    print(f"to send: {archive} ({format_bytes(archive.stat().st_size)})")
    return code


def described() -> Machine:
    """The machine, as a rank on it describes it."""
    from scaleproof.proof.gpu_check import machine

    found: Machine = run_on_ranks(machine.described, 1, accelerator=True)[0]
    return found


def calibrate(ledger: Ledger, size: str) -> int | None:
    """Calibrates, unless that is done; returns the exit code with which the check ends, None if it goes on."""
    path = ledger.out / CLUSTER_FILE
    if ledger.has_done(plan.CALIBRATE) and path.exists():
        return None
    # what follows depends on the cluster file
    ledger.steps.clear()
    code = ledger.run(plan.CALIBRATE, "calibrate", "--on", "local", "--gpu", size, "--timeout", "60", "--out", path)
    if code is None:
        return 1
    return code if code == InputError.exit_code else None


def fit_kernels(ledger: Ledger, cluster_file: Path, device: Device | None) -> None:
    """Scores the kernels that were timed, and fits a device to them if one with its data sheet ships."""
    table = kernels_path(cluster_file)
    if not table.exists():
        print(f"no {DEVICE}.yaml: no kernels were timed")
        return
    ledger.run_once("kernels", "score", table)
    if device is None:
        print(f"no {DEVICE}.yaml: no data sheet of this device ships; {CLUSTER_FILE} has the rates that it reached")
        return
    fitted = ledger.out / f"{DEVICE}.yaml"
    ledger.run_once(plan.DEVICE, "import", "kernels", table, "--out", fitted)
    if ledger.has_done(plan.DEVICE):
        ledger.run_once("device figures", "device", fitted, "--table", table, "--out", ledger.out / DEVICE)


def measure_shared(ledger: Ledger, planned: Plan) -> None:
    """Measures and verifies runs whose ranks share devices, if the plan has any."""
    out = ledger.out / FUNCTIONAL
    few = scenarios.write(planned.trained(plan.SHARED), ledger.out / "scenarios" / FUNCTIONAL)
    if few:
        files = [file for file, _ in few]
        ledger.run_once(plan.SHARED, "measure", *files, "--on", "local", "--verify", "--resume", "--out", out)


@dataclass
class _PartReconciliation:
    """Scenarios that are reconciled part by part. device: the shipped one. files: of the parts so far, all of which are on the
    page of the last one."""

    ledger: Ledger
    planned: Plan
    device: Device | None
    files: list[Path] = field(default_factory=list)

    def add(self, part: str) -> None:
        """Reconciles the scenarios of a part, after those of the parts before it, which are not measured again."""
        ledger = self.ledger
        written = scenarios.write(self.planned.trained(part), ledger.out / "scenarios")
        own = list(ledger.trainable(written))
        if not own:
            return
        self.files += [file for file, _ in own]
        ledger.run_once(part, "reconcile", *self.files, "--on", "local", "--resume", "--out", ledger.out)
        ledger.compare((scenario for _, scenario in own), self.device)
