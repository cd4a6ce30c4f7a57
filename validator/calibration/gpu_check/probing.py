"""Probes as separate parts of the check, each on ranks of its own, so that a failing one does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.model import Gpt, ResNet
from scaleproof.validator.calibration.gpu_check.cluster import ProbeResults
from scaleproof.validator.calibration.gpu_check.ledger import Ledger
from scaleproof.validator.calibration.gpu_check.sizes import Sizes
from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.launch.preflight.checks import OPTIMIZERS

# Time for a rank to start, get a device and build a model.
_START_S: Final = 60.0


def probe(sizes: Sizes, ledger: Ledger, dry: bool) -> ProbeResults:
    """Probes the machine's devices. Raises InputError if there is no GPU and this is not a dry run."""
    from scaleproof.validator.probe import gpu

    prober = _Prober(ledger, sizes.probe_s)
    facts = ledger.part("device", partial(prober.run, 1, gpu.facts), lambda facts: f"{facts['devices']} × {facts['name']}")
    if facts["name"] == gpu.CPU and not dry:
        raise InputError("torch finds no GPU; run this on a machine with one, or a dry run with --dry-run")
    probed = ProbeResults(facts, devices=sizes.devices or facts["devices"])
    budget_s = sizes.probe_s
    probed.matmuls = prober("matrix products", _flops, gpu.matmuls, sizes.products, sizes.precisions, budget_s) or ()
    probed.memory = prober("memory", _rates, gpu.memory, sizes.memory_bytes, budget_s) or ()
    probed.launches = prober("launches", _launches, gpu.launches)
    prober("copies from and to the host", _rates, gpu.host_copies, sizes.copy_bytes, budget_s)
    exchanged = sizes.message_bytes, sizes.messages
    if probed.devices > 1:
        prober("copies between devices", _rates, gpu.device_copies, sizes.copy_bytes, budget_s)
        probed.messages = prober("messages", _rates, gpu.point_to_point, *exchanged, ranks=2) or ()
    for ranks in sorted({2, 4, probed.devices}):
        if 2 <= ranks <= probed.devices:
            summed = prober(f"allreduce over {ranks}", _rates, gpu.allreduces, *exchanged, ranks=ranks)
            probed.allreduces |= {ranks: summed} if summed else {}
    _probe_training(prober, sizes, probed)
    return probed


def _probe_training(prober: _Prober, sizes: Sizes, probed: ProbeResults) -> None:
    """Probes layers and optimizers by precision."""
    from scaleproof.validator.probe import gpu

    for fields, precision, samples in sizes.layers:
        model, budget_s = model_of(fields), sizes.layers_s / len(samples)
        timings = prober(f"layers of a {model.kind}, {precision}", _kinds, gpu.layers, model, precision, samples, budget_s)
        probed.layers.setdefault(precision, []).extend(timings or [])
    for precision in probed.layers:
        arguments = (sizes.optimizer_parameters, precision, OPTIMIZERS, sizes.layers_s)
        probed.optimizers[precision] = prober(f"optimizers, {precision}", _kinds, gpu.optimizers, *arguments) or []


class _Prober:
    """Runs probes as parts of `ledger`, each on ranks of its own. budget_s: approximate seconds of a probe."""

    def __init__(self, ledger: Ledger, budget_s: float) -> None:
        self._ledger = ledger
        self._budget_s = budget_s

    def __call__(
        self, name: str, words: Callable[[Any], str], function: Callable[..., Any], *arguments: Any, ranks: int = 1
    ) -> Any:
        """Result of rank 0; None if the probe failed or there was no time."""
        return self._ledger.attempt(name, partial(self.run, ranks, function, *arguments), words)

    def run(self, ranks: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Result of rank 0. The timeout is twice the budget plus the time to start, but at most the time left."""
        timeout_s = max(1.0, min(_START_S + 2 * self._budget_s, self._ledger.left_s))
        return run_on_ranks(function, ranks, *arguments, timeout_s=timeout_s, accelerator=True)[0]


def model_of(fields: Mapping[str, Any]) -> Gpt | ResNet:
    """The model that fields of `sizes` describe."""
    return Gpt.model_validate(fields) if fields["kind"] == "gpt" else ResNet.model_validate(fields)


def _flops(timings: Sequence[Mapping[str, Any]]) -> str:
    """Best rate of each precision, as text."""
    best: dict[str, float] = {}
    for t in timings:
        best[t["precision"]] = max(best.get(t["precision"], 0.0), 2.0 * t["m"] * t["n"] * t["k"] / t["seconds"])
    return ", ".join(f"{precision} {flops / 1e12:.4g} TFLOP/s" for precision, flops in best.items())


def _rates(timings: Sequence[Mapping[str, Any]]) -> str:
    """Rate of the largest and time of the smallest size of each kind, as text."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for t in timings:
        kinds.setdefault(t["what"], []).append(t)
    return ", ".join(map(_rate, kinds.values())) or "none"


def _rate(timings: Sequence[Mapping[str, Any]]) -> str:
    least, most = (pick(timings, key=lambda t: t["moved_bytes"]) for pick in (min, max))
    return f"{most['what']} {most['moved_bytes'] / most['seconds'] / 1e9:.4g} GB/s, from {format_time_s(least['seconds'])}"


def _launches(launches: Mapping[str, float]) -> str:
    bare_us, module_us, run_us = (launches[f"{name}_s"] * 1e6 for name in ("issue", "module", "launch"))
    return f"issued in {bare_us:.3g} us, by modules in {module_us:.3g} us, run in {run_us:.3g} us"


def _kinds(timings: Sequence[Mapping[str, Any]]) -> str:
    names = {t.get("signature") or t.get("optimizer") for t in timings}
    return f"{len(names)} kinds, {len(timings)} points"
