"""Equal inputs give bit-identical results in any process, with any hash seed, number of threads and order."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.engine import events, is_contended, replay
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.conftest import SMALL
from tests.trust.corpus import STRATEGIES

pytestmark = pytest.mark.full

_FEW: Final = ("--set", "strategy.workers=4", "--set", "batch={per_worker: 8}")
COMMANDS: Final = (
    ["predict", "resnet50-ring-p100", "--json"],
    ["predict", "resnet50-async-straggler-p100", "--json", "--set", "steps=10"],
    ["predict", "megatron-lm", "--json"],
    ["predict", "netlab-servers-backup", "--json", "--set", "unevenness={compute_jitter: 0.2, seed: 7}"],
    ["plan", "resnet50-ring-p100", "--json", "--gpus", "4"],
    ["compare", "resnet50-ring-p100", "resnet50-servers-p100", "--json", *_FEW],
    ["sensitivity", "resnet50-servers-p100", "--json", *_FEW],
    ["collective", "allreduce", "--ranks", "16", "--cluster", "dgx-a100", "--size", "64 MiB", "--messages"],
)
_STUDY: Final = """\
scenario: resnet50-ring-p100
axes:
  strategy.workers: [1, 2, 4, 8]
  cluster.network.bandwidth: {from: 1 Gbit/s, to: 100 Gbit/s, points: 4}
"""
# What one process does: each command's output, and a study's rows.
_REPORTED: Final = """\
import contextlib, hashlib, io, json, sys
import scaleproof
from scaleproof.simulator.analysis.study.sweep import sweep
from scaleproof.simulator.strategy import compile_step
reported = {}
for command in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert scaleproof.main(command) == 0, command
    reported[" ".join(command)] = out.getvalue()
reported["sweep"] = sweep(sys.argv[2], sys.argv[3]).to_json(orient="records", double_precision=15)
print(json.dumps(reported))
"""


def _reported(folder: Path, commands: Sequence[Sequence[str]], environment: dict[str, str]) -> dict[str, str]:
    (folder / "study.yaml").write_text(_STUDY)
    with tempfile.TemporaryDirectory(dir=folder) as out:
        arguments = [json.dumps(commands), str(folder / "study.yaml"), out]
        done = subprocess.run(
            [sys.executable, "-c", _REPORTED, *arguments],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
        )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _threads(count: int) -> dict[str, str]:
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(count))


def test_results_are_bit_identical_across_processes_hash_seeds_threads_and_order(tmp_path: Path) -> None:
    first = _reported(tmp_path, COMMANDS, {"PYTHONHASHSEED": "0"} | _threads(1))
    other = _reported(tmp_path, COMMANDS[::-1], {"PYTHONHASHSEED": "4242", "TZ": "Asia/Tokyo", "LC_ALL": "C"} | _threads(4))
    assert first.keys() == other.keys()
    assert [command for command, text in first.items() if _untimed(other[command]) != _untimed(text)] == []


def _untimed(text: str) -> str:
    """Removes the computing time, which a plan prints."""
    return re.sub(r'"(\w+_seconds|configurations_per_second)": [\d.e+-]+', "", text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_both_engines_give_equal_times_without_shared_resources(small: Callable[..., Scenario], data: st.DataObject) -> None:
    """Of programs as strategies compile them; tests/simulator/engine/test_replay.py draws programs of all other kinds."""
    static = [one for one in STRATEGIES if "mode" not in one and "backups" not in one]
    overrides = [
        f"strategy={data.draw(st.sampled_from(static))}",
        f"cluster.network.bandwidth={data.draw(st.integers(1, 400))} Gbit/s",
        f"cluster.network.latency={data.draw(st.integers(1, 500))} us",
        f"model.hidden={64 * data.draw(st.integers(1, 8))}",
    ]
    scenario = small(*overrides)
    program, steps = (
        compile_step(scenario.strategy, job_of(scenario)),
        data.draw(st.integers(1, 3)),
    )
    replayed = replay.simulate(program, steps)
    if not is_contended(replayed):
        assert replayed.end_s == pytest.approx(events.simulate(program, steps).end_s, rel=1e-9, abs=1e-15)


@settings(max_examples=6)
@given(st.permutations(range(4)))
def test_predictions_do_not_depend_on_earlier_predictions(order: list[int]) -> None:
    expected = _predicted([0, 1, 2, 3])
    found = _predicted(order)
    assert [found[number] for number in range(4)] == [expected[number] for number in range(4)]


def _predicted(order: Sequence[int]) -> dict[int, Any]:
    from scaleproof.simulator.predict import predict

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "small.yaml"
        path.write_text(SMALL)
        return {number: predict(load(path, [f"strategy={STRATEGIES[number]}"])).to_dict() for number in order}
