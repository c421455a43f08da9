"""Cloud engines by name: by ids, by text, a gateway, and what packages add.

A class says what it is: `dialect` for sentences, `owner` as servers name it in `/v1/models`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from edgewise.engines.base import PROBE_SECONDS
from edgewise.engines.http import HttpEngine, Redirected, Served, named, served_models
from edgewise.errors import CloudProtocolError, CloudRejected, CloudTimeout, UsageError
from edgewise.registry import Registry, did_you_mean

AUTO = "auto"
"""Stands for whatever is found at the URL."""

GATEWAY = "gateway"

BY_IDS = {
    "llama-server": "edgewise.engines.llama_server:LlamaServerEngine",
    "vllm": "edgewise.engines.vllm:VllmEngine",
    "sglang": "edgewise.engines.sglang:SglangEngine",
}
"""A gateway can be started in front of these."""

BY_TEXT = {
    "llama-server-text": "edgewise.engines.text_dialects:LlamaServerText",
    "ollama": "edgewise.engines.text_dialects:OllamaText",
    "deepseek": "edgewise.engines.text_dialects:DeepSeekText",
    "vllm-text": "edgewise.engines.text_dialects:VllmText",
    "sglang-text": "edgewise.engines.text_dialects:SglangText",
    "mistral": "edgewise.engines.text_dialects:MistralText",
    "qwen": "edgewise.engines.text_dialects:QwenText",
    "moonshot": "edgewise.engines.text_dialects:MoonshotText",
    "lm-studio": "edgewise.engines.text_dialects:LmStudioText",
    "chat": "edgewise.engines.text_dialects:ChatText",
    "edgewise": "edgewise.engines.text_dialects:EdgewiseText",
    "completions": "edgewise.engines.text_dialects:CompletionsText",
}
"""APIs that take text, in the order in which an unknown API is tried.

Paths of their own come first, which others decline; then fields that others may not know; then the
plain trailing message, that some take for an answer given. The last needs a tokenizer too.
"""

BY_CHAT = {
    "openai": "edgewise.engines.readers:OpenAiReader",
    "anthropic": "edgewise.engines.readers:AnthropicReader",
}
"""Chat APIs that continue nothing: they read passages."""

ENGINES: Registry[Any] = Registry(
    "cloud engine",
    "edgewise.cloud",
    {**BY_IDS, **BY_TEXT, **BY_CHAT, GATEWAY: "edgewise.cloud.gateway:GatewayCloud"},
)
"""An entry is a subclass of `HttpEngine` or `TextEngine`, or a factory of a `CloudModel`.

Each is called with the URL, `key` and `model`, which are None where none was given. A `TextEngine`
is also called with the cloud model's `tokenizer` where that was given.
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


def engine_by_ids(name: str) -> type[HttpEngine]:
    """The engine of that name. Raises `UsageError` for one that takes no ids."""
    engine = ENGINES.load(name)
    if isinstance(engine, type) and issubclass(engine, HttpEngine):
        return engine
    raise UsageError(
        f"The engine {name!r} takes no token ids",
        hint=f"name one that does: {', '.join(BY_IDS)}",
        setting="engine_kind",
    )


def owners() -> dict[str, str]:
    """Engine names by the `owned_by` of a server's models, in lower case."""
    names = (*BY_IDS, GATEWAY, "edgewise")
    return {ENGINES.load(name).owner: name for name in names}  # pyright: ignore[reportFunctionMemberAccess]


async def engine_at(url: str, *, key: str | None = None, model: str | None = None) -> str:
    """The name of the engine, or of the gateway, at `url`; raises a `CloudError`.

    It is the owner of `model`, or else of any of the models there.
    """
    lister = ENGINES.load("vllm")(url, key=key)
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


def _owner(models: Sequence[Served], model: str | None, known: dict[str, str]) -> str:
    """A key of `known`, or the owner of the model where nobody there is one."""
    first = named(models, model) or models[0]
    owners = [one.owned_by for one in (first, *models)]
    return next((one.lower() for one in owners if one.lower() in known), first.owned_by)
