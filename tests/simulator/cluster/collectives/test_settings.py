"""`collective_time` for users: rejected input, its table, its command."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import scaleproof
from scaleproof.commands.predicting.collective import times_table
from scaleproof.simulator.analysis.collective.time import (
    collective_time,
    collective_times,
    group_on,
    parse_op,
    parse_ranks,
    sweep_sizes,
)
from scaleproof.simulator.cluster.collectives.algorithms import names_for
from scaleproof.simulator.cluster.collectives.groups import OPS, bus_factor
from scaleproof.simulator.common.errors import InputError
from tests.simulator.clusters import plain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("allsum", 8, 2), "no collective is called 'allsum'; use one of all_reduce"),
        (("allreduce", -1, 2), "zero or more"),
        (("allreduce", float("nan"), 2), "zero or more"),
        (("allreduce", 2**63 + 2**20, 2), r"up to 2\^63"),
        (("allreduce", 8, 0), "at least one"),
        (("allreduce", 8, 5), "5 ranks for 4 devices"),
        (("allreduce", 8, 2, "star"), "no algorithm 'star' for all_reduce; use one of ring"),
        (("alltoall", 8, 2, "ring"), "no algorithm 'ring' for alltoall; use one of in_turns, pairwise"),
        (("allreduce", 8, 2, "nvls"), "is NCCL.s, which does not run on any; use another algorithm"),
    ],
)
def test_bad_input_gives_an_error_with_a_remedy(arguments: tuple[str, float, int], message: str) -> None:
    op, size, ranks, *algorithm = arguments
    with pytest.raises(InputError, match=message):
        collective_time(op, size, ranks, plain(4), *algorithm)


def test_operation_spellings_and_size_sweeps_are_parsed() -> None:
    assert {parse_op(text) for text in ("allreduce", "AllReduce", "all-reduce", "all_reduce")} == {"all_reduce"}
    assert [parse_op(op.replace("_", "")) for op in OPS] == list(OPS)
    assert sweep_sizes(64) == [8, 16, 32, 64]
    assert sweep_sizes(100, 4) == [8, 32]
    assert sweep_sizes(1) == [1]


def test_ranks_are_parsed_as_a_number_or_a_list() -> None:
    assert parse_ranks("64") == 64
    assert parse_ranks("0,8,16-19") == [0, 8, 16, 17, 18, 19]
    assert parse_ranks(" 3 , 5-5") == [3, 5]
    for text in ("", "a", "1,", "-1", "0-1-2", "1.5", "0-99999999"):
        with pytest.raises(InputError, match="cannot read the ranks"):
            parse_ranks(text)


def test_the_table_is_aligned_and_its_columns_are_consistent() -> None:
    times = list(collective_times("all_reduce", [8, 2**30], group_on(plain(4), 4), plain(4)))
    names, units, *rows = times_table(times).splitlines()
    ends = [[match.end() for match in re.finditer(r"\S+", line)][:5] for line in (names, units, *rows)]
    assert ends == [ends[0]] * len(ends)
    *numbers, algorithm = rows[1].split()
    assert algorithm in names_for("all_reduce")
    size, count, time_us, alg, bus = map(float, numbers)
    assert (size, count) == (2**30, 2**28)
    assert alg == pytest.approx(size / time_us / 1e3, rel=1e-2)
    assert bus == pytest.approx(alg * bus_factor("all_reduce", 4), rel=1e-2)


def test_the_command_prints_one_size_or_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["collective", "allreduce", "--ranks", "16", "--cluster", "dgx-h100"]
    assert scaleproof.main([*command, "--size", "64MiB"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert scaleproof.main([*command, "--size", "1 KiB", "--sweep", "--factor", "4"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[3:]] == ["8", "32", "128", "512"]
    assert scaleproof.main([*command, "--size", "64"]) == 2
    assert "has no unit" in capsys.readouterr().err


def test_importing_the_package_imports_neither_numpy_nor_pydantic() -> None:
    code = "import sys, simulator; sys.exit(any(name in sys.modules for name in ('pydantic', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
