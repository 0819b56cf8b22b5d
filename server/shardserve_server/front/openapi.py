"""What FastAPI cannot see by itself: the routes that are plain ASGI, and the one form of every error."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from shardserve_proto.errors import BY_CODE
from shardserve_proto.frames import MEDIA_TYPE
from shardserve_proto.handles import EPOCH, EPOCH_FIELD, HEX_ID, LABEL

from .npy import NPY_TYPE

_BINARY = {"schema": {"type": "string", "format": "binary"}}
#: Of what takes ids.
WITH_IDS: dict[str, Any] = {
    "parameters": [
        {
            "name": EPOCH_FIELD.title(),
            "in": "header",
            "description": "what the answer that brought the ids had in this field; then an id that was lost with an "
            "earlier life of the server is told from one that never was (several with commas between them)",
            "schema": {"type": "string", "pattern": f"^{EPOCH.pattern}(, *{EPOCH.pattern})*$"},
        }
    ]
}
_CALL = {
    "summary": "Run a program: a frame in, a frame out",
    "description": (
        "The body is a frame: a 16-byte prelude, a msgpack header (CallRequest) and the raw bytes of the arrays. "
        "The reply is a frame with the header CallReply. The wire format is described in proto_schemas/SPEC.md."
    ),
    "operationId": "call",
    **WITH_IDS,
    "requestBody": {"required": True, "content": {MEDIA_TYPE: _BINARY}},
    "responses": {"200": {"description": "The outputs and the report", "content": {MEDIA_TYPE: _BINARY}}},
}

_ANY: dict[str, Any] = {}
_ARRAY = {
    "description": (
        "A nested list, a number, an object, or {'array': id or name} for one that is resident. NaN, Infinity and "
        "-Infinity are texts, complex ones pairs."
    ),
    "anyOf": [
        {"type": "array", "items": _ANY},
        {"type": "number"},
        {"type": "object", "required": ["array"], "properties": {"array": {"type": "string"}}},
        {
            "type": "object",
            "required": ["data"],
            "properties": {
                "dtype": {"type": "string"},
                "shape": {"type": "array", "items": {"type": "integer"}},
                "data": _ANY,
            },
        },
    ],
}
_NAMED_AXES = "One axis specification, or a list of them: {position: name}, [name, null, ...], [name, '...']."
_SPECS = "null (replicated), 'auto', or a list of specs: null, 'auto', or a mesh axis (or null) for each dimension."
_JSON_BODY = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "arguments": {"type": "array", "items": _ARRAY},
        "params": {"type": "object"},
        "mesh": {"description": "The name of a mesh, or {axis: size}."},
        "in_axes": {"description": _NAMED_AXES},
        "out_axes": {"description": _NAMED_AXES},
        "axis_sizes": {"type": "object", "additionalProperties": {"type": "integer"}},
        "axis_resources": {"type": "object", "description": "{name: mesh axis, or a list of them}"},
        "in_shardings": {"description": _SPECS},
        "out_shardings": {"description": _SPECS},
        "precision": {"enum": ["highest", "high", "default"]},
        "timeout_s": {"type": "number", "exclusiveMinimum": 0},
        "keep": {
            "description": "Keep the result on the devices: the reply has its ArrayInfo instead of its data.",
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "id": {"type": "string", "pattern": f"^{HEX_ID.pattern}$"},
                "name": {"type": "string", "pattern": f"^{LABEL.pattern}$"},
                "replace": {"type": "boolean"},
                "ttl_s": {"type": "number", "exclusiveMinimum": 0},
                "pinned": {"type": "boolean"},
            },
        },
    },
}
#: What FastAPI cannot know of a body that it does not parse.
JSON_CALL: dict[str, Any] = WITH_IDS | {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _JSON_BODY, "example": {"arguments": [[1.0, 2.0], [3.0, 4.0]]}},
        },
    },
}


def _json_body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


NPY_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {NPY_TYPE: _BINARY, "application/octet-stream": _BINARY}},
}
LEASE_BODY = WITH_IDS | _json_body(
    {
        "oneOf": [
            {
                "type": "object",
                "required": ["ttl_s"],
                "properties": {"ttl_s": {"type": "number", "exclusiveMinimum": 0}},
                "additionalProperties": False,
            },
            {
                "type": "object",
                "required": ["pinned"],
                "properties": {"pinned": {"const": True}},
                "additionalProperties": False,
            },
        ]
    }
)
RELEASE_BODY = _json_body(
    {
        "type": "object",
        "required": ["ids"],
        "properties": {"ids": {"type": "array", "items": {"type": "string", "pattern": f"^{HEX_ID.pattern}$"}}},
        "additionalProperties": False,
    }
)
#: What a download is.
ARRAY_BODIES: dict[str, Any] = {
    "response_class": Response,
    "openapi_extra": WITH_IDS,
    "responses": {200: {"description": "The array", "content": {NPY_TYPE: _BINARY, MEDIA_TYPE: _BINARY}}},
}


def describe(app: FastAPI) -> None:
    """Give the app its whole OpenAPI document."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    document["paths"]["/v1/call"] = {"post": dict(_CALL)}
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["Error"] = _error_schema()
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    error = {"description": "An error", "content": {"application/json": {"schema": _reference("Error")}}}
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # FastAPI's own form, which this server does not use
            operation["responses"]["default"] = error
    return document


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _error_schema() -> dict[str, Any]:
    codes = sorted(code for code, cls in BY_CODE.items() if cls.status is not None)
    fields = {
        "code": {"type": "string", "enum": codes},
        "message": {"type": "string"},
        "details": {"type": "object"},
        "retry_after_s": {"type": "number"},
        "id": {"type": "string"},
    }
    error = {"type": "object", "properties": fields, "required": ["code", "message", "details"]}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}
