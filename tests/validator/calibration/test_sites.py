"""Sites: equal probes on local processes, on hosts of a lab, and on ranks started by torchrun."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scaleproof.simulator.common.errors import InputError, RankError
from scaleproof.validator.calibration.plan import ProbePlan, tasks
from scaleproof.validator.calibration.sites import Site, site
from scaleproof.validator.launch.rank import here
from scaleproof.validator.measure import MeasureOptions
from tests.validator.launch.test_cluster_of_hosts import on_this_machine, run_all
from tests.validator.netlabs import lab_cluster, needs_netlab

WATCH = MeasureOptions(timeout_s=60.0)
JOINED = str(Path(__file__).with_name("joined.py"))


def who() -> None:
    """Records what the rank knows of the group."""
    import torch.distributed as dist

    here().record(f"{dist.get_rank()} of {dist.get_world_size()}".encode())


def recorded(where: Site, function: Any, *args: Any, ranks: int | None = None) -> tuple[list[str], RankError | None]:
    """What the ranks record, as texts, and the error."""
    texts, error = where.recorded_by_all(function, *args, ranks=ranks, timeout_s=60.0, progress=lambda _: None)
    return [text.decode() for text in texts], error


def fail_on_last(text: str) -> None:
    import torch.distributed as dist

    if dist.get_rank() == dist.get_world_size() - 1:
        raise ValueError(text)
    dist.barrier()


def record_and_fail_on_last(text: str) -> None:
    who()
    fail_on_last(text)


@pytest.mark.full
def test_local_processes_form_one_node() -> None:
    with site("local", None, 3, WATCH) as where:
        assert where.nodes == (0, 0, 0)
        assert where.heads == [0]
        assert where.is_reporter
        assert where.starts_ranks
        assert recorded(where, who) == (["0 of 3", "1 of 3", "2 of 3"], None)
        assert recorded(where, who, ranks=2) == (["0 of 2", "1 of 2"], None)
        texts, error = recorded(where, record_and_fail_on_last, "no")
        assert texts == ["0 of 3", "1 of 3", "2 of 3"]
        assert re.fullmatch(r"rank 2 failed .*: ValueError: no", str(error))


@pytest.mark.full
@needs_netlab
def test_hosts_of_a_lab_are_nodes() -> None:
    with site("netlab", lab_cluster(4), 99, WATCH, hosts=2) as where:
        assert where.nodes == (0, 1)
        assert recorded(where, who) == (["0 of 2", "1 of 2"], None)
        assert "link rate" in where.lab


@pytest.mark.full
def test_ranks_started_by_torchrun_run_the_probes_and_name_failed_ranks() -> None:
    (lines,) = run_all([on_this_machine(2, JOINED)], Path.cwd())
    assert lines.endswith("exit 0"), lines
    assert "rank 0 of 2: ['0 of 2', '1 of 2'], then ['0 of 1'], then rank 1 failed in its work: ValueError: no" in lines
    assert "kept: True" in lines
    assert "rank 1 of 2" not in lines


@pytest.mark.parametrize(
    ("on", "hosts", "reported"),
    [
        ("netlab", None, "name the cluster with --cluster"),
        ("local", 4, "--hosts 4: only a lab"),
        ("cluster", None, "started by torchrun, accelerate, srun or mpirun"),
    ],
)
def test_invalid_places_are_rejected(on: Any, hosts: int | None, reported: str) -> None:
    with pytest.raises(InputError, match=reported), site(on, None, 2, WATCH, hosts):
        pass


@needs_netlab
@pytest.mark.parametrize("hosts", [1, 5])
def test_a_lab_has_at_most_the_hosts_of_the_cluster(hosts: int) -> None:
    with pytest.raises(InputError, match=f"--hosts {hosts}: .* 4 nodes"), site("netlab", lab_cluster(4), 2, WATCH, hosts):
        pass


@pytest.mark.parametrize(
    ("watch", "ranks", "reported"),
    [
        (MeasureOptions(interface="none7"), 2, "--interface none7: .* has no such interface"),
        (WATCH, 999, "999 ranks: at most 128"),
    ],
)
def test_missing_machine_capabilities_are_reported_before_measuring(watch: MeasureOptions, ranks: int, reported: str) -> None:
    with pytest.raises(InputError, match=reported), site("local", None, ranks, watch):
        pass


def test_groups_larger_than_the_number_of_ranks_are_rejected() -> None:
    with site("local", None, 2, WATCH) as where, pytest.raises(InputError, match="--groups 3: there are 2 ranks"):
        tasks(ProbePlan((), groups=(2, 3)), where, None)
