"""No cookie goes back to a cloud: it would tell whose answers it is asked."""

from collections.abc import Callable
from contextlib import closing
from functools import partial

import pytest
from aiohttp import web

from edgewise.cloud.adapter.text import TextCloud
from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.cloud.registry import opened
from edgewise.errors import CloudError
from edgewise.prompts import Message, Prompt
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.background import Served


def by_text(url: str) -> TextCloud:
    return TextCloud(opened("chat", url, model="scripted"), edge=ByteTokenizer())


CLOUDS = [*(partial(open_engine, engine=name) for name in ("vllm", "gateway")), by_text]


@pytest.mark.parametrize("kind", CLOUDS)
def test_no_cookie_goes_back(kind: Callable[[str], CloudModel]) -> None:
    came: list[str | None] = []

    async def named(request: web.Request) -> web.Response:
        came.append(request.headers.get("Cookie"))
        return web.Response(status=404, headers={"Set-Cookie": "device=4711; Path=/"})

    with closing(Served()) as server:
        # Cookies of a number's host are kept by nobody.
        url = f"http://localhost:{server.serve([web.route('*', '/{path:.*}', named)])}"
        with closing(kind(url)) as cloud:
            session = cloud.open(Prompt((1,), (Message("user", "so?"),)))
            for _ in range(2):
                with pytest.raises(CloudError):
                    session.ask(ConsultRequest([1], 1, 20)).result()
            session.close()
    assert len(came) > 1
    assert {*came} == {None}
