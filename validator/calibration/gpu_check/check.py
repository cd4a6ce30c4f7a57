"""The GPU check: probes, a cluster file, training compared with predictions, and pages."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration.cluster_file.files import write
from scaleproof.validator.calibration.gpu_check import probing, sizes, training
from scaleproof.validator.calibration.gpu_check.cluster import ProbeResults, describe
from scaleproof.validator.calibration.gpu_check.ledger import Ledger
from scaleproof.validator.calibration.gpus import shipped
from scaleproof.validator.reconciliation.reconcile import ReconciledCase

DRY: Final = "dry run on the CPU, numbers are meaningless"
CLUSTER_FILE: Final = "cluster.yaml"
SHARED_FOLDER: Final = "functional"
_PAGE_S: Final = 60.0
_ROOT: Final = Path(__file__).resolve().parents[3]


def check(out: Path, dry: bool, limit_s: float, site: Path | None) -> int:
    """Runs all parts that fit into `limit_s` seconds; returns the exit code, 1 if a part failed.

    site: folder of packages that this Python lacks. Raises InputError if there is no GPU and this is not a dry run.
    """
    chosen = sizes.DRY if dry else sizes.FULL
    ledger = Ledger(out, DRY if dry else "", time.monotonic() + limit_s)
    _clear(out)
    if dry:
        ledger.report(DRY)
    probed = probing.probe(chosen, ledger, dry)
    path = out / CLUSTER_FILE
    where = str(path)
    cluster = ledger.attempt("cluster file", lambda: _written(probed, ledger.label, path), lambda _: where, lambda _: where)
    if cluster is not None:
        uncalibrated = _uncalibrated(probed, cluster)
        ledger.attempt(
            "predictions and measurements",
            lambda: training.reconciled(chosen, cluster, uncalibrated, ledger, out),
            _accuracy,
            training.errors,
        )
    training.shared(chosen, probed.devices, ledger, out / SHARED_FOLDER)
    for folder in (out, out / SHARED_FOLDER):
        if (folder / "runs").is_dir():
            ledger.attempt(f"page of {folder.name}", lambda folder=folder: _page(folder, site), str)  # type: ignore[misc]
    return _verdict(ledger)


def _clear(out: Path) -> None:
    """Removes the results of an earlier check."""
    for name in ("runs", "figures", "tables", SHARED_FOLDER):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in (CLUSTER_FILE, "reconcile.json", "index.html", "results.json"):
        (out / name).unlink(missing_ok=True)


def _written(probed: ProbeResults, label: str, path: Path) -> Cluster:
    """The cluster as read back from its file."""
    write(describe(probed, label), path)
    return load_cluster(path)


def _uncalibrated(probed: ProbeResults, cluster: Cluster) -> Cluster | None:
    """The cluster with the shipped device; None if the device does not ship."""
    device = shipped(probed.facts["name"])
    return cluster.model_copy(update={"device": device}) if device else None


def _accuracy(cases: list[ReconciledCase]) -> str:
    errors = training.errors(cases)
    if not errors:
        return "nothing was measured"
    return f"median error {statistics.median(errors):.1%}, worst {max(errors):.1%}, {len(errors)} of {len(cases)} runs"


def _page(folder: Path, site: Path | None) -> str:
    """Path of the page of a results folder. A subprocess makes it, because the validator does not import reports."""
    paths = [str(path.resolve()) for path in (site, _ROOT) if path is not None]
    before = os.environ.get("PYTHONPATH")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *([before] if before else [])])}
    command = [sys.executable, "-m", "scaleproof", "report", str(folder)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_PAGE_S)
    except subprocess.TimeoutExpired:
        raise RunError(f"no page after {_PAGE_S:g} s; try: scaleproof report {folder}") from None
    if done.returncode:
        raise RunError((done.stderr.strip().splitlines() or ["scaleproof report failed"])[-1])
    return done.stdout.strip()


def _verdict(ledger: Ledger) -> int:
    failed, left_out = ledger.failed(), ledger.not_run()
    ledger.report(f"{len(ledger.entries)} parts: {len(failed)} failed, {len(left_out)} not run; results in {ledger.out}")
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0
