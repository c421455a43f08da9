"""Cloud engines by name: by ids, by text, a gateway, and what packages add.

Each says what it is: `owner` as servers name it in `/v1/models`.
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
"""Stands for whatever is found at the URL."""

GATEWAY = "gateway"

BY_IDS = {
    "llama-server": "edgewise.engines.llama_server:LlamaServerEngine",
    "vllm": "edgewise.servers.openai:VllmServer",
    "sglang": "edgewise.servers.sglang:SglangServer",
}
"""A gateway can be started in front of these."""

BY_TEXT = {
    "llama-server-text": "edgewise.servers.llama_server:LlamaCppText",
    "ollama": "edgewise.servers.ollama:OllamaText",
    "deepseek": "edgewise.servers.chat:DEEPSEEK",
    "vllm-text": "edgewise.servers.chat:VLLM",
    "sglang-text": "edgewise.servers.chat:SGLANG",
    "mistral": "edgewise.servers.chat:MISTRAL",
    "qwen": "edgewise.servers.chat:QWEN",
    "moonshot": "edgewise.servers.chat:MOONSHOT",
    "lm-studio": "edgewise.servers.chat:LM_STUDIO",
    "chat": "edgewise.servers.chat:CHAT",
    "edgewise": "edgewise.servers.chat:EDGEWISE",
    "completions": "edgewise.servers.openai:CompletionsServer",
}
"""APIs that take text, in the order in which an unknown API is tried.

Paths of their own come first, which others decline; then fields that others may not know; then the
plain trailing message, that some take for an answer given. The last needs a tokenizer too.
"""

BY_CHAT = {
    "openai": "edgewise.servers.chat:OpenAiServer",
    "anthropic": "edgewise.servers.anthropic:AnthropicServer",
}
"""Chat APIs that continue nothing: they read passages."""

ENGINES: Registry[Any] = Registry(
    "cloud engine",
    "edgewise.cloud",
    {**BY_IDS, **BY_TEXT, **BY_CHAT, GATEWAY: "edgewise.cloud.gateway:GatewayCloud"},
)
"""An entry describes a server (`IdServer`, `TextServer`), or it makes a cloud.

What makes a `CloudModel`, a `HttpEngine` or a `TextEngine` is called with the URL, `key` and
`model`, which are None where none was given.
"""

_LONGEST = 100


class UnknownEngine(CloudRejected):
    """The server at this URL is not a known engine with token-id input."""


def check_name(engine: str) -> None:
    """Raises `UsageError` for what is neither "auto" nor a name of `ENGINES`."""
    if engine != AUTO and engine not in ENGINES:
        known = [AUTO, *ENGINES.names()]
        raise UsageError(
            f"There is no cloud engine {engine!r}",
            hint=did_you_mean(engine, known, f"known are {', '.join(known)}"),
            setting="cloud_engine",
        )


def entry_of(name: str) -> Any:
    """What that name stands for. Raises `UsageError` for an unknown one."""
    entry = ENGINES.load(name)
    described = isinstance(entry, type) and issubclass(entry, IdServer | TextServer)
    return entry() if described else entry


def takes_text(name: str) -> bool:
    """Whether it takes and returns text."""
    entry = entry_of(name)
    made = isinstance(entry, type) and issubclass(entry, TextEngine)
    return made or isinstance(entry, TextServer)


def opened(
    name: str, url: str, *, key: str | None = None, model: str | None = None, **options: Any
) -> Any:
    """An engine of that name at `url`, by ids or by text, or a `CloudModel`.

    One that renders the chat template has the cloud model's `tokenizer` among its options.
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
    """The engine of that name at `url`. Raises `UsageError` for one that takes no ids."""
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
    """Engine names by the `owned_by` of a server's models, in lower case."""
    return {entry_of(name).owner: name for name in (*BY_IDS, GATEWAY, "edgewise")}


async def engine_at(url: str, *, key: str | None = None, model: str | None = None) -> str:
    """The name of the engine, or of the gateway, at `url`; raises a `CloudError`.

    It is the owner of `model`, or else of any of the models there.
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
    """A key of `known`, or the owner of the model where nobody there is one."""
    first = model_named(models, model) or models[0]
    owners = [one.owned_by for one in (first, *models)]
    return next((one.lower() for one in owners if one.lower() in known), first.owned_by)
