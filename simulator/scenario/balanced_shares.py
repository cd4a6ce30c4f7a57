"""Shares of the samples of a step by which workers on different devices compute equally long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from scaleproof.simulator.cluster import Cluster, Device
from scaleproof.simulator.cluster.device.device import Precision
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model.layers import Layer

# The rate of a device depends on its samples: so often are shares computed from the rates at the shares before.
_ROUNDS: Final = 4


def balanced_shares(
    layers: Sequence[Layer], cluster: Cluster, precision: Precision, kinds: Sequence[int], microbatches: int, total_samples: int
) -> tuple[int, ...]:
    """Samples of each worker, in proportion to the rate at which its device computes the layers' passes.

    kinds: of the nodes of the workers' first stages. Each share is a multiple of the number of microbatches; what rounding
    leaves goes to the workers that lose the most by it. Raises FieldError for fewer samples than that needs.
    """
    workers, units = len(kinds), total_samples // microbatches
    if units < workers or total_samples % microbatches:
        message = f"{total_samples} samples are no whole microbatches for {workers} workers; give a multiple of {microbatches}"
        raise FieldError(("batch",), f"{message}, at least {workers * microbatches}")
    devices = {kind: cluster.with_device_of(kind).device for kind in set(kinds)}
    samples = dict.fromkeys(devices, total_samples / workers)
    for _ in range(_ROUNDS):
        rates = {kind: samples[kind] / _passes_s(layers, device, samples[kind], precision) for kind, device in devices.items()}
        whole = sum(rates[kind] for kind in kinds)
        samples = {kind: total_samples * rate / whole for kind, rate in rates.items()}
    exact = [samples[kind] / microbatches for kind in kinds]
    shares = [max(1, int(share)) for share in exact]
    order = sorted(range(workers), key=lambda worker: shares[worker] - exact[worker])
    for place in range(units - sum(shares)):
        shares[order[place % workers]] += 1
    while sum(shares) > units:  # shares of one unit at least took too many
        shares[shares.index(max(shares))] -= 1
    return tuple(share * microbatches for share in shares)


def _passes_s(layers: Sequence[Layer], device: Device, samples: float, precision: Precision) -> float:
    """Seconds of the forward and the backward pass of all layers."""
    counts = Counter(layer.signature for layer in layers)
    distinct = {layer.signature: layer for layer in layers}
    return sum(counts[name] * sum(device.layer_s(layer, samples, precision)) for name, layer in distinct.items())
