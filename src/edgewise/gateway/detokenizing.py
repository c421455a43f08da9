"""`POST /detokenize`: what the engines make of ids, so that devices can compare them all."""

import asyncio
import math
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgewise.errors import CloudError, OtherVocabulary
from edgewise.gateway.fleet import Fleet
from edgewise.keys.keys import Key
from edgewise.keys.limits import KeyLimits, OverLimit
from edgewise.wire.protocol import Count

MOST = 1 << 15
"""Ids of one request."""

MAX_BODY = 1 << 19
"""Of a request, bytes: ten digits an id, a comma and a blank, and room."""

SECONDS = 15.0
"""How long the engines may take."""


class _Asked(msgspec.Struct):
    tokens: Annotated[list[Count], msgspec.Meta(min_length=1, max_length=MOST)]


async def detokenize(request: Request, key: Key, fleet: Fleet, limits: KeyLimits) -> Response:
    """The text of the ids that a device asks for, which count as those in frames; or why none."""
    asked, size = await _read(request), fleet.size
    if asked is None:
        return _refused(400, f"The body holds at most {MOST} token ids.")
    if size is not None and max(asked.tokens) >= size:
        return _refused(400, f"The model has ids below {size}.")
    try:
        limits.admit(key, 0)
        limits.charge(key, len(asked.tokens))
        async with asyncio.timeout(SECONDS):
            text = await fleet.detokenize(asked.tokens)
    except OverLimit as over:
        return _refused(429, str(over), {"Retry-After": str(math.ceil(over.retry_after or 1))})
    except TimeoutError:
        return _refused(503, "The engine does not detokenise in time.")
    except OtherVocabulary as error:
        return _refused(409, str(error))
    except CloudError as error:
        return _refused(503, str(error))
    if text is None:
        return _refused(404, "The engine does not detokenise.")
    return JSONResponse({"content": text})


async def _read(request: Request) -> _Asked | None:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            return None
    try:
        return msgspec.json.decode(body, type=_Asked)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _refused(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers)
