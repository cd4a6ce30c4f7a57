"""The simulator's commands, but for those with a module of their own. Imports wait until a command runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.arguments import positive
from scaleproof.commands.predicting import cluster as commands_cluster
from scaleproof.commands.predicting import goodput, plan, sweep, what_if

if TYPE_CHECKING:
    from scaleproof.simulator.model.layer_table import DeviceRates
    from scaleproof.simulator.run.run import Run

# what a list calls folders of scenarios; others are called as they are
_TITLES: Final = {
    "what-if": "scenarios", "systems": "scenarios: systems by name", "demo": "scenarios: the demo's, small enough to measure",
    "netlab": "scenarios: for a network inside this machine",
}  # fmt: skip


def mount(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    predict = commands.add_parser("predict", help="forecast a scenario", description="Forecast a scenario.")
    add_scenario_arguments(predict)
    predict.add_argument("--json", action="store_true", help="print the run as JSON")
    predict.add_argument("--out", type=Path, metavar="DIR", help="write the run and its spans to DIR/predicted")
    predict.add_argument("--trace", type=Path, metavar="FILE", help="write the timeline as Chrome trace JSON (for Perfetto)")
    predict.set_defaults(command=_predict)

    collective = commands.add_parser("collective", help="what a collective takes, by size", description="Time a collective.")
    collective.add_argument(
        "op", metavar="OP", help="allreduce, allgather, reducescatter, broadcast, reduce, alltoall, sendrecv, gather, scatter"
    )
    collective.add_argument("--size", metavar="SIZE", help="such as 64MiB; without it, 8 B to 8 GiB")
    collective.add_argument("--ranks", required=True, metavar="N", help="how many, or which: 0,8,16-19")
    collective.add_argument("--cluster", required=True, metavar="NAME", help="a YAML file, or a name from 'scaleproof list'")
    collective.add_argument("--algorithm", metavar="NAME", help="such as ring; the library's choice if absent")
    collective.add_argument("--sweep", action="store_true", help="all sizes from 8 B up to --size")
    collective.add_argument("--factor", type=int, choices=[2, 4], default=2, help="between the sizes of a sweep (2)")
    collective.add_argument(
        "--messages", action="store_true", help="time every message on its way through the links, with what it shares"
    )
    collective.set_defaults(command=_collective)

    commands_cluster.mount(commands)
    sweep.mount(commands)
    what_if.mount(commands)
    plan.mount(commands)
    goodput.mount(commands)

    model = commands.add_parser(
        "model", help="a model's layers: FLOPs, parameters, activations", description="Look at a model."
    )
    model.add_argument(
        "model", metavar="MODEL", help="a name from 'scaleproof list', a YAML file, hf:config.json or python:module:function"
    )
    model.add_argument("--seq", type=positive, metavar="N", help="tokens of a sample")
    model.add_argument("--samples", type=positive, default=1, metavar="N", help="in one forward pass (1)")
    model.add_argument(
        "--tensor", type=positive, default=1, metavar="N", help="ranks that share the layers; shows one's share (1)"
    )
    model.add_argument("--precision", metavar="NAME", help="such as fp32 (bf16, fp16 or fp32, the first that the device has)")
    against = model.add_mutually_exclusive_group()
    against.add_argument("--device", default="h100-80gb-sxm", metavar="NAME", help="held against which (h100-80gb-sxm)")
    against.add_argument("--cluster", metavar="NAME", help="held against a cluster's device")
    model.add_argument("--strict", action="store_true", help="refuse operators whose cost is not known, for python:")
    model.add_argument("--json", action="store_true", help="print the table as JSON")
    model.set_defaults(command=_model)

    schema = commands.add_parser("schema", help="print the JSON schema of scenarios, for editors")
    schema.set_defaults(command=_schema)

    listing = commands.add_parser(
        "list", help="list the scenarios, systems, studies, claims, models, clusters and devices that ship"
    )
    listing.set_defaults(command=_list)

    show = commands.add_parser(
        "show", help="print a scenario, study, claim, model, cluster, framework or device that ships, or published:ROW-ID"
    )
    show.add_argument("name", metavar="NAME")
    show.set_defaults(command=_show)


def add_scenario_arguments(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """A scenario (or several), and overrides of its fields."""
    help_text = "a YAML file, or a name from 'scaleproof list'"
    if several:
        parser.add_argument("scenarios", nargs="+", metavar="SCENARIO", help=help_text)
    else:
        parser.add_argument("scenario", metavar="SCENARIO", help=help_text)
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="overrides", help="such as strategy.workers=8"
    )


def _predict(options: argparse.Namespace) -> int:
    import json

    from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_folder
    from scaleproof.simulator.predict import predict
    from scaleproof.simulator.run import chrome_trace
    from scaleproof.simulator.run.run import save
    from scaleproof.simulator.scenario import dump
    from scaleproof.simulator.scenario.load import load

    scenario = load(options.scenario, options.overrides)
    run = predict(scenario)
    if options.out:
        with locked_folder(options.out, "predict", PATIENCE_S):
            dump.keep(scenario, options.out)
            save(run, options.out / "predicted")
    if options.trace:
        chrome_trace.write(run, options.trace)
    print(json.dumps(run.summary(), indent=2) if options.json else describe(run))
    return 0


def describe(run: Run) -> str:
    """A run for people to read."""
    from scaleproof.commands.text.run import describe

    return describe(run)


def _model(options: argparse.Namespace) -> int:
    import json

    from scaleproof.simulator.common.errors import FieldError, InputError
    from scaleproof.simulator.model.layer_table import as_dict, headline, rows, text
    from scaleproof.simulator.model.layers import Shard
    from scaleproof.simulator.scenario.load import load_model

    changes = {"sequence": options.seq} if options.seq else {}
    model = load_model(options.model, **changes, **({"strict": True} if options.strict else {}))
    ground = _ground(options)
    try:
        found = rows(model.build_layers(Shard(tensor=options.tensor)), ground)
    except FieldError as error:
        if error.field != ("strategy", "tensor"):
            raise
        raise InputError(f"--tensor {options.tensor}: {error.message}") from None
    if options.json:
        print(json.dumps({"model": model.name} | as_dict(found, ground), indent=2))
    else:
        print(text(headline(model, options.tensor), found, ground))
    return 0


def _ground(options: argparse.Namespace) -> DeviceRates:
    """What the model is held against."""
    from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES
    from scaleproof.simulator.common import catalog
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.model.layer_table import DeviceRates
    from scaleproof.simulator.scenario.load import load_cluster, load_device

    if options.cluster:
        device = load_cluster(catalog.find_part("cluster", options.cluster, Path())).device
    else:
        device = load_device(catalog.find_part("device", options.device, Path()))
    peaks: dict[str, float] = {str(name): rate for name, rate in device.peak_flops.items()}
    precision = options.precision or next((usual for usual in ("bf16", "fp16", "fp32") if usual in peaks), "fp32")
    peak_flops = peaks.get(precision)
    if not peak_flops:
        known = ", ".join(sorted(peaks))
        raise InputError(f"--precision {precision}: {device.name} has no peak rate for it; use one of {known}")
    size_bytes = ELEMENT_BYTES[precision]
    return DeviceRates(device.name, precision, size_bytes, peak_flops, device.memory_bandwidth_Bps, options.samples)


def _collective(options: argparse.Namespace) -> int:
    from scaleproof.simulator.analysis.collective.time import describe_times, parse_ranks, sweep_sizes
    from scaleproof.simulator.common import catalog
    from scaleproof.simulator.common.units import parse_bytes
    from scaleproof.simulator.scenario.load import load_cluster

    cluster = load_cluster(catalog.find_part("cluster", options.cluster, Path()))
    cluster = cluster.model_copy(update={"name": cluster.name or Path(options.cluster).stem})
    size_bytes = int(parse_bytes(options.size)) if options.size else 2**33
    sizes = sweep_sizes(size_bytes, options.factor) if options.sweep or not options.size else [size_bytes]
    ranks = parse_ranks(options.ranks)
    print(describe_times(options.op, sizes, ranks, cluster, options.algorithm, options.messages))
    return 0


def _schema(options: argparse.Namespace) -> int:
    import json

    from scaleproof.simulator.scenario.json_schema import schema

    print(json.dumps(schema(), indent=2))
    return 0


def _list(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common import catalog

    parts = ("studies", "claims", "models", "clusters", "frameworks", "devices")
    for folder in (*catalog.SCENARIO_FOLDERS, *parts):
        print(_TITLES.get(folder, folder))
        for name in catalog.names(folder):
            print(f"  {name:<34} {catalog.summary(folder, name)}".rstrip())
    return 0


def _show(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common import catalog
    from scaleproof.simulator.scenario.load import PUBLISHED

    if options.name.startswith(PUBLISHED):
        from scaleproof.simulator.scenario.published.yaml_text import text_of

        sys.stdout.write(text_of(options.name))
        return 0
    sys.stdout.write(catalog.find_anything(options.name).read_text(encoding="utf-8"))
    return 0
