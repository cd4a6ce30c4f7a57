"""Changes of a cluster in a framework file that `scaleproof fit` wrote.

Runs teach constants of the framework and of the network together, so that one file holds both. Its mapping `cluster` has the
name of the cluster that the runs were measured on and the fields that they changed; scenarios on another cluster use the
framework's constants alone.
"""

from __future__ import annotations

from scaleproof.simulator.common import yaml_file
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.yaml_file import Located

_KEY = "cluster"


def merge(located: Located) -> None:
    """Applies the cluster changes of a scenario's framework to its cluster, if they are of a cluster of that name.

    Raises ScenarioError for changes that are no mapping with a name.
    """
    framework, cluster = located.data.get("framework"), located.data.get(_KEY)
    if not isinstance(framework, dict) or _KEY not in framework:
        return
    changes = framework[_KEY]
    if not isinstance(changes, dict) or not isinstance(changes.get("name"), str):
        place = located.place(("framework", _KEY))
        raise ScenarioError([f"{place}: framework.cluster: expected a mapping with the name of a cluster, as `fit` writes it"])
    if isinstance(cluster, dict) and cluster.get("name") == changes["name"]:
        located.data[_KEY] = yaml_file.merged(cluster, changes)


def remove(located: Located) -> None:
    """Removes the changes from the framework, which has no field for them."""
    framework = located.data.get("framework")
    if isinstance(framework, dict) and _KEY in framework:
        located.data["framework"] = {key: value for key, value in framework.items() if key != _KEY}
