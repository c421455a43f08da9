"""`POST /detokenize`: what the engines make of ids, so that devices can compare them all."""

import asyncio
import math
from collections import defaultdict
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgewise.errors import CloudError, OtherVocabulary
from edgewise.gateway.fleet import Fleet
from edgewise.keys.keys import Key
from edgewise.keys.limits import KeyLimits
from edgewise.wire.protocol import Count

MOST = 1 << 15
"""Ids of one request."""

MAX_BODY = 1 << 19
"""Of a request, bytes: ten digits an id, a comma and a blank, and room."""

SECONDS = 15.0
"""How long the engines may take, the wait for a key's turn included."""


class _Asked(msgspec.Struct):
    tokens: Annotated[list[Count], msgspec.Meta(min_length=1, max_length=MOST)]


class Detokenizing:
    """Answers devices, one request of a key at a time; ids count as those that come in frames."""

    def __init__(self, fleet: Fleet, limits: KeyLimits) -> None:
        self._fleet, self._limits = fleet, limits
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def answer(self, request: Request, key: Key) -> Response:
        """The text of the ids that are asked for, or why there is none."""
        asked, size = await _read(request), self._fleet.size
        if asked is None:
            return _refused(400, f"The body holds at most {MOST} token ids.")
        if size is not None and max(asked.tokens) >= size:
            return _refused(400, f"The model has ids below {size}.")
        try:
            async with asyncio.timeout(SECONDS), self._turns[key.name]:
                if wait := self._limits.charge(key, 0):
                    later = {"Retry-After": str(math.ceil(wait))}
                    return _refused(429, "Too many token ids in too short a time.", later)
                self._limits.charge(key, len(asked.tokens))
                text = await self._fleet.detokenize(asked.tokens)
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
