"""The framework of a scenario: the default, the features that the scenario needs, and the strategy fields that it decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, is_narrow
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.frameworks import Framework, shipped
from scaleproof.simulator.frameworks.files import with_features
from scaleproof.simulator.model.layers import ModelSpec
from scaleproof.simulator.parallelism import (
    DataParallel,
    GatherAverage,
    Hybrid,
    LocalSgd,
    ModelParallel,
    ParameterServer,
    Pipeline,
    Strategy,
)
from scaleproof.simulator.parallelism.option_rules import decided_by_framework, is_accepted

if TYPE_CHECKING:
    from scaleproof.simulator.scenario.schema import Scenario
    from scaleproof.simulator.scenario.training import Training

# Strategy fields that a framework may decide.
DECIDED: Final = decided_by_framework(Hybrid)
# The same of training.
DECIDED_OF_TRAINING: Final = ("autocast",)
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


def default_framework(strategy: Strategy, precision: Any, zero: int, model: ModelSpec, cluster: Cluster) -> Framework:
    """The default framework: the cluster's, else the usual one of the strategy (table in docs/guides/frameworks.md).

    The first of them that supports the needed features; otherwise `ideal`.
    """
    needed = features(strategy, precision, zero, cluster)
    own = () if cluster.framework is None else (cluster.framework,)
    usual = map(shipped, (*own, *_usual(strategy, precision, zero, model, cluster)))
    return next((one for one in usual if needed <= set(one.supports)), None) or shipped("ideal")


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
    # real training software first, then the ideal bound and CPU software
    others = sorted(with_features(needed), key=lambda name: name in _NAMED_LAST)
    hint = f"use {', '.join(others[:_MOST_NAMED])}" if others else "change the strategy, precision or device"
    words = ", ".join(name.replace("_", " ") for name in missing)
    raise FieldError(("framework",), f"{framework.name} does not support {words}; {hint}")


def check_attention(framework: Framework, model: ModelSpec) -> None:
    """Raises FieldError for a model with flash attention and a framework without it."""
    if getattr(model, "flash", False) and not framework.has_flash:
        message = f"{framework.name} has no flash attention; set model.flash=false, or use a later framework"
        raise FieldError(("framework",), message)


def decided(framework: Framework, strategy: Strategy, zero: int, precision: Any) -> dict[str, Any]:
    """Values that the framework decides for strategy fields that a scenario leaves out, where they are accepted."""
    defaults, plan, kind = framework.defaults, strategy.plan, type(strategy)
    values = {name: getattr(defaults, name) for name in DECIDED if name != "reshard"}
    values["reshard"] = False if defaults.keeps_in_pipelines and plan.stages > 1 else None
    if defaults.bucket_parameters is not None:
        parameters = max(defaults.bucket_parameters, defaults.bucket_parameters_per_rank * plan.workers * plan.context)
        values["bucket_bytes"] = parameters * (framework.gradients.reduce.element_bytes(precision) or ELEMENT_BYTES[precision])
    given = {**vars(plan), "zero": zero}
    return {name: value for name, value in values.items() if value is not None and is_accepted(kind, name, given)}


def with_defaults(strategy: Strategy, framework: Framework, zero: int, precision: Any) -> Strategy:
    """The strategy with the framework's values in fields that were not given; these still count as not given."""
    if not isinstance(strategy, DataParallel | Hybrid | Pipeline):
        return strategy
    fields, given = type(strategy).model_fields, frozenset(strategy.model_fields_set)
    free = {name: fields[name].default for name in DECIDED if name in fields and name not in given}
    values = decided(framework, strategy, zero, precision)
    if "bucket_bytes" in given:
        # as in DistributedDataParallel
        values.pop("first_bucket_bytes", None)
    # they count as not given, so that another framework decides anew
    return strategy.defaulted({name: values.get(name, default) for name, default in free.items()})


def _with_autocast(training: Training, framework: Framework, strategy: Strategy) -> Training:
    """The training with the framework's choice of autocast if none was given, which still counts as not given. Training without
    master copies stores parameters in 16 bits, so that nothing is cast. Raises FieldError where autocast does not apply."""
    applies = training.precision in _AUTOCAST and training.master and not isinstance(strategy, CapturedStrategy)
    if "autocast" not in training.model_fields_set or training.autocast is None:
        return training.defaulted({"autocast": True if applies and framework.autocast.usual else None})
    if training.autocast and not applies:
        if not training.master:
            raise FieldError(("training", "autocast"), "casts 32-bit parameters, which master=false has not; leave out either")
        what = "the captured script decides" if isinstance(strategy, CapturedStrategy) else f"not with {training.precision}"
        raise FieldError(("training", "autocast"), f"{what}; set training.precision to bf16 or fp16, or leave autocast out")
    if training.autocast and not framework.autocast.is_known:
        message = f"{framework.name} has no autocast; leave it out, or use pytorch-ddp"
        raise FieldError(("training", "autocast"), message)
    return training


def with_training_defaults(training: Training, framework: Framework, strategy: Strategy) -> Training:
    """The training with the framework's choice of autocast, and what it calls selective recomputation. Raises FieldError where
    autocast does not apply."""
    recompute = training.recompute.meant_by(framework.selective)
    if recompute is not training.recompute:
        training = training.model_copy(update={"recompute": recompute})
    return _with_autocast(training, framework, strategy)


def planned_fields(scenario: Scenario) -> dict[str, Any]:
    """Values of the strategy fields that a framework may decide, for the hybrids of a planner: those that the scenario's own
    hybrid gives, else the framework's, whether or not they apply to the scenario's own degrees."""
    hybrid, training = scenario.strategy if isinstance(scenario.strategy, Hybrid) else Hybrid(), scenario.training
    # the planner may have replaced the framework
    own: Any = with_defaults(hybrid, scenario.framework, training.zero, training.precision)
    given = own.model_fields_set
    defaults = scenario.framework.defaults
    values: dict[str, Any] = {}
    for name in (name for name in DECIDED if name not in ("reshard", "balance")):
        by_framework = getattr(defaults, name)
        values[name] = getattr(own, name) if name in given or by_framework is None else by_framework
    # if the framework keeps parameters in pipelines, resharding depends on the planned number of stages
    decides = defaults.keeps_in_pipelines and "reshard" not in given
    return values | {"reshard": None if decides else own.reshard}
