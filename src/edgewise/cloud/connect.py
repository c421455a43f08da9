"""Connecting to the cloud model behind a URL.

The model is asked by token ids if it has the edge model's vocabulary, or if the cloud model's own
tokenizer is given. Otherwise it is sent text, which it continues. A model behind an API that cannot
continue a text verifies whole passages of the answer instead, such as paragraphs.
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

# Suffix of the engine name under which an engine that takes ids is asked by text instead.
_TEXT = "-text"

_log = logging.getLogger(__name__)


def open_engine(
    url: str, *, key: str | None = None, engine: str = AUTO, model: str | None = None
) -> CloudModel:
    """Return the cloud model at `url`, to be asked by token ids; its vocabulary is not checked.

    `engine` names the kind of server, such as "vllm"; "auto" asks the server. `key` is the API key,
    `model` one of several models there. Raises `UsageError` if the engine is unknown or takes text,
    and a `CloudError` if "auto" does not find a known engine.
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
    """Return the cloud model at `url`, checked to work with the edge model's tokenizer `edge`.

    `engine` names the kind of server, such as "vllm"; "auto" detects it. `key` is the API key,
    `model` one of several models there, `own` the cloud model's tokenizer. `context_filter` hides
    private words from the cloud. A server that takes ids is asked by ids if it has the edge model's
    vocabulary, or if `own` is given. Otherwise "auto" asks it by text; an engine that was named, or
    a gateway, raises `VocabularyMismatch`. At an unknown server "auto" tries the known text APIs,
    then the chat APIs, where the model verifies passages of the answer; with `own`, only text APIs
    that need a tokenizer. `CloudModel.vocabulary_check` says what was found. Raises a `CloudError`
    or `UsageError`.
    """

    def by_text(name: str) -> CloudModel:
        """Connect in the text or chat dialect of that name."""
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
        # A gateway continues no text; a model that is not served is not served as text either.
        named = engine != AUTO or own is not None or error.setting == "cloud_model"
        if named or name == GATEWAY:
            raise
        _log.info("%s: it is asked by text", error.message.rstrip("."))
        if text in BY_TEXT:
            return by_text(text)
        return _by_any_text(by_text, url, own, error)


def _name_at(url: str, key: str | None, engine: str, model: str | None) -> str:
    """Return the name of an engine as registered; for "auto", of the engine found at the URL."""
    check_name(engine)
    if engine != AUTO:
        return ENGINES.spelled(engine)
    # The caller may have an event loop of its own (a notebook), which this must not run in.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, engine_at(url, key=key, model=model)).result()


def _by_any_text(
    by_text: Callable[[str], CloudModel], url: str, own: Tokenizer | None, unknown: EdgewiseError
) -> CloudModel:
    """Connect in the first text or chat dialect that works; raise a `CloudError` if none does."""
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
            # What the next dialect would meet, too.
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
