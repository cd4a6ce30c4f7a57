"""Valid input files for fuzz tests, by kind, and the commands that read them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import yaml

from scaleproof.simulator.common import catalog
from tests.conftest import SMALL
from tests.trust.mutations import Form
from tests.validator.calibration.imports.logs import FILES, all_reduce, host, kernel, launch, nccl_log, step, trace

# Arguments of commands: the mutated file, and the output folder.
FILE: Final = "{file}"
OUT: Final = "{out}"


@dataclass(frozen=True)
class Seed:
    """A valid file. name: of the file. others: other files that it needs, by their path. folder: whether the command
    is given the folder that it lies in. keeps: whether what is done before an error is meant to stay."""

    name: str
    content: bytes
    form: Form
    commands: Sequence[Sequence[str]]
    others: Mapping[str, bytes] = field(default_factory=dict)
    keeps: bool = False


STRATEGIES: Final = (
    "{kind: data_parallel, workers: 4}",
    "{kind: data_parallel, workers: 8, algorithm: tree, bucket: 1 MiB}",
    "{kind: data_parallel, workers: 4, compression: {kind: power_sgd, rank: 4}}",
    "{kind: parameter_server, workers: 6, servers: 2}",
    "{kind: parameter_server, workers: 6, servers: 2, mode: asynchronous}",
    "{kind: parameter_server, workers: 6, servers: 1, mode: stale_synchronous, bound: 2}",
    "{kind: parameter_server, workers: 6, servers: 2, backups: 1, placement: colocated}",
    "{kind: pipeline, stages: 3, microbatches: 4}",
    "{kind: pipeline, stages: 2, chunks: 3, microbatches: 4, schedule: interleaved_1f1b, overlap_sends: true}",
    "{kind: hybrid, workers: 2, stages: 2, tensor: 2, microbatches: 4}",
    "{kind: local_sgd, workers: 4, period: 4, outer: nesterov}",
    "{kind: hybrid, dp: 2, pp: 2, mbs: 4}",
)
_MORE: Final = """\
training: {precision: fp32, optimizer: adam, warmup_steps: 2}
unevenness: {compute_jitter: 0.1, seed: 3}
steps: 5
"""
_UNEVEN: Final = """\
unevenness: {stragglers: [{ranks: 1, slowdown: 1.5}], late: [{ranks: 2, delay: 1 ms}]}
"""


def scenarios() -> list[Seed]:
    """Scenarios of all families, and shipped ones."""
    commands = [
        ["predict", FILE, "--json", "--out", OUT], ["predict", FILE], ["sensitivity", FILE, "--json"],
        ["compare", FILE, "resnet50-ring-p100"], ["timeline", FILE, "--out", f"{OUT}/t.svg"], ["plan", FILE, "--gpus", "4"],
        ["predict", FILE, "--gpus", "8", "--tokens", "15T", "--evidence"],
        ["compare", FILE, "resnet50-ring-p100", "--gpus", "8"],
        ["sweep", FILE, "--gpus", "4,8", "--out", OUT], ["plan", FILE, "--gpus", "2,4", "--out", OUT],
        ["crossover", FILE, "--points", "2", "--y", "workers=2,4", "--strategies", "ring,ps-1", "--json", "--out", OUT],
    ]  # fmt: skip
    texts = [SMALL.replace("{kind: data_parallel, workers: 4}", strategy) for strategy in STRATEGIES]
    priced = SMALL.replace("{devices: 4,", "{devices: 4, price: 2.50 USD/GPU-hour, power: 2 kW,")
    texts += [priced.replace("bandwidth: 10 Gbit/s", "nics: 4 x 10 Gbit/s")]
    texts += [SMALL + _MORE, SMALL + _UNEVEN, SMALL.replace("batch: 48", "batch: {per_worker: 2}")]
    return [Seed("s.yaml", text.encode(), "yaml", commands) for text in texts]


def shipped(folders: Sequence[str], names: Sequence[str], commands: Sequence[Sequence[str]]) -> list[Seed]:
    """Shipped files."""
    paths = [catalog.ROOT / folder / f"{name}.yaml" for folder in folders for name in names]
    return [Seed(path.name, path.read_bytes(), "yaml", commands) for path in paths if path.is_file()]


def clusters() -> list[Seed]:
    """Cluster files: switched, wired, tree-like, a torus, and one that was calibrated."""
    commands = [
        ["predict", "resnet50-ring-p100", "--set", f"cluster={FILE}", "--set", "strategy.workers=2"],
        ["collective", "allreduce", "--ranks", "0-3", "--cluster", FILE],
        ["collective", "alltoall", "--ranks", "4", "--size", "1 MiB", "--messages", "--cluster", FILE],
        ["cluster", "diff", FILE, "p100-25gbe"],
        ["model", "resnet50", "--cluster", FILE, "--json"],
    ]
    names = ["p100-25gbe", "dgx1", "dgx-2", "netlab-tree", "tpu-v4-pod", "gcp-a3-mega", "cpu-2core", "azure-nd-a100-v4"]
    found = shipped(["clusters"], names, commands)
    calibrated = Path(__file__).parent / "files" / "calibrated.yaml"
    found += [Seed("c.yaml", calibrated.read_bytes(), "yaml", commands)]
    return found + shipped(["devices"], ["h100-80gb-sxm", "p100-pcie"], [["model", "gpt-mini", "--device", FILE]])


def models() -> list[Seed]:
    """Shipped models, and Hugging Face configurations."""
    own = [["model", FILE, "--json"], ["model", FILE, "--tensor", "2", "--seq", "64"]]
    theirs = [["model", f"hf:{FILE}", "--json"], ["predict", "gpt3-1.3b-diloco-wan", "--set", f"model=hf:{FILE}"]]
    sizes = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256}
    llama = sizes | {"model_type": "llama", "intermediate_size": 128, "max_position_embeddings": 64, "num_key_value_heads": 2}
    mixtral = llama | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    gpt2 = {
        "model_type": "gpt2",
        "n_layer": 4,
        "n_embd": 64,
        "n_head": 4,
        "vocab_size": 256,
        "n_positions": 64,
        "n_inner": None,
    }
    configs = [Seed("config.json", json.dumps(one).encode(), "json", theirs) for one in (llama, mixtral, gpt2)]
    names = ["gpt-mini", "mlp-mini", "resnet50", "bert-base", "t5-base", "mixtral-8x7b", "deepseek-v3", "inception-v3"]
    return [*shipped(["models"], [*names, "siamese-mlp"], own), *configs]


def studies() -> list[Seed]:
    """Studies that are quickly swept."""
    axes = [
        "strategy.workers: [2, 4, 8]", "cluster.network.bandwidth: {from: 1 Gbit/s, to: 100 Gbit/s, points: 3}",
        "batch: {from: 48, to: 96, factor: 2}",
    ]  # fmt: skip
    data = yaml.safe_load(SMALL)
    head = f"description: a study\nscenario: {json.dumps(data)}\naxes:\n"
    texts = [head + "".join(f"  {axis}\n" for axis in axes), head + "".join(f"  {axis}\n" for axis in axes[:2])]
    texts += [texts[0] + "zip: [[strategy.workers, cluster.network.bandwidth]]\n"]
    texts += ["scenario: resnet50-ring-p100\naxes:\n  strategy: {ring: data_parallel, tree: {kind: data_parallel}}\n"]
    commands = [["sweep", FILE, "--out", OUT], ["sweep", FILE, "--out", OUT, "--intervals"]]
    return [Seed("study.yaml", text.encode(), "yaml", commands, keeps=True) for text in texts]


def logs() -> list[Seed]:
    """Logs of nccl-tests, and matrices of nvidia-smi."""
    write = ["--out", f"{OUT}/made.yaml"]
    nccl = [["import", "nccl-tests", FILE, *write], ["import", "nccl-tests", FILE, "--gpu", "h100-80gb-sxm", "--json"]]
    texts = [nccl_log("all_reduce", ["one"] * 8, 30e-6, 200e9), nccl_log("alltoall", ["a", "b"] * 4, 1e-5, 2e10, prefix="0: ")]
    found = [Seed("log", text.encode(), "text", nccl) for text in texts]
    found.append(Seed("log", (FILES / "old.log").read_bytes(), "text", nccl))
    topo = [["import", "topo", FILE, "--gpu", "h100-80gb-sxm", *write], ["import", "topo", FILE, "--json"]]
    return found + [Seed("m", (FILES / name).read_bytes(), "text", topo) for name in ("dgx-1.txt", "dgx-h100.txt")]


_JOB: Final = """\
model: llama-3-8b
cluster: dgx-h100
strategy: {kind: data_parallel, workers: 64}
batch: 256
training: {precision: bf16, zero: 3, optimizer: adam}
"""


def jobs() -> list[Seed]:
    """Logs of training jobs, one of each format, and traces of their ranks."""
    from scaleproof.validator.reconciliation.jobs.log_formats import FORMATS

    others, write = {"job.yaml": _JOB.encode()}, ["--out", OUT]
    log = [["reconcile", "job.yaml", "--log", FILE, *write], ["reconcile", "job.yaml", "--log", FILE, "--json"]]
    texts = ["".join(f"{one.sample}\n" for _ in range(6)) for one in FORMATS]
    texts.append(
        "_step,_timestamp,train/loss,throughput/tokens_per_sec\n" + "".join(f"{n},{n}.5,2.5,390000\n" for n in range(9))
    )
    found = [
        Seed("train.csv" if text.startswith("_step") else "train.log", text.encode(), "text", log, others) for text in texts
    ]
    traced = [["reconcile", "ring-2", "--trace", FILE, *write], ["reconcile", "ring-2", "--trace", FILE, "--json"]]
    events = trace([*step(1, 0.0), *step(2, 1000.0), *step(3, 2000.0)])
    return [*found, Seed("rank0.json", events.encode(), "json", traced)]


def traces() -> list[Seed]:
    """Traces of torch's profiler and of Chakra, as JSON and as protocol buffers."""
    from tests.validator.calibration.imports.test_chakra import _messages

    events = [*step(1, 0.0), *step(2, 1000.0)]
    gloo = [host("cpu_op", "aten::mm", 0.0, 50.0), host("user_annotation", "gloo:all_reduce", 50.0, 10.0)]
    kineto = [
        ["import", "kineto", FILE, "--out", f"{OUT}/made.yaml"],
        ["import", "kineto", FILE, "--json"],
        ["import", "kineto", FILE, "--model", "gpt-mini", "--samples", "8", "--out", f"{OUT}/made.yaml"],
    ]
    texts = [trace(events), trace([kernel("gemm", 0.0, 9.0, 1), all_reduce(9.0, 5.0, 2, 100), launch(0.0, 1)]), trace(gloo)]
    found = [Seed("rank0.json", text.encode(), "json", kineto) for text in texts]
    nodes = [
        {"id": 1, "name": "gemm", "type": "COMP_NODE", "durationMicros": "300", "startTimeMicros": 0, "attr": []},
        {"id": 2, "name": "sum", "type": "COMM_COLL_NODE", "durationMicros": 20, "startTimeMicros": 300,
         "attr": [{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": 4096}]},
    ]  # fmt: skip
    chakra = [
        ["import", "chakra", FILE, "--cluster", "dgx-h100", "--out", f"{OUT}/made.yaml"],
        ["import", "chakra", FILE, "--json"],
    ]
    found += [Seed("t.0.et", _messages(), "bytes", chakra), Seed("t.0.json", json.dumps(nodes).encode(), "json", chakra)]
    import gzip

    packed = gzip.compress(texts[0].encode(), mtime=0)
    return [*found, Seed("rank0.json.gz", packed, "bytes", kineto)]


def tables() -> list[Seed]:
    """Tables of published measurements, a few rows of each, and points of a calibration."""
    found = []
    for path in sorted((catalog.ROOT / "published").glob("*.csv")):
        if path.stem == "gpu_matmul_efficiency":
            # for reading alone
            continue
        lines = path.read_bytes().splitlines(keepends=True)
        some = b"".join([lines[0], *lines[1 : 200 : max(1, min(199, len(lines)) // 2)]][:3])
        found.append(Seed("t.csv", some, "text", [["score", FILE, "--json"], ["score", FILE]]))
    return found


def claims() -> list[Seed]:
    """Shipped claims, at a few points each."""
    names = ["batches-hide-it", "rings-scale-linearly", "compression-on-slow-networks", "trials-side-by-side"]
    return shipped(["claims"], names, [["claims", FILE, "--json"], ["claims", FILE]])


def overrides() -> list[Seed]:
    """Values of --set as a JSON list."""
    given = [
        ["strategy.workers=8", "cluster.network.bandwidth=100 Gbit/s"], ["model=gpt-mini", "batch=96", "steps=4"],
        ["strategy={kind: pipeline, stages: 2, microbatches: 2}", "unevenness={compute_jitter: 0.1}"],
        ["cluster.device.base=h100-80gb-sxm", "training.precision=bf16"],
    ]  # fmt: skip
    return [Seed("set.json", json.dumps(one).encode(), "json", [["predict", "small.yaml"]]) for one in given]


@functools.cache
def _results() -> Mapping[str, bytes]:
    """What predict, measure and reconcile leave in a folder, of one small scenario."""
    import tempfile

    from scaleproof.simulator.predict import predict
    from scaleproof.simulator.run.files import save
    from scaleproof.simulator.scenario.load import load
    from scaleproof.validator.reconciliation import history

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "small.yaml").write_text(SMALL)
        scenario = load(folder / "small.yaml")
        run = predict(scenario)
        save(run, folder / "runs" / "small" / "predicted")
        measured = replace(run, origin="measured", prediction_interval_s=None, spread={}, compute="real", losses=(1.0, 0.5))
        save(measured, folder / "runs" / "small" / "measured")
        case = {
            "scenario": "small", "family": "data_parallel", "strategy": "data_parallel", "ranks": 4, "compute_ranks": 4,
            "folder": "runs/small", "predicted": run.to_dict(), "measured": measured.to_dict(), "inside": True,
        }  # fmt: skip
        plain = {"version": 1, "created": "2026-11-22", "host": "a", "cluster": "small", "environment": {}, "cases": [case]}
        (folder / "reconcile.json").write_text(json.dumps(plain))
        history.append_cluster(scenario.cluster, folder)
        for path in folder.rglob("run.json"):
            # in the format before runs named their spans, so that damaged spans are read
            path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "spans_digest"}))
        files = (path for path in folder.rglob("*") if path.is_file() and path.name != "small.yaml")
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def results() -> list[Seed]:
    """Folders of results, one file of which is changed."""
    all_files = _results()
    # building a page takes the time of 100 predictions
    commands = [*[["runs", OUT], ["runs", OUT, "--json"]] * 4, ["report", OUT]]
    found = []
    for name, content in all_files.items():
        form: Form = "json" if name.endswith(".json") else "bytes"
        others = {f"out/{other}": its for other, its in all_files.items() if other != name}
        found.append(Seed(f"out/{name}", content, form, commands, others, keeps=True))
    return [*found, _studied(), _historic(), _points()]


def _studied() -> Seed:
    """A folder that a sweep wrote."""
    import tempfile

    from scaleproof.simulator.analysis.study.sweep import sweep

    study = {"scenario": yaml.safe_load(SMALL), "axes": {"strategy.workers": [2, 4]}}
    with tempfile.TemporaryDirectory() as name:
        sweep(study, name)
        files = {path.name: path.read_bytes() for path in Path(name).iterdir()}
    part = next(one for one in files if one.endswith(".parquet"))
    others = {f"out/{other}": content for other, content in files.items() if other != "study.json"}
    assert part
    return Seed("out/study.json", files["study.json"], "json", [["report", OUT]], others, keeps=True)


def _historic() -> Seed:
    import tempfile

    from scaleproof.simulator.scenario.read import load_cluster
    from scaleproof.validator.reconciliation import history

    with tempfile.TemporaryDirectory() as name:
        history.append_cluster(load_cluster(Path(__file__).parent / "files" / "calibrated.yaml"), Path(name))
        content = (Path(name) / history.FILE).read_bytes()
    return Seed("h.sqlite", content, "bytes", [["history", FILE], ["history", FILE, "--json"]])


def _points() -> Seed:
    """A table of points, as calibrate writes it."""
    import tempfile

    from scaleproof.validator.probe.points import write
    from tests.validator.calibration.made import all_pairs, facts, sends, sums

    points = [facts().point(), *sends(all_pairs(4)), *sums(4, 4, 1e-3, 1e7)]
    with tempfile.TemporaryDirectory() as name:
        write(points, Path(name) / "p.parquet")
        content = (Path(name) / "p.parquet").read_bytes()
    return Seed("p.parquet", content, "bytes", [["calibrate", "--from", FILE, "--out", f"{OUT}/c.yaml"]])


KINDS: Final[Mapping[str, Callable[[], list[Seed]]]] = {
    "scenarios": scenarios,
    "overrides": overrides,
    "models": models,
    "clusters": clusters,
    "studies": studies,
    "logs": logs,
    "jobs": jobs,
    "traces": traces,
    "tables": tables,
    "claims": claims,
    "results": results,
}
