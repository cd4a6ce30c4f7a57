"""Workers of servers have the rows of tables that a step looks up, and nothing else of them; servers have the tables.

Theory: n lookups of a table of R rows, all equally frequent, touch u = R·(1 − (1 − 1/R)ⁿ) different rows of d elements. A
worker has 4·u·d bytes of values, as many of gradients, and 8·u of the rows' numbers. The backward pass fills 4·u·d bytes of
gradients with zeros, and adds to them. Each of N servers has an N-th of the table and of the optimizer's states, the sum of
the gradients of the rows that all workers touch, and pushes with the numbers of their rows and of those that workers want.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from scaleproof.simulator.analysis.planner.search import plan
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.recommender.parts import lookups_of
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of

_ROWS, _DIM, _POOLING, _SAMPLES, _WORKERS, _SERVERS = 100_000, 16, 4, 512, 4, 2
_DENSE = (16 * 8 + 8) + (8 + 1)


def scenario(rows: int = _ROWS, count: int = 1, servers: int = _SERVERS, **fields: Any) -> Scenario:
    table = {"rows": rows, "dim": _DIM, "pooling": _POOLING, "skew": 0, "count": count}
    given: dict[str, Any] = {
        "model": {"kind": "dlrm", "interaction": "cat", "tables": [table], "top": [8, 1]},
        "strategy": {"kind": "parameter_server", "workers": _WORKERS, "servers": servers, "sparse": {}},
        "cluster": {"nodes": 64, "node": {"devices": 1}, "network": "10-gbe", "device": "cpu-32core"},
        "batch": {"per_worker": _SAMPLES},
        "training": {"precision": "fp32", "optimizer": "adam"},
    }
    given = {name: own | fields.get(name, {}) for name, own in given.items()}
    return load("wide-and-deep-servers-2016", [f"{name}={json.dumps(own)}" for name, own in given.items()])


def touched(workers: int = 1) -> float:
    return _ROWS * (1 - (1 - 1 / _ROWS) ** (workers * _SAMPLES * _POOLING))


def test_workers_have_the_values_the_gradients_and_the_numbers_of_looked_up_rows() -> None:
    (worker,) = memory(scenario()).ranks
    sizes = worker.holders_bytes
    assert sizes["parameters"] == pytest.approx(4 * (touched() * _DIM + _DENSE), abs=4)
    assert sizes["gradients"] == sizes["parameters"]
    assert sizes["communication"] == pytest.approx(8 * touched())
    assert sizes["optimizer_states"] == sizes["master_parameters"] == 0
    # not more for a larger table that samples touch as many rows of
    larger = memory(scenario(rows=1000 * _ROWS)).worst.total_bytes
    assert larger < 4 * 2 * 4 * (_SAMPLES * _POOLING * _DIM + _DENSE)


def test_servers_have_their_parts_of_tables_states_sums_and_pushes() -> None:
    server = memory(scenario()).servers
    assert server is not None
    stored = (_ROWS * _DIM + _DENSE) / _SERVERS
    assert server.holders_bytes["parameters"] == pytest.approx(4 * stored)
    # Adam's two states
    assert server.holders_bytes["optimizer_states"] == pytest.approx(2 * 4 * stored)
    assert server.holders_bytes["gradients"] == pytest.approx(4 * (touched(_WORKERS) * _DIM + _DENSE) / _SERVERS)
    push = 4 * (touched() * _DIM + _DENSE) + 2 * 8 * touched()
    assert server.holders_bytes["communication"] == pytest.approx((_WORKERS - 1) * push / _SERVERS)


def test_backward_passes_write_gradients_of_the_rows_alone() -> None:
    (pulled,), (whole,) = lookups_of(job_of(scenario()).layers), lookups_of(scenario().model.build_layers())
    saved = whole.backward_bytes(_SAMPLES, 4) - pulled.backward_bytes(_SAMPLES, 4)
    assert saved == pytest.approx(4 * _DIM * (_ROWS - touched()))
    assert pulled.forward_bytes(_SAMPLES, 4) == pytest.approx(whole.forward_bytes(_SAMPLES, 4))


def test_a_step_does_not_depend_on_the_size_of_tables_that_lookups_touch_as_little_of() -> None:
    one, thousand = (predict(scenario(rows=rows), interval=False).step_time_s for rows in (10**7, 10**9))
    assert thousand == pytest.approx(one, rel=0.01)


def test_stated_rows_replace_those_of_lookups() -> None:
    given = scenario(strategy={"sparse": {"rows": 0.01}})
    assert memory(given).worst.holders_bytes["communication"] == pytest.approx(8 * 0.01 * _ROWS)


def test_terabytes_fit_workers_with_little_memory_if_servers_have_room() -> None:
    """Tables of 1.6 TB, with Adam's states 4.8 TB: over 32 servers 150 GB each."""
    rows, tables = 10**9, 25
    fits, too_large = (predict(scenario(rows, tables, servers), interval=False) for servers in (32, 8))
    assert fits.fits
    assert fits.memory_bytes_per_rank is not None
    assert fits.memory_bytes_per_rank < 20e6
    assert fits.server_memory is not None
    assert fits.server_memory.total_bytes == pytest.approx(12 * tables * rows * _DIM / 32, rel=0.01)
    assert too_large.fits is False
    assert "strategy.servers=8: needs 559 GiB of a node's memory, which has 256 GiB (cluster.device.memory)" in (
        too_large.host_problem
    )
    assert too_large.host_problem.endswith("give more servers, or more memory")


def test_colocated_servers_and_workers_on_processors_share_the_memory_of_a_node() -> None:
    node = {"devices": 1, "link": {"bandwidth": "10 GB/s", "latency": "1 us"}}
    alone, both = memory(scenario()), memory(scenario(strategy={"placement": "colocated"}, cluster={"node": node}))
    assert alone.host is not None
    assert both.host is not None
    assert both.host.needed_bytes == pytest.approx(alone.host.needed_bytes + both.worst.total_bytes)


def test_unknown_memory_of_the_hosts_of_gpus_is_a_warning_where_servers_have_tables() -> None:
    unknown = predict(scenario(cluster={"device": "a100-80gb-sxm"}), interval=False)
    assert any("strategy.servers=2: needs" in one and "which was not checked" in one for one in unknown.warnings)
    host = {"devices": 1, "host": {"memory": "1 TiB"}}
    known = predict(scenario(cluster={"device": "a100-80gb-sxm", "node": host}), interval=False)
    assert known.fits
    assert not any("was not checked" in one for one in known.warnings)


def test_plans_have_enough_servers_for_the_tables() -> None:
    """Tables of 320 GB without states: one server of 256 GiB is too few, two are enough."""
    given = scenario(10**9, 5, training={"optimizer": "sgd"})
    found = plan(given, 4, servers=4, strategies=("parameter_server",))
    assert found.best
    assert all(choice.scenario.strategy.servers >= 2 for choice in found.best)
    assert all(memory(choice.scenario).fits for choice in found.best)
    with pytest.raises(InputError, match=r"nothing fits; strategy.servers=.*of a node's memory, which has 256 GiB"):
        plan(scenario(10**9, 1000), 4, servers=4, strategies=("parameter_server",))


def test_workers_have_whole_tables_where_servers_send_no_rows() -> None:
    (worker,) = memory(scenario(strategy={"sparse": None})).ranks
    assert worker.holders_bytes["parameters"] == pytest.approx(4 * (_ROWS * _DIM + _DENSE))
