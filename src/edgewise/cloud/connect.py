"""Connecting to the cloud model behind a URL.

It is asked by ids where its vocabulary is the edge's, or its tokenizer is known here; else by text.
"""

import asyncio
import inspect
import logging
from typing import Any, NamedTuple

from edgewise.cloud.base import CloudModel
from edgewise.cloud.bridge.adapter import checked
from edgewise.cloud.bridge.context_filter import ContextFilterMaker
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
    model_for,
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
    """The cloud model at `url`, by an engine of that name that takes ids; nothing is proven.

    With "auto" it is asked what it is. Of several models there, `model` names one. Raises
    `UsageError` for another engine's name, for one that takes text, and for a model's where that
    engine takes none; a `CloudError` where "auto" finds none that is known.
    """
    check_name(engine)
    name = asyncio.run(engine_at(url, key=key, model=model)) if engine == AUTO else engine
    make = ENGINES.load(name)
    if _is_text(make):
        raise UsageError(
            f"The engine {name!r} takes text, so the edge's tokenizer must be known", hint="connect"
        )
    made = make(url, key=key, **model_for(make, name, model))
    return EngineCloud(made) if isinstance(made, Engine) else made


def connect(
    url: str,
    edge: Tokenizer,
    *,
    key: str | None = None,
    engine: str = AUTO,
    model: str | None = None,
    own: Tokenizer | None = None,
    context_filter: ContextFilterMaker | None = None,
) -> CloudModel:
    """The cloud model at `url`, checked for an `edge`; `proof` says how.

    `own` is the cloud's tokenizer; `engine` is a name of `ENGINES`. With "auto" the server says
    what it is; where its vocabulary is another and `own` is None, it is asked by text. What else is
    there is asked by text, in each dialect until one continues an answer. Raises a `CloudError`,
    `VocabularyMismatch` or another `UsageError`.
    """
    at = _Address(url, edge, key, model, own, context_filter)
    check_name(engine)
    try:
        name = asyncio.run(engine_at(url, key=key, model=model)) if engine == AUTO else engine
    except UnknownEngine as error:
        return at.by_any_text(error)
    if _is_text(ENGINES.load(name)):
        return at.by_text(name)
    text = name + _TEXT
    try:
        return at.by_ids(name)
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
        return at.by_text(text) if text in BY_TEXT else at.by_any_text(error)


def _is_text(make: object) -> bool:
    return isinstance(make, type) and issubclass(make, TextEngine)


class _Address(NamedTuple):
    """What is known of a cloud before it is reached."""

    url: str
    edge: Tokenizer
    key: str | None
    model: str | None
    own: Tokenizer | None
    context_filter: ContextFilterMaker | None

    def by_ids(self, name: str) -> CloudModel:
        """By an engine of that name, behind an adapter where its tokenizer is here and another."""
        cloud = open_engine(self.url, key=self.key, engine=name, model=self.model)
        return checked(cloud, self.edge, self.own, self.context_filter)

    def by_text(self, name: str) -> CloudModel:
        """In that dialect."""
        make = ENGINES.load(name)
        more: dict[str, Any] = dict(model_for(make, name, self.model))
        if "tokenizer" in inspect.signature(make).parameters:
            if self.own is None:
                raise UsageError(
                    f"The cloud engine {name!r} renders the cloud's chat template here",
                    hint="name the tokenizer of the model that it serves",
                    setting="cloud_tokenizer",
                )
            more["tokenizer"] = self.own
        elif self.own is not None:
            raise UsageError(
                f"The cloud engine {name!r} takes text, for which no tokenizer is needed",
                hint="leave the tokenizer out",
                setting="cloud_tokenizer",
            )
        made = make(self.url, key=self.key, **more)
        # Nothing here counts as the cloud does; the edge's tokens are of about its size.
        view = self.context_filter(self.edge) if self.context_filter else None
        return checked(TextCloud(made, edge=self.edge, view=view), self.edge)

    def by_any_text(self, unknown: EdgewiseError) -> CloudModel:
        """In the first dialect that continues an answer; else raises `CloudRejected`."""
        faults: dict[str, list[str]] = {}
        # With a tokenizer that is named, the dialect that needs it.
        fitting = [one for one in BY_TEXT if (one == _OF_THE_PROMPT) == (self.own is not None)]
        for name in fitting:
            try:
                cloud = self.by_text(name)
            except (CloudRejected, CloudProtocolError) as error:
                if isinstance(error, Redirected) or error.setting in ("cloud_model", "cloud_key"):
                    raise
                faults.setdefault(error.message.rstrip("."), []).append(name)
            else:
                _log.info("%r is asked by text, as %s", self.url, name)
                return cloud
        listed = "; ".join(f"{', '.join(names)}: {why}" for why, names in faults.items())
        raise CloudRejected(
            f"{self.url!r} continues a started answer in no dialect that Edgewise knows ({listed})",
            hint="choose another model or provider, or name the cloud's tokenizer: it is asked by "
            f"completions then, and {', '.join(BY_IDS)} by ids",
            setting="cloud_tokenizer",
        ) from unknown
