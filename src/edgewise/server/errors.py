"""Error replies in OpenAI's form, or in Anthropic's form for Anthropic's endpoints."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from edgewise.errors import CloudError, ContextOverflow, EdgewiseError, UsageError
from edgewise.pair import AnswerOptions

REQUEST_FIELDS = frozenset(AnswerOptions.__annotations__) | {"messages"}
"""Settings that a client can set, by a field of the same name or the one in `_OTHERWISE`."""

_OTHERWISE = {"json_schema": "response_format"}


class ApiError(Exception):
    """An error reply: HTTP status, headers, message, and the fields of OpenAI's error objects.

    `code` is a word for programs, such as model_not_found; `param` is the request's field at fault.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.headers = status, code, param, headers

    @property
    def kind(self) -> str:
        """The `type`: rate_limit_error (429), api_error (500 or more) or invalid_request_error."""
        if self.status >= 500:
            return "api_error"
        return "rate_limit_error" if self.status == 429 else "invalid_request_error"

    def body(self) -> dict[str, Any]:
        """Return the reply in OpenAI's form: `error` with `message`, `type`, `param` and `code`."""
        fields = {"type": self.kind, "param": self.param, "code": self.code}
        return {"error": {"message": str(self), **fields}}


def come_back(message: str, seconds: float, *, code: str = "rate_limit_exceeded") -> ApiError:
    """Return an `ApiError` 429 whose header `Retry-After` is `seconds`, rounded up."""
    headers = {"Retry-After": str(math.ceil(seconds))}
    return ApiError(429, message, code=code, headers=headers)


def _raised(error: EdgewiseError, prompt: str | None) -> ApiError:
    setting = error.setting
    own = setting in REQUEST_FIELDS
    # What is no field of requests only the operator can change.
    error.where = f"the server's setting {setting}" if setting and not own else None
    message = str(error)
    param = _OTHERWISE.get(setting or "", setting) if own else None
    if isinstance(error, ContextOverflow):
        return ApiError(400, message, code="context_length_exceeded", param=param or prompt)
    if isinstance(error, UsageError):
        return ApiError(400, message, param=param)
    if isinstance(error, CloudError):
        return ApiError(502, message, code=f"cloud_{error.reason}")
    return ApiError(500, message)


def anthropic_body(error: ApiError) -> dict[str, Any]:
    """Return an error reply in Anthropic's form; `details` only if the faulty field is `thread`."""
    kind = _ANTHROPIC.get(error.status, error.kind)
    fields: dict[str, Any] = {"type": kind, "message": str(error)}
    if error.param == "thread":
        # With this code Anthropic's client goes on without one.
        code = "thread_unsupported_request"
        fields["details"] = {"error_code": code, "unsupported": [error.param]}
    return {"type": "error", "error": fields}


_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}

_MESSAGES = "/v1/messages"

# The field of each endpoint that holds the prompt; for others it is `prompt`.
_PROMPTS = {"/v1/chat/completions": "messages", "/v1/responses": "input", _MESSAGES: "messages"}


def install(app: FastAPI) -> None:
    """Make `app` turn exceptions into error replies, in the form of the API that was called."""

    async def reply(request: Request, error: Exception) -> JSONResponse:
        path = request.url.path
        refusal = refusal_of(error, prompt=_PROMPTS.get(path, "prompt"))
        anthropic = path == _MESSAGES or path.startswith(f"{_MESSAGES}/")
        body = anthropic_body(refusal) if anthropic else refusal.body()
        return JSONResponse(body, refusal.status, headers=refusal.headers)

    # Starlette raises what nobody expected again, so that the log has it whole.
    expected = (ApiError, EdgewiseError, RequestValidationError, HTTPException, RecursionError)
    for kind in (Exception, *expected):
        app.add_exception_handler(kind, reply)


def refusal_of(error: Exception, *, prompt: str | None = None) -> ApiError:
    """Return the error reply for an exception; an `ApiError` is returned as it is.

    Invalid requests and `UsageError`s become a 400, `CloudError`s a 502, other `EdgewiseError`s a
    500; an `HTTPException` keeps its status. A `RecursionError` becomes a 400: the body is nested
    too deeply. Any other exception (a bug) becomes a 500 without details. If the prompt is too
    long, `param` is `prompt`: the name of the field that holds it.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EdgewiseError):
        return _raised(error, prompt)
    if isinstance(error, RequestValidationError):
        if isinstance(error.body, bytes) and error.body:
            # Do not guess JSON: a form of any other page could be sent here unasked.
            return ApiError(400, "The body needs the header Content-Type: application/json.")
        return _invalid(error.errors())
    if isinstance(error, HTTPException):
        allowed = (error.headers or {}).get("Allow")
        message = f"This address takes {allowed}." if allowed else f"{error.detail.rstrip('.')}."
        code = "context_length_exceeded" if error.status_code == 413 else None
        return ApiError(error.status_code, message, code=code, headers=error.headers)
    if isinstance(error, RecursionError):
        return ApiError(400, "The body is nested too deeply; flatten it.")
    # A bug, whose message may quote anything.
    return ApiError(500, "The server failed; its log says how.", code="internal_error")


def _invalid(problems: Sequence[Any]) -> ApiError:
    """Return an error 400 with one of pydantic's validation problems as a sentence."""
    # In a union each member has problems; the deepest are those of the member that was meant.
    deepest = max(len(_names(one["loc"])) for one in problems)
    furthest = [one for one in problems if len(_names(one["loc"])) == deepest]
    # Members that were not meant mostly find a wrong type.
    meant = [one for one in furthest if not one["type"].endswith("_type")]
    problem = meant[0] if meant else furthest[0]
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "json_invalid":
        return ApiError(400, f"The body is not valid JSON: {context['error']}.")
    param = ".".join(_names(problem["loc"])[:_DEEPEST]) or None
    name, code = param or "The body", None
    if kind == "unknown":
        name = param = ".".join(filter(None, (param, shown(context["name"]))))
        said = "is not supported; leave it out"
    elif kind == "missing":
        said = "is missing"
    elif kind == "union_tag_invalid":
        tag, known = shown(context["tag"].strip("()")), context["expected_tags"]
        has = f"has the type {tag!r}" if tag else "is no object with a type"
        said = f"{has}; supported are {known.translate(_UNQUOTED)}"
    else:
        same = meant[:1] or [one for one in furthest if one["loc"][:2] == problem["loc"][:2]]
        said = " or ".join(dict.fromkeys(map(_said, same))).replace(" or should be ", " or ")
        far = kind.endswith("too_long") and context.get("max_length", 0) >= _FAR_TOO_LONG
        code = "context_length_exceeded" if far else None
    return ApiError(400, f"{name} {said}.", param=param, code=code)


def _said(problem: Any) -> str:
    """Say what is wrong with a value, without pydantic's own terms."""
    _, should, rest = problem["msg"].partition(" should ")
    for term, ours in _TERMS.items():
        rest = rest.replace(term, ours)
    message = problem["msg"]
    return f"should {rest}" if should else f"is not valid: {message[:1].lower()}{message[1:]}"


_TERMS = {
    " after validation": "",
    "a valid dictionary or object to extract fields from": "an object",
    "a valid dictionary": "an object",
}
# A value over a length limit of at least this (characters or ids) is too long a prompt.
_FAR_TOO_LONG = 1 << 20

_UNQUOTED = str.maketrans("", "", "'()")
_FIELD = re.compile(r"[a-z][a-z0-9_]*")
# A client's own nested JSON must not fill its error.
_LONGEST, _DEEPEST = 60, 8
_KINDS = frozenset({"str", "int", "float", "bool", "list"})


def _names(loc: Sequence[str | int]) -> list[str]:
    """Return the path of an invalid value: fields and indices, without types tried in unions."""
    return [
        str(part)
        for at, part in enumerate(loc)
        if isinstance(part, int) or (at > 0 and part not in _KINDS and _FIELD.fullmatch(part))
    ]


def shown(word: str) -> str:
    """Return the first 60 characters of a client's text, with "?" for all but printable ASCII."""
    return "".join(one if one.isascii() and one.isprintable() else "?" for one in word[:_LONGEST])
