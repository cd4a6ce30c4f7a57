"""Refuses scenarios that can be predicted but not trained, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import T5, ModelSpec, Siamese, Traced
from scaleproof.simulator.model.layers import WHOLE, kind_of
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.simulator.parallelism.compression import PowerSgd, TopK
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.preflight import refusals
from scaleproof.validator.launch.preflight.capabilities import check_strategy, trains_by_layers
from scaleproof.validator.launch.preflight.perturbation_checks import check_perturbations

PRECISIONS: Final = ("fp64", "fp32", "bf16", "fp16")
# Optimizers that update each element by itself.
OPTIMIZERS: Final = ("sgd", "momentum", "adam")


def check_trainable(scenario: Scenario) -> None:
    """Raises InputError where `scenario` cannot be trained."""
    try:
        _check(scenario)
    except InputError as error:
        raise InputError(f"{scenario.name}: {error}") from None


def _check(scenario: Scenario) -> None:
    _check_model(scenario)
    check_strategy(scenario)
    _check_precision(scenario)
    _check_optimizer(scenario)
    if scenario.training.offload == ("parameters",):
        message = f"of parameters alone is predicted but not measured: {refusals.HOST_PARAMETERS}"
        raise InputError(f"training.offload {message}; give [optimizer, parameters] to measure")
    if "parameters" in scenario.training.offload and not scenario.strategy.plan.averages:
        message = f"of parameters by one worker is predicted but not measured: {refusals.UNSHARDED}"
        raise InputError(f"training.offload {message}; give several workers, or [optimizer], to measure")
    if scenario.training.precision == "fp16" and isinstance(scenario.strategy.plan.compression, PowerSgd | TopK):
        message = f"with training.precision=fp16 is predicted but not measured: {refusals.SCALED_RESTS}"
        raise InputError(f"strategy.compression {message}; give another precision, or leave compression out")
    check_perturbations(scenario)
    _check_data(scenario)


def _check_precision(scenario: Scenario) -> None:
    """Raises InputError where the machine has no products in the training precision, and compute is not emulated."""
    precision = scenario.training.precision
    if precision not in PRECISIONS and scenario.compute == "real":
        message = f"{precision} is predicted but not measured: {refusals.PRECISIONS[precision]}"
        raise InputError(f"training.precision: {message}; give one of {', '.join(PRECISIONS)}, or set compute=paced")
    if scenario.training.autocast:
        message = f"of {scenario.framework.name} is predicted but not measured: {refusals.AUTOCAST}"
        raise InputError(f"training.autocast {message}; set training.autocast=false")
    if scenario.training.zero == 3 and precision == "fp8" and scenario.framework.fp8_gathers:
        message = f"fp8 with zero 3 by {scenario.framework.name} is predicted but not measured: {refusals.GATHERED_BYTES}"
        raise InputError(f"training.precision: {message}; give bf16, or another framework")


def _check_optimizer(scenario: Scenario) -> None:
    """Raises InputError where the optimizer needs whole tensors, and ranks update parts of them."""
    optimizer, plan = scenario.training.optimizer, scenario.strategy.plan
    divides = scenario.training.zero > 0 or plan.tensor > 1 or scenario.strategy.servers > 0
    if optimizer not in OPTIMIZERS and divides:
        message = f"{optimizer} with divided parameters is predicted but not measured: {refusals.WHOLE_TENSORS}"
        raise InputError(f"training.optimizer: {message}; give one of {', '.join(OPTIMIZERS)}")


def _check_model(scenario: Scenario) -> None:
    """Raises InputError where ranks cannot train parts of the scenario's model as its strategy divides it."""
    model, plan = scenario.model, scenario.strategy.plan
    is_paced = scenario.compute == "paced"
    shares_weights = getattr(model, "tied", False) or isinstance(model, Siamese | T5) or getattr(model, "pretraining", False)
    if is_paced:
        # of emulated models, towers alone share their weights, which ZeRO 1 and 2 do not shard
        shares_weights = isinstance(model, Siamese) and scenario.training.zero == 3
    if shares_weights and scenario.training.zero:
        raise InputError(f"training.zero: {refusals.TIED_SHARDS}; leave it out, or give a model without shared weights")
    if isinstance(model, Traced) and trains_by_layers(scenario) and any(one.frozen_parameters for one in model.build_layers()):
        raise InputError(f"model.source: {refusals.FROZEN}; give data_parallel without zero and recomputation")
    if is_paced:
        return
    if shares_weights and plan.servers and scenario.strategy.kind == "hybrid":
        raise InputError(f"strategy.servers: {refusals.TIED_SERVERS}; leave them out, or give a model without shared weights")
    if isinstance(model, Traced):
        _check_traced(scenario, model)
    if plan.shard._replace(expert=1) != WHOLE:
        _check_division(model, plan)


def _check_traced(scenario: Scenario, model: Traced) -> None:
    """Raises InputError where a user's module cannot be trained, or not be divided into layers. Imports torch, as tracing
    has."""
    from scaleproof.validator.train.models import traced

    traced.check_dense(model)
    if not trains_by_layers(scenario):
        return
    if scenario.training.recompute.kind == "selective":
        raise InputError("training.recompute: a user's modules have no names of parts; give full, or leave it out")
    if scenario.strategy.plan.shares is not None:
        raise InputError("strategy.shares: a user's module is divided for batches of one size; leave it out")
    traced.check_divisible(model)
    if scenario.training.zero == 3 and scenario.strategy.plan.averages:
        traced.check_shardable(model)


def _check_division(model: ModelSpec, plan: Plan) -> None:
    """Raises InputError where ranks cannot share the layers or tokens of a model."""
    paced = "set compute=paced"
    field = "tensor" if plan.tensor > 1 else "context"
    if not isinstance(model, Transformer):
        raise InputError(f"strategy.{field}: real layers of a {kind_of(model)} cannot be divided; leave it out, or {paced}")
    if model.latent is not None:
        raise InputError(f"strategy.{field}: {refusals.LATENT}; leave it out, or {paced}")
    key_heads = model.key_heads or model.heads
    shared = plan.tensor * (plan.context if plan.context_by == "ulysses" else 1)
    if key_heads % shared:
        raise InputError(
            f"strategy.{field}: real ranks have whole heads of keys, of which there are {key_heads}; give a divisor"
        )
    if plan.context > 1 and plan.context_by != "ulysses" and (model.window or model.dropout or not model.flash):
        raise InputError(f"strategy.context: {refusals.CONTEXT}; give context_by=ulysses, or {paced}")


def _check_data(scenario: Scenario) -> None:
    """Raises InputError where the data file is missing, too short, or not suited to the model."""
    if scenario.training.data is None:
        return
    path, model = Path(scenario.training.data), scenario.model
    if not isinstance(model, Transformer):
        raise InputError(f"training.data: {path} is text, which a model of kind {model.kind} cannot read; leave data out")
    try:
        size_bytes = path.stat().st_size if path.is_file() else None
    except OSError:
        size_bytes = None
    if size_bytes is None:
        raise InputError(
            f"training.data: {path}: no such file; give the path of a text file, or leave data out for random tokens"
        )
    if size_bytes <= model.sequence:
        raise InputError(
            f"training.data: {path} has {size_bytes} bytes; give at least {model.sequence + 1}, one sequence and a byte"
        )
