"""Captures of training by published frameworks: `python benchmarks/captured_frameworks.py [NAME …] [--out FILE]`.

Installs nothing: frameworks that are missing are left out. Prints a table: version, seconds, memory of a process, FLOPs of a
rank by the capture and by hand, and the predicted step on the cluster. A file keeps the rows of other cases.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.captured.record import EventKind
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.units import format_bytes, format_time_s
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.capture.capture import CaptureOptions, capture
from scaleproof.validator.capture.command.command_line import job_of, parse

SCRIPTS: Final = Path(__file__).parents[1] / "examples" / "captured" / "frameworks"
CLUSTER: Final = "dgx-h100"
# Sizes of the scripts' language models: layers, width, tokens of a sample, samples of a rank, entries of the vocabulary.
LAYERS, WIDTH, LENGTH, BATCH, VOCABULARY = 4, 512, 512, 2, 8000
TOKENS: Final = LENGTH * BATCH


class Case(NamedTuple):
    """A command. flops: of a rank, by hand; None where it was not counted. version: that the package's begins with. fails:
    whether it cannot be captured yet. stand_ins: packages that count as installed."""

    package: str
    command: str
    flops: float | None = None
    version: str = ""
    fails: bool = False
    stand_ins: str = ""


def decoder(
    weights: float, tokens: float = TOKENS, passes: float = 6, layers: int = LAYERS, length: int = LENGTH,
    head: float = WIDTH * VOCABULARY,
) -> float:  # fmt: skip
    """FLOPs of a step of a decoder: of each weight of products and each token those of the passes, and attention's two products
    in the forward pass and five in the backward pass, whatever its mask leaves. weights: of a layer."""
    return passes * (layers * weights + head) * tokens + 7 * layers * 2 * tokens * length * WIDTH


# queries and results of attention, keys and values of half the heads, three products of 11/4 of the width
LAYER: Final = (3 + 3 * 11 / 4) * WIDTH**2
LLAMA: Final = decoder(LAYER)
GPT: Final = decoder(12 * WIDTH**2)
# the last of two pipeline stages has two of four layers and the head; tensor parallelism of 2, four micro-batches
MEGATRON: Final = 4 * decoder(12 * WIDTH**2, layers=2, passes=6) / 2
# adapters and the gradients of weights are left out
FROZEN: Final = decoder(LAYER, passes=4)
# activations of layers are computed again
QUANTISED: Final = FROZEN + 2 * LAYERS * (LAYER + 2 * LENGTH * WIDTH) * TOKENS
# four micro-batches; two of eight experts, each with two products of four times the width, and attention's
GPTS: Final = 4 * GPT
EXPERTS: Final = 4 * decoder((4 + 2 * 8) * WIDTH**2)
# 12 layers of each tower, with 50 patches and 77 tokens of each of four samples
CLIP: Final = 4 * 6 * 12 * 12 * (768**2 * 50 + 512**2 * 77)
# multiplications of an image, by the papers of the models
RESNET_50, VIT_S_16, IMAGES = 4.1e9, 4.6e9, 32

# The line of a file below which rows are written.
_BELOW: Final = "<!-- written by benchmarks/captured_frameworks.py -->"
_RUN: Final = "torchrun --nproc_per_node 8"
_TITAN: Final = (
    f"{_RUN} -m torchtitan.train --model.flavor debugmodel --model.hf_assets_path $ASSETS/tokenizer --training.dataset c4_test "
    "--training.dataset_path $ASSETS/lines --training.seq_len 512 --training.local_batch_size 2 --training.steps 6"
)
CASES: Final[dict[str, Case]] = {
    "Trainer": Case("transformers", f"{_RUN} hugging_face.py trainer", LLAMA),
    "Trainer, FSDP 1": Case("transformers", f"{_RUN} hugging_face.py trainer --fsdp 1", LLAMA),
    "Trainer, FSDP2": Case("transformers", f"{_RUN} hugging_face.py trainer --fsdp 2", LLAMA),
    "Trainer, ZeRO-3": Case("deepspeed", "deepspeed --num_gpus 8 hugging_face.py trainer --deepspeed zero.json", LLAMA),
    "LoRA": Case("peft", f"{_RUN} hugging_face.py trainer --adapters lora", FROZEN),
    "QLoRA": Case("bitsandbytes", f"{_RUN} hugging_face.py trainer --adapters qlora", QUANTISED),
    "TRL SFT": Case("trl", f"{_RUN} hugging_face.py sft", LLAMA),
    "TRL DPO": Case("trl", f"{_RUN} hugging_face.py dpo"),
    "TRL GRPO": Case("trl", f"{_RUN} hugging_face.py grpo"),
    "Accelerate, FSDP2": Case("accelerate", "accelerate launch --config_file fsdp.yaml hugging_face.py accelerate", LLAMA),
    "ZeRO-1": Case("deepspeed", "deepspeed --num_gpus 8 deepspeed_zero.py --stage 1", GPT),
    "ZeRO-2": Case("deepspeed", "deepspeed --num_gpus 8 deepspeed_zero.py --stage 2", GPT),
    "ZeRO-2, offload": Case("deepspeed", "deepspeed --num_gpus 8 deepspeed_zero.py --stage 2 --offload", GPT),
    "ZeRO-3": Case("deepspeed", "deepspeed --num_gpus 8 deepspeed_zero.py --stage 3", GPT),
    "Lightning, DDP": Case("lightning", f"{_RUN} lightning_gpt.py trainer", GPT),
    "Lightning, FSDP": Case("lightning", f"{_RUN} lightning_gpt.py trainer --strategy fsdp", GPT),
    "Fabric": Case(
        "lightning",
        "fabric run --devices 8 --accelerator cuda --strategy ddp --precision bf16-mixed lightning_gpt.py fabric", GPT,
    ),
    "timm, ResNet-50": Case("timm", f"{_RUN} vision.py timm", 6 * RESNET_50 * IMAGES),
    "timm, ViT-S/16": Case("timm", f"{_RUN} vision.py timm --model vit_small_patch16_224", 6 * VIT_S_16 * IMAGES),
    "torchvision, ResNet-50": Case("torchvision", f"{_RUN} vision.py torchvision", 6 * RESNET_50 * IMAGES),
    "Megatron Core, TP 2, PP 2": Case("megatron-core", f"{_RUN} megatron_gpt.py", MEGATRON),
    **{
        f"Megatron Core, Transformer Engine, {name}": Case(
            "megatron-core", f"{_RUN} megatron_gpt.py --transformer-engine {options}", flops, stand_ins="transformer_engine"
        )
        for name, options, flops in (
            ("TP 2, PP 2, SP", "--sequence-parallel", MEGATRON),
            ("FP8, TP 2, SP", "--fp8 hybrid --sequence-parallel --pipeline 1", GPTS / 2),
            ("CP 2, TP 2", "--context 2 --pipeline 1", GPTS / 4),
            ("8 experts, EP 4", "--experts 8 --expert-ranks 4 --tensor 1 --pipeline 1", EXPERTS),
        )
    },
    # activations of layers are computed again
    "torchtune": Case(
        "torchtune", "tune run --nproc_per_node 8 full_finetune_distributed --config torchtune.yaml assets=$ASSETS",
        decoder(LAYER, head=WIDTH * 128_256) + 2 * LAYERS * LAYER * TOKENS,
    ),
    **{
        f"torchtitan 0.2, {name}": Case("torchtitan", f"{_TITAN} {options}", version="0.2")
        for name, options in (
            ("FSDP2, TP 2", "--model.name llama3 --parallelism.tensor_parallel_degree 2"),
            ("PP 2", "--model.name llama3 --parallelism.pipeline_parallel_degree 2"),
            ("CP 2", "--model.name llama3 --parallelism.context_parallel_degree 2"),
            ("compiled", "--model.name llama3 --compile.enable"),
            ("DeepSeek, EP 4", "--model.name deepseek_v3 --parallelism.expert_parallel_degree 4"),
        )
    },
    "torchtitan 0.3": Case(
        "torchtitan",
        f"{_RUN} -m torchtitan.train --module llama3 --config llama3_debugmodel --dump_folder $ASSETS/outputs "
        "--hf_assets_path $ASSETS/tokenizer --dataloader.dataset_path $ASSETS/lines --validator.no-enable "
        "--checkpoint.no-enable",
        version="0.3", fails=True,
    ),
    "Composer, DDP": Case("mosaicml", "composer -n 8 composer_gpt.py", GPT),
    "OLMo-core, FSDP2": Case("ai2-olmo-core", f"{_RUN} olmo_core_lm.py"),
    "litgpt, LoRA": Case("litgpt", "litgpt finetune_lora $ASSETS/litgpt --data JSON --data.json_path $ASSETS/instructions.json "
        "--data.val_split_fraction 0.1 --devices 8 --train.global_batch_size 16 --train.micro_batch_size 2 "
        "--train.max_seq_length 512 --out_dir $ASSETS/out --eval.initial_validation false"),
    "x-transformers": Case(
        "x-transformers", f"{_RUN} other_packages.py x_transformers", decoder(12 * WIDTH**2, tokens=4 * (LENGTH - 1))
    ),
    "vit-pytorch": Case(
        "vit-pytorch", f"{_RUN} other_packages.py vit_pytorch",
        decoder(12 * WIDTH**2, tokens=4 * 257, length=257, head=3 * 16**2 * WIDTH),
    ),
    "segmentation_models": Case("segmentation-models-pytorch", f"{_RUN} other_packages.py segmentation_models_pytorch"),
    "MONAI U-Net": Case("monai", f"{_RUN} other_packages.py monai"),
    "torch_geometric GCN": Case("torch-geometric", f"{_RUN} other_packages.py torch_geometric"),
    "diffusers U-Net": Case("diffusers", f"{_RUN} other_packages.py diffusers"),
    "open_clip ViT-B-32": Case("open-clip-torch", f"{_RUN} other_packages.py open_clip", CLIP),
}  # fmt: skip


def main() -> int:
    """Captures the cases and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"cases among {', '.join(CASES)} (all)")
    # the scripts run in another folder
    parser.add_argument("--out", type=lambda path: Path(path).resolve(), help="the file whose rows are replaced")
    options = parser.parse_args()
    rows: dict[str, str] = {}
    with prepared():
        for name in options.names or CASES:
            print(f"{name} …", file=sys.stderr, flush=True)
            rows[name] = row(name)
            print(rows[name], flush=True)
            if options.out is not None:
                update(options.out, rows)
    return 0


def row(name: str) -> str:
    """The row of a case; after a dash, why there is none."""
    package = CASES[name].package
    try:
        version = importlib.metadata.version(package)
        if not version.startswith(CASES[name].version):
            raise importlib.metadata.PackageNotFoundError
        return f"| {name} | {package} {version} | {captured(CASES[name])} |"
    except importlib.metadata.PackageNotFoundError:
        return f"- {name}: {package} is not installed"
    except ScaleproofError as error:
        return f"- {name} ({package} {version}): {error}"


def update(file: Path, rows: Mapping[str, str]) -> None:
    """Replaces rows of a file, in the order of cases, below the text that it begins with."""
    text, _, rest = (file.read_text() if file.exists() else "").partition(_BELOW)
    found = {
        name: row for row in rest.splitlines() for name in CASES if row.startswith((f"| {name} |", f"- {name} (", f"- {name}:"))
    }
    ordered = [row for name in CASES if (row := (found | dict(rows)).get(name)) is not None]
    where = f"{len(os.sched_getaffinity(0))} cores, no GPU, torch {importlib.metadata.version('torch')}"
    lines = [
        _BELOW, "", f"{datetime.now(UTC):%d %B %Y}, {where}; ranks and predictions on {CLUSTER}.", "",
        "| case | package | seconds | MiB | FLOPs per rank | by hand | peak memory | predicted step |",
        "|---|---|---|---|---|---|---|---|", *(row for row in ordered if row.startswith("|")),
    ]  # fmt: skip
    failed = [row for row in ordered if row.startswith("-")]
    file.write_text(text + "\n".join([*lines, *(["", "Not captured:", "", *failed] if failed else [])]) + "\n")


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """The folder of the scripts, with the files that frameworks read, and without network."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(SCRIPTS):
        os.environ |= {"ASSETS": folder, "HF_HUB_OFFLINE": "1"}
        subprocess.run([sys.executable, "prepare.py", folder], check=True)
        yield


def captured(case: Case) -> str:
    """Columns of a case. Raises ScaleproofError where it cannot be captured."""
    started = parse(shlex.split(os.path.expandvars(case.command)))
    job, device = job_of(started, None, None, CLUSTER, packages=case.stand_ins)
    found, costs = capture(job, CaptureOptions(device, CLUSTER, timeout_s=900), lambda _: None)
    flops = max(float(np.sum(one.columns["flops"][one.rows(EventKind.OPERATOR)])) for one in found.classes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capture.zip"
        found.write(path)
        step_s = format_time_s(predict(load(str(path)), interval=False, remedy=False).step_time_s)
    by_hand = f"{case.flops / 1e9:.1f} G" if case.flops is not None else "-"
    peak_bytes = max(max(one.peak_bytes) for one in found.classes)
    spent = f"{costs.spent_s:.0f} | {costs.memory_bytes / 2**20:.0f}"
    return f"{spent} | {flops / 1e9:.1f} G | {by_hand} | {format_bytes(peak_bytes)} | {step_s}"


if __name__ == "__main__":
    raise SystemExit(main())
