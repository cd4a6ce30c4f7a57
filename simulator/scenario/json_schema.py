"""JSON schema of scenario files, for editors."""

from __future__ import annotations

from typing import Any

from scaleproof.simulator.common import catalog
from scaleproof.simulator.scenario.schema import Scenario


def schema() -> dict[str, Any]:
    """JSON schema of a scenario file, shorthands included."""
    result = Scenario.model_json_schema(by_alias=True)
    fields = result["properties"]
    for part in catalog.PARTS:
        fields[part] = _named(fields[part])
    cluster = result["$defs"]["Cluster"]["properties"]
    changed = {"type": "object", "properties": {"base": {"type": "string"}}, "required": ["base"]}
    fields["framework"] = {"anyOf": [*_named(fields["framework"])["anyOf"], changed]}
    cluster["device"] = {"anyOf": [*_named(cluster["device"])["anyOf"], changed]}
    fields["batch"] = {"anyOf": [{"type": "integer", "minimum": 1}, _bare(fields["batch"])]}
    kinds = sorted(result["properties"]["strategy"]["discriminator"]["mapping"])
    fields["strategy"] = {"anyOf": [{"enum": kinds}, _bare(fields["strategy"])]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **result, "title": "scaleproof scenario"}


def _named(field: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{"type": "string", "description": "name or path"}, _bare(field)]}


def _bare(field: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in field.items() if key not in ("title", "description")}
