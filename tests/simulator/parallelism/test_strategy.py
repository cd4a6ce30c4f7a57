"""Strategies of other packages: loaded by kind, imported at first use, rejected with a one-line message if broken."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import scaleproof
from scaleproof.simulator.common.errors import PluginError, ScenarioError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import KINDS, Scenario, json_schema
from scaleproof.simulator.strategy import COMPILERS
from tests.conftest import SMALL

Install = Callable[..., None]

ALONE = """\
from typing import Literal

from scaleproof.plugin import StepBuilder, Strategy, forward_s


class Alone(Strategy):
    kind: Literal["alone"] = "alone"
    passes: int = 1


def compile_alone(strategy, job):
    step = StepBuilder(job)
    rank = step.add_rank("worker 0", 0, node=0)
    step.compute(rank, 0, lambda costs: strategy.passes * forward_s(costs))
    return step.priced()
"""
ENTRY = "alone = alone_strategy:Alone"
COMPILER = "alone = alone_strategy:compile_alone"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package of one module: `install(module, entry, name, compiler)`."""
    forget()

    def add(text: str = ALONE, entries: str = ENTRY, name: str = "alone-strategy", compiler: str = COMPILER) -> None:
        folder = tmp_path / name
        info = folder / f"{name.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[scaleproof.strategies]\n{entries}\n[scaleproof.compilers]\n{compiler}\n")
        (folder / f"{name.replace('-', '_')}.py").write_text(text)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "alone_strategy", raising=False)

    yield add
    forget()


def forget() -> None:
    """Forgets which packages are installed."""
    for plugins in (KINDS.plugins, COMPILERS):
        vars(plugins).pop("entries", None)


def error_of(small: Callable[..., Scenario], *overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        small(*overrides)
    return str(caught.value)


def test_an_installed_strategy_is_loaded_and_predicted_like_a_builtin_one(
    install: Install, small: Callable[..., Scenario]
) -> None:
    install()
    once, thrice = (predict(small("strategy.kind=alone", f"strategy={{kind: alone, passes: {n}}}")) for n in (1, 3))
    assert once.strategy == "alone"
    assert thrice.step_time_s == pytest.approx(3 * once.step_time_s)
    assert small("strategy=alone").strategy == small("strategy={kind: alone}").strategy


def test_wrong_fields_of_a_plugin_are_reported_with_their_place(install: Install, small: Callable[..., Scenario]) -> None:
    install()
    assert "strategy.passes: expected a whole number, got 'x'" in error_of(small, "strategy={kind: alone, passes: x}")
    assert "strategy.pases: unknown key; did you mean 'passes'?" in error_of(small, "strategy={kind: alone, pases: 3}")


def test_kinds_are_listed_without_importing_them(install: Install, small: Callable[..., Scenario]) -> None:
    install("raise ImportError('imported')")
    message = error_of(small, "strategy=alone_")
    assert "unknown kind 'alone_'; give one of parameter_server" in message
    assert message.endswith(", alone")
    assert small("strategy={kind: pipeline, stages: 2}").strategy.stages == 2


def test_the_schema_contains_installed_strategies(install: Install) -> None:
    plain = {"model": "gpt-mini", "cluster": "dgx1", "batch": 8, "strategy": {"kind": "alone", "passes": 2}}
    assert not jsonschema.Draft202012Validator(json_schema()).is_valid(plain)
    forget()
    install()
    validator = jsonschema.Draft202012Validator(json_schema())
    strategies = ({"kind": "alone", "passes": 2}, "alone", {"kind": "alone", "passes": "x"})
    assert [validator.is_valid(plain | {"strategy": strategy}) for strategy in strategies] == [True, True, False]


def test_a_scenario_with_an_installed_strategy_is_dumped_completely(install: Install, small: Callable[..., Scenario]) -> None:
    install()
    assert small("strategy={kind: alone, passes: 7}").model_dump()["strategy"] == {"kind": "alone", "passes": 7}


SAYS = "alone-strategy 1.2: the strategy 'alone', alone_strategy:Alone, "


@pytest.mark.parametrize(
    ("text", "entries", "message"),
    [
        ("import no_such_module", ENTRY, "cannot be imported (ModuleNotFoundError: No module named 'no_such_module'); fix"),
        ("class Alone(", ENTRY, "cannot be imported (SyntaxError: "),
        ("raise ValueError('one\\ntwo')", ENTRY, "cannot be imported (ValueError: one two); fix the package, or uninstall it"),
        ("Other = 1", ENTRY, "cannot be imported (AttributeError: "),
        ("Alone = 3", ENTRY, "is not a subclass of scaleproof.plugin.Strategy; derive it from Strategy"),
        ("class Alone: ...", ENTRY, "is not a subclass of scaleproof.plugin.Strategy; derive it from Strategy"),
        (ALONE.replace('Literal["alone"]', "str"), ENTRY, "has a different kind; give it the field kind: Literal['alone']"),
        (ALONE.replace('"alone"', '"lone"'), ENTRY, "has a different kind; give it the field kind: Literal['alone'] = 'alone'"),
    ],
)  # fmt: skip
def test_a_broken_plugin_is_reported_in_one_line(
    text: str, entries: str, message: str, install: Install, tmp_path: Path, capsys: Any
) -> None:
    install(text, entries)
    path = tmp_path / "s.yaml"
    path.write_text(SMALL)
    for command in (["predict", str(path), "--set", "strategy=alone"], ["schema"]):
        assert scaleproof.main(command) == 1
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith(SAYS + message)
        assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "compiler", "message"),
    [
        (
            ALONE,
            "",
            r"^the strategy .alone. has no compiler; name its function by an entry point",
        ),
        (ALONE.replace("compile_alone", "compiles"), COMPILER, r"compiler 'alone', .*compile_alone, cannot be imported \(Attr"),
        (ALONE.replace("return step.priced()", "return"), COMPILER, "compiles to NoneType; make it return"),
        (ALONE.replace("step.compute(", "print("), COMPILER, "compiles to a Program without tasks of ranks; make it return"),
    ],
)
def test_a_broken_compiler_is_reported(
    text: str, compiler: str, message: str, install: Install, small: Callable[..., Scenario]
) -> None:
    """The first mistakes of who writes one."""
    install(text, compiler=compiler)
    with pytest.raises(PluginError, match=message):
        predict(small("strategy=alone"))


def test_a_plugin_of_an_existing_kind_is_rejected(install: Install, small: Callable[..., Scenario]) -> None:
    install(entries="pipeline = alone_strategy:Alone")
    with pytest.raises(
        PluginError, match=r"^alone-strategy 1\.2: scaleproof also defines a strategy 'pipeline'; uninstall one"
    ):
        json_schema()
    assert small("strategy={kind: pipeline, stages: 2}").strategy.stages == 2


def test_two_plugins_of_one_kind_are_rejected(install: Install) -> None:
    install()
    install(name="other-strategy", entries="alone = other_strategy:Alone")
    path = "strategy=alone"
    with pytest.raises(
        PluginError, match=r"(alone|other)-strategy 1\.2: (alone|other)-strategy 1\.2 also defines a strategy 'alone'"
    ):
        load("resnet50-ring-p100", [path])
