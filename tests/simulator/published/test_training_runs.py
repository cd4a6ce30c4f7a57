"""Published training runs as scenarios: printed scenarios give the same step time, and unknown cells are assumed."""

from __future__ import annotations

import pytest

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError, NotFoundError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.published.clusters import cluster_of
from scaleproof.simulator.published.runs import text_of
from scaleproof.simulator.published.tables import Cells, Row, find_row, read_table
from scaleproof.simulator.published.training_runs import RowScenario, row_scenario, software_of
from scaleproof.simulator.scenario.load import load
from tests.validator.verdicts import in_bulk

_, ROWS = read_table(catalog.ROOT / "published" / "transformer_training.csv")
# Of each set the first, and every 25th row.
FIRSTS = {row["source_set"]: number for number, row in reversed([*enumerate(ROWS)])}
SAMPLE = sorted({*range(0, len(ROWS), 25), *FIRSTS.values()})
FEW = sorted(FIRSTS.values())


def described_or_none(row: Row) -> RowScenario | None:
    """The described row, or None if it lacks required cells."""
    try:
        return row_scenario(row)
    except InputError:
        return None


def differing(row: Row) -> str:
    """Differences between a row's scenario and its reloaded YAML, empty for none."""
    found = described_or_none(row)
    if found is None:
        with pytest.raises(InputError):
            text_of(f"published:{row['id']}")
        return ""
    again, scenario = load(f"published:{row['id']}"), found.scenario
    if timed(again).step_time_s != timed(scenario).step_time_s:
        return f"{row['id']}: {timed(again).step_time_s} s, not {timed(scenario).step_time_s} s"
    if again.framework != scenario.framework:
        return f"{row['id']}: trained by {again.framework.name}, not {scenario.framework.name}"
    return ""


@pytest.mark.parametrize(
    "number", [*FEW, *in_bulk(*(number for number in SAMPLE if number not in FEW))], ids=lambda number: ROWS[number]["id"]
)
def test_printed_scenarios_give_the_same_step_time(number: int) -> None:
    assert differing(ROWS[number]) == ""


def changed(row: Row, **cells: str) -> Cells:
    """The row with other cells."""
    return Cells({**row, **cells})


def a_row() -> Row:
    """A row without blank cells."""
    return next(row for row in ROWS if row["source_set"] == "korthikanti22")


def test_unknown_software_is_assumed_to_be_the_default_framework() -> None:
    row = changed(a_row(), software="Trainer of our own", recompute="none", precision="bf16")
    assert software_of(row) is None
    found = row_scenario(row)
    assert "software" in found.assumed
    assert found.scenario.framework_is_default
    assert found.scenario.framework.name == "megatron-core-0.12"
    known = row_scenario(changed(a_row()))
    assert "software" not in known.assumed
    assert (known.scenario.framework.name, known.scenario.framework_is_default) == ("megatron-lm-2022", False)


def test_each_row_with_known_software_names_its_framework() -> None:
    for number in SAMPLE:
        found, software = described_or_none(ROWS[number]), software_of(ROWS[number])
        if found is not None and software is not None:
            assert found.scenario.framework.name == software["framework"]
            assert not found.scenario.framework_is_default


def test_an_unknown_cluster_takes_the_bandwidth_of_its_note() -> None:
    row = changed(
        a_row(), cluster="our-cluster", gpu="A100-80GB-SXM", gpus="32", gpus_per_node="4", note="4 x 50 Gbit/s InfiniBand"
    )
    cluster, assumed = cluster_of(row)
    assert cluster.network is not None
    assert cluster.network.bandwidth_Bps == 4 * 50e9 / 8
    assert (cluster.name, cluster.node.devices) == ("our-cluster", 4)
    assert cluster.nodes >= 8
    assert assumed == ("cluster",)


def test_an_unknown_cluster_takes_the_usual_network_of_its_gpu() -> None:
    cluster, assumed = cluster_of(changed(a_row(), cluster="", gpu="H100-80GB-SXM", gpus="64", gpus_per_node="", note=""))
    assert cluster.name == "dgx-h100"
    assert cluster.nodes >= 8
    assert assumed == ("cluster", "network")
    with pytest.raises(InputError, match="unknown cluster and GPU: ours, TPU-v9"):
        cluster_of(changed(a_row(), cluster="ours", gpu="TPU-v9"))


def test_blank_cells_are_assumed() -> None:
    found = row_scenario(changed(a_row(), recompute="", optimizer="?", microbatch_seqs=""))
    assert {"recompute", "optimizer", "microbatch_seqs"} <= set(found.assumed)
    assert found.scenario.training.optimizer == "adam"
    assert found.scenario.training.recompute.kind == "none"


def test_rows_without_a_valid_run_are_rejected() -> None:
    for cells in ({"layers": ""}, {"dp": "many"}, {"global_batch_seqs": "5", "dp": "2"}, {"precision": "int4"}):
        with pytest.raises(InputError):
            row_scenario(changed(a_row(), **cells))


@pytest.mark.parametrize(("number", "hint"), [("korthikanti22-001", "did you mean korthikanti22-00"), ("?", "ids are in ")])
def test_an_unknown_row_id_gives_an_error(number: str, hint: str) -> None:
    with pytest.raises(NotFoundError, match=f"no published training run has the id .*; {hint}"):
        load(f"published:{number}")
    with pytest.raises(NotFoundError):
        find_row(f"published:{number}")


def test_overrides_change_the_printed_scenario() -> None:
    number = a_row()["id"]
    plain, faster = load(f"published:{number}"), load(f"published:{number}", ["framework=ideal"])
    assert timed(faster).step_time_s < timed(plain).step_time_s
    assert text_of(f"published:{number}").startswith("# 22B on 8 A100-80GB-SXM, Megatron-LM 2022")
