"""The framework of a scenario: the default, the features that the scenario needs, and the strategy fields that it decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, is_narrow
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.frameworks import Framework, shipped
from scaleproof.simulator.frameworks.files import with_features
from scaleproof.simulator.frameworks.prior import Software, SoftwarePrior, relative_times
from scaleproof.simulator.model.layers import ModelSpec
from scaleproof.simulator.parallelism import (
    DataParallel,
    GatherAverage,
    Hybrid,
    LocalSgd,
    ModelParallel,
    ParameterServer,
    Strategy,
)
from scaleproof.simulator.parallelism.option_rules import decided_by_framework, is_accepted
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy

if TYPE_CHECKING:
    from scaleproof.simulator.scenario.schema import Scenario
    from scaleproof.simulator.scenario.training import Training

# Strategy fields that a framework may decide.
DECIDED: Final = decided_by_framework(Hybrid)
_NAMED_LAST: Final = ("ideal", "gloo-cpu")
# Precisions of training by autocast.
_AUTOCAST: Final = ("bf16", "fp16")
# Maximum number of alternatives in an error message.
_MOST_NAMED: Final = 6


def features(strategy: Strategy, precision: Any, zero: int, cluster: Cluster) -> frozenset[str]:
    """The features that a scenario needs, by the names of `Feature`."""
    plan = strategy.plan
    needed = {
        "parameter_server": isinstance(strategy, ParameterServer) or plan.servers > 0,
        "local_sgd": isinstance(strategy, LocalSgd),
        "gather_average": isinstance(strategy, GatherAverage),
        "model_parallel": isinstance(strategy, ModelParallel),
        "data_parallel": isinstance(strategy, DataParallel | Hybrid) and plan.workers > 1 and zero == 0,
        f"zero_{zero}": zero > 0,
        "tensor": plan.tensor > 1,
        "pipeline": plan.stages > 1 and not isinstance(strategy, ModelParallel),
        "context": plan.context > 1,
        "expert": plan.expert > 1,
        "fp8": precision == "fp8",
        "fp4": precision == "fp4",
        "cpu": cluster.computes_on_processors,
    }
    return frozenset(name for name, is_needed in needed.items() if is_needed)


def default_framework(scenario: Scenario, strategy: Strategy, zero: int) -> Framework:
    """The default framework of a scenario with another strategy and stage of ZeRO."""
    precision, model, cluster = scenario.training.precision, scenario.model, scenario.cluster
    return usual_framework(strategy, precision, zero, model, cluster, scenario.software)


def usual_framework(
    strategy: Strategy, precision: Any, zero: int, model: ModelSpec, cluster: Cluster, software: str = ""
) -> Framework:
    """The default framework: the cluster's, else the usual one of the strategy (table in docs/guides/frameworks.md).

    The first of them that supports the needed features; otherwise `ideal`. software: words for software that does not ship, for
    which the middle of its prior stands.
    """
    needed = features(strategy, precision, zero, cluster)
    if software and not cluster.computes_on_processors and (prior := _prior(needed, model, cluster, software)).names:
        return shipped(prior.middle)
    own = () if cluster.framework is None else (cluster.framework,)
    usual = map(shipped, (*own, *_usual(strategy, precision, zero, model, cluster)))
    return next((one for one in usual if needed <= set(one.supports)), None) or shipped("ideal")


def software_prior(scenario: Scenario) -> SoftwarePrior | None:
    """The frameworks that the software of a scenario may be like, where it names none; None where it does, and for jobs on
    other devices, or of other models, than those that their times are of."""
    if not scenario.framework_is_default or not _has_times(scenario):
        return None
    training, cluster = scenario.training, scenario.cluster
    needed = features(scenario.strategy, training.precision, training.zero, cluster)
    prior = _prior(needed, scenario.model, cluster, scenario.software)
    return prior if len(prior.names) > 1 else None


def _has_times(scenario: Scenario) -> bool:
    """Whether the times of frameworks are of such kernels as a scenario's: of transformers on described GPUs or TPUs."""
    device, name = scenario.cluster.device, scenario.framework.name
    is_described = device.kernels is not None and not device.measured_layers and device.efficiency is None
    is_own = scenario.cluster.framework is not None or scenario.cluster.computes_on_processors
    is_transformer = hasattr(scenario.model, "sequence") and not isinstance(scenario.strategy, CapturedStrategy)
    return is_described and is_transformer and not is_own and name in relative_times(_is_flash(scenario.model))


def _is_flash(model: ModelSpec) -> bool:
    return bool(getattr(model, "flash", True))


def _prior(needed: frozenset[str], model: ModelSpec, cluster: Cluster, words: str) -> SoftwarePrior:
    known, kernels = Software.from_words(words), cluster.device.kernels
    if kernels is not None and kernels.generation == "tpu":
        known = known._replace(kind="jax")
    return SoftwarePrior.of(needed, _is_flash(model), known)


def software_words(scenario: Scenario) -> str:
    """A sentence on software that is not named: what stands for it, how much faster or slower it may be, and what would narrow
    the interval. Empty where the scenario names it."""
    prior, name = software_prior(scenario), scenario.framework.name
    if prior is None:
        return ""
    time = relative_times(_is_flash(scenario.model))[name]
    fastest, slowest = ((prior.times[at] / time - 1) * 100 for at in (0, -1))
    what = f"software {scenario.software!r} does not ship" if scenario.software else "no software is named"
    return (
        f"{what}: {name} stands for {len(prior.names)} frameworks that run this, with compute times of {fastest:+.0f} % "
        f"({prior.names[0]}) to {slowest:+.0f} % ({prior.names[-1]}); name one to narrow the interval, such as "
        f"{', '.join(prior.nearest(time))}"
    )


def software_ends(scenario: Scenario) -> tuple[float, float] | None:
    """Logarithms of the ends of the 90 % interval of unknown software's compute time over the prediction's; None if known."""
    prior = software_prior(scenario)
    return prior and prior.log_ends(relative_times(_is_flash(scenario.model))[scenario.framework.name])


def _usual(strategy: Strategy, precision: Any, zero: int, model: ModelSpec, cluster: Cluster) -> tuple[str, ...]:
    """Names of frameworks, the most usual first."""
    plan, kernels = strategy.plan, cluster.device.kernels
    if cluster.computes_on_processors:
        return ("gloo-cpu",)
    if kernels is not None and kernels.generation == "tpu":
        return ("jax-maxtext",)
    if isinstance(strategy, ParameterServer) or plan.servers:
        return ("tensorflow-1-servers", "gloo-cpu")
    if isinstance(strategy, CapturedStrategy):
        return ("pytorch-fsdp2" if strategy.script.shards else "pytorch-ddp",)
    is_transformer = hasattr(model, "sequence")
    divides = bool(features(strategy, precision, zero, cluster) & {"tensor", "pipeline", "context", "expert"})
    if divides and is_transformer and zero < 2:
        # the recipes of NeMo and Megatron Bridge are made for 8-bit training at scale
        return ("nemo", "megatron-core-0.12") if is_narrow(precision) else ("megatron-core-0.12", "torchtitan")
    by_zero = {0: "pytorch-ddp", 1: "deepspeed-zero", 2: "deepspeed-zero", 3: "pytorch-fsdp2"}
    return by_zero[zero], "torchtitan", "torchtitan-compiled", "megatron-core-0.12"


def check_supported(framework: Framework, needed: frozenset[str]) -> None:
    """Raises FieldError if the framework lacks a needed feature, and names frameworks that have it."""
    missing = sorted(needed - set(framework.supports))
    if not missing:
        return
    # real training software first, by how many use it, then the ideal bound and CPU software
    others = sorted(with_features(needed), key=lambda name: (name in _NAMED_LAST, -_weight(name)))
    hint = f"use {', '.join(others[:_MOST_NAMED])}" if others else "change the strategy, precision or device"
    words = ", ".join(name.replace("_", " ") for name in missing)
    raise FieldError(("framework",), f"{framework.name} does not support {words}; {hint}")


def _weight(name: str) -> float:
    """How many train with a framework; 0 of variants."""
    use = shipped(name).use
    return 0.0 if use is None else use.weight


def check_attention(framework: Framework, model: ModelSpec) -> None:
    """Raises FieldError for a model with flash attention and a framework without it."""
    if getattr(model, "flash", False) and not framework.has_flash:
        message = f"{framework.name} has no flash attention; set model.flash=false, or use a later framework"
        raise FieldError(("framework",), message)


def with_defaults(strategy: Strategy, framework: Framework, zero: int, precision: Any) -> Strategy:
    """The strategy with the framework's values in fields that were not given, where they are accepted; these still count as not
    given, so that another framework decides anew."""
    if not isinstance(strategy, ReplicaStrategy):
        return strategy
    defaults, plan, kind = framework.defaults, strategy.plan, type(strategy)
    values = {name: getattr(defaults, name, None) for name in DECIDED}
    if defaults.keeps_in_pipelines and plan.stages > 1:
        values["reshard"] = False
    if defaults.bucket_parameters is not None:
        parameters = max(defaults.bucket_parameters, defaults.bucket_parameters_per_rank * plan.workers * plan.context)
        values["bucket_bytes"] = parameters * (framework.gradients.reduce.element_bytes(precision) or ELEMENT_BYTES[precision])
    if "bucket_bytes" in strategy.model_fields_set:
        # as in DistributedDataParallel
        values["first_bucket_bytes"] = None
    given = vars(plan) | {"zero": zero}
    applied = {
        name: kind.model_fields[name].default if values[name] is None or not is_accepted(kind, name, given) else values[name]
        for name in decided_by_framework(kind)
        if name not in strategy.model_fields_set
    }
    return strategy.defaulted(applied)


def with_training_defaults(training: Training, framework: Framework, strategy: Strategy) -> Training:
    """The training with what the framework calls selective recomputation, and with its choice of autocast if none was given,
    which still counts as not given. Training without master copies stores parameters in 16 bits, so that nothing is cast.

    Raises FieldError where autocast does not apply.
    """
    recompute = training.recompute.meant_by(framework.selective)
    if recompute is not training.recompute:
        training = training.model_copy(update={"recompute": recompute})
    is_captured = isinstance(strategy, CapturedStrategy)
    applies = training.precision in _AUTOCAST and training.master and not is_captured
    if "autocast" not in training.model_fields_set or training.autocast is None:
        return training.defaulted({"autocast": True if applies and framework.autocast.usual else None})
    field = ("training", "autocast")
    if training.autocast and not training.master:
        raise FieldError(field, "casts 32-bit parameters, which master=false has not; leave out either")
    if training.autocast and not applies:
        what = "the captured script decides" if is_captured else f"not with {training.precision}"
        raise FieldError(field, f"{what}; set training.precision to bf16 or fp16, or leave autocast out")
    if training.autocast and not framework.autocast.is_known:
        raise FieldError(field, f"{framework.name} has no autocast; leave it out, or use pytorch-ddp")
    return training


def planned_fields(scenario: Scenario) -> dict[str, Any]:
    """Values of the strategy fields that a framework may decide, for the hybrids of a planner: those that the scenario's own
    hybrid gives, else the framework's, whether or not they apply to the scenario's own degrees."""
    hybrid = scenario.strategy if isinstance(scenario.strategy, Hybrid) else Hybrid()
    # the planner may have replaced the framework
    own = with_defaults(hybrid, scenario.framework, scenario.training.zero, scenario.training.precision)
    defaults, given = scenario.framework.defaults, own.model_fields_set
    values: dict[str, Any] = {}
    for name in DECIDED:
        by_framework = getattr(defaults, name, None)
        values[name] = getattr(own, name) if name in given or by_framework is None else by_framework
    # if the framework keeps parameters in pipelines, resharding depends on the planned number of stages
    if defaults.keeps_in_pipelines and "reshard" not in given:
        values["reshard"] = None
    # plans divide layers equally
    del values["balance"]
    return values
