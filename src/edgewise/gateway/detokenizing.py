"""`POST /detokenize`: what the engines make of ids, so that devices can compare them all."""

import asyncio
import math
from typing import Annotated
from weakref import WeakValueDictionary

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgewise.errors import CloudError, OtherVocabulary
from edgewise.gateway.fleet import Fleet
from edgewise.keys.keys import Key
from edgewise.keys.limits import KeyLimits, Unbilled
from edgewise.wire.protocol import Count

MOST = 1 << 15
"""Ids of one request."""

MAX_BODY = 1 << 19
"""Of a request, bytes: ten digits an id, a comma and a blank, and room."""

SECONDS = 15.0
"""How long the engines may take, the wait for a key's turn included."""

_NOT_FOUND = "The engine does not detokenise."


class _Asked(msgspec.Struct):
    tokens: Annotated[list[Count], msgspec.Meta(min_length=1, max_length=MOST)]


class Detokenizing:
    """Answers devices, one request of a key at a time; ids count as those that come in frames."""

    def __init__(self, fleet: Fleet, limits: KeyLimits) -> None:
        self._fleet, self._limits = fleet, limits
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def answer(self, request: Request, key: Key) -> Response:
        """The text of the ids that are asked for, or why there is none."""
        asked = await _read(request)
        if asked is None:
            return _refused(400, f"The body holds at most {MOST} token ids.")
        turn = self._turns.setdefault(key.name, asyncio.Lock())
        try:
            async with asyncio.timeout(SECONDS), turn:
                return await self._in_turn(asked.tokens, key)
        except TimeoutError:
            return _refused(503, "The engine does not detokenise in time.")

    async def _in_turn(self, ids: list[int], key: Key) -> Response:
        if wait := await self._limits.charge(key, Unbilled()):
            later = {"Retry-After": str(math.ceil(wait))}
            return _refused(429, "Too many token ids in too short a time.", later)
        await self._limits.charge(key, Unbilled(len(ids)))
        return await self._spelled(ids)

    async def _spelled(self, ids: list[int]) -> Response:
        size = self._fleet.size
        if size is not None and max(ids) >= size:
            return _refused(400, f"The model has ids below {size}.")
        try:
            text = await self._fleet.detokenize(ids)
        except OtherVocabulary as error:
            return _refused(409, str(error))
        except CloudError as error:
            return _refused(503, str(error))
        return _refused(404, _NOT_FOUND) if text is None else JSONResponse({"content": text})


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
