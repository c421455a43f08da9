"""Connecting to the cloud model behind a URL.

It is asked by ids where its vocabulary is the edge's, or its tokenizer is known here; else by text.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from edgewise.cloud.base import CloudModel
from edgewise.cloud.bridge.adapter import checked
from edgewise.cloud.bridge.context_filter import ContextFilter
from edgewise.cloud.bridge.text import TextCloud
from edgewise.cloud.engine import EngineCloud
from edgewise.edge.base import Tokenizer
from edgewise.engines.base import Engine
from edgewise.engines.http import Redirected
from edgewise.engines.registry import (
    AUTO,
    BY_IDS,
    BY_TEXT,
    ENGINES,
    GATEWAY,
    UnknownEngine,
    check_name,
    engine_at,
)
from edgewise.engines.text import TextEngine
from edgewise.errors import (
    CloudProtocolError,
    CloudRejected,
    EdgewiseError,
    UsageError,
    VocabularyMismatch,
)

_TEXT = "-text"
"""Ends the name of a text dialect of an engine by ids."""

_OF_THE_PROMPT = "completions"
"""The one that needs the model's own tokenizer, for its template."""


_log = logging.getLogger(__name__)


def open_engine(
    url: str, *, key: str | None = None, engine: str = AUTO, model: str | None = None
) -> CloudModel:
    """The cloud model at `url`, by an engine of that name that takes ids; nothing is checked.

    With "auto" it is asked what it is. Of several models there, `model` names one. Raises
    `UsageError` for another engine's name and for one that takes text; a `CloudError` where "auto"
    finds none that is known.
    """
    check_name(engine)
    name = asyncio.run(engine_at(url, key=key, model=model)) if engine == AUTO else engine
    make = ENGINES.load(name)
    if _is_text(make):
        raise UsageError(
            f"The engine {name!r} takes text, so the edge's tokenizer must be known", hint="connect"
        )
    made = make(url, key=key, model=model)
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

    `own` is the cloud's tokenizer; `engine` is a name of `ENGINES`. With "auto" the server says
    what it is; where its vocabulary is another and `own` is None, it is asked by text. What else is
    there is asked by text, in each dialect until one continues an answer. Raises a `CloudError`,
    `VocabularyMismatch` or another `UsageError`.
    """
    check_name(engine)
    by_text = partial(_by_text, url, edge, key, model, own, context_filter)
    try:
        name = asyncio.run(engine_at(url, key=key, model=model)) if engine == AUTO else engine
    except UnknownEngine as error:
        return _by_any_text(by_text, url, own, error)
    if _is_text(ENGINES.load(name)):
        return by_text(name)
    text = name + _TEXT
    try:
        cloud = open_engine(url, key=key, engine=name, model=model)
        return checked(cloud, edge, own, context_filter)
    except (VocabularyMismatch, CloudRejected) as error:
        other = isinstance(error, VocabularyMismatch) and error.setting == "cloud_tokenizer"
        if engine != AUTO and text in ENGINES and other:
            # One that was named is not asked by text; the error says how it would be.
            raise VocabularyMismatch(
                error.message,
                hint=f"{error.hint}, or name the engine {text!r}, which is asked by text",
                setting=error.setting,
            ) from error
        named = engine != AUTO or own is not None or error.setting == "cloud_model"
        if named or name == GATEWAY:
            raise
        _log.info("%s: it is asked by text", error.message.rstrip("."))
        if text in BY_TEXT:
            return by_text(text)
        return _by_any_text(by_text, url, own, error)


def _is_text(make: object) -> bool:
    return isinstance(make, type) and issubclass(make, TextEngine)


def _by_text(
    url: str,
    edge: Tokenizer,
    key: str | None,
    model: str | None,
    own: Tokenizer | None,
    context_filter: ContextFilter | None,
    name: str,
) -> CloudModel:
    """In the dialect of that name."""
    make = ENGINES.load(name)
    more: dict[str, Any] = {}
    if "tokenizer" in inspect.signature(make).parameters:
        if own is None:
            raise UsageError(
                f"The cloud engine {name!r} renders the cloud's chat template here",
                hint="name the tokenizer of the model that it serves",
                setting="cloud_tokenizer",
            )
        more["tokenizer"] = own
    elif own is not None:
        raise UsageError(
            f"The cloud engine {name!r} takes text, for which no tokenizer is needed",
            hint="leave the tokenizer out",
            setting="cloud_tokenizer",
        )
    made = TextCloud(
        make(url, key=key, model=model, **more), edge=edge, context_filter=context_filter
    )
    return checked(made, edge)


def _by_any_text(
    by_text: Callable[[str], CloudModel], url: str, own: Tokenizer | None, unknown: EdgewiseError
) -> CloudModel:
    """In the first dialect that continues an answer; else raises `CloudRejected`."""
    faults: dict[str, list[str]] = {}
    # With a tokenizer that is named, the dialect that needs it.
    for name in (one for one in BY_TEXT if (one == _OF_THE_PROMPT) == (own is not None)):
        try:
            cloud = by_text(name)
        except (CloudRejected, CloudProtocolError) as error:
            if isinstance(error, Redirected) or error.setting in ("cloud_model", "cloud_key"):
                raise
            faults.setdefault(error.message.rstrip("."), []).append(name)
        else:
            _log.info("%r is asked by text, as %s", url, name)
            return cloud
    listed = "; ".join(f"{', '.join(names)}: {why}" for why, names in faults.items())
    raise CloudRejected(
        f"{url!r} continues a started answer in no dialect that Edgewise knows ({listed})",
        hint="choose another model or provider, or name the cloud's tokenizer: it is asked by "
        f"completions then, and {', '.join(BY_IDS)} by ids",
        setting="cloud_tokenizer",
    ) from unknown
