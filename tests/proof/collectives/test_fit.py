"""Fits of the constants of collectives: synthetic measurements, left-out sources, and the written files."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.proof.collectives import data_file
from scaleproof.proof.collectives.fit import FITTED, fit
from scaleproof.proof.collectives.observations import Observation, ObservationBatch, observations, system_of
from scaleproof.proof.published import collectives
from scaleproof.simulator.cluster.collectives.nccl import constants
from scaleproof.simulator.cluster.collectives.nccl.constants import FILES, FittedValue, Tables, priors, shipped
from scaleproof.simulator.common import catalog
from scaleproof.simulator.published.tables import find_table, read_table
from scaleproof.validator.collectives.rows import source_of

ROW = {
    "collective": "all_gather", "gpu": "A100-80GB-SXM", "n_gpus": "8", "n_nodes": "1", "gpus_per_node": "8",
    "instance_or_system": "some node", "intra_node": "NVLink3", "inter_node": "", "algorithm": "", "nccl_version": "",
    "size_bytes": "1024", "time_us_out_of_place": "10", "note": "", "source": "owner/name@123 file",
}  # fmt: skip
SIZES = [2**power for power in range(9, 34, 4)]


def rows(**changes: str) -> list[Mapping[str, str]]:
    return [ROW | {"size_bytes": str(size)} | changes for size in SIZES]


def changed(tables: Tables, file: str, entry: str, name: str, factor: float) -> Tables:
    value = FittedValue(*(part * factor for part in tables[file][entry][name]))
    entries = {**tables[file], entry: {**tables[file][entry], name: value}}
    return {**tables, file: entries}


def measured_with(tables: Tables, known: list[Observation]) -> list[Observation]:
    """The observations with the times that these constants give."""
    seconds = ObservationBatch.of(known).seconds(tables)
    return [replace(one, measured_s=time_s) for one, time_s in zip(known, seconds.tolist(), strict=True)]


def test_a_batch_predicts_what_the_scored_rows_predict() -> None:
    _, published = read_table(find_table(Path("collectives.csv")))
    some = published[::60]
    known = observations(some)
    found = [collectives.predict(one.row).predicted for one in known]
    assert ObservationBatch.of(known).seconds(shipped()) == pytest.approx(found, rel=1e-9)


def test_a_fit_finds_a_longer_launch() -> None:
    known = observations([row for ranks in ("2", "4", "8") for row in rows(n_gpus=ranks, gpus_per_node=ranks)])
    slower = changed(priors(), "generations", "ampere", "launch", 1.3)
    fitted = fit(measured_with(slower, known), priors())
    ratio = fitted.tables["generations"]["ampere"]["launch"].value / priors()["generations"]["ampere"]["launch"].value
    assert ratio == pytest.approx(1.3, rel=0.05)


def test_measurements_as_expected_leave_the_prior_and_narrow_it() -> None:
    known = measured_with(priors(), observations(rows()))
    launch, prior = (tables["generations"]["ampere"]["launch"] for tables in (fit(known, priors()).tables, priors()))
    assert launch.value == pytest.approx(prior.value, rel=1e-3)
    assert launch.deviation < prior.deviation


def test_rows_of_the_left_out_source_do_not_count() -> None:
    other = rows(source="another/name@1 file", time_us_out_of_place="400")
    known = observations([*rows(), *other])
    assert {one.source for one in known} == {"owner/name", "another/name"}
    left_out = fit(known, priors(), leave_out="another/name")
    alone = fit(observations(rows()), priors())
    assert left_out.rows == alone.rows == len(SIZES)
    assert left_out.tables["generations"]["ampere"]["launch"] == pytest.approx(alone.tables["generations"]["ampere"]["launch"])


def test_rows_of_one_kind_of_system_or_repository_belong_together() -> None:
    systems = (
        ("AWS p6-b200.48xlarge", "p6-b200.48xlarge"),
        ("OCI BM.GPU.H100", "OCI BM.GPU.H100 (ol89)"),
        ("8x node", "node (a)"),
    )
    for first, second in systems:
        assert system_of(ROW | {"instance_or_system": first}) == system_of(ROW | {"instance_or_system": second})
    assert source_of(ROW | {"source": "owner/name docs/page.md@12"}) == source_of(ROW)
    assert source_of(ROW | {"source": ""}) == source_of(ROW | {"source": "public file"}) == "some node"


def test_shipped_constants_have_positive_intervals_and_a_source() -> None:
    for file in FILES:
        for entry, fields in shipped()[file].items():
            for name, value in fields.items():
                assert 0 < value.low <= value.value <= value.high < math.inf, (file, entry, name)
        assert "source:" in (catalog.ROOT / "collectives" / f"{file}.yaml").read_text()


@pytest.mark.full
def test_shipped_constants_are_those_of_the_fit() -> None:
    """The files are written by `python benchmarks/collectives.py --write`."""
    _, published = read_table(find_table(Path("collectives.csv")))
    fitted = fit(observations(published), priors()).tables
    for file, names in FITTED.items():
        for entry, fields in shipped()[file].items():
            for name in names:
                assert fields[name].value == pytest.approx(fitted[file][entry][name].value, rel=0.03), (file, entry, name)


def test_a_written_fit_is_read_again_with_its_priors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(catalog.ROOT / "collectives", tmp_path / "collectives")
    slower = changed(shipped(), "generations", "hopper", "launch", 2.0)
    data_file.write(tmp_path / "collectives", slower)
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    read = constants._table("generations")
    assert read["hopper"]["launch"].value == pytest.approx(2 * shipped()["generations"]["hopper"]["launch"].value, rel=0.01)
    assert read["cdna"] == shipped()["generations"]["cdna"]
    text = (tmp_path / "collectives" / "generations.yaml").read_text()
    assert "prior: [" in text
    assert text.startswith("# Constants")
    assert text.rstrip().endswith("`python benchmarks/collectives.py --write`.")
