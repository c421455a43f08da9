"""Errors in OpenAI's form, or in Anthropic's for its endpoints.

The library's errors may name a setting. If a request has a field of that name, the error names the
field; otherwise only the operator can change it, and the error calls it the server's setting.
"""

import re
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from edgewise.errors import CloudError, ContextOverflow, EdgewiseError, UsageError
from edgewise.pair import AnswerOptions

REQUEST_FIELDS = frozenset(AnswerOptions.__annotations__) | {"messages"}
"""Settings that a client can set, by a field of this name or the one in `_OTHERWISE`."""

_OTHERWISE = {"json_schema": "response_format"}


NO_THREADS = "thread_unsupported_request"
"""With this code Anthropic's client goes on without a thread."""


class ApiError(Exception):
    """A refusal with its status, type and code; `headers` go with the reply."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.code, self.param = status, kind, code, param
        self.headers = headers

    def body(self) -> dict[str, Any]:
        """The reply's body."""
        told = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": told}


def api_error(error: EdgewiseError, *, prompt: str | None = None) -> ApiError:
    """The reply to an error raised on purpose; `prompt` is the name of the prompt's field."""
    setting = error.setting
    own = setting in REQUEST_FIELDS
    where = f"the server's setting {setting}" if setting and not own else None
    told = error.sentence(where)
    param = _OTHERWISE.get(setting or "", setting) if own else None
    if isinstance(error, ContextOverflow):
        return ApiError(400, told, code="context_length_exceeded", param=param or prompt)
    if isinstance(error, UsageError):
        return ApiError(400, told, param=param)
    if isinstance(error, CloudError):
        return ApiError(502, told, kind="api_error", code=f"cloud_{error.reason}")
    return ApiError(500, told, kind="api_error")


def unexpected() -> ApiError:
    """The reply to a bug."""
    message = "The server failed; its log says how."
    return ApiError(500, message, kind="api_error", code="internal_error")


def anthropic_body(error: ApiError) -> dict[str, Any]:
    """An error in Anthropic's form."""
    fallback = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = _ANTHROPIC.get(error.status, fallback)
    told: dict[str, Any] = {"type": kind, "message": str(error)}
    if error.code == NO_THREADS:
        told["details"] = {"error_code": error.code, "unsupported": [error.param]}
    return {"type": "error", "error": told}


_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}

_MESSAGES = "/v1/messages"

_PROMPTS = {"/v1/chat/completions": "messages", "/v1/responses": "input", _MESSAGES: "messages"}
"""The field that holds the prompt; elsewhere it is `prompt`."""


def _reply(request: Request, error: ApiError) -> JSONResponse:
    path = request.url.path
    anthropic = path == _MESSAGES or path.startswith(f"{_MESSAGES}/")
    body = anthropic_body(error) if anthropic else error.body()
    return JSONResponse(body, error.status, headers=error.headers)


def install(app: FastAPI) -> None:
    """Every error of `app` is sent in the form of the API that was asked."""

    async def refused(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return _reply(request, error)

    async def raised(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, EdgewiseError)
        prompt = _PROMPTS.get(request.url.path, "prompt")
        return _reply(request, api_error(error, prompt=prompt))

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        if error.body and isinstance(error.body, bytes):
            # Do not guess JSON: a form of any other page could be sent here unasked.
            said = (
                "The body is not said to be JSON; send the header Content-Type: application/json."
            )
            return _reply(request, ApiError(400, said))
        return _reply(request, _invalid(error.errors()))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        kind = "invalid_request_error" if error.status_code < 500 else "api_error"
        headers = dict(error.headers) if error.headers else None
        message = f"{error.detail}".rstrip(".") + "."
        return _reply(request, ApiError(error.status_code, message, kind=kind, headers=headers))

    async def failed(request: Request, error: Exception) -> JSONResponse:
        # Starlette raises it again, so that the log has it whole.
        return _reply(request, unexpected())

    app.add_exception_handler(Exception, failed)
    app.add_exception_handler(ApiError, refused)
    app.add_exception_handler(EdgewiseError, raised)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _invalid(problems: Sequence[Any]) -> ApiError:
    """The first problem as a sentence; for a union, the one that got furthest."""
    problem = max(problems, key=lambda found: len(found["loc"]))
    kind = problem["type"]
    if kind == "json_invalid":
        return ApiError(400, "The body is not valid JSON.")
    param = _path(problem["loc"], strange=kind == "extra_forbidden")
    if kind == "extra_forbidden":
        message = f"{param} is not supported; leave it out."
    elif kind == "missing":
        message = f"{param or 'The body'} is missing."
    elif kind == "union_tag_invalid":
        tag, known = (problem["ctx"][name] for name in ("tag", "expected_tags"))
        known = known.translate(_UNQUOTED)
        message = f"{param} has the type {_short(tag.strip('()'))!r}; what can be read is {known}."
    else:
        message = f"{param or 'The body'} is not valid: {problem['msg'].lower()}."
    return ApiError(400, message, param=param)


_UNQUOTED = str.maketrans("", "", "'()")
_FIELD = re.compile(r"[a-z][a-z0-9_]*")
_LONGEST, _DEEPEST = 60, 8
_KINDS = frozenset({"str", "int", "float", "bool", "list"})


def _path(loc: Sequence[str | int], *, strange: bool) -> str | None:
    """Where a problem is: fields and indices, without the types that were tried there.

    A `strange` last part is the client's own word.
    """
    last = len(loc) - 1
    names = [
        _short(str(part))
        for at, part in enumerate(loc)
        if isinstance(part, int)
        or (at == last and strange)
        or (at > 0 and part not in _KINDS and _FIELD.fullmatch(part))
    ]
    return ".".join(names[:_DEEPEST]) or None


def _short(word: str) -> str:
    """A client's own word, short and on one line."""
    return " ".join(word[:_LONGEST].split())
