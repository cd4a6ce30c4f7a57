"""Usage of processor cores, from the kernel's statistics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scaleproof.validator.record import cpu_usage
from scaleproof.validator.record.cpu_usage import Processors, foreign_loads


def usage(own_s: float, elapsed_s: float = 10.0, **cores_s: float) -> Mapping[str, Any]:
    return {"elapsed_s": elapsed_s, "cores_s": cores_s, "own_s": own_s}


@pytest.fixture
def stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "stat"
    monkeypatch.setattr(cpu_usage, "_STAT", path)
    return path


def _write_stat(stat: Path, user: int = 0, idle: int = 0, waiting: int = 0, stolen: int = 0) -> None:
    stat.write_text(f"cpu  {user} 0 0 {idle} {waiting} 0 0 {stolen} 0 0\ncpu0 1 2 3\n")


def test_usage_shares_are_over_the_time_since_the_start(stat: Path) -> None:
    _write_stat(stat, user=1000, idle=500, stolen=77)
    meanwhile = Processors()
    _write_stat(stat, user=1030, idle=540, waiting=20, stolen=87)
    assert meanwhile.busy() == pytest.approx(0.4)
    assert meanwhile.taken() == pytest.approx(0.25)  # 10 of the 40 that were not idle


def test_a_system_without_statistics_gives_zero_usage(stat: Path) -> None:
    meanwhile = Processors()
    assert (meanwhile.busy(), meanwhile.taken()) == (0.0, 0.0)


def test_stolen_time_counts_only_on_virtual_machines(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_usage.os, "sysconf", lambda _: 100)
    for before, after, lost_s in ((77, 177, 1.0), (0, 100, 0.0)):
        cpu_usage._has_host.cache_clear()
        _write_stat(stat, stolen=before)
        begin_s = cpu_usage.lost_s()
        _write_stat(stat, stolen=after)
        assert cpu_usage.lost_s() - begin_s == pytest.approx(lost_s)
    cpu_usage._has_host.cache_clear()


def test_foreign_load_is_usage_minus_that_of_the_ranks() -> None:
    # two machines of two cores for ten seconds; on the first, ranks computed for 5 + 4 s of the 15 s that cores worked
    first, second = usage(5.0, c0=9.0, c1=6.0), usage(4.0, c0=9.0, c1=6.0)
    alone = usage(19.0, c0=10.0, c1=9.0)

    loads = foreign_loads(["a", "a", "b"], [first, second, alone])

    assert loads == {"a": pytest.approx(6 / 20), "b": 0.0}


def test_very_short_runs_give_no_foreign_load() -> None:
    assert foreign_loads(["a"], [usage(0.0, elapsed_s=0.1, c0=0.1)]) == {}
    assert foreign_loads(["a"], [usage(0.0)]) == {}
