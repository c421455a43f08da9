"""Which engine answers at an address: every one says so in `/v1/models`."""

import asyncio
from typing import Literal

from edgewise.engines.base import PROBE_SECONDS, Engine, served_model
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.engines.sglang import SglangEngine
from edgewise.engines.vllm import VllmEngine
from edgewise.errors import CloudProtocolError, CloudRejected, CloudTimeout

EngineName = Literal["auto", "llama-server", "vllm", "sglang", "gateway"]

ENGINES: dict[str, type[Engine]] = {
    "llama-server": LlamaServerEngine,
    "vllm": VllmEngine,
    "sglang": SglangEngine,
}
_OWNERS: dict[str, EngineName] = {
    "llamacpp": "llama-server",
    "vllm": "vllm",
    "sglang": "sglang",
    "edgewise-gateway": "gateway",
}


async def found_at(url: str, *, key: str | None = None) -> EngineName:
    """The engine's name; raises a `CloudError`."""
    asked = LlamaServerEngine(url, key=key)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            owner = (await served_model(asked)).owned_by
    except TimeoutError as error:
        raise CloudTimeout(f"{url!r} did not answer within {PROBE_SECONDS:g} s.") from error
    except (CloudProtocolError, CloudRejected) as error:
        raise CloudProtocolError(
            f"What answers at {url!r} is no engine that Edgewise knows (llama-server, vLLM, SGLang "
            "or a gateway); check the address, or name it with --cloud-engine."
        ) from error
    finally:
        await asked.close()
    if owner not in _OWNERS:
        raise CloudRejected(
            f"{url!r} serves a model of {owner!r}, which is none of llama-server, vLLM, SGLang or "
            "a gateway; APIs that take text only cannot serve consults. If it is one of these all "
            "the same, name it with --cloud-engine."
        )
    return _OWNERS[owner]
