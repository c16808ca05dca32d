"""The file of a cassette: YAML in which bodies stand as structure, so that a diff says what has changed.

    caveat_cassette: 1
    model: relay                      # the header: whatever the recorder says of the recording
    interactions:
    - request:
        method: POST
        uri: https://api.anthropic.com/v1/messages
        body:
          json: {…}                   # or text: (a block scalar), or base64: (what is not UTF-8)
      response:
        status: 200
        headers:
          content-type: text/event-stream
        body:
          events:                     # a server-sent-events stream: a list of {event, data}
          - {…}
          rest: "event: content_blo"  # what a cut stream ends with
        raises: {error: ReadTimeout, …}
    ...

What is empty is left out; the last line is YAML's mark for the end of a document, so that a cut file is told. Cassettes
of vcrpy itself are read, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeVar

from vcr.request import Request

from caveat.testing.bodies import CassetteFileError, body_bytes, body_entry, body_of, uncompressed
from caveat.testing.cassette_yaml import AGAIN, read_yaml, yaml_text

__all__ = ["VERSION", "CassetteFileError", "from_text", "to_text"]

VERSION: Final = 1

_T = TypeVar("_T")


def to_text(header: Mapping[str, Any], requests: Sequence[Request], responses: Sequence[dict[str, Any]]) -> str:
    """Return a cassette as the text of its file.

    The header's values are JSON values. Raises CassetteFileError for an answer in a compression that cannot be undone.
    """
    interactions = [
        {"request": _request_entry(request), "response": _response_entry(uncompressed(response))}
        for request, response in zip(requests, responses, strict=True)
    ]
    return yaml_text({"caveat_cassette": VERSION, **header, "interactions": interactions})


def from_text(text: str) -> tuple[dict[str, Any], list[Request], list[dict[str, Any]]]:
    """Return header, requests and responses of a cassette from the text of its file, ours or vcrpy's.

    Raises CassetteFileError for everything that is no whole cassette.
    """
    document, ended = read_yaml(text)
    if not isinstance(document, dict) or not isinstance(document.get("interactions"), list):
        raise CassetteFileError("the file is no cassette: it has no list of interactions; name another file")
    version = document.pop("caveat_cassette", None)
    if version is not None and (type(version) is not int or version != VERSION):
        raise CassetteFileError(
            f"the cassette has the form {version!r:.20}, and this caveat reads {VERSION}; install a newer caveat"
        )
    if version is None and document.pop("version", None) != 1:
        raise CassetteFileError("the file is no cassette: it has neither caveat_cassette nor version: 1; name another")
    if version is not None and not ended:
        raise CassetteFileError(f"the cassette is cut: its last line, '...', is missing; restore it, or {AGAIN}")
    read = _interaction if version is not None else _interaction_of_vcrpy
    pairs = [read(entry, f"interaction {n}") for n, entry in enumerate(document.pop("interactions"), 1)]
    return document, [request for request, _ in pairs], [response for _, response in pairs]


# ---- interactions


def _request_entry(request: Request) -> dict[str, Any]:
    entry: dict[str, Any] = {"method": request.method, "uri": request.uri}
    if request.body_bytes:
        entry["body"] = body_entry(request.body_bytes)
    return entry


def _response_entry(response: Mapping[str, Any]) -> dict[str, Any]:
    headers = {name: _as_list(values) for name, values in response["headers"].items()}
    kind = next((values[0] for name, values in headers.items() if name.lower() == "content-type" and values), "")
    body = body_of(response)
    parts = {
        "status": response["status"]["code"],
        "headers": {name: values[0] if len(values) == 1 else values for name, values in headers.items() if values},
        "body": body_entry(body, kind) if body else None,
        "raises": response.get("raises"),
    }
    return {name: part for name, part in parts.items() if part}


def _interaction(entry: Any, where: str) -> tuple[Request, dict[str, Any]]:
    asked = _part(entry, "request", dict, where)
    answered = _part(entry, "response", dict, where)
    method, uri = _part(asked, "method", str, where), _part(asked, "uri", str, where)
    request = Request(method, uri, _body(asked, where) or None, {})
    code = _part(answered, "status", int, where, 0)
    response = {
        "status": {"code": code, "message": _phrase(code)},
        "headers": _headers(_part(answered, "headers", dict, where, {}), where),
        "body": {"string": _body(answered, where)},
    }
    if "raises" in answered:
        response["raises"] = _part(answered, "raises", dict, where)
    return request, response


def _interaction_of_vcrpy(entry: Any, where: str) -> tuple[Request, dict[str, Any]]:
    asked = _part(entry, "request", dict, where)
    answered = _part(entry, "response", dict, where)
    status = _part(answered, "status", dict, where)
    headers = {name: values[0] for name, values in _headers(_part(asked, "headers", dict, where, {}), where).items()}
    method, uri = _part(asked, "method", str, where), _part(asked, "uri", str, where)
    return Request(method, uri, _body_of_vcrpy(asked, where) or None, headers), {
        "status": {"code": _part(status, "code", int, where), "message": str(status.get("message") or "")},
        "headers": _headers(_part(answered, "headers", dict, where, {}), where),
        "body": {"string": _body_of_vcrpy(answered, where)},
    }


def _body(holder: Mapping[str, Any], where: str) -> bytes:
    entry = _part(holder, "body", dict, where, {})
    try:
        return body_bytes(entry)
    except ValueError as error:
        raise CassetteFileError(
            f"{where} of the cassette has a body that cannot be sent ({error!s:.80}); correct it, or {AGAIN}"
        ) from error


def _body_of_vcrpy(holder: Mapping[str, Any], where: str) -> bytes:
    """Return a body as vcrpy stores it: text or bytes, with {string: …} around it or without."""
    stored = holder.get("body")
    if isinstance(stored, dict):
        stored = stored.get("string", stored)
    if stored is None or isinstance(stored, bytes):
        return stored or b""
    if isinstance(stored, str):
        return stored.encode(errors="surrogatepass")
    raise CassetteFileError(f"{where} of the cassette has a body that is no text; {AGAIN}")


def _part(holder: Any, name: str, kind: type[_T], where: str, default: _T | None = None) -> _T:
    """Return a named part of a mapping. Raises CassetteFileError where it is missing or something else."""
    part = holder.get(name, default) if isinstance(holder, dict) else None
    if part is None and default is not None:
        return default
    if not isinstance(part, kind) or isinstance(part, bool):
        raise CassetteFileError(f"{where} of the cassette has no {name} that is right; correct it, or {AGAIN}")
    return part


def _headers(stored: Mapping[str, Any], where: str) -> dict[str, list[str]]:
    headers = {name: [str(value) for value in _as_list(values)] for name, values in stored.items()}
    for name, values in headers.items():
        if not values:
            raise CassetteFileError(f"{where} of the cassette has a header {name!r:.60} without a value; delete it")
    return headers


def _as_list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [values]


def _phrase(code: int) -> str:
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return ""
