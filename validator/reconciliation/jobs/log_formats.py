"""Formats of the logs of training software: which line reports an iteration, and what its fields mean.

`sample` is a line in the format, written for this file. The formats are those of torchtitan's components/metrics.py,
Megatron-LM's training.py and arguments.py, NeMo's progress printer and Megatron Bridge's step timer, DeepSpeed's utils/timer.py
and runtime/pipe/engine.py, of nanotron's logging with its human_format, of the progress bars of Lightning and of
transformers' Trainer, of TRL's metrics, and of MaxText's guide to its logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

# What a log reports of an iteration. iteration: its number. iterations: their number in this loop. line: in the file. clock_s:
# when it was logged, in seconds since 1970. step_s: seconds of a step. steps_per_s, samples_per_s, tokens_per_s: of the whole
# job. tokens_per_s_per_gpu, flops_per_s_per_gpu, memory_bytes: of a GPU. retries: of the memory allocator, since the record
# before.
Quantity = Literal[
    "iteration", "iterations", "line", "clock_s", "step_s", "steps_per_s", "samples_per_s", "tokens_per_s",
    "tokens_per_s_per_gpu", "flops_per_s_per_gpu", "loss", "memory_bytes", "retries",
]  # fmt: skip
# What an iteration's time follows from, the most direct first.
TIMES: Final[tuple[Quantity, ...]] = ("step_s", "steps_per_s", "samples_per_s", "tokens_per_s", "tokens_per_s_per_gpu")
# What a log reports of the job. gpus_of: a factor of the number of GPUs.
Fact = Literal["global_batch", "microbatch", "gpus", "gpus_of", "sequence", "tensor", "stages", "context"]

_NUMBER: Final = r"[-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?"
_GIB: Final = 2.0**30
_PREFIXES: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
# Megatron-LM and DeepSpeed print their arguments in columns filled with dots.
_DOTS: Final = r"\b{} \.{{2,}} *(\d+)"

# Retries of PyTorch's allocator: since the start of the job, as torchtitan and torch.cuda's statistics report them, or since
# the last step, as DeepSpeed does.
RETRIES: Final = re.compile(
    r"(?P<total>\d+) CUDA memory allocation retries|\bnum_alloc_retries\W{1,4}(?P<counted>\d+)|"
    r"(?P<new>\d+) pytorch allocator cache flushes since last step"
)
# Timers of Megatron-LM by rank (--timing-log-option all): the head of a table, a timer, and a rank's milliseconds.
TIMERS: Final = re.compile(r"^\s*times across ranks \(ms\):")
TIMER: Final = re.compile(r"^  (?P<timer>[\w-]+):$|^ +rank +(?P<rank>\d+): (?P<ms>[\d.]+)$")


@dataclass(frozen=True)
class LogField:
    """A number in a line. pattern: its first group is the number, and its second one, if any, the prefix of its unit: 3.27K.
    factor: to SI units."""

    pattern: re.Pattern[str]
    factor: float = 1.0

    def read(self, line: str) -> float | None:
        """The number in SI units; None if the line does not have it."""
        match = self.pattern.search(line)
        if match is None:
            return None
        prefix = match[2] if match.re.groups > 1 else None
        return float(match[1].replace(",", "")) * self.factor * _PREFIXES[prefix or ""]


@dataclass(frozen=True)
class LogFormat:
    """name: of the software. marks: what a line with times contains. fields: what such a line may report. facts: of the job, in
    other lines. memory: bytes of a GPU, in other lines."""

    name: str
    sample: str
    marks: re.Pattern[str]
    fields: Mapping[Quantity, LogField]
    facts: Sequence[tuple[Fact, re.Pattern[str]]] = ()
    memory: LogField | None = None

    @property
    def key(self) -> str:
        """Name for `--log-format`."""
        return self.name.lower().replace(" ", "-")


def _field(before: str, factor: float = 1.0, after: str = "") -> LogField:
    """The number between two patterns."""
    return LogField(re.compile(f"{before}({_NUMBER}){after}"), factor)


def _human(before: str, factor: float = 1.0) -> LogField:
    """The number after a pattern, which may have a prefix."""
    return LogField(re.compile(rf"{before}({_NUMBER})([KMGBT])?\b"), factor)


def _facts(**patterns: str) -> tuple[tuple[Fact, re.Pattern[str]], ...]:
    return tuple((name, re.compile(pattern)) for name, pattern in patterns.items())  # type: ignore[misc]


TORCHTITAN: Final = LogFormat(
    "torchtitan",
    "[rank0]:[titan] 2026-01-05 10:00:20,000 - root - INFO - step: 20  loss:  6.1250  grad_norm:  1.2500  "
    "memory: 40.50GiB(50.62%)  tps: 6,100  tflops: 353.20  mfu: 35.71%",
    re.compile(r"\bstep: *\d+ .*\btps: *[\d,]+"),
    {
        "iteration": _field(r"\bstep: *"),
        "tokens_per_s_per_gpu": _field(r"\btps: *"),
        "flops_per_s_per_gpu": _field(r"\btflops: *", 1e12),
        "loss": _field(r"\bloss: *"),
        "memory_bytes": _field(r"\bmemory: *", _GIB, "GiB"),
    },
    (
        *_facts(global_batch=r"\bglobal batch size:? (\d+)", sequence=r"\bsequence length:? (\d+)"),
        *_facts(tensor=r"device mesh.*\btp=(\d+)", stages=r"device mesh.*\bpp=(\d+)", context=r"device mesh.*\bcp=(\d+)"),
        *(
            ("gpus_of", re.compile(rf"device mesh.*\b{axis}=(\d+)"))
            for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp")
        ),
        # older releases: Building 2-D device mesh with ['dp_shard', 'tp'], [8, 2]
        *(("gpus_of", re.compile(rf"-D device mesh with \[[^]]*\], \[(?:\d+, *){{{i}}}(\d+)")) for i in range(5)),
    ),
)  # fmt: skip

MEGATRON: Final = LogFormat(
    "Megatron-LM",
    " [2026-01-05 10:00:20] iteration       20/     100 | consumed samples:         5120 | elapsed time per iteration (ms): "
    "5400.0 | throughput per GPU (TFLOP/s/GPU): 412.5 | global batch size:   256 | lm loss: 6.125E+00 |",
    re.compile(r"\biteration +\d+/ *\d+ \|.*\belapsed time per iteration"),
    {
        "iteration": _field(r"\biteration +"),
        "step_s": _field(r"\belapsed time per iteration \(ms\): *", 1e-3),
        "flops_per_s_per_gpu": _field(r"\b(?:throughput per GPU|throughput)[^|:]*(?:TFLOP/s/GPU|TFLOPs)[^|:]*: *", 1e12),
        "loss": _field(r"\blm loss: *"),
        "memory_bytes": _field(r"\bmem-max-allocated-bytes: *"),
    },
    (
        *_facts(global_batch=r"\bglobal batch size: *(\d+)", gpus=_DOTS.format("world_size")),
        *_facts(gpus=r"\busing world size: (\d+)"),
        *_facts(global_batch=_DOTS.format("global_batch_size"), sequence=_DOTS.format("seq_length")),
        *_facts(microbatch=_DOTS.format("micro_batch_size")),
        *_facts(
            tensor=_DOTS.format("tensor_model_parallel_size"),
            stages=_DOTS.format("pipeline_model_parallel_size"),
            context=_DOTS.format("context_parallel_size"),
        ),
    ),
    memory=_field(r"\bmemory \(MB\) \|.*\bmax allocated: *", 2.0**20),
)

NEMO: Final = LogFormat(
    "NeMo",
    "Training epoch 0, iteration 19/99 | lr: 1e-05 | global_batch_size: 256 | global_step: 19 | reduced_train_loss: 6.125 | "
    "train_step_timing in s: 5.4 | consumed_samples: 5120",
    re.compile(r"\btrain_step_timing in s[:=]|\bStep Time *: *[\d.]+ *s\b"),
    {
        "iteration": _field(r"\bglobal_step[:=] *"),
        "step_s": _field(r"(?:\btrain_step_timing in s[:=]|\bStep Time *:) *"),
        "flops_per_s_per_gpu": _field(r"(?:\bTFLOPS_per_GPU[:=]|\bGPU utilization: *) *", 1e12),
        "loss": _field(r"\breduced_train_loss[:=] *"),
        "memory_bytes": _field(r"\bpeak_memory_usage[:=] *"),
    },
    _facts(
        global_batch=r"\bglobal_batch_size: *(\d+)",
        gpus=r"\bStarting with (\d+) processes",
    ),
)

DEEPSPEED: Final = LogFormat(
    "DeepSpeed",
    "[2026-01-05 10:00:20,000] [INFO] [timer.py:264:stop] epoch=0/micro_step=160/global_step=20, RunningAvgSamplesPerSec=47.1, "
    "CurrSamplesPerSec=47.4, MemAllocated=12.5GB, MaxMemAllocated=40.5GB",
    re.compile(r"SamplesPerSec=|\bsteps: *\d+ loss: .*\biter time \(s\):"),
    {
        "iteration": _field(r"(?:\bglobal_step=|\bstop\] \d+/|\bsteps: *)"),
        "samples_per_s": _field(r"(?:\bCurrSamplesPerSec|(?<!Avg)(?<!Curr)SamplesPerSec)="),
        "step_s": _field(r"\biter time \(s\): *"),
        "loss": _field(r"\bloss: *"),
        "memory_bytes": _field(r"\bMaxMemAllocated=", _GIB, "GB"),
    },
    (
        *_facts(global_batch=_DOTS.format("train_batch_size"), gpus=_DOTS.format("world_size")),
        *_facts(sequence=r"\bseq_length\W+(\d+)"),
    ),
)

TRAINER: Final = LogFormat(
    "HF Trainer",
    "{'train_runtime': 540.0, 'train_samples_per_second': 47.4, 'train_steps_per_second': 0.185, 'train_loss': 6.1}",
    re.compile(
        r"'train_samples_per_second'|\btrain_samples_per_second *=|'step_time':|"
        r"^(?!.*\bEpoch \d+: ).*\d+/\d+ \[[\d:]+<[\d:?]+, *[\d.]+ *(?:s/it|it/s)"
    ),
    {
        "iteration": LogField(re.compile(r"(\d+)/\d+ \[[\d:]+<")),
        "iterations": LogField(re.compile(r"\d+/(\d+) \[[\d:]+<")),
        "steps_per_s": LogField(
            re.compile(rf"(?:'train_steps_per_second': *|\btrain_steps_per_second *= *|, *(?=[\d.]+ *it/s))({_NUMBER})")
        ),
        "step_s": LogField(re.compile(r"(?:, *(?=[\d.]+ *s/it)|'step_time': *)([\d.]+)")),
        "samples_per_s": _field(r"(?:'train_samples_per_second':|\btrain_samples_per_second *=) *"),
        "loss": _field(r"'(?:train_)?loss': *"),
    },
    _facts(
        global_batch=r"Total train batch size \(w\. parallel, distributed & accumulation\) = (\d[\d,]*)",
        gpus=r"\bdistributed training.*\bworld size:? (\d+)",
    ),
)

NANOTRON: Final = LogFormat(
    "nanotron",
    "01/05/2026 10:00:20 [INFO|DP=0|PP=0|TP=0|node-0]: iteration: 20 / 100 | consumed_tokens: 21M | "
    "elapsed_time_per_iteration_ms: 5.4K | tokens_per_sec: 194K | tokens_per_sec_per_gpu: 12.1K | global_batch_size: 256 | "
    "lm_loss: 6.12 | model_tflops_per_gpu: 412 | hardware_tflops_per_gpu: 412",
    re.compile(r"\biteration: *\d+ / \d+ \|.*\b(?:elapsed_)?time_per_iteration_ms:"),
    {
        "iteration": _field(r"\biteration: *"),
        "step_s": _human(r"\b(?:elapsed_)?time_per_iteration_ms: *", 1e-3),
        "tokens_per_s": _human(r"\btokens_per_sec: *"),
        "flops_per_s_per_gpu": _human(r"\bmodel_tflops_per_gpu: *", 1e12),
        "loss": _human(r"\blm_loss: *"),
    },
    (
        *_facts(global_batch=r"\bglobal_batch_size: *(\d+)\b", microbatch=r"\bmicro_batch_size[:=] *(\d+)"),
        *_facts(sequence=r"\bsequence_length[:=] *(\d+)"),
        *_facts(tensor=r"\bParallelismArgs\(.*\btp=(\d+)", stages=r"\bParallelismArgs\(.*\bpp=(\d+)"),
        *(("gpus_of", re.compile(rf"\bParallelismArgs\(.*\b{axis}=(\d+)")) for axis in ("dp", "pp", "tp")),
    ),
    memory=LogField(re.compile(rf"\bPeak allocated: ({_NUMBER})MiB"), 2.0**20),
)

LIGHTNING: Final = LogFormat(
    "Lightning",
    "Epoch 0:  20%|##        | 20/100 [01:48<07:12,  0.19it/s, v_num=0, train_loss=6.125]",
    re.compile(r"\bEpoch \d+: .*\d+/\d+ \[[\d:]+<[\d:?]+, *[\d.]+ *(?:s/it|it/s)"),
    {
        "iteration": LogField(re.compile(r"(\d+)/\d+ \[[\d:]+<")),
        "iterations": LogField(re.compile(r"\d+/(\d+) \[[\d:]+<")),
        "steps_per_s": LogField(re.compile(r", *([\d.]+) *it/s")),
        "step_s": LogField(re.compile(r", *([\d.]+) *s/it")),
        "loss": _field(r"\b(?:train_)?loss="),
    },
    _facts(gpus=r"\bStarting with (\d+) processes"),
)

MAXTEXT: Final = LogFormat(
    "MaxText",
    "completed step: 20, seconds: 5.400, TFLOP/s/device: 412.500, Tokens/s/device: 6068.100, total_weights: 2097152, "
    "loss: 6.125",
    re.compile(r"\bcompleted step: *\d+, seconds: *[\d.]+"),
    {
        "iteration": _field(r"\bcompleted step: *"),
        "step_s": _field(r"\bseconds: *"),
        "flops_per_s_per_gpu": _field(r"\bTFLOP/s/device: *", 1e12),
        "tokens_per_s_per_gpu": _field(r"\bTokens/s/device: *"),
        "loss": _field(r"\bloss: *"),
    },
    _facts(gpus=r"\bNum_devices: (\d+)"),
)

# Where two formats have the same lines, the first one is found.
FORMATS: Final = (TORCHTITAN, MEGATRON, NEMO, DEEPSPEED, NANOTRON, LIGHTNING, TRAINER, MAXTEXT)
