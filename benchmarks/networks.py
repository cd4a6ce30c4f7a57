"""What states of networks, TCP connections and axes of a torus do to a reference job: its step time with each and without.

Run: python benchmarks/networks.py (under a minute on two cores)
"""

from __future__ import annotations

from typing import Any, Final

from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load

_A2: Final = ("cluster=gcp-a2-highgpu",)
_TPU: Final = (
    "cluster={base: tpu-v5p-pod, node: {devices: 64, link: {topology: {kind: torus, dimensions: [4, 4, 4]}}}}",
    "strategy.workers=64",
    "batch.per_worker=1",
)
# Overrides of the reference job: without the mechanism, and with it.
_CASES: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "state: untuned, four DGX A100": ((), ("cluster.network.state=untuned",)),
    "sockets: ena": ((*_A2, "cluster.network.sockets=null"), (*_A2, "cluster.network.sockets=ena")),
    "sockets: gvnic": ((*_A2, "cluster.network.sockets=null"), _A2),
    "sockets: default": ((*_A2, "cluster.network.sockets=null"), (*_A2, "cluster.network.sockets=default")),
    "axes of 64 TPU v5p": ((*_TPU, "strategy.algorithm=ring"), _TPU),
}


def job(*overrides: str) -> Any:
    """The prediction of the reference job with some overrides."""
    strategy = {"kind": "data_parallel", "workers": 32}
    parts = {"model": "gpt2-xl", "cluster": "dgx-a100", "strategy": strategy, "training": {"precision": "bf16"}}
    return predict(load({**parts, "batch": {"per_worker": 2}}, overrides))


def main() -> None:
    """Prints the table."""
    print(f"{'mechanism':32}{'without':>10}{'with':>10}{'with / without':>16}{'90 % of the latter':>22}")
    for name, both in _CASES.items():
        without, used = (job(*overrides) for overrides in both)
        low, high = used.prediction_interval_s
        ratio = used.step_time_s / without.step_time_s
        print(f"{name:32}{without.step_time_s:>9.3f}s{used.step_time_s:>9.3f}s{ratio:>16.2f}{low:>12.3f} to {high:.3f} s")


if __name__ == "__main__":
    main()
