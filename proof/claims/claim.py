"""A claim: a sentence, the scenarios that test it, and the bound that decides; read from YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from scaleproof.proof.claims.quantities import KINDS
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import NotFoundError, ScenarioError
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.yaml_file import Located

FOLDER: Final = "claims"
# what stands for an axis' value in overrides
_HERE: Final = "$x"
_MOST_VALUES: Final = 100

Name = Annotated[str, Field(min_length=1, max_length=80)]
Overrides = Annotated[Mapping[str, Any], Field(description=f"fields and their values, in which {_HERE} is the axis' value")]
Place = int | float | tuple[int, ...] | str


def _known(quantity: str) -> str:
    if quantity not in KINDS:
        raise ValueError(f"no quantity is called {quantity!r}; give one of {', '.join(KINDS)}")
    return quantity


Read = Annotated[str, AfterValidator(_known), Field(description="the quantity that is read of each line")]


class ClaimAxis(Spec):
    """The varied number: from `from` to `to` in logarithmic steps, or the listed `values`.

    whole: whether it is a whole number. set: the fields that depend on it.
    """

    name: Name
    unit: str = ""
    set: Overrides = Field(default_factory=dict)
    from_: float | None = Field(None, alias="from", gt=0)
    to: float | None = Field(None, gt=0)
    points: int = Field(6, ge=2, le=_MOST_VALUES)
    whole: bool = False
    values: Annotated[tuple[Place, ...], Field(min_length=1, max_length=_MOST_VALUES)] | None = None

    @model_validator(mode="after")
    def _is_range_or_list(self) -> Self:
        is_range = self.from_ is not None and self.to is not None
        if is_range == (self.values is not None) or (self.from_ is None) != (self.to is None):
            raise ValueError("give from and to, or values")
        if self.from_ is not None and self.to is not None and self.from_ >= self.to:
            raise ValueError(f"from {self.from_:g} to {self.to:g}: give the smaller number first")
        return self

    @property
    def places(self) -> tuple[Place, ...]:
        """The values at which all lines are predicted."""
        if self.values is not None:
            return self.values
        assert self.from_ is not None, "else there are values"
        assert self.to is not None, "as above"
        spaced = np.geomspace(self.from_, self.to, self.points).tolist()
        # numbers that people would choose, and the ends as they are given
        found = [float(f"{value:.2g}") for value in spaced[1:-1]]
        values = [self.from_, *found, self.to]
        return tuple(dict.fromkeys(round(value) for value in values)) if self.whole else tuple(values)

    @property
    def is_number(self) -> bool:
        """Whether all values of the axis are numbers."""
        return all(isinstance(place, int | float) for place in self.places)

    def text(self, place: Place) -> str:
        """Text of a value with its unit."""
        return f"{number_text(place)} {self.unit}".strip()


def number_text(place: Place) -> str:
    """Text of an axis value without its unit."""
    if isinstance(place, str):
        return place
    if isinstance(place, tuple):
        return ":".join(map(str, place))
    return f"{place:,}" if isinstance(place, int) else f"{place:.3g}" if place < 1000 else f"{float(f'{place:.3g}'):,.0f}"


def _given_shortly(line: Any) -> Any:
    """Accepts a line given by its overrides alone."""
    return line if isinstance(line, Mapping) and "set" in line else {"set": line}


class ClaimLine(Spec):
    """A line of an experiment. quantity: its quantity, by default that of the experiment.

    trials: number of trials of a search, `at_once` of them concurrently; the value is multiplied by the number of rounds.
    """

    set: Overrides = Field(default_factory=dict)
    quantity: Read | None = None
    trials: Literal["$x"] | Count | None = None
    at_once: Count = 1

    def rounds(self, place: Place) -> int:
        """Number of consecutive rounds of trials."""
        if self.trials is None:
            return 1
        trials = place if self.trials == _HERE else self.trials
        assert isinstance(trials, int), "axes of trials are whole"
        return -(-trials // self.at_once)


class Bound(Spec):
    """Bounds on the value of a line, or on its ratio to the line `against`."""

    of: Name
    against: Name | None = None
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("give at_least, at_most, or both")
        return self

    @property
    def lines(self) -> tuple[str, ...]:
        """Names of the lines that are compared."""
        return (self.of,) if self.against is None else (self.of, self.against)

    def value(self, values: Mapping[str, float]) -> float:
        """The value that is compared with the bound."""
        value = values[self.of]
        if self.against is None:
            return value
        other = values[self.against]
        return value / other if other else float("inf") if value else float("nan")

    def holds(self, values: Mapping[str, float]) -> bool:
        """Whether the values of the lines satisfy the bound."""
        return self.side(values) == 0

    def side(self, values: Mapping[str, float]) -> int:
        """0 if a value satisfies the bound, −1 below, 1 above."""
        value = self.value(values)
        if self.at_least is not None and not value >= self.at_least:
            return -1
        return 1 if self.at_most is not None and not value <= self.at_most else 0


class Test(Bound):
    """The bound that decides. where: a condition for the claim to apply."""

    __test__ = False

    where: Bound | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the lines that the test needs."""
        return (*self.lines, *(self.where.lines if self.where else ()))

    def says(self, values: Mapping[str, float]) -> bool:
        """Whether the claim applies to given values."""
        return self.where is None or self.where.holds(values)


class ClaimExperiment(Spec):
    """Scenarios along an axis, line by line, with a test. scenario: a name, a path relative to the file, or fields."""

    scenario: str | Mapping[str, Any]
    set: Overrides = Field(default_factory=dict)
    axis: ClaimAxis
    quantity: Read
    lines: Annotated[Mapping[Name, Annotated[ClaimLine, BeforeValidator(_given_shortly)]], Field(min_length=1, max_length=8)]
    test: Test

    @model_validator(mode="after")
    def _tests_its_lines(self) -> Self:
        for name in self.test.needed:
            if name not in self.lines:
                raise ValueError(f"test: there is no line {name!r}; give one of {', '.join(self.lines)}")
        if any(line.trials == _HERE for line in self.lines.values()) and not all(isinstance(x, int) for x in self.axis.places):
            raise ValueError("trials: they are counted; give an axis that is whole")
        return self

    def quantity_of(self, name: str) -> str:
        """Name of the quantity that decides a line, by default that of the experiment."""
        return self.lines[name].quantity or self.quantity

    @property
    def common_overrides(self) -> list[str]:
        """The overrides that all lines share, as `--set` takes them."""
        return [_override(field, value) for field, value in self.set.items()]

    def overrides(self, name: str, place: Place) -> list[str]:
        """The overrides of a line at a value of the axis, for `load`."""
        given = {**self.set, **self.lines[name].set}
        # the axis comes last, but for what the line says itself
        given |= {field: value for field, value in self.axis.set.items() if field not in given}
        return [_override(field, _put(value, place)) for field, value in given.items()]


class Claim(ClaimExperiment):
    """A claim. claim: the sentence. because: the reason of the verdict. source: who made it, and where. netlab: the experiment
    to measure, with the quantity, lines and test of the claim by default."""

    name: Name
    claim: str
    because: str
    source: str = ""
    path: Path
    netlab: ClaimExperiment | None = None

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_claim(cls, data: Any) -> Any:
        netlab = data.get("netlab") if isinstance(data, Mapping) else None
        if not isinstance(netlab, Mapping):
            return data
        defaults = {key: data[key] for key in ("quantity", "lines", "test") if key in data}
        return {**data, "netlab": defaults | dict(netlab)}

    @model_validator(mode="after")
    def _is_measured_where_it_can_be(self) -> Self:
        lines = self.netlab.lines if self.netlab else ()
        for name in lines:
            assert self.netlab is not None
            if not KINDS[quantity := self.netlab.quantity_of(name)].is_measured:
                known = ", ".join(one for one, kind in KINDS.items() if kind.is_measured)
                raise ValueError(f"netlab: {quantity} is predicted but not measured; give one of {known}")
        if self.netlab and self.netlab.axis.values is None:
            raise ValueError("netlab: what is measured has no borders that are searched for; give the axis values")
        return self


def _put(value: Any, place: Place) -> Any:
    """A field's value with the axis value inserted for its placeholder."""
    if isinstance(value, Mapping):
        return {key: _put(inner, place) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_put(inner, place) for inner in value]
    if value == _HERE:
        return place
    return value.replace(_HERE, str(place)) if isinstance(value, str) else value


def _override(field: str, value: Any) -> str:
    """An override as text. Values are JSON, which is YAML; text is parsed as YAML, so that it may be a number or a list."""
    return f"{field}={value if isinstance(value, str) else json.dumps(value)}"


def names() -> list[str]:
    """Names of the shipped claims."""
    return catalog.names(FOLDER)


def read(reference: str) -> Claim:
    """Reads a claim by name or path. Raises NotFoundError, or ScenarioError with all problems as `file:line:column: …`."""
    path = _file(reference)
    located = yaml_file.read(path)
    if not isinstance(located.data, dict):
        raise ScenarioError([f"{path}: a claim is a mapping with claim, because, scenario, axis, quantity, lines and test"])
    # a claim is called by its file, which also says where paths in it start
    own: dict[str, Any] = {"name": path.stem, "path": path}
    if problems := [
        f"{located.place((key,))}: {key}: unknown key; the file's own is taken" for key in own if key in located.data
    ]:
        raise ScenarioError(problems)
    try:
        return Claim.model_validate(located.data | own)
    except ValidationError as error:
        raise ScenarioError([_problem(located, detail) for detail in error.errors()]) from None


def _problem(located: Located, detail: Any) -> str:
    """One of pydantic's errors as `place: field: what; what to do`."""
    messages = {"extra_forbidden": "unknown key; leave it out", "missing": "missing; add it"}
    message = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else messages.get(detail["type"], detail["msg"])
    field = ".".join(map(str, detail["loc"]))
    return ": ".join(filter(None, (located.place(detail["loc"]), field, message)))


def _file(reference: str) -> Path:
    if "/" in reference or reference.endswith((".yaml", ".yml")):
        if not Path(reference).is_file():
            raise NotFoundError(f"{reference}: no such file; give the path of a YAML file, or a name from 'scaleproof claims'")
        return Path(reference)
    found = [reference] if reference in names() else with_words(reference)
    if len(found) != 1:
        which = f"several claims have the words {reference!r}" if found else f"no claim is called {reference!r}"
        raise NotFoundError(f"{which}; give one of {', '.join(found or names())}")
    return catalog.ROOT / FOLDER / f"{found[0]}.yaml"


def with_words(text: str) -> list[str]:
    """Names of the shipped claims whose files have all the words of a text, in any order and case."""
    words = re.findall(r"\w+", text.lower())
    files = {name: (catalog.ROOT / FOLDER / f"{name}.yaml").read_text(encoding="utf-8").lower() for name in names()}
    return [name for name, content in files.items() if words and all(word in content for word in words)]
