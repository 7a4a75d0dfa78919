"""The OpenAPI document of `eaco serve`, made from the forms in `api`."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from attrs import field, frozen

from eaco_adapters.server import api
from eaco_adapters.server.views import GROUPS

_JSON: Final = "application/json"


@frozen
class Operation:
    """One thing that can be asked for: method and path, the forms of its request and answer."""

    method: str
    path: str
    summary: str
    answer: Any
    status: int = 200
    body: Any = None
    query: tuple[tuple[str, dict[str, Any], str], ...] = ()
    problems: tuple[int, ...] = field(default=())


_PAGE: Final = (
    (
        "state",
        {"type": "string", "enum": list(GROUPS)},
        "Only jobs in this state; `open`: not ended, `ended`: any end.",
    ),
    ("limit", {"type": "integer", "minimum": 1, "maximum": 10_000}, "At most so many."),
    ("offset", {"type": "integer", "minimum": 0, "maximum": 1 << 50}, "Leave out the first ones."),
)
_LOG: Final = (
    ("offset", {"type": "integer", "minimum": 0, "maximum": 1 << 50}, "Where to read from."),
    ("limit", {"type": "integer", "minimum": 1, "maximum": 1 << 20}, "At most so many bytes."),
)

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation("get", "/v1/status", "How the server is.", api.Status),
    Operation(
        "post",
        "/v1/jobs",
        "Submit a job. When this answers, the job is durable.",
        api.JobView,
        201,
        api.SubmitRequest,
        problems=(400, 409, 413, 415),
    ),
    Operation("get", "/v1/jobs", "List jobs.", api.JobList, query=_PAGE, problems=(400,)),
    Operation("get", "/v1/jobs/{job_id}", "One job.", api.JobView, problems=(404,)),
    Operation("delete", "/v1/jobs/{job_id}", "Cancel a job.", api.JobView, 202, problems=(404,)),
    Operation(
        "get", "/v1/jobs/{job_id}/story", "Why it is where it is.", api.Story, problems=(404,)
    ),
    Operation(
        "get",
        "/v1/jobs/{job_id}/log",
        "What it printed.",
        api.LogPart,
        query=_LOG,
        problems=(400, 404),
    ),
    Operation("get", "/v1/nodes", "Nodes and their GPUs.", api.NodeList),
    Operation(
        "post",
        "/v1/nodes/{node_id}/drain",
        "Keep new jobs off a node, or let them again.",
        api.NodeList,
        body=api.DrainRequest,
        problems=(400, 404, 413, 415),
    ),
)


def openapi_document(version: str) -> dict[str, Any]:
    """Give the document, as plain data."""
    _, components = msgspec.json.schema_components(
        api.FORMS, ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "eaco serve", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _described(operation: Operation) -> dict[str, Any]:
    answers: dict[str, Any] = {
        str(operation.status): {
            "description": "Done.",
            "content": {_JSON: {"schema": _ref(operation.answer)}},
        }
    }
    if operation.path == "/v1/jobs" and operation.method == "post":
        answers["200"] = {
            "description": "It was submitted before, with the same content.",
            "content": {_JSON: {"schema": _ref(operation.answer)}},
        }
    for status in (401, 503, *operation.problems):
        answers[str(status)] = {
            "description": "Not done.",
            "content": {_JSON: {"schema": _ref(api.Problem)}},
        }
    described: dict[str, Any] = {"summary": operation.summary, "responses": answers}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "query", "schema": schema, "description": what}
        for name, schema, what in operation.query
    ]
    for name in ("job_id", "node_id"):
        if f"{{{name}}}" in operation.path:
            schema = {"type": "string", "minLength": 1, "maxLength": 256}
            parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": _ref(operation.body)}},
        }
    return described


def _ref(form: Any) -> dict[str, str]:  # noqa: ANN401 - a struct class
    return {"$ref": f"#/components/schemas/{form.__name__}"}
