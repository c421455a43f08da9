"""The server's API as a page, from its own description of itself."""

from collections.abc import Iterator, Mapping
from typing import Any

from edgewise.pair import Pair
from edgewise.routers.untrained import Constant
from edgewise.server.answering import Answering
from edgewise.server.app import make_app
from edgewise.testing.scripted_edge import ScriptedEdge, replying

Schema = Mapping[str, Any]


def server() -> str:
    """Every path with what it takes and gives, and every object that travels."""
    described = _described()
    lines = [
        "# The server's API",
        "",
        f"{described['info']['summary']} A running server has the same as OpenAPI at",
        "`/openapi.json`. [Clients](../clients.md) has examples.",
        "",
    ]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            lines += _operation(path, method, operation)
    lines += ["## Objects", ""]
    for name, schema in sorted(described["components"]["schemas"].items()):
        lines += _object(name, schema)
    return "\n".join(lines)


def _described() -> Schema:
    """The description does not depend on the models, so scripted ones will do."""
    with Pair(ScriptedEdge(replying("", prompt="")), router=Constant(0.0)) as pair:
        answering = Answering(pair, slots=1, queue=1)
        try:
            return make_app(answering).openapi()
        finally:
            answering.close()


def _operation(path: str, method: str, operation: Schema) -> Iterator[str]:
    yield f"## `{method.upper()} {path}`"
    yield ""
    yield operation.get("description") or operation.get("summary") or ""
    yield ""
    for body in _bodies(operation.get("requestBody", {})):
        yield f"Takes {body}."
        yield ""
    yield "| status | |"
    yield "|---|---|"
    for status, response in operation["responses"].items():
        gives = ", ".join(_bodies(response))
        said = response.get("description", "")
        yield f"| {status} | {_cell(said)}{f' ({gives})' if gives else ''} |"
    yield ""


def _bodies(holder: Schema) -> list[str]:
    kinds = [one.get("schema") or {} for one in holder.get("content", {}).values()]
    return [_kind(kind) for kind in kinds if kind]


def _object(name: str, schema: Schema) -> Iterator[str]:
    yield f"### `{name}`"
    yield ""
    if schema.get("description"):
        yield schema["description"]
        yield ""
    if "properties" not in schema:
        yield f"{_kind(schema)}."
        yield ""
        return
    required = schema.get("required", ())
    yield "| field | type | default | |"
    yield "|---|---|---|---|"
    for field, inner in schema["properties"].items():
        default = "required" if field in required else _default(inner)
        yield f"| `{field}` | {_cell(_kind(inner))} | {default} | {_cell(_about(inner))} |"
    yield ""


def _kind(schema: Schema) -> str:
    """A schema's type in words, objects linked."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(map(_kind, schema[several])))
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{value!r}`".replace("'", '"') for value in values)
    if schema.get("type") == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    return schema.get("type", "any")


def _default(schema: Schema) -> str:
    return f"`{schema['default']}`" if schema.get("default") is not None else "-"


def _about(schema: Schema) -> str:
    """Its description, and between which values it must be."""
    names = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "above"}
    names |= {"maxLength": "longest:", "maxItems": "most:"}
    inner = [schema, *schema.get("anyOf", ())]
    bounds = [f"{names[k]} {one[k]}" for one in inner for k in names if k in one]
    return "; ".join([*filter(None, [schema.get("description")]), *bounds])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
