"""The command model: print a model's layers with FLOPs, parameters and activations."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from scaleproof.commands.arguments import Command, positive
from scaleproof.commands.output import print_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scaleproof.simulator.model.layer_table import DeviceRates
    from scaleproof.simulator.model.layers import Layer


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    model = Command(commands, "model", _model)
    model.add("MODEL", "a name from 'scaleproof list', a YAML file, hf:config.json or python:module:function")
    model.add("--seq N", "tokens per sample (the model's own)", type=positive)
    model.add("--samples N", "samples in one forward pass (1)", type=positive, default=1)
    model.add(
        "--tensor N", "number of tensor-parallel ranks; the table shows the shard of one rank (1)", type=positive, default=1
    )
    model.add("--precision NAME", "number format, such as fp32 (the first of bf16, fp16, fp32 that the device has)")
    against = model.parser.add_mutually_exclusive_group()
    device = "device whose peak rates are used (h100-80gb-sxm)"
    against.add_argument("--device", default="h100-80gb-sxm", metavar="NAME", help=device)
    against.add_argument("--cluster", metavar="NAME", help="use the device of this cluster")
    model.add_overrides("a field of the training, such as training.adapters={kind: lora, rank: 16}")
    model.add("--strict", "refuse operators of unknown cost, for python: models")
    model.add("--json", "print the table as JSON")


def _model(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.model import describe, headline
    from scaleproof.simulator.common.errors import FieldError, InputError
    from scaleproof.simulator.model.layer_table import as_dict, rows
    from scaleproof.simulator.model.layers import WHOLE, Shard
    from scaleproof.simulator.scenario.load import load
    from scaleproof.simulator.scenario.read import load_model

    changes = {"sequence": options.seq} if options.seq else {}
    model = load_model(options.model, **changes, **({"strict": True} if options.strict else {}))
    rates = _device_rates(options)
    layers_of: Callable[[Shard], Sequence[Layer]] = model.build_layers
    if options.overrides:
        layers_of = load(_around(options, changes, rates.precision), options.overrides).layers
    try:
        table = rows(layers_of(Shard(tensor=options.tensor)), rates)
    except FieldError as error:
        if error.field != ("strategy", "tensor"):
            raise
        raise InputError(f"--tensor {options.tensor}: {error.message}") from None
    data = {"model": model.name} | as_dict(table, rates)
    title = headline(model, layers_of(WHOLE), options.tensor)
    return print_result(options, lambda: data, lambda: describe(title, table, rates))


def _around(options: argparse.Namespace, changes: dict[str, Any], precision: str) -> dict[str, Any]:
    """A scenario that trains the model on one device, as in YAML."""
    cluster = options.cluster or {"device": options.device, "nodes": 1, "node": {"devices": 1}}
    return {
        "model": {"base": options.model, **changes} if changes else options.model,
        "cluster": cluster,
        "strategy": {"kind": "hybrid"},
        "batch": 1,
        "training": {"precision": precision, "optimizer": "adam"},
    }


def _device_rates(options: argparse.Namespace) -> DeviceRates:
    """The device, precision and peak rates of the table."""
    from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.model.layer_table import DeviceRates
    from scaleproof.simulator.scenario.read import load_cluster, load_device

    device = load_cluster(options.cluster).device if options.cluster else load_device(options.device)
    peaks: dict[str, float] = {str(name): rate for name, rate in device.peak_flops.items()}
    precision = options.precision or next((name for name in ("bf16", "fp16", "fp32") if name in peaks), "fp32")
    peak_flops = peaks.get(precision)
    if not peak_flops:
        known = ", ".join(sorted(peaks))
        raise InputError(f"--precision {precision}: {device.name} has no peak rate for it; use one of {known}")
    size_bytes = ELEMENT_BYTES[precision]
    return DeviceRates(device.name, precision, size_bytes, peak_flops, device.memory_bandwidth_Bps, options.samples)
