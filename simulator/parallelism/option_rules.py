"""Rules of options: where an option of a strategy has an effect, and the error for another value than its default elsewhere.

Rules annotate the field of their option (`options.py`), next to its default and description. The errors of scenarios, the
options that a framework decides, the planner's space, the explorer's switches and the reference read them there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Spec

# Annotates options that a framework decides where a scenario leaves them out.
BY_FRAMEWORK: Final = object()


@dataclass(frozen=True, eq=False)
class Rule:
    """A condition for an option to have an effect, such as "tensor > 1 and stages > 1".

    needs: an expression of Python over fields of the Plan, whether it `averages`, `zero` of the training, and the number of
    `nodes` of the ranks. reason, remedy: the error elsewhere, in which braces contain names of values or `value`, that of the
    option; no error if the reason is None.
    """

    needs: str
    reason: str | None = None
    remedy: str = "leave it out"

    @functools.cached_property
    def _code(self) -> CodeType:
        return compile(self.needs, self.needs, "eval")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values that are needed."""
        return self._code.co_names

    def is_broken(self, given: Mapping[str, Any]) -> bool:
        """Whether the condition is false for given values; rules are not broken if one of the needed values is not given."""
        # rules are constants of this program
        return given.keys() >= set(self.names) and not eval(self._code, {}, given)  # noqa: S307

    def message(self, value: object, given: Mapping[str, Any]) -> str:
        """The error for a value of the option."""
        return f"{self.reason}; {self.remedy}".format(value=value, **given)


@functools.cache
def rules_of(strategy: type[Spec]) -> Mapping[str, tuple[Rule, ...]]:
    """Rules by the names of the options of a class of strategies."""
    rules = {name: tuple(one for one in info.metadata if isinstance(one, Rule)) for name, info in strategy.model_fields.items()}
    return {name: of_option for name, of_option in rules.items() if of_option}


@functools.cache
def decided_by_framework(strategy: type[Spec]) -> tuple[str, ...]:
    """Names of the options of a class of strategies that a framework decides where a scenario leaves them out."""
    return tuple(name for name, info in strategy.model_fields.items() if BY_FRAMEWORK in info.metadata)


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
