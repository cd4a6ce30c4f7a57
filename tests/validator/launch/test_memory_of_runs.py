"""Peak memory of a training step, counted by torch's profiler, compared with the prediction."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.memory import memory
from scaleproof.simulator.memory.activations import segments
from scaleproof.simulator.memory.peak import fullest_passes
from scaleproof.simulator.model import cut_into_stages
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.train.models import models
from scaleproof.validator.train.muon import Muon
from scaleproof.validator.train.narrow_states import NarrowStates
from scaleproof.validator.train.offloaded_activations import Saved
from scaleproof.validator.train.optimizers import build_optimizer
from scaleproof.validator.verify.reference.single_process import SingleProcess
from tests.validator.conftest import MakeScenario

pytestmark = pytest.mark.full

GPT_MINI: dict[str, Any] = {"kind": "gpt", "layers": 4, "hidden": 256, "heads": 4, "vocabulary": 256, "sequence": 64}
MLP_MINI: dict[str, Any] = {"kind": "mlp", "layers": 6, "inputs": 256, "hidden": 1024, "outputs": 256}
ALONE = {"kind": "data_parallel", "workers": 1}
CLOSE = 0.05
SHAPES = [
    (GPT_MINI, 1),
    (GPT_MINI, 3),
    (GPT_MINI, 24),
    (GPT_MINI | {"sequence": 256}, 4),
    (GPT_MINI | {"layers": 2, "hidden": 64, "vocabulary": 4096}, 8),
    (MLP_MINI, 1),
    (MLP_MINI, 256),
    (MLP_MINI, 1024),
    (MLP_MINI | {"layers": 2, "inputs": 2048}, 512),
    (MLP_MINI | {"layers": 3, "hidden": 64, "outputs": 8192}, 128),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other are slow where others compute as well; allocated memory does not depend on them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def size_of(tensors: Iterable[object]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if isinstance(tensor, Tensor))


def batch_of(scenario: Scenario) -> tuple[Tensor, Tensor]:
    spec, samples = scenario.model, scenario.samples_per_worker
    if spec.kind == "gpt":
        return torch.zeros(2, samples, spec.sequence, dtype=torch.int64).unbind()
    return torch.randn(samples, spec.inputs), torch.zeros(samples, dtype=torch.int64)


def peak_bytes(step: Callable[[], None]) -> int:
    """Peak of the bytes allocated by `step`, after two warm-up runs."""
    step()
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        step()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    allocated = torch.tensor([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]).cumsum(0)
    assert allocated[-1] == 0, "a step lets go of all that it takes"
    return int(allocated.max())


def kept_between_steps(module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    if isinstance(optimizer, NarrowStates):
        return size_of(module.parameters()) + optimizer.stored_bytes
    return size_of(module.parameters()) + size_of(value for state in optimizer.state.values() for value in state.values())


@pytest.mark.parametrize(
    ("spec", "samples", "optimizer"),
    [
        *((spec, samples, "sgd") for spec, samples in SHAPES),
        *((spec, samples, optimizer) for spec, samples in SHAPES[::3] for optimizer in ("momentum", "adam")),
    ],
)
def test_peak_memory_of_a_worker_is_predicted(
    make_scenario: MakeScenario, spec: dict[str, Any], samples: int, optimizer: str
) -> None:
    scenario = make_scenario(ALONE, spec, batch=samples, optimizer=optimizer)
    module = nn.Sequential(*models.build(scenario.model, range(len(scenario.model.build_layers())), seed=0))
    updates = build_optimizer(optimizer, module.parameters(), 0.01)
    inputs, targets = batch_of(scenario)
    loss = models.family_of(scenario.model).loss

    def step() -> None:
        loss(module(inputs), targets).backward()
        updates.step()
        updates.zero_grad()

    came_bytes = peak_bytes(step)
    real_bytes = came_bytes + kept_between_steps(module, updates) + size_of([inputs])
    assert memory(scenario).worst.total_bytes == pytest.approx(real_bytes, rel=CLOSE)


@pytest.mark.parametrize(
    "training",
    [{"optimizer": "lion"}, {"optimizer": "muon"}, *({"optimizer": "adam", "state_bits": bits} for bits in (16, 8))],
)
def test_memory_of_states_is_predicted(make_scenario: MakeScenario, training: dict[str, Any]) -> None:
    scenario = make_scenario(ALONE, GPT_MINI, batch=24, **training)
    trained = SingleProcess.of(scenario)
    inputs, targets = batch_of(scenario)

    def step() -> None:
        trained.model.loss(trained.module(inputs), targets).backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()

    came_bytes = peak_bytes(step)
    real_bytes = came_bytes + kept_between_steps(trained.module, trained.optimizer) + size_of([inputs])
    if isinstance(trained.optimizer, Muon):
        real_bytes += size_of(value for state in trained.optimizer.adam.state.values() for value in state.values())
    assert memory(scenario).worst.total_bytes == pytest.approx(real_bytes, rel=CLOSE)


def test_activations_that_are_copied_to_the_host_are_predicted(make_scenario: MakeScenario) -> None:
    """What autograd saves in a block is what a prediction copies."""
    scenario = make_scenario(ALONE, GPT_MINI, batch=24)
    (block,) = models.build(scenario.model, [1], seed=0)
    saved = Saved(block)
    with saved.noting():
        block(torch.randn(24, 64, 256))
    assert job_of(scenario).kept_bytes(24)[1] == pytest.approx(saved.size_bytes, rel=CLOSE)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("spec", "samples"), [(GPT_MINI, 16), (GPT_MINI, 48), (MLP_MINI, 2048)])
def test_peak_memory_of_a_stage_is_predicted(
    make_scenario: MakeScenario, spec: dict[str, Any], samples: int, schedule: str
) -> None:
    """The first of two stages, with the gradients of all microbatches' outputs in buffers of their own."""
    strategy = {"kind": "pipeline", "stages": 2, "microbatches": 8, "schedule": schedule}
    scenario = make_scenario(strategy, spec, batch=samples, optimizer="momentum")
    layers = cut_into_stages(scenario.model.build_layers(), 2)[0]
    module = nn.Sequential(*models.build(scenario.model, layers, seed=0))
    updates = build_optimizer("momentum", module.parameters(), 0.01)
    inputs = batch_of(scenario)[0].chunk(8)
    slopes = [torch.zeros_like(module(part)) for part in inputs]
    ahead = int(fullest_passes(schedule, 2, 0, 8, 1).most[0])

    def step() -> None:
        outputs = [module(part) for part in inputs[:ahead]]
        for part, slope in zip([*inputs[ahead:], *[None] * ahead], slopes, strict=True):
            outputs.pop(0).backward(slope)
            if part is not None:
                outputs.append(module(part))
        updates.step()
        updates.zero_grad()

    came_bytes = peak_bytes(step)
    real_bytes = came_bytes + kept_between_steps(module, updates) + size_of([*slopes, *inputs])
    assert memory(scenario).ranks[0].total_bytes == pytest.approx(real_bytes, rel=CLOSE)


@pytest.mark.parametrize(
    ("spec", "samples", "every"),
    [(GPT_MINI, 8, 1), (GPT_MINI | {"layers": 5}, 8, 2), (MLP_MINI, 1024, 3)],
)
def test_peak_memory_with_recomputation_is_predicted(
    make_scenario: MakeScenario, spec: dict[str, Any], samples: int, every: int
) -> None:
    """Layers checkpointed in groups of `every`, but for those that are pinned_to_end."""
    scenario = make_scenario(ALONE, spec, batch=samples, optimizer="momentum", recompute={"group": every})
    layers = scenario.model.build_layers()
    modules = models.build(scenario.model, range(len(layers)), seed=0)
    number = segments(layers, scenario.training.recompute).tolist()
    parts = [
        (
            layers[number.index(one)].pinned_to_end,
            nn.Sequential(*(m for m, own in zip(modules, number, strict=True) if own == one)),
        )
        for one in dict.fromkeys(number)
    ]
    updates = build_optimizer("momentum", nn.ModuleList(modules).parameters(), 0.01)
    inputs, targets = batch_of(scenario)
    loss = models.family_of(scenario.model).loss

    def forward(passed: Tensor) -> Tensor:
        for is_pinned, part in parts:
            passed = part(passed) if is_pinned else checkpoint(part, passed, use_reentrant=False)
        return passed

    def step() -> None:
        loss(forward(inputs), targets).backward()
        updates.step()
        updates.zero_grad()

    came_bytes = peak_bytes(step)
    real_bytes = came_bytes + kept_between_steps(nn.ModuleList(modules), updates) + size_of([inputs])
    assert memory(scenario).worst.total_bytes == pytest.approx(real_bytes, rel=0.01)


class Block(nn.Module):
    """A block of a Llama without rotation, eager."""

    def __init__(self, hidden: int, heads: int, key_heads: int, feedforward: int) -> None:
        super().__init__()
        keys = hidden // heads * key_heads
        self.heads = (heads, key_heads, key_heads)
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(hidden, width, bias=False) for width in (hidden, keys, keys))
        self.projection, self.gating, self.up, self.down = (
            nn.Linear(*widths, bias=False)
            for widths in ((hidden, hidden), (hidden, feedforward), (hidden, feedforward), (feedforward, hidden))
        )

    def forward(self, passed: Tensor) -> Tensor:
        samples, tokens, hidden = passed.shape
        normed = self.norms[0](passed)
        each = (one(normed).view(samples, tokens, n, -1).transpose(1, 2) for one, n in zip(self.qkv, self.heads, strict=True))
        mixed = functional.scaled_dot_product_attention(*each, is_causal=True, enable_gqa=True)
        passed = passed + self.projection(mixed.transpose(1, 2).reshape(samples, tokens, hidden))
        normed = self.norms[1](passed)
        return passed + self.down(functional.silu(self.gating(normed)) * self.up(normed))


def every_second_product() -> Any:
    """What torchtitan's selective recomputation hands to torch's: attention is kept, and of products those with odd numbers."""
    counts = {True: 0, False: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        is_product = operator is torch.ops.aten.mm.default
        counts[context.is_recompute] += is_product
        attends = operator is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        keeps = attends or (is_product and counts[context.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


@pytest.mark.parametrize(
    ("spec", "samples"),
    [
        ({"layers": 16, "hidden": 128, "heads": 8, "key_heads": 2, "feedforward": 448, "vocabulary": 64, "sequence": 128}, 4),
        ({"layers": 6, "hidden": 64, "heads": 4, "key_heads": 2, "feedforward": 224, "vocabulary": 4096, "sequence": 64}, 16),
    ],
)
def test_peak_memory_with_every_second_product_kept_is_predicted(
    make_scenario: MakeScenario, spec: dict[str, Any], samples: int
) -> None:
    training = {"optimizer": "momentum", "recompute": {"products": "every_second"}}
    scenario = make_scenario(ALONE, {"kind": "llama", **spec}, batch=samples, **training)
    widths = spec["hidden"], spec["heads"], spec["key_heads"], spec["feedforward"]
    module = nn.Sequential(
        nn.Embedding(spec["vocabulary"], spec["hidden"]),
        *(Block(*widths) for _ in range(spec["layers"])),
        nn.RMSNorm(spec["hidden"]),
        nn.Linear(spec["hidden"], spec["vocabulary"], bias=False),
    )
    updates = build_optimizer("momentum", module.parameters(), 0.01)
    inputs = torch.zeros(samples, spec["sequence"], dtype=torch.int64)

    def forward(tokens: Tensor) -> Tensor:
        passed = module[0](tokens)
        for block in module[1:-2]:
            passed = checkpoint(block, passed, use_reentrant=False, context_fn=every_second_product)
        return module[-1](module[-2](passed))

    def step() -> None:
        functional.cross_entropy(forward(inputs).flatten(0, 1), inputs.flatten()).backward()
        updates.step()
        updates.zero_grad()

    came_bytes = peak_bytes(step)
    real_bytes = came_bytes + kept_between_steps(module, updates) + size_of([inputs])
    assert memory(scenario).worst.total_bytes == pytest.approx(real_bytes, rel=CLOSE)


def published_runs() -> list[dict[str, str]]:
    """The first of the rows with 1F1B's memory, for each model and number of microbatches."""
    with (Path(__file__).parents[3] / "scenarios" / "published" / "pipeline_schedules.csv").open(newline="") as table:
        rows = [row for row in csv.DictReader(table) if row["schedule"] == "1F1B" and row["memory_GB"]]
    return list({(row["model"], row["microbatches"]): row for row in rows[::-1]}.values())


@pytest.mark.parametrize("row", published_runs(), ids=lambda row: f"{row['model']} {row['microbatches']}")
def test_peak_memory_of_published_pipelines_is_predicted(row: dict[str, str]) -> None:
    """arXiv 2401.10241, tables 4 and 12: GPTs on eight A100, trained by Megatron-LM, the largest peak of what is allocated.

    Heads as in table 3; the first and the last stage have a layer less than the others; Transformer Engine is not used, and
    gradients of fp16 runs are added in 16 bits.
    """
    layers, hidden, stages = int(row["layers"]), int(row["hidden"]), int(row["stages"])
    each = (layers + 2) // stages
    framework = shipped("megatron-core-0.12")
    behaviour = framework.memory.model_copy(update={"stand_ins": False})
    scenario = Scenario.model_validate(
        {
            "model": {
                "kind": "gpt", "layers": layers, "hidden": hidden, "heads": {2304: 24, 4096: 32}[hidden], "vocabulary": 50304,
                "sequence": int(row["seq_len"]), "dropout": True, "flash": False, "tied": True,
            },
            "cluster": load_cluster("selene-a100"),
            "framework": framework.model_copy(update={"memory": behaviour}),
            "strategy": {
                "kind": "hybrid", "stages": stages, "microbatches": int(row["microbatches"]),
                "balance": [each - 1, *[each] * (stages - 2), each - 1],
            },
            "batch": {"total": int(row["microbatches"]) * int(row["microbatch_seqs"])},
            "training": {"precision": "fp16", "optimizer": "adam", "accumulate_precision": "fp16"},
        }
    )  # fmt: skip
    predicted_bytes = max(rank.allocated_bytes for rank in memory(scenario).ranks)
    assert predicted_bytes == pytest.approx(float(row["memory_GB"]) * 1e9, rel=CLOSE)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (
            {"optimizer": "lamb", "zero": 1},
            "training.optimizer: lamb with divided parameters is predicted but not measured: its update of an element depends "
            "on the whole tensor, of which ranks that shard have a part; give one of sgd, momentum, adam",
        ),
        (
            {"fused_accumulation": True},
            "training.fused_accumulation is predicted but not measured: torch's products do not add gradients",
        ),
    ],
)
def test_memory_savings_that_are_only_predicted_are_rejected(
    make_scenario: MakeScenario, training: dict[str, Any], message: str
) -> None:
    scenario = make_scenario({"kind": "data_parallel", "workers": 2}, **training)
    with pytest.raises(InputError) as caught:
        check_trainable(scenario)
    assert message in str(caught.value)
