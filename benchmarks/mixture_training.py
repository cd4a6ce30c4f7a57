"""Training of DeepSeek-V3, Qwen3 235B-A22B and Mixtral 8x7B as users of Megatron Bridge start it, by cluster and NVLink domain:
throughput, and what limits it.

Layouts are presets of Megatron Bridge (scripts/performance/configs), and DeepSeek's own for H800 (arXiv 2412.19437, sections
3.2 and 4.2). Routing is balanced, as in these presets. No measurement is used.

With --ablations it prints instead how many times as long a step takes without a mechanism, for each recipe that has it.

Run: python benchmarks/mixture_training.py [--ablations]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

_FP8: Final = {"precision": "fp8", "fp8_recipe": "mxfp8"}
_BLOCKS: Final = {"precision": "fp8", "fp8_recipe": "blockwise"}
_UP: Final = {"recompute": {"modules": ["mla_up_proj"]}}
_MORE: Final = {"recompute": {"modules": ["mla_up_proj", "mlp"]}}
_BF16: Final = {"precision": "bf16"}
_INTERLEAVED: Final = {"schedule": "interleaved_1f1b"}
_EIGHT: Final = {"tensor": 2, "stages": 8, "chunks": 4, **_INTERLEAVED}


class Recipe(NamedTuple):
    """A model and how it is trained on a number of GPUs of a kind. samples: of a step."""

    model: str
    gpus: int
    samples: int
    framework: str
    strategy: Mapping[str, Any]
    training: Mapping[str, Any]


# Recipes by kind of GPU.
RECIPES: Final[dict[str, tuple[Recipe, ...]]] = {
    "H800": (
        Recipe("deepseek-v3", 2048, 15360, "deepseek-v3",
               {"stages": 16, "chunks": 2, "schedule": "dualpipe_v", "expert": 64}, {**_BLOCKS, **_UP}),
        Recipe("qwen3-235b-a22b", 256, 2048, "megatron-core-2026",
               {**_EIGHT, "expert": 32, "dispatcher": "alltoall", "overlap_experts": True}, _BF16),
        Recipe("mixtral-8x7b", 64, 256, "megatron-core-2026",
               {"stages": 4, "chunks": 8, **_INTERLEAVED, "expert": 8}, _BF16),
    ),
    "H100": (
        Recipe("deepseek-v3", 1024, 8192, "megatron-core-2026",
               {**_EIGHT, "expert": 64}, {**_BLOCKS, **_MORE}),
        Recipe("qwen3-235b-a22b", 256, 2048, "megatron-core-2026",
               {**_EIGHT, "expert": 32, "dispatcher": "alltoall", "overlap_experts": True}, _BF16),
        Recipe("mixtral-8x7b", 64, 256, "megatron-core-2026",
               {"stages": 4, "chunks": 8, **_INTERLEAVED, "expert": 8}, _BF16),
    ),
    "B200": (
        Recipe("deepseek-v3", 256, 2048, "megatron-core-2026", {"stages": 16, "expert": 8}, {**_FP8, **_UP}),
        Recipe("qwen3-235b-a22b", 64, 1024, "megatron-core-2026",
               {"stages": 8, "chunks": 4, **_INTERLEAVED, "expert": 8, "dispatcher": "alltoall"}, _BF16),
        Recipe("mixtral-8x7b", 64, 256, "megatron-core-2026", {"expert": 8}, _BF16),
    ),
    "GB200": (
        Recipe("deepseek-v3", 256, 2048, "megatron-core-2026-graphs",
               {"stages": 4, "chunks": 4, **_INTERLEAVED, "expert": 64}, {**_FP8, **_UP}),
        Recipe("qwen3-235b-a22b", 64, 1024, "megatron-core-2026-graphs", {"stages": 8, "expert": 8}, _BF16),
        Recipe("mixtral-8x7b", 64, 256, "megatron-core-2026-graphs", {"expert": 8}, _BF16),
    ),
}  # fmt: skip
# Sizes of NVLink domains by kind of GPU.
DOMAINS: Final = {"H800": (8,), "H100": (8,), "B200": (8,), "GB200": (8, 64, 72)}
# By mechanism, the changes that switch it off.
ABLATIONS: Final[dict[str, dict[str, Any]]] = {
    "one copy to each node and rank": {"strategy.dispatcher": "alltoall"},
    "8-bit dispatch": {"strategy.dispatch_precision": "bf16"},
    "overlap with another microbatch": {"strategy.overlap_experts": False},
    "groups of experts": {"model.experts.groups": 1, "model.experts.active_groups": 1},
    "idle devices of a domain": {"cluster.node.used": 72},
    "host time of experts": {"framework.host.expert": "0 us"},
    "host time": {"framework.host.expert": "0 us", "framework.host.kernel": "0 us"},
    "forced balance": {"model.experts.imbalance": "auxiliary_loss"},
}


def cluster_of(gpu: str, domain: int) -> dict[str, Any]:
    """A cluster of this GPU whose NVLink domains have a number of devices, with a network card of 400 Gbit/s each."""
    if gpu == "GB200":
        network = {"bandwidth": f"{400 * domain} Gbit/s"}
        return {
            "base": "gb200-nvl72",
            "nodes": 2048 // domain,
            "node": {"devices": domain, "cards": domain},
            "network": network,
        }
    if gpu == "B200":
        return {"base": "b200-cluster"}
    slower = {"device": "h800-80gb-sxm", "node": {"link": {"bandwidth": "200 GB/s", "latency": "5 us"}}}
    return {"base": "eos-h100", "nodes": 256, **(slower if gpu == "H800" else {})}


def scenario_of(recipe: Recipe, gpu: str, domain: int, changes: Mapping[str, Any] | None = None) -> Scenario:
    """The scenario of a recipe, with changes by field."""
    strategy = {"tensor": 1, "stages": 1, **recipe.strategy}
    strategy |= {"kind": "hybrid", "workers": recipe.gpus // (strategy["tensor"] * strategy["stages"]), "micro_batch_size": 1}
    if strategy["tensor"] > 1:
        strategy |= {"sequence_parallel": True, "expert_tensor": 1}
    parts = {
        "name": recipe.model, "model": {"base": recipe.model}, "cluster": cluster_of(gpu, domain),
        "framework": recipe.framework, "strategy": strategy, "batch": {"total": recipe.samples},
        "training": {"optimizer": "adam", "zero": 1, **recipe.training},
    }  # fmt: skip
    return load(parts, {"model.experts.imbalance": 1.0, **(changes or {})})


def limit_of(run: Run) -> str:
    """What takes the largest share of a step next to the kernels' own time."""
    exposed = sum(part.exposed_s for part in run.communication if part.dimension == "EP")
    other = run.breakdown_s["exposed_communication"] - exposed
    shares = {
        "all-to-alls": exposed, "other communication": other, "bubble": run.breakdown_s["bubble"],
        "host": (run.host_share or 0.0) * run.breakdown_s["compute"],
    }  # fmt: skip
    name = max(shares, key=lambda one: shares[one])
    return f"{name} {shares[name] / run.step_time_s:.0%}"


def rows() -> Iterator[tuple[Recipe, str, int]]:
    """Each recipe on each size of NVLink domain."""
    for gpu, recipes in RECIPES.items():
        yield from ((recipe, gpu, domain) for domain in DOMAINS[gpu] for recipe in recipes)


def print_ablations() -> None:
    """Step times without each mechanism over those with it."""
    cases = [(recipe, gpu, domain) for recipe, gpu, domain in rows() if domain in (8, 72) and (gpu != "GB200" or domain == 72)]
    print(f"| without | {' | '.join(f'{recipe.model}, {gpu}' for recipe, gpu, _ in cases)} |")
    print("|---|" + "--:|" * len(cases))
    with_all = [timed(scenario_of(*case)).step_time_s for case in cases]
    for name, changes in ABLATIONS.items():
        cells = []
        for case, step_s in zip(cases, with_all, strict=True):
            try:
                cells.append(f"{timed(scenario_of(*case, changes)).step_time_s / step_s:.2f}")
            except ScaleproofError:
                cells.append("")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def print_table() -> None:
    """Throughput and limits of all recipes."""
    print(
        "| model | GPUs, of a domain | layout | step | TFLOP/s a GPU | MFU | compute | all-to-alls | bubble | limited most by |"
    )
    print("|---|---|---|--:|--:|--:|--:|--:|--:|---|")
    for recipe, gpu, domain in rows():
        run = predict(scenario_of(recipe, gpu, domain), interval=False, remedy=False)
        plan = recipe.strategy
        layout = f"TP {plan.get('tensor', 1)}, PP {plan.get('stages', 1)}, EP {plan['expert']}, {recipe.training['precision']}"
        experts_s = sum(part.exposed_s for part in run.communication if part.dimension == "EP")
        shares = (run.breakdown_s["compute"], experts_s, run.breakdown_s["bubble"])
        each = (run.model_flops or 0.0) / run.step_time_s / run.compute_ranks / 1e12
        cells = [f"{recipe.model}", f"{recipe.gpus} {gpu}, {domain}", layout, f"{run.step_time_s:.2f} s", f"{each:.0f}"]
        cells += [f"{run.mfu or 0:.0%}", *(f"{one / run.step_time_s:.0%}" for one in shares), limit_of(run)]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Prints the table, or ablations."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ablations", action="store_true")
    print_ablations() if parser.parse_args().ablations else print_table()


if __name__ == "__main__":
    main()
