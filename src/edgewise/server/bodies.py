"""Requests whose bodies are JSON as its standard has it, so that all in them can be sent back."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute

_MARK = b"\xef\xbb\xbf"
"""What some editors put before UTF-8."""


class _Strict(Request):
    """Python's own reader takes NaN, numbers beyond all range and halves of characters."""

    async def json(self) -> Any:
        body = (await self.body()).removeprefix(_MARK)
        try:
            return msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise json.JSONDecodeError(str(error), "", 0) from error


class JsonRoute(APIRoute):
    """An endpoint that reads such a body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            return await handle(_Strict(request.scope, request.receive))

        return read
