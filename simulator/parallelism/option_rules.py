"""Rules of options: where an option of a strategy has an effect, and the error for another value than its default elsewhere.

A rule annotates the field of its option, next to the default and the description. The errors of scenarios, the options that a
framework decides, the planner's space and the lines of a plan read it there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import MAX_WIDTH, Spec


@dataclass(frozen=True, eq=False)
class Rule:
    """Ranges of other values within which an option has an effect.

    needs: ranges by the names of values: fields of the Plan and whether it `averages`, `zero` of the training, and the number
    of `nodes` of the ranks. reason, remedy: the error elsewhere, in which braces contain names of values or `value`, that of
    the option; no error if the reason is None.
    """

    needs: Mapping[str, range]
    reason: str | None = None
    remedy: str = "leave it out"

    def is_broken(self, given: Mapping[str, Any]) -> bool:
        """Whether given values are outside their ranges; rules are not broken if one of the needed values is not given."""
        return self.needs.keys() <= given.keys() and any(given[name] not in values for name, values in self.needs.items())

    def message(self, value: object, given: Mapping[str, Any]) -> str:
        """The error for a value of the option."""
        return f"{self.reason}; {self.remedy}".format(value=value, **given)


@functools.cache
def rules_of(strategy: type[Spec]) -> Mapping[str, tuple[Rule, ...]]:
    """Rules by the names of the options of a class of strategies."""
    found = {name: tuple(one for one in info.metadata if isinstance(one, Rule)) for name, info in strategy.model_fields.items()}
    return {name: rules for name, rules in found.items() if rules}


def is_accepted(strategy: type[Spec], option: str, given: Mapping[str, Any]) -> bool:
    """Whether an option of a class of strategies may differ from its default with the given values."""
    return not any(rule.is_broken(given) for rule in rules_of(strategy).get(option, ()) if rule.reason is not None)


def has_effect(strategy: type[Spec], option: str, given: Mapping[str, Any]) -> bool:
    """Whether an option of a class of strategies may have an effect with the given values."""
    return not any(rule.is_broken(given) for rule in rules_of(strategy).get(option, ()))


def check_options(strategy: Spec, given: Mapping[str, Any]) -> None:
    """Checks that options that are not accepted with the given values have their defaults; raises FieldError."""
    fields = type(strategy).model_fields
    for name, rules in rules_of(type(strategy)).items():
        value = getattr(strategy, name)
        broken = next((rule for rule in rules if rule.reason is not None and rule.is_broken(given)), None)
        if broken is not None and value != fields[name].default:
            raise FieldError(("strategy", fields[name].alias or name), broken.message(value, given))


_NONE: Final = range(1)
_SEVERAL: Final = range(2, MAX_WIDTH + 1)

# Division of layers and samples over ranks
CHUNKS: Final = Rule(
    {"stages": _SEVERAL},
    "{value} chunks need several pipeline stages", "set strategy.stages, or set chunks: 1 and schedule: 1f1b",
)  # fmt: skip
COUNTED_END: Final = Rule({"stages": _SEVERAL}, "there is one stage of the model")
SPLIT_SENDS: Final = Rule(
    {"tensor": _SEVERAL, "stages": _SEVERAL},
    "needs tensor-parallel ranks and several stages", "set strategy.tensor and strategy.stages, or leave it out",
)  # fmt: skip
TENSOR: Final = Rule({"tensor": _SEVERAL}, "has no effect without tensor parallelism", "set strategy.tensor, or leave it out")
SEQUENCE: Final = Rule(
    {"sequence_parallel": range(1, 2)},
    "needs the collectives of sequence parallelism", "set strategy.sequence_parallel=true, or leave it out",
)  # fmt: skip
CONTEXT: Final = Rule(
    {"context": _SEVERAL}, "has no effect without context parallelism", "set strategy.context, or leave it out"
)
EXPERT: Final = Rule({"expert": _SEVERAL}, "has no effect without expert parallelism", "set strategy.expert, or leave it out")
OTHER_MICROBATCH: Final = Rule(
    {"microbatches": _SEVERAL},
    "needs another microbatch to compute meanwhile", "set strategy.microbatches, or leave it out",
)  # fmt: skip
OTHER_NODE: Final = Rule(
    {"nodes": _SEVERAL},
    "all {ranks} ranks are on one node", "set more ranks or fewer cluster.node.devices, or leave it out",
)  # fmt: skip

STAGES: Final = Rule({"stages": _SEVERAL})

# Averages of gradients, and shards of states
AVERAGES: Final = Rule(
    {"servers": _NONE}, "has no effect with servers, which sum gradients themselves", "leave it or servers out"
)
WHOLE_GRADIENTS: Final = Rule(
    {"zero": _NONE},
    "not supported for gradients that are reduce-scattered", "leave compression or training.zero out",
)  # fmt: skip
SHARDS: Final = Rule({"zero": range(1, 4)}, "nothing is sharded", "set training.zero to 1, 2 or 3")
GATHERS_UPDATED: Final = Rule(
    {"zero": range(1, 3)},
    "parameters are not all-gathered after a step", "set training.zero to 1 or 2, or leave it out",
)  # fmt: skip
SCATTERS: Final = Rule(
    {"zero": range(2, 4)}, "gradients are not reduce-scattered", "set training.zero to 2 or 3, or leave it out"
)
GATHERS_LAYERS: Final = Rule({"zero": range(3, 4)}, "parameters are not all-gathered", "set training.zero=3, or leave it out")
REPLICAS: Final = Rule({"averages": range(1, 2)})
BUCKETS: Final = Rule({"zero": range(3)})
