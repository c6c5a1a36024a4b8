"""Request bodies for ``/openapi.json``: endpoints read their bodies themselves, so FastAPI can't derive them."""

from typing import Any

from pydantic import BaseModel


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """The ``openapi_extra`` of an endpoint that takes ``model`` as JSON."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    content = {"application/json": {"schema": _inline(schema, definitions)}}
    return {"requestBody": {"required": True, "content": content}}


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    """``node`` with every reference replaced by what it names; our models are not recursive."""
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {name: _inline(value, definitions) for name, value in node.items()}
