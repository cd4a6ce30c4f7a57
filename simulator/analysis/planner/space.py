"""The space of configurations that the planner searches for a scenario."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final, Literal, get_args

from scaleproof.simulator.analysis.planner.estimate import Space
from scaleproof.simulator.analysis.planner.estimate.parameter_servers import PLACEMENTS, ServerSpace
from scaleproof.simulator.analysis.planner.estimate.pipeline_times import CLOSED
from scaleproof.simulator.cluster.host import with_host
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.frameworks import Framework, shipped
from scaleproof.simulator.frameworks.framework import ExpertExchange
from scaleproof.simulator.model.layers import WHOLE, Layer, ModelSpec, Shard, block_range
from scaleproof.simulator.model.recommender.parts import Recommender
from scaleproof.simulator.model.recommender.placement import Tables, divided_with, divisions
from scaleproof.simulator.model.recompute import NO_RECOMPUTE, Recompute
from scaleproof.simulator.parallelism import Hybrid, ParameterServer, Strategy
from scaleproof.simulator.parallelism.mesh import ORDER
from scaleproof.simulator.parallelism.options import Dispatcher
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.scenario.framework_choice import (
    check_attention,
    check_supported,
    default_framework,
    features,
    planned_fields,
    with_training_defaults,
)
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import Offloaded
from scaleproof.simulator.strategy.model_parallel.expert import is_available

_ZERO: Final = (0, 1, 2, 3)
# States that plans offload where nothing fits without, one after another; parameters in ZeRO's stage 3.
_OFFLOAD: Final[tuple[tuple[Offloaded, ...], ...]] = (("optimizer",), ("optimizer", "parameters"))
_CHUNKS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24)
# Kinds of strategies that are planned.
STRATEGIES: Final = ("hybrid", "parameter_server")
_BUCKETS_BYTES: Final = (25 * 2.0**20, 100 * 2.0**20, 400 * 2.0**20)
# Order of mesh axes with pipelines inside nodes, where tensor parallelism leaves room, and replicas across nodes.
_STAGES_FIRST: Final = ("tensor", "context", "stages", "workers")
# Limits beyond practical use: samples of a microbatch, expert-parallel ranks.
_MOST_SAMPLES: Final = 1024
_MOST_EXPERT: Final = 256
# Tokens of a sample above which context parallelism is considered.
_LONG: Final = 16_384
_MOST_CONTEXT: Final = 16


def spaces(
    scenario: Scenario,
    ranks: int,
    schedules: Sequence[ScheduleName] = CLOSED,
    frameworks: Sequence[Framework] | None = None,
    dispatchers: Collection[str] | None = None,
) -> list[Space]:
    """Spaces of each framework, with the ZeRO stages that it supports: one for each way to divide tables, and to send tokens to
    experts.

    frameworks: if None, the scenario's own; if the scenario names no framework, the default ones, each for the layouts of which
    it is the default. dispatchers: of tokens; if None, the scenario's own, or those of the framework that run on the cluster.
    Raises FieldError as `space` does, and InputError for dispatchers that no framework has.
    """
    if unknown := set(dispatchers or ()) - {*get_args(Dispatcher)}:
        names = ", ".join(get_args(Dispatcher))
        raise InputError(f"--dispatchers {','.join(sorted(unknown))}: give some of {names}")
    is_named = frameworks is not None or not scenario.framework_is_default
    named = [scenario.framework] if frameworks is None else frameworks
    named = named if is_named else _defaults(scenario)
    wholes = [space(one, ranks, schedules) for framework in named for one in _in_framework(scenario, framework, ranks)]
    wholes = wholes if is_named else [replace(one, by_default=True) for one in wholes]
    found = [one for whole in wholes for one in _by_exchange(whole, dispatchers)]
    if dispatchers and all(one.expert == (1,) for one in found):
        known = dict.fromkeys(way.dispatcher for one in wholes if one.expert != (1,) for way in _exchanges(one, None))
        hint = f"give some of {', '.join(known)}" if known else "leave it out, as no ranks have different experts"
        raise InputError(f"--dispatchers {','.join(dispatchers)}: no framework of this plan sends tokens so; {hint}")
    return found


def _by_exchange(whole: Space, dispatchers: Collection[str] | None) -> Iterator[Space]:
    """Yields a space divided by ways to send tokens to experts, after that without expert parallelism."""
    divided = tuple(degree for degree in whole.expert if degree > 1)
    if not divided or whole.scenario.cluster.kinds:
        yield whole
        return
    ways = _exchanges(whole, dispatchers)
    if len(ways) == 1 and dispatchers is None:
        yield whole
        return
    yield replace(whole, expert=(1,))
    yield from (replace(whole, expert=divided, tried=way.model_dump()) for way in ways)


def _exchanges(whole: Space, dispatchers: Collection[str] | None) -> list[ExpertExchange]:
    """Ways to send tokens to experts that plans try in a space, the one that it keeps first. Arguments as of `spaces`."""
    scenario, kept = whole.scenario, whole.kept
    own = ExpertExchange(**{name: kept[name] for name in ExpertExchange.model_fields})
    given = scenario.strategy.model_fields_set & ExpertExchange.model_fields.keys()
    shares = any(module.name == "shared_experts" for layer in scenario.layers(WHOLE) for module in layer.modules)
    overlaps = shares and not kept["overlap_experts"]

    def is_tried(way: ExpertExchange) -> bool:
        fixed = given - {"dispatcher"} if dispatchers is not None else given
        is_wanted = way.dispatcher in dispatchers if dispatchers is not None else is_available(way.dispatcher, scenario.cluster)
        is_own = all(getattr(way, name) == getattr(own, name) for name in fixed)
        return is_wanted and is_own and (overlaps or not way.overlap_shared_experts)

    others = filter(is_tried, scenario.framework.exchanges)
    first = [own] if dispatchers is None or own.dispatcher in dispatchers else []
    return list(dict.fromkeys([*first, *others]))


def offloading(scenario: Scenario) -> Iterator[Scenario]:
    """The scenario with more and more states offloaded to hosts, as far as it allows: the optimizer, and parameters."""
    if scenario.strategy.servers or scenario.training.optimizer == "muon" or scenario.cluster.kinds:
        return
    for offload in _OFFLOAD:
        if set(scenario.training.offload) < set(offload):
            training = scenario.training.model_copy(update={"offload": offload})
            yield scenario.model_copy(update={"training": training, "cluster": with_host(scenario.cluster)})


def _defaults(scenario: Scenario) -> list[Framework]:
    """The default frameworks of all layouts, without the bound `ideal` unless it is the only one."""
    layouts = (
        (zero, Hybrid(workers=2, tensor=tensor, context=context, stages=stages, expert=expert))
        for zero, tensor, context, stages, expert in itertools.product(_ZERO, *[(1, 2)] * 4)
    )
    names = dict.fromkeys(default_framework(scenario, strategy, zero).name for zero, strategy in layouts)
    return [shipped(name) for name in names if name != "ideal"] or [shipped("ideal")]


def _in_framework(scenario: Scenario, framework: Framework, ranks: int) -> list[Scenario]:
    """The scenario with another framework, which need not support the scenario's own strategy; with each way to divide its
    tables over `ranks` workers, and without division if it has none itself. Raises FieldError for a precision, kind of
    attention or autocast that the framework does not support."""
    check_supported(framework, features(Hybrid(), scenario.training.precision, 0, scenario.cluster))
    check_attention(framework, scenario.model)
    changed, own = _changed(scenario, framework, Hybrid()), scenario.strategy.plan.tables
    if not isinstance(scenario.model, Recommender):
        return [changed]
    ways = divisions(scenario.model.tables, ranks, own or divided_with(changed.training.optimizer)) if ranks > 1 else []
    # whole tables may not fit into one device
    most_bytes, model = scenario.cluster.device.capacity_bytes, scenario.model
    fitting = (way for way in ways if _table_bytes(model, way, ranks) <= most_bytes)
    divided = (Hybrid(workers=scenario.strategy.workers, tables=way) for way in fitting)
    found = [changed.model_copy(update={"strategy": strategy}) for strategy in divided]
    return found if own is not None and found else [changed, *found]


def _table_bytes(model: ModelSpec, tables: Tables, workers: int) -> float:
    """Bytes of divided tables on the device of the worker with the most."""
    return max(layer.table_bytes for layer in model.build_layers(Shard(tables=tables, workers=workers)))


def _changed(scenario: Scenario, framework: Framework, strategy: Strategy) -> Scenario:
    """The scenario with another framework, and with what that decides of the training of a strategy."""
    training = with_training_defaults(scenario.training, framework, strategy)
    return scenario.model_copy(update={"framework": framework, "training": training})


def space(scenario: Scenario, ranks: int, schedules: Sequence[ScheduleName] = CLOSED) -> Space:
    """The space of hybrid configurations: degrees that divide `ranks` and are supported by the scenario's framework, all
    microbatch sizes, schedules, ZeRO stages, recomputation, buckets, and orders of mesh axes.

    Raises FieldError where the cluster has fewer devices than `ranks`, or the model cannot be cut.
    """
    cluster = scenario.cluster.unplaced
    scenario = scenario.model_copy(update={"cluster": cluster})
    if ranks > cluster.devices:
        nodes = -(-ranks // cluster.node.devices)
        message = f"{ranks} ranks for {cluster.devices} devices; give at most {cluster.devices}, or set cluster.nodes={nodes}"
        raise FieldError(("strategy",), message)
    layers = scenario.layers(WHOLE)
    first, last = block_range(layers)
    total = scenario.total_samples
    long = getattr(scenario.model, "sequence", 0) >= _LONG
    # samples of recommenders are small
    most_samples = max(_MOST_SAMPLES, total // ranks if scenario.strategy.plan.tables else 0)
    own, supports = planned_fields(scenario)["bucket_bytes"], scenario.framework.supports
    mixture = any(layer.expert_parameters for layer in layers) and "expert" in supports
    tensor = [degree for degree in _powers(cluster.node.devices) if _divides(scenario, degree)]
    return Space(
        scenario,
        (ranks,),
        tensor=tuple(tensor if "tensor" in supports else tensor[:1]),
        context=_powers(_MOST_CONTEXT) if long and "context" in supports else (1,),
        expert=_powers(_MOST_EXPERT) if mixture else (1,),
        expert_tensor=tuple(dict.fromkeys((None, 1, scenario.strategy.plan.expert_tensor))) if mixture else (None,),
        stages=tuple(
            stages for stages in range(1, last - first + 1) if ranks % stages == 0 and (stages == 1 or "pipeline" in supports)
        ),
        chunks=_CHUNKS,
        samples=tuple(samples for samples in range(1, min(total, most_samples) + 1) if total % samples == 0),
        # always includes the schedule of configurations without pipeline parallelism
        schedules=tuple(dict.fromkeys((*schedules, *CLOSED[:1]))),
        zero=tuple(
            zero
            for zero in _ZERO[3 if "parameters" in scenario.training.offload else 0 :]
            if (f"zero_{zero}" if zero else "data_parallel") in supports
        ),
        recompute=_recompute(layers),
        sequence_parallel=(False, True),
        buckets_bytes=tuple(sorted({own, *_BUCKETS_BYTES})),
        orders=(ORDER, _STAGES_FIRST),
    )


def on_unequal_nodes(whole: Space) -> Space:
    """The space for nodes of different kinds: with the framework's size of buckets, and experts that are not divided."""
    own = planned_fields(whole.scenario)["bucket_bytes"]
    return replace(whole, buckets_bytes=(own,), expert=(1,), expert_tensor=(None,))


def server_space(
    scenario: Scenario, workers: int, most: int | None, frameworks: Sequence[Framework] | None = None
) -> ServerSpace:
    """The space of configurations with parameter servers: their number, up to the cluster's nodes or `most`, their placement,
    hierarchical summation of gradients, recomputation and buckets.

    frameworks: as in `spaces`; the first that supports parameter servers is used. Raises FieldError if no framework does.
    """
    if most != 0:
        scenario = _with_servers(scenario, workers, frameworks)
    cluster, own = scenario.cluster, scenario.strategy
    worker_nodes = -(-workers // cluster.node.devices)
    limit = max(cluster.nodes - worker_nodes, worker_nodes, min(workers, cluster.node.devices))
    most = limit if most is None else min(most, limit)
    servers = {*_powers(most), *(3 * power for power in _powers(most // 3)), worker_nodes, most, own.servers}
    bucket_bytes = own.bucket_bytes if isinstance(own, ParameterServer) else _BUCKETS_BYTES[0]
    return ServerSpace(
        scenario,
        (workers,),
        tuple(sorted(number for number in servers if 0 < number <= most)),
        PLACEMENTS,
        recompute=_recompute(scenario.layers(WHOLE)),
        buckets_bytes=tuple(sorted({bucket_bytes, *_BUCKETS_BYTES})),
    )


def _with_servers(scenario: Scenario, workers: int, frameworks: Sequence[Framework] | None) -> Scenario:
    """The scenario with a framework that supports parameter servers. Raises FieldError if no given framework does."""
    strategy, training = ParameterServer(workers=workers, servers=1), scenario.training
    needed = features(strategy, training.precision, 0, scenario.cluster)
    if frameworks is None and scenario.framework_is_default:
        frameworks = [default_framework(scenario, strategy, 0)]
    named = [scenario.framework] if frameworks is None else frameworks
    framework = next((one for one in named if needed <= set(one.supports)), named[0])
    check_supported(framework, needed)
    return _changed(scenario, framework, strategy)


def _powers(most: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(most.bit_length()) if 2**power <= most)


def _divides(scenario: Scenario, tensor: int) -> bool:
    try:
        scenario.model.build_layers(Shard(tensor=tensor))
    except FieldError:
        return False
    return True


def _recompute(layers: Sequence[Layer]) -> tuple[Recompute, ...]:
    """Forms of recomputation: none; full if there are activations to recompute; selective if attention stores its scores."""
    if not any(layer.kept for layer in layers if not layer.pinned_to_end):
        return (NO_RECOMPUTE,)
    scores = any(one.group == "attention" for layer in layers for one in layer.kept)
    kinds: tuple[Literal["selective", "full"], ...] = ("selective", "full") if scores else ("full",)
    return (NO_RECOMPUTE, *(Recompute(kind=kind) for kind in kinds))
