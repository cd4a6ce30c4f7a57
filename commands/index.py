"""The index of commands: the group, the module and the summary of each, known without importing the module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Entry(NamedTuple):
    """A command in the index. module: the module that adds its arguments. summary: what it does, in a line."""

    module: str
    summary: str


# The commands by what they are for, in the order of --help.
GROUPS: Final[Mapping[str, Mapping[str, Entry]]] = {
    "predict and decide": {
        "predict": Entry("predicting.predict", "predict step time, throughput, memory and cost of a scenario"),
        "plan": Entry("predicting.plan", "search for the best way to train a model on N devices"),
        "sweep": Entry("predicting.sweep", "predict all points of a study"),
        "compare": Entry("predicting.compare", "compare two scenarios and the effects of their differences"),
        "crossover": Entry("predicting.crossover", "map which strategy is fastest over two fields"),
        "sensitivity": Entry("predicting.sensitivity", "print which parameters throughput depends on"),
        "uneven": Entry("predicting.uneven", "cost of slow ranks and noise, by consistency model"),
        "goodput": Entry("predicting.goodput", "predict the throughput that remains under failures"),
        "collective": Entry("predicting.collective", "predict the time of a collective operation, by size"),
        "model": Entry("predicting.model", "print a model's layers with FLOPs, parameters and activations"),
    },
    "measure and calibrate": {
        "capture": Entry("measuring.capture", "record a step of a training script, without its GPUs, for predictions"),
        "calibrate": Entry("measuring.calibrate", "measure a cluster, or this machine, and write a cluster file"),
        "import": Entry("measuring.import_", "make a cluster or device file from other tools' measurements"),
        "measure": Entry("measuring.measure", "train scenarios and record their runs"),
        "runs": Entry("measuring.measure", "list measured runs"),
        "reconcile": Entry(
            "measuring.reconcile", "predict and train scenarios, or read a job's traces and log, and explain the differences"
        ),
        "diagnose": Entry(
            "measuring.diagnose", "name what makes a job slow: the rank, the host, the moment, from its traces and logs"
        ),
        "fit": Entry("measuring.fit", "fit a framework and a cluster to a few measured runs, and name the next to measure"),
        "prove": Entry("measuring.prove", "calibrate a lab, then compare predictions with runs that calibration did not use"),
        "faults": Entry(
            "measuring.faults",
            "inject faults (killed ranks, hosts that go or join, a slow link) and compare their cost with the prediction",
        ),
        "converge": Entry("measuring.converge", "measure the updates needed to reach a target loss, by batch and staleness"),
        "score": Entry("measuring.score", "predict published measurements and print the errors"),
    },
    "look at results": {
        "report": Entry("reporting.report", "write a results folder as one HTML page with figures and tables"),
        "timeline": Entry("reporting.timeline", "draw a predicted step: ranks against time"),
        "claims": Entry(
            "reporting.claims", "test claims of published articles: whether, and under which conditions, they hold"
        ),
        "explore": Entry("reporting.explore", "change a scenario in a browser and watch its prediction"),
        "history": Entry("reporting.history", "list reconciled runs over time, and detect drift of the cluster"),
    },
    "look up": {
        "list": Entry(
            "predicting.list_",
            "list the shipped scenarios, systems, studies, claims, models, clusters, frameworks, devices, failures and inputs",
        ),
        "show": Entry(
            "predicting.show",
            "print a shipped scenario, study, claim, model, cluster, framework, device, reliability or input, or "
            "published:ROW-ID",
        ),
        "schema": Entry("predicting.show", "print the JSON schema of scenarios, for editors"),
        "cluster": Entry("predicting.cluster", "compare cluster files"),
        "device": Entry("predicting.device", "show a device, and the rates that its kernels reach by size"),
        "completion": Entry("completion", "print a script that completes commands and names in a shell"),
    },
}
COMMANDS: Final[Mapping[str, Entry]] = {name: entry for group in GROUPS.values() for name, entry in group.items()}
