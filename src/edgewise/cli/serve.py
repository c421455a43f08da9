"""`edgewise serve`: OpenAI's API and a page in front of the pair."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from edgewise.addresses import from_home
from edgewise.cli import render
from edgewise.cli.listening import (
    Certificate,
    Connections,
    Host,
    Listening,
    Port,
    PrivateKey,
    listening_at,
    require_extra,
    require_guarded,
)
from edgewise.cli.options import ANSWERING, SentFile, SettingsWith, takes
from edgewise.errors import EdgewiseError, UsageError
from edgewise.listening.sockets import LOOPBACK, is_loopback
from edgewise.pair import open_pair
from edgewise.parts import sampling_of
from edgewise.settings import Settings, spelled

if TYPE_CHECKING:
    from fastapi import FastAPI

    from edgewise.server.models import Models

ModelFiles = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FILE",
        help="Serve a model by this name, with its settings in FILE; repeatable.",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="EDGEWISE_API_KEY",
        show_envvar=False,
        help="Key that clients need; better in EDGEWISE_API_KEY.",
    ),
]

OPEN_FILES = 64
"""Left for the connections of each model's cloud."""


@takes(*ANSWERING, reads=["cloud_key", "edge_key"])
def serve(
    chosen: Settings,
    chosen_with: SettingsWith,
    model: ModelFiles = None,
    slots: Annotated[
        int, typer.Option(min=1, max=256, help="Answers of a model that are written at a time.")
    ] = 4,
    queue: Annotated[
        int, typer.Option(min=0, help="Answers of a model that may wait; more get a 429.")
    ] = 32,
    host: Host = LOOPBACK[0],
    port: Port = 8300,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Origin of another page that may ask; repeatable."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="File of clients' keys, instead of one; see keys add.")
    ] = None,
    api_key: ApiKey = None,
    certificate: Certificate = None,
    private_key: PrivateKey = None,
    connections: Connections = None,
    sent_file: SentFile = None,
) -> None:
    """Serve OpenAI's API and a chat page: model ids edgewise, edgewise@0.05, edgewise:edge|cloud.

    edgewise:t0.3 asks by a fixed threshold, so that answers are reproducible. What a request
    leaves out is as the flags say. With --model the names are yours.
    """
    require_guarded(host, keys, api_key, ways="--api-key, or --keys FILE")
    require_extra("serve", "fastapi", "sse_starlette", "structlog", "uvicorn")
    from edgewise.keys.keys import Keys
    from edgewise.listening.origins import require_origin
    from edgewise.server.app import make_app
    from edgewise.server.callers import Callers

    callers = Callers(api_key=api_key, keys=Keys(keys))
    origins = [require_origin(origin) for origin in cors_origin or ()]
    wanted = _served_models(model or [], chosen, chosen_with)
    reserve, tls = OPEN_FILES * len(wanted), (certificate, private_key)
    with (
        listening_at(host, port, tls, connections, reserve=reserve) as listening,
        ExitStack() as stack,
    ):
        models = _load(
            wanted,
            stack,
            slots=slots,
            queue=queue,
            # What a key finds in a cache must not be what another asked.
            keep_prefixes=keys is None,
            sent_file=sent_file,
        )
        hosts = (*LOOPBACK, host) if is_loopback(host) else ("*",)
        app = make_app(models, callers=callers, origins=origins, hosts=hosts)
        names = ", ".join(f"{one.name} ({one.edge.name})" for one in models.all)
        render.note(f"serving {names} at {listening.url} (page, /v1)")
        _listen(app, listening)


def _listen(app: "FastAPI", at: Listening) -> None:
    """Until a signal ends it."""
    from edgewise.listening.logs import log_lines
    from edgewise.listening.server import Listener

    with log_lines("plain", "warning"):
        asyncio.run(Listener(app, at.socket, **at.limits).listen())


class _ServedModel(NamedTuple):
    """A model to load; `file` holds its settings, None where flags alone do."""

    name: str
    settings: Settings
    file: Path | None = None

    @contextmanager
    def named(self) -> Generator[None]:
        """An error says which model it is about, and where its setting stands."""
        try:
            yield
        except EdgewiseError as error:
            if self.file is None:
                raise
            where = f"{spelled(error.setting)} in {self.file}" if error.setting else None
            raise UsageError(
                f"The model {self.name!r} cannot be served: {error.sentence(where)}"
            ) from error


def _served_models(
    given: Sequence[str], chosen: Settings, chosen_with: SettingsWith
) -> list[_ServedModel]:
    """What to load: NAME=FILE each, or the one of the flags. Raises `UsageError`.

    What is wrong with the settings shows here, and not once a model is loaded.
    """
    from edgewise.server.answering import PAIR

    models = [_named(one, chosen, chosen_with) for one in given] or [_ServedModel(PAIR, chosen)]
    names = [one.name for one in models]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"Two models have the name {name!r}.")
    for one in models:
        with one.named():
            sampling_of(one.settings)
    return models


def _load(
    models: Sequence[_ServedModel],
    stack: ExitStack,
    *,
    slots: int,
    queue: int,
    keep_prefixes: bool,
    sent_file: Path | None,
) -> "Models":
    """Load them one after the other; `stack` closes them. Raises an error that names the model."""
    from edgewise.server.answering import Answering
    from edgewise.server.local_messages import LocalMessages
    from edgewise.server.models import Models

    # A conversation that goes on with another model is as local as it was.
    local = LocalMessages()
    answerings: list[Answering] = []
    options = {"slots": slots, "keep_prefixes": keep_prefixes, "sent_file": sent_file}
    for one in models:
        with one.named():
            pair = stack.enter_context(open_pair(one.settings, **options))
        answering = Answering(pair, slots=slots, queue=queue, local=local, name=one.name)
        stack.callback(answering.close)
        answerings.append(answering)
    return Models(answerings)


def _named(given: str, chosen: Settings, chosen_with: SettingsWith) -> _ServedModel:
    from edgewise.server.models import require_name

    name, separator, file = given.partition("=")
    if not separator or not file:
        raise UsageError(
            f"{given!r} does not name a model and its file of settings", hint="give NAME=FILE.toml"
        )
    require_name(name)
    path = from_home(file)
    settings = chosen_with(path)
    return _ServedModel(name, settings, path)
