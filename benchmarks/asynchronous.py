"""How long `predict` takes for servers whose workers go each on its own: 256 workers, 8 servers, 100 steps each.

Run: python benchmarks/asynchronous.py
"""

from __future__ import annotations

import time
from typing import Any

from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario

_UNEVEN = {"unevenness": {"compute_jitter": 0.1}}
_FORMS: dict[str, dict[str, Any]] = {
    "asynchronous": {},
    "asynchronous, each pass 10 % more or less": _UNEVEN,
    "asynchronous, units taken by whoever is free": {"strategy": {"units": 25600, "assignment": "dynamic"}},
    "stale synchronous, bound 3": {"strategy": {"mode": "stale_synchronous", "bound": 3}} | _UNEVEN,
    "3 backups": {"strategy": {"mode": "synchronous", "backups": 3}} | _UNEVEN,
    "asynchronous, 8 devices a node, two levels": {"strategy": {"two_level": True}, "devices": 8},
    "asynchronous, 8 devices a node, 20 steps": {"devices": 8, "steps": 20},
    "asynchronous, overlapped, 64 workers, 20 steps": {"strategy": {"overlap": True, "workers": 64}, "steps": 20},
    "asynchronous, 16 colocated servers, 16 workers, 20 steps": {
        "strategy": {"placement": "colocated", "workers": 16, "servers": 16}, "steps": 20,
    },
}  # fmt: skip


def _scenario(strategy: dict[str, Any], unevenness: dict[str, Any], devices: int, steps: int) -> Scenario:
    return Scenario.model_validate(
        {
            "model": {"kind": "gpt", "layers": 24, "hidden": 512, "heads": 8, "vocabulary": 32000, "sequence": 128},
            "cluster": {
                "nodes": 300,
                "node": {"devices": devices, "link": {"bandwidth": "10 GB/s", "latency": "5 us"}},
                "network": {"bandwidth": "100 Gbit/s", "latency": "20 us"},
                "device": {
                    "name": "any",
                    "peak": {"fp32": "10 TFLOP/s"},
                    "memory": "16 GiB",
                    "memory_bandwidth": "500 GB/s",
                },
            },
            "strategy": {"kind": "parameter_server", "workers": 256, "servers": 8, "mode": "asynchronous"} | strategy,
            "batch": {"per_worker": 16},
            "steps": steps,
            "unevenness": unevenness,
        }
    )


def main() -> None:
    """Prints the seconds of each form, the least of two, and what it forecasts."""
    for name, form in _FORMS.items():
        numbers = form.get("devices", 1), form.get("steps", 100)
        scenario = _scenario(form.get("strategy", {}), form.get("unevenness", {}), *numbers)
        took_s = []
        for _ in range(2):
            start_s = time.perf_counter()
            run = predict(scenario)
            took_s.append(time.perf_counter() - start_s)
        busiest = run.servers.bottleneck if run.servers else "nothing"
        print(f"{name}: {min(took_s):.2f} s; steps of {1e3 * run.step_time_s:.1f} ms, busiest: {busiest}")


if __name__ == "__main__":
    main()
