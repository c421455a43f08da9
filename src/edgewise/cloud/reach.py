"""How a cloud at a URL is reached: by ids where its vocabulary is known here, else by text."""

import asyncio
import inspect
import logging
from collections.abc import Sequence
from typing import Any

from edgewise.cloud.base import CloudModel
from edgewise.cloud.connect import connect
from edgewise.cloud.found_tokenizer import linked
from edgewise.cloud.named import AUTO
from edgewise.cloud.text import TextCloud
from edgewise.cloud.view import Viewing
from edgewise.edge.base import Tokenizer
from edgewise.engines.detect import GATEWAY, UnknownEngine, found_at
from edgewise.engines.named import model_for
from edgewise.engines.refusals import Redirected
from edgewise.engines.text_dialects import TEXT_DIALECTS
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


def reach(
    url: str,
    edge: Tokenizer,
    *,
    key: str | None = None,
    engine: str = AUTO,
    model: str | None = None,
    own: Tokenizer | None = None,
    viewing: Viewing | None = None,
) -> tuple[CloudModel, str]:
    """The cloud model at `url`, proven for an `edge`, and how it was.

    `engine` is a name of `CLOUDS` or of `TEXT_DIALECTS`. With "auto" an engine by ids says itself
    what it is; where its vocabulary is another, and neither `own` nor what it says itself leads to
    its tokenizer, it is asked by text. What else is there is asked by text, in each dialect until
    one goes on with an answer. Raises a `CloudError`, `VocabularyMismatch` or another `UsageError`.
    """
    way = _Way(url, edge, key, model, own, viewing)
    if engine in TEXT_DIALECTS:
        return way.by_text(engine)
    if engine != AUTO:
        try:
            return way.by_ids(engine)
        except VocabularyMismatch as error:
            raise _with_text(error, engine) from error
    try:
        found = asyncio.run(found_at(url, key=key, model=model))
    except UnknownEngine as error:
        return way.by_any_text(error)
    if found in TEXT_DIALECTS:
        return way.by_text(found)
    try:
        return way.by_ids(found)
    except (VocabularyMismatch, CloudRejected) as error:
        if own is not None or error.setting == "cloud_model" or found == GATEWAY:
            raise
        _log.info("%s: it is asked by text", error.message.rstrip("."))
        return (
            way.by_text(text)
            if (text := found + _TEXT) in TEXT_DIALECTS
            else way.by_any_text(error)
        )


class _Way:
    """What is known of a cloud before it is reached."""

    def __init__(
        self,
        url: str,
        edge: Tokenizer,
        key: str | None,
        model: str | None,
        own: Tokenizer | None,
        viewing: Viewing | None,
    ) -> None:
        self._url, self._edge, self._viewing = url, edge, viewing
        self._key, self._model, self._own = key, model, own

    def by_ids(self, name: str) -> tuple[CloudModel, str]:
        """By an engine of that name, behind a bridge where its tokenizer is here and another."""
        cloud = connect(self._url, key=self._key, engine=name, model=self._model)
        try:
            return linked(cloud, self._edge, self._own, self._viewing)
        except BaseException:
            cloud.close()
            raise

    def by_text(self, name: str) -> tuple[CloudModel, str]:
        """In that dialect."""
        make = TEXT_DIALECTS[name]
        more: dict[str, Any] = dict(model_for(make, name, self._model))
        if "tokenizer" in inspect.signature(make).parameters:
            if self._own is None:
                raise UsageError(
                    f"The cloud engine {name!r} renders the cloud's chat template here",
                    hint="name the tokenizer of the model that it serves",
                    setting="cloud_tokenizer",
                )
            more["tokenizer"] = self._own
        elif self._own is not None:
            raise UsageError(
                f"The cloud engine {name!r} takes text, for which no tokenizer is needed",
                hint="leave the tokenizer out",
                setting="cloud_tokenizer",
            )
        made = make(self._url, key=self._key, **more)
        # Nothing here counts as the cloud does; the edge's tokens are of about its size.
        view = self._viewing(self._edge) if self._viewing else None
        cloud = TextCloud(made, edge=self._edge, view=view)
        try:
            return cloud, cloud.check(self._edge)
        except BaseException:
            cloud.close()
            raise

    def by_any_text(self, unknown: EdgewiseError) -> tuple[CloudModel, str]:
        """In the first dialect that goes on; raises a `CloudRejected` that names those tried."""
        tried: dict[str, EdgewiseError] = {}
        for name in self._fitting():
            try:
                reached = self.by_text(name)
            except (CloudRejected, CloudProtocolError) as error:
                if isinstance(error, Redirected) or error.setting in ("cloud_model", "cloud_key"):
                    raise
                tried[name] = error
            else:
                _log.info("%r is asked by text, as %s", self._url, name)
                return reached
        raise _none_goes_on(self._url, tried) from unknown

    def _fitting(self) -> Sequence[str]:
        """With a tokenizer that is named, the dialect that needs it."""
        alone = [_OF_THE_PROMPT]
        return (
            alone if self._own is not None else [one for one in TEXT_DIALECTS if one not in alone]
        )


def _with_text(error: VocabularyMismatch, engine: str) -> VocabularyMismatch:
    """An engine by ids that was named stays one: text is for who names it."""
    if engine + _TEXT not in TEXT_DIALECTS or error.setting != "cloud_tokenizer":
        return error
    return VocabularyMismatch(
        error.message,
        hint=f"{error.hint}, or name the engine {engine + _TEXT!r}, which is asked by text",
        setting=error.setting,
    )


def _none_goes_on(url: str, tried: dict[str, EdgewiseError]) -> CloudRejected:
    """Those that said the same are named together."""
    said: dict[str, list[str]] = {}
    for name, error in tried.items():
        said.setdefault(error.message.rstrip("."), []).append(name)
    listed = "; ".join(f"{', '.join(names)}: {why}" for why, names in said.items())
    return CloudRejected(
        f"{url!r} goes on with no answer that was begun, in none of the dialects that Edgewise "
        f"knows ({listed})",
        hint="choose another model or provider, or name the cloud's tokenizer: it is asked by "
        "completions then, and llama-server, vLLM, SGLang, Fireworks and Cerebras by ids",
        setting="cloud_tokenizer",
    )
