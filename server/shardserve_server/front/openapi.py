"""What FastAPI cannot see by itself: the routes that are plain ASGI, and the one form of every error."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from shardserve_proto.errors import BY_CODE
from shardserve_proto.frames import MEDIA_TYPE

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_CALL = {
    "summary": "Run a program: a frame in, a frame out",
    "description": (
        "The body is a frame: a 16-byte prelude, a msgpack header (CallRequest) and the raw bytes of the arrays. "
        "The reply is a frame with the header CallReply. The wire format is described in proto_schemas/SPEC.md."
    ),
    "operationId": "call",
    "requestBody": {"required": True, "content": {MEDIA_TYPE: _BINARY}},
    "responses": {"200": {"description": "The outputs and the report", "content": {MEDIA_TYPE: _BINARY}}},
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
