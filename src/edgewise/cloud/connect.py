"""Connecting to the cloud model behind a URL.

It is asked by ids where its vocabulary is the edge's, or its tokenizer is known here; else by text,
and where it continues none, for verdicts on passages.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from edgewise.cloud.adapter.ids import checked
from edgewise.cloud.adapter.text import TextCloud
from edgewise.cloud.base import CloudModel
from edgewise.cloud.engine import EngineCloud
from edgewise.cloud.reader import ReaderCloud
from edgewise.cloud.redaction import ContextFilter
from edgewise.cloud.registry import (
    AUTO,
    BY_CHAT,
    BY_IDS,
    BY_TEXT,
    ENGINES,
    GATEWAY,
    UnknownEngine,
    check_name,
    engine_at,
    entry_of,
    opened,
    takes_text,
)
from edgewise.edge.base import Tokenizer
from edgewise.engines.base import Engine
from edgewise.engines.http import Redirected
from edgewise.engines.text import TextEngine
from edgewise.errors import (
    CloudProtocolError,
    CloudRejected,
    CloudUnavailable,
    EdgewiseError,
    UsageError,
    VocabularyMismatch,
)
from edgewise.providers import provider_at

_TEXT = "-text"
"""Ends the name of a text dialect of an engine by ids."""

_log = logging.getLogger(__name__)


def open_engine(
    url: str, *, key: str | None = None, engine: str = AUTO, model: str | None = None
) -> CloudModel:
    """The cloud model at `url`, by an engine of that name that takes ids; nothing is checked.

    With "auto" it is asked what it is. Of several models there, `model` names one. Raises
    `UsageError` for another engine's name and for one that takes text; a `CloudError` where "auto"
    finds none that is known.
    """
    name = _name_at(url, key, engine, model)
    made = opened(name, url, key=key, model=model)
    if isinstance(made, TextEngine):
        raise UsageError(f"The engine {name!r} takes text", hint="use connect")
    return EngineCloud(made) if isinstance(made, Engine) else made


def connect(
    url: str,
    edge: Tokenizer,
    *,
    key: str | None = None,
    engine: str = AUTO,
    model: str | None = None,
    own: Tokenizer | None = None,
    context_filter: ContextFilter | None = None,
) -> CloudModel:
    """The cloud model at `url`, checked for an `edge`; `vocabulary_check` says how.

    `own` is the cloud's tokenizer; `engine` is a name of `ENGINES`. With "auto", detect the engine.
    Use ids if the vocabularies match or `own` is given, otherwise that engine's text dialect. For
    an unknown server, try the text dialects until one continues an answer, then the chat APIs that
    read. Raises a `CloudError`, `VocabularyMismatch` or another `UsageError`.
    """

    def by_text(name: str) -> CloudModel:
        """Connects in the dialect of that name."""
        options: dict[str, Any] = {} if own is None else {"tokenizer": own}
        made = opened(name, url, key=key, model=model, **options)
        make = ReaderCloud if made.server.reads else TextCloud
        return checked(make(made, edge=edge, context_filter=context_filter), edge)

    provider = provider_at(url)
    if engine == AUTO and own is None and provider is not None:
        return by_text(provider.engine)
    try:
        name = _name_at(url, key, engine, model)
    except UnknownEngine as error:
        return _by_any_text(by_text, url, own, error)
    if takes_text(name):
        return by_text(name)
    text = name + _TEXT
    try:
        cloud = open_engine(url, key=key, engine=name, model=model)
        return checked(cloud, edge, own, context_filter)
    except (VocabularyMismatch, CloudRejected) as error:
        other = isinstance(error, VocabularyMismatch) and error.setting == "cloud_tokenizer"
        if engine != AUTO and text in ENGINES and other:
            # One that was named is not asked by text; the error says how it would be.
            error.hint = f"{error.hint}, or name the engine {text!r}, which is asked by text"
            raise
        named = engine != AUTO or own is not None or error.setting == "cloud_model"
        if named or name == GATEWAY:
            raise
        _log.info("%s: it is asked by text", error.message.rstrip("."))
        if text in BY_TEXT:
            return by_text(text)
        return _by_any_text(by_text, url, own, error)


def _name_at(url: str, key: str | None, engine: str, model: str | None) -> str:
    """The engine's name: what is at the URL where it is "auto"."""
    check_name(engine)
    if engine != AUTO:
        return ENGINES.spelled(engine)
    # The caller may have an event loop of its own (a notebook), which this must not run in.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, engine_at(url, key=key, model=model)).result()


def _by_any_text(
    by_text: Callable[[str], CloudModel], url: str, own: Tokenizer | None, unknown: EdgewiseError
) -> CloudModel:
    """Connects in the first dialect that continues an answer; else raises a `CloudError`."""
    faults: dict[str, list[str]] = {}
    busy: CloudUnavailable | None = None
    # With a tokenizer that is named, the dialect that needs it.
    dialects = [name for name in BY_TEXT if entry_of(name).renders == (own is not None)]
    dialects += BY_CHAT if own is None else ()
    for name in dialects:
        try:
            cloud = by_text(name)
        except (CloudRejected, CloudProtocolError, CloudUnavailable) as error:
            busy = error if isinstance(error, CloudUnavailable) else busy
            # An API that is reached may say so of a path that it does not have.
            gone = error is busy and not error.declined
            mistake = error.setting in ("cloud_model", "cloud_key")
            if gone or mistake or isinstance(error, Redirected):
                raise
            faults.setdefault(error.message.rstrip("."), []).append(name)
        else:
            _log.info("%r is asked by %s, as %s", url, "chat" if name in BY_CHAT else "text", name)
            return cloud
    listed = "; ".join(f"{', '.join(names)}: {why}" for why, names in faults.items())
    later = f"{busy.hint}, " if busy else ""
    raise (CloudUnavailable if busy else CloudRejected)(
        f"{url!r} neither continues nor reads a started answer, in any known dialect ({listed})",
        hint=f"{later}choose another model or provider, or name the cloud's tokenizer, for "
        f"completions by text ({', '.join(BY_IDS)}: by ids)",
        setting="cloud_tokenizer",
    ) from unknown
