"""Cloud engines by name: servers that take ids, APIs that take text, and Edgewise's gateway.

A gateway is Edgewise's own server in front of such servers. Packages may add engines. An engine is
detected by its `owner`: the `owned_by` that a server gives its models in `/v1/models`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from edgewise.engines.base import PROBE_SECONDS
from edgewise.engines.http import Endpoint, HttpEngine, Redirected, model_named, served_models
from edgewise.engines.text import TextEngine
from edgewise.errors import CloudProtocolError, CloudRejected, CloudTimeout, UsageError
from edgewise.registry import Registry, did_you_mean
from edgewise.servers.base import IdServer, ListedModel, TextServer

AUTO = "auto"
"""The engine name that means: detect the engine at the URL."""

GATEWAY = "gateway"

BY_IDS = {
    "llama-server": "edgewise.engines.llama_server:LlamaServerEngine",
    "vllm": "edgewise.servers.openai:VllmServer",
    "sglang": "edgewise.servers.sglang:SglangServer",
}
"""Servers that take token ids. A gateway can be started in front of these."""

BY_TEXT = {
    # First APIs with paths of their own, which other servers decline.
    "llama-server-text": "edgewise.servers.llama_server:LlamaCppText",
    "ollama": "edgewise.servers.ollama:OllamaText",
    "deepseek": "edgewise.servers.chat:DEEPSEEK",
    # Then those that mark a started answer by a field, which others may not know.
    "vllm-text": "edgewise.servers.chat:VLLM",
    "sglang-text": "edgewise.servers.chat:SGLANG",
    "mistral": "edgewise.servers.chat:MISTRAL",
    "qwen": "edgewise.servers.chat:QWEN",
    "moonshot": "edgewise.servers.chat:MOONSHOT",
    # Then those that only put it last, which some servers take for a finished answer.
    "lm-studio": "edgewise.servers.chat:LM_STUDIO",
    "chat": "edgewise.servers.chat:CHAT",
    "edgewise": "edgewise.servers.chat:EDGEWISE",
    # It renders the chat template here, so it needs a tokenizer.
    "completions": "edgewise.servers.openai:CompletionsServer",
}
"""APIs that take text and continue it, in the order in which an unknown server is asked by them."""

BY_CHAT = {
    "openai": "edgewise.servers.chat:OpenAiServer",
    "anthropic": "edgewise.servers.anthropic:AnthropicServer",
}
"""Chat APIs that cannot continue a started answer, but verify passages of one (`ReaderCloud`)."""

ENGINES: Registry[Any] = Registry(
    "cloud engine",
    "edgewise.cloud",
    {**BY_IDS, **BY_TEXT, **BY_CHAT, GATEWAY: "edgewise.cloud.gateway:GatewayCloud"},
)
"""All cloud engines by name, with those that packages add as entry points.

An entry is the description of a server (`IdServer` or `TextServer`), a subclass of `HttpEngine` or
`TextEngine`, or a callable that makes a `CloudModel`. The last two are called with a URL, `key` and
`model` (None if not given).
"""

# Of a name that a server gives itself.
_LONGEST = 100


class UnknownEngine(CloudRejected):
    """The server at this URL is not one of the engines that Edgewise detects by itself."""


def check_name(engine: str) -> None:
    """Raise `UsageError` unless `engine` is "auto" or a known engine's name, such as "vllm"."""
    if engine != AUTO and engine not in ENGINES:
        known = [AUTO, *ENGINES.names()]
        raise UsageError(
            f"There is no cloud engine {engine!r}",
            hint=did_you_mean(engine, known, f"known are {', '.join(known)}"),
            setting="cloud_engine",
        )


def entry_of(name: str) -> Any:
    """Return what stands for the engine `name`: an `IdServer`, a `TextServer`, or a callable.

    A callable makes a client from a URL, `key` and `model`. Raises `UsageError` for unknown names.
    """
    entry = ENGINES.load(name)
    described = isinstance(entry, type) and issubclass(entry, IdServer | TextServer)
    return entry() if described else entry


def takes_text(name: str) -> bool:
    """Whether an engine takes and returns text, not ids. Raises `UsageError` for unknown names."""
    entry = entry_of(name)
    made = isinstance(entry, type) and issubclass(entry, TextEngine)
    return made or isinstance(entry, TextServer)


def opened(
    name: str, url: str, *, key: str | None = None, model: str | None = None, **options: Any
) -> Any:
    """Make a client of the engine `name` at `url`; `key` is the API key, `model` the model's name.

    Returns an `HttpEngine` for a server that takes token ids, a `TextEngine` for an API that takes
    text, a `CloudModel` for a gateway. `options` go to the last two: an API whose chat template
    Edgewise applies (`TextServer.renders`) needs the cloud model's `tokenizer`.
    """
    entry = entry_of(name)
    if isinstance(entry, IdServer):
        return HttpEngine(entry, url, key=key, model=model)
    if isinstance(entry, TextServer):
        return TextEngine(entry, url, key=key, model=model, **options)
    return entry(url, key=key, model=model, **options)


def engine_by_ids(
    name: str, url: str, *, key: str | None = None, model: str | None = None
) -> HttpEngine:
    """Make a client of the engine `name` at `url`. Raises `UsageError` if it takes no token ids."""
    entry = entry_of(name)
    by_ids = isinstance(entry, type) and issubclass(entry, HttpEngine)
    if not by_ids and not isinstance(entry, IdServer):
        raise UsageError(
            f"The engine {name!r} takes no token ids",
            hint=f"name one that does: {', '.join(BY_IDS)}",
            setting="engine_kind",
        )
    made: HttpEngine = opened(name, url, key=key, model=model)
    return made


def owners() -> dict[str, str]:
    """Return the names of the engines that `engine_at` detects, by their models' `owned_by`."""
    return {entry_of(name).owner: name for name in (*BY_IDS, GATEWAY, "edgewise")}


async def engine_at(url: str, *, key: str | None = None, model: str | None = None) -> str:
    """Detect the engine or the gateway at `url`, and return its name in `ENGINES`.

    It is known by the `owned_by` of `model` in `/v1/models` or, if `owners` lacks that, by the
    first one listed that `owners` has. Raises `UnknownEngine` if there is none or the reply is no
    such list, and another `CloudError`, for example if the server does not answer.
    """
    lister = Endpoint(url, key=key)
    known = owners()
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            owner = _owner(await served_models(lister), model, known)
    except TimeoutError as error:
        raise CloudTimeout(f"{url!r} did not answer within {PROBE_SECONDS:g} s.") from error
    except Redirected:
        raise
    except (CloudProtocolError, CloudRejected) as error:
        raise UnknownEngine(
            f"What answers at {url!r} is not an engine that Edgewise knows by itself "
            f"({', '.join(known.values())})",
            hint="check the address, or name the engine",
            setting="cloud_engine",
        ) from error
    finally:
        await lister.close()
    if owner not in known:
        raise UnknownEngine(
            f"{url!r} serves a model of {owner[:_LONGEST]!r}, which is not one of "
            f"{', '.join(known.values())}",
            hint="if it is one of these all the same, name it",
            setting="cloud_engine",
        )
    return known[owner]


def _owner(models: Sequence[ListedModel], model: str | None, known: dict[str, str]) -> str:
    """The first `owned_by` that is a key of `known`, else that of `model` or of the first model."""
    first = model_named(models, model) or models[0]
    owners = [one.owned_by for one in (first, *models)]
    return next((one.lower() for one in owners if one.lower() in known), first.owned_by)
