"""Compilation of a training step to a Program: a function per kind of strategy, one folder per kind of parallelism."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from scaleproof.simulator.common.errors import PluginError
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.parallelism.strategy import Plugins
from scaleproof.simulator.program import MAIN_STREAM, Program
from scaleproof.simulator.strategy.job import Job

# The function that compiles each kind of strategy, with its module in this package, which is imported when it is first used.
_FUNCTIONS: Final = {
    "captured": ("captured.program", "compile_captured"),
    "data_parallel": ("compile", "compile_replicas"),
    "gather_average": ("data_parallel.gather_average", "compile_gather_average"),
    "hybrid": ("compile", "compile_replicas"),
    "local_sgd": ("data_parallel.local_sgd", "compile_local_sgd"),
    "model_parallel": ("model_parallel.program", "compile_model_parallel"),
    "parameter_server": ("parameter_server.program", "compile_parameter_server"),
    "pipeline": ("compile", "compile_replicas"),
}
# Those of installed packages.
COMPILERS: Final = Plugins("scaleproof.compilers", "compiler", _FUNCTIONS)


def compile_step(strategy: Strategy, job: Job) -> Program:
    """Compiles one training step of `job`, by the function of the strategy's kind. Raises PluginError for a broken plugin."""
    if strategy.kind not in _FUNCTIONS:
        return _compiled_by_plugin(strategy, job)
    module, name = _FUNCTIONS[strategy.kind]
    return cast(Program, getattr(import_module(f"{__name__}.{module}"), name)(strategy, job))


def priced(strategy: Strategy, job: Job, program: Program) -> Program:
    """A strategy's program for a job that differs in numbers of its cluster from that of `program`: its tasks at other prices,
    or other tasks where these depend on prices."""
    result = program.at(job)
    return compile_step(strategy, job) if result is None else result


def _compiled_by_plugin(strategy: Strategy, job: Job) -> Program:
    """The step as compiled by an installed package. Raises PluginError unless that makes a program with tasks of ranks."""
    kind = strategy.kind
    if kind not in COMPILERS.entries:
        text = f"the strategy {kind!r} has no compiler; name its function by an entry point {kind!r} of scaleproof.compilers"
        raise PluginError(text)
    program = COMPILERS.load(kind)(strategy, job)
    if not isinstance(program, Program) or not (program.stream == MAIN_STREAM).any():
        what = "a Program without tasks of ranks" if isinstance(program, Program) else type(program).__name__
        raise COMPILERS.error(kind, f"compiles to {what}; make it return the priced() program of a StepBuilder")
    return program


__all__ = ["COMPILERS", "compile_step", "priced"]
