"""Resolves a cluster's device that is given by name, by path, or as another device with changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import NotFoundError, ScenarioError
from scaleproof.simulator.common.yaml_file import FieldPath, Located


def resolve_device(located: Located, cluster: FieldPath, folder: Path) -> None:
    """Replaces `device: NAME` and `device: {base: NAME, ...}` of the cluster at `cluster` by the content of the device's file.

    Other fields next to `base` override those of the base. folder: where relative paths start. Raises ScenarioError.
    """
    parent: Any = located.data
    for key in cluster:
        parent = parent.get(key) if isinstance(parent, dict) else None
    device = parent.get("device") if isinstance(parent, dict) else None
    path = (*cluster, "device")
    if isinstance(device, str):
        located.graft(path, _read(located, path, device, folder))
    elif isinstance(device, dict) and "base" in device:
        changes = {key: value for key, value in device.items() if key != "base"}
        places = {own: place for own, place in located.places.items() if own[: len(path)] == path}
        located.graft(path, _read(located, (*path, "base"), device["base"], folder))
        parent["device"] = yaml_file.merged(parent["device"], changes)
        if "memory" in changes and "usable_memory" not in changes:
            forget_usable_memory(parent["device"])
        located.places.update(places)


def forget_usable_memory(device: Any) -> None:
    """Removes the usable memory from a device whose memory has been changed."""
    if isinstance(device, dict):
        device.pop("usable_memory", None)


def _read(located: Located, path: FieldPath, reference: object, folder: Path) -> Located:
    """Reads the file of a device. Raises ScenarioError if it does not exist or has a base itself."""
    where = f"{located.place(path)}: {'.'.join(map(str, path))}"
    if not isinstance(reference, str):
        raise ScenarioError([f"{where}: expected the name or path of a device, got {str(reference)[:60]!r}"])
    try:
        file = catalog.find_part("device", reference, folder)
    except NotFoundError as error:
        raise ScenarioError([f"{where}: {error}"]) from None
    device = yaml_file.read(file)
    if isinstance(device.data, dict) and "base" in device.data:
        raise ScenarioError([f"{device.place(('base',))}: base: not allowed in a device file; copy the fields of the base"])
    return device
