"""Prints tables of docs/guides/frameworks.md, docs/reference/systems.md, docs/guides/capture.md and docs/guides/workloads:
`python docs/scripts/tables.py`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.frameworks.files import names
from scaleproof.simulator.predict import predict
from scaleproof.simulator.published.model_sizes import Figure, ModelSize, model_sizes
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.capture.command.launchers import LAUNCHERS, TORCHRUN, Launcher

ROOT: Final = Path(__file__).parents[2]
FRAMEWORKS_HEAD: Final = "| name | what it is | runs |\n|---|---|---|"
SYSTEMS_HEAD: Final = (
    "| scenario | about | strategy | framework | ranks | step | samples/s | efficiency |\n|---|---|---|---|---|---|---|---|"
)
LAUNCHERS_HEAD: Final = "| program | options that say how many ranks | for each rank it |\n|---|---|---|"
CAPTURED_HEAD: Final = "| package | captured | not captured |\n|---|---|---|"
EXAMPLES_HEAD: Final = "| script of `examples/captured` | what it does |\n|---|---|"
SIZES_HEAD: Final = (
    f"| model | parameters, M | published | off | forward, GFLOP | published | off | sources |\n|---|{'--:|' * 6}---|"
)
# What is started without a launcher of the table.
OTHERS: Final = (
    f"| {', '.join(f'`{name}`' for name in TORCHRUN)} | all; `--nproc_per_node gpu` means the devices of the cluster's node "
    "| sets `RANK`, `WORLD_SIZE` and such |",
    "| `python`, a console command | none; `CUDA_VISIBLE_DEVICES=0,1` in front means two ranks | sets the same |",
)


def frameworks() -> str:
    """A row for each framework that ships."""
    rows = [f"| `{name}` | {shipped(name).description} | {supports(name)} |" for name in names()]
    return "\n".join([FRAMEWORKS_HEAD, *rows])


def supports(name: str) -> str:
    """What a framework runs, with all of ZeRO as one."""
    text = ", ".join(shipped(name).supports).replace("_", " ")
    return text.replace("zero 1, zero 2, zero 3", "ZeRO 1–3").replace("zero", "ZeRO")


def system(name: str) -> str:
    """A system's prediction. Efficiency is that of weak scaling."""
    scenario = load(name)
    run = predict(scenario, interval=False)
    weak = (run.efficiency or {}).get("weak")
    cells = (
        f"`{name}`",
        catalog.summary("systems", name),
        f"`{run.strategy}`",
        f"`{run.framework}`{', by default' if run.framework_is_default else ''}",
        str(run.ranks),
        format_time_s(run.step_time_s),
        f"{run.samples_per_s:,.0f}" if run.samples_per_s >= 100 else f"{run.samples_per_s:.3g}",
        "–" if weak is None else f"{weak:.0%}".replace("%", " %"),
    )
    return f"| {' | '.join(cells)} |"


def launchers() -> str:
    """A row for launchers that are read in the same way."""
    by_launcher: dict[Launcher, list[str]] = {}
    for name, one in LAUNCHERS.items():
        by_launcher.setdefault(one, []).append(f"`{name}`")
    rows = [f"| {', '.join(programs)} | {_numbers(one)} | {_effect(one)} |" for one, programs in by_launcher.items()]
    return "\n".join([LAUNCHERS_HEAD, *OTHERS, *rows])


def _numbers(one: Launcher) -> str:
    """The options by which a launcher says how many ranks there are."""
    options = [*one.ranks, *one.per_node, *one.nodes, *one.hosts, *one.devices, *(one.settings or ())[:1]]
    return ", ".join(f"`{option}`" for option in options) or "those of the command that follows"


def _effect(one: Launcher) -> str:
    """What a launcher does for each rank."""
    if one.is_played:
        return "is run by each rank, and has to be installed"
    set_for = sorted({f"`{name.partition('_')[0]}_*`" for name, _ in one.environment})
    effects = [f"sets {', '.join(set_for)}"] if set_for else []
    effects += [f"`{option}` sets variables" for option in one.variables]
    effects += [f"gives the script `{one.argument.partition('=')[0]}`"] if one.argument else []
    return ", ".join(effects) or "adds nothing"


def captured_frameworks() -> str:
    """A row for each package of docs/measured/captured-frameworks.md, with what was captured of it and what was not."""
    page = (ROOT / "docs" / "measured" / "captured-frameworks.md").read_text(encoding="utf-8")
    cases: dict[str, list[str]] = {}
    failed: dict[str, list[str]] = {}
    for case, package in re.findall(r"^\| (.+?) \| (\S+ \d\S*) \|", page, re.MULTILINE):
        cases.setdefault(package, []).append(case)
    for case, package in re.findall(r"^- (.+?) \((\S+ \d\S*)\): ", page, re.MULTILINE):
        failed.setdefault(package, []).append(case)
    rows = [
        f"| {package} | {'; '.join(cases.get(package, ['–']))} | {'; '.join(failed.get(package, ['–']))} |"
        for package in cases | failed
    ]
    return "\n".join([CAPTURED_HEAD, *rows])


def examples() -> str:
    """A row for each script of examples/captured, which tests capture."""
    rows = []
    for path in sorted((ROOT / "examples" / "captured").glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = " ".join(text.split("\n\n")[0].split())
        rows.append(f"| `{path.stem}` | {first.rstrip('.')} |")
    return "\n".join([EXAMPLES_HEAD, *rows])


def sizes(page: str) -> str:
    """A row for each model of a guide: its parameters and forward FLOPs, two for each multiply-add, and published ones."""
    return "\n".join([SIZES_HEAD, *(_size(one) for one in model_sizes() if one.page == page)])


def _size(one: ModelSize) -> str:
    sources = dict.fromkeys(figure.source for figure in (one.parameters, one.forward) if figure.published)
    name = f"`{one.model}` at {one.image} pixels" if one.page and one.image else f"`{one.model}`"
    cells = (name, *_compared(one.parameters), *_compared(one.forward), "; ".join([*sources, *filter(None, [one.note])]))
    return f"| {' | '.join(cells)} |"


def _compared(figure: Figure) -> tuple[str, str, str]:
    """Our figure, the published one and the difference."""
    ours, published = figure.ours * figure.scale, float(figure.published or 0) * figure.scale
    return _rounded(ours), _rounded(published) if published else "no source found", _percent(figure.error)


def _rounded(value: float) -> str:
    """A number with at least four digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{round(share, 4) + 0.0:.2%}".replace("%", " %").replace("-", "−")


def modules() -> str:
    """A sentence on the recorded modules of timm, and a row for each whose forward FLOPs differ from the published ones."""
    timm = [one for one in model_sizes() if not one.page]
    largest = max(abs(one.parameters.error or 0) for one in timm)
    text = (
        f"{len(timm)} recorded modules of timm have parameters within {_percent(largest)} of timm's own list, and all but "
        "these have its multiply-adds within 1 % or its last digit, counted as timm's tool counts:"
    )
    rows = [_size(one) for one in timm if not one.forward.agrees]
    return "\n".join([text, "", SIZES_HEAD, *rows])


if __name__ == "__main__":
    print(frameworks(), "\n".join([SYSTEMS_HEAD, *map(system, catalog.names("systems"))]), sep="\n\n")
    print("", examples(), captured_frameworks(), launchers(), sep="\n\n")
    print("", *(sizes(page) for page in ("vision", "recommenders", "sequence-models")), modules(), sep="\n\n")
