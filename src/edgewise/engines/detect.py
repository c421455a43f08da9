"""Which engine answers at an address: every one says so in `/v1/models`."""

import asyncio

from edgewise.engines.base import PROBE_SECONDS
from edgewise.engines.http import Redirected, named, served_models
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.errors import CloudProtocolError, CloudRejected, CloudTimeout

GATEWAY = "gateway"

OWNERS = {
    "llamacpp": "llama-server",
    "vllm": "vllm",
    "sglang": "sglang",
    "edgewise-gateway": GATEWAY,
}
"""From what a server says of its models to its name."""


async def found_at(url: str, *, key: str | None = None, model: str | None = None) -> str:
    """The name of the engine, or of the gateway; raises a `CloudError`.

    It is that of `model`, or of the first there where that is not served.
    """
    asked = LlamaServerEngine(url, key=key)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            models = await served_models(asked)
            owner = (named(models, model) or models[0]).owned_by
    except TimeoutError as error:
        raise CloudTimeout(f"{url!r} did not answer within {PROBE_SECONDS:g} s.") from error
    except Redirected:
        raise
    except (CloudProtocolError, CloudRejected) as error:
        raise CloudProtocolError(
            f"What answers at {url!r} is no engine that Edgewise knows (llama-server, vLLM, SGLang "
            "or a gateway)",
            hint="check the address, or name the engine",
            setting="cloud_engine",
        ) from error
    finally:
        await asked.close()
    if owner not in OWNERS:
        raise CloudRejected(
            f"{url!r} serves a model of {owner!r}, which is none of llama-server, vLLM, SGLang or "
            "a gateway, and APIs that take text only cannot serve consults",
            hint="if it is one of these all the same, name it",
            setting="cloud_engine",
        )
    return OWNERS[owner]
