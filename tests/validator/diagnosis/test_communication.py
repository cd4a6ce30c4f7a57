"""Findings from logs of DeepSpeed's communication logger, of one rank and of several."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from scaleproof.simulator.analysis.diagnosis import Diagnosis
from scaleproof.validator.diagnosis.diagnose import diagnose

# Collectives of a step with their size and seconds, and whether all ranks take part or those of a host.
STEP = (("all_gather_into_tensor", "6.0 MB", 8e-3, True), ("all_to_all_single", "2.0 MB", 8e-3, False))


def _found(*paths: Path) -> Diagnosis:
    return diagnose(paths, lambda _: None)[0]


def _lines(ranks: int = 8, late: int = -1, slow_host: int = -1, jumps_s: Mapping[int, float] | None = None) -> list[list[str]]:
    """Lines of each rank with the host that its launcher writes before them; four ranks on each host."""
    draw, at_s, lines = np.random.default_rng(0), np.zeros(ranks), [list[str]() for _ in range(ranks)]
    for step in range(40):
        for op, size, usual_s, is_global in STEP:
            at_s += 0.05 * np.exp(0.01 * draw.standard_normal(ranks)) * np.where(np.arange(ranks) == late, 1.25, 1.0)
            for first in range(0, ranks, ranks if is_global else 4):
                members = slice(first, first + (ranks if is_global else 4))
                slow = 2.0 if not is_global and first // 4 == slow_host else 1.0
                end_s = at_s[members].max() + slow * usual_s * np.exp(0.02 * draw.standard_normal())
                for rank in range(ranks)[members]:
                    shift_s = (jumps_s or {}).get(rank, 0.0) if step > 20 else 0.0
                    clock = datetime(2026, 1, 5, 10) + timedelta(seconds=end_s + shift_s)
                    lines[rank].append(
                        f"gpu{rank // 4:03}: [{clock:%Y-%m-%d %H:%M:%S},{clock.microsecond // 1000:03}] [INFO] "
                        f"[logging.py:69:log_dist] [Rank {rank}] rank={rank} | comm op: {op} | time (ms): "
                        f"{1e3 * (end_s - at_s[rank]):.2f} | msg size: {size} | algbw (Gbps): 9.41  | busbw (Gbps): 8.76"
                    )
                at_s[members] = end_s
    return lines


def _written(folder: Path, lines: list[list[str]]) -> Path:
    for rank, own in enumerate(lines):
        (folder / f"rank{rank}.log").write_text("\n".join(own) + "\n")
    return folder


def test_the_rank_that_comes_late_is_named_not_those_that_wait(tmp_path: Path) -> None:
    lines = _lines(late=5)
    (fault,) = _found(_written(tmp_path, lines)).faults
    assert fault.words.startswith("rank 5 (gpu001): work between collectives takes 4.9")
    assert (fault.cause, fault.ranks, fault.source) == ("slow rank", (5,), f"{tmp_path}/rank0.log")
    # it works a quarter longer, and a step has 16 ms of transfers
    assert 0.25 * 100 / (125 + 16) * 0.9 < fault.share < 0.25 * 100 / (125 + 16) * 1.1
    # the same lines in one log, as the launcher prints them
    mixed = tmp_path / "all.txt"
    mixed.write_text("\n".join(line for together in zip(*lines, strict=True) for line in together))
    assert _found(mixed).faults[0].words == fault.words


def test_the_host_whose_calls_take_longer_is_named(tmp_path: Path) -> None:
    (fault,) = _found(_written(tmp_path, _lines(ranks=16, slow_host=2))).faults
    assert fault.words.startswith("gpu002: all all_to_all_single of 2.0 MB take 6")
    assert (fault.cause, fault.hosts, fault.ranks) == ("slow link", ("gpu002",), (8, 9, 10, 11))


def test_equal_ranks_have_no_findings(tmp_path: Path) -> None:
    assert not _found(_written(tmp_path, _lines())).findings


def test_clocks_that_jump_and_logs_that_end_early_are_left_out(tmp_path: Path) -> None:
    lines = _lines(late=5, jumps_s={2: 3600.0, 3: -500.0})
    lines[7] = lines[7][:9]
    (tmp_path / "z-second.log").write_text(lines[0][0])
    lines[1][5] = lines[1][5].replace("time (ms): ", "time (ms): ..")
    found = _found(_written(tmp_path, lines))
    assert [fault.ranks for fault in found.faults] == [(5,)]
    assert [note.removeprefix(f"{tmp_path}/") for note in found.notes] == [
        f"z-second.log: a second log of rank 0, after {tmp_path}/rank0.log; left out, as if of another job",
        "rank7.log: 9 calls of rank 7, of other ranks 80; left out",
        "rank2.log: the clock of rank 2 jumps (+1.00 h); left out",
        "rank3.log: the clock of rank 3 jumps (-500 s); left out",
    ]


COMMS = """\
Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)     tput_avg (Gbps)     busbw_avg (Gbps)
all_reduce
                    98.25 MB            40                  5200.00             130.00              9.20                8.19
_______________________________
Breakdown with straggler effect
-------------------------------
Comm. Op            Message Size        Count               Total comm lat(ms)  Total straggler(ms) Avg comm lat(ms)    Avg straggler(ms)
all_reduce
                    98.25 MB            40                  3100.00             2100.00             77.50               52.50
broadcast | [Caller Func: _broadcast_model]
                    2.0 KB              146                 11.12               0.38                0.08                0.00
"""  # noqa: E501


def test_the_summary_of_deepspeed_says_how_long_ranks_wait(tmp_path: Path) -> None:
    path = tmp_path / "deepspeed.log"
    path.write_text(COMMS)
    found = _found(path)
    assert found.files == ("1 communication log",)
    assert found.headline == (
        "rank 0 waits for ranks that come later in 40.3 % of its communication (2.10 s of 5.21 s, 2.10 s in all_reduce of "
        "98.25 MB)"
    )


def test_a_collective_of_deepspeed_that_became_slower_is_named(tmp_path: Path) -> None:
    line = (
        "[2026-01-05 10:00:{:02},722] [INFO] [logging.py:69:log_dist] [Rank 0] rank=0 | comm op: all_gather_into_tensor | time "
        "(ms): {:.2f} | msg size: 6.0 MB | algbw (Gbps): 954.41  | busbw (Gbps): 894.76"
    )
    path = tmp_path / "verbose.log"
    path.write_text("\n".join(line.format(at, (0.4 if at < 30 else 0.9) + 0.01 * (at % 3)) for at in range(60)))
    (fault,) = _found(path).faults
    assert fault.words == "since call 31 (10:00:30) all_gather_into_tensor of 6.0 MB takes 910 us, before 410 us (+122.0 %)"
    path.write_text("\n".join(line.format(at, 0.4 + 0.01 * (at % 3)) for at in range(60)))
    assert not _found(path).findings
