"""Which engine answers at an address: every one says so in `/v1/models`."""

import asyncio
from collections.abc import Sequence

from edgewise.engines.base import PROBE_SECONDS
from edgewise.engines.http import Served, named, served_models
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.engines.refusals import Redirected
from edgewise.errors import CloudProtocolError, CloudRejected, CloudTimeout

GATEWAY = "gateway"

OWNERS = {
    "llamacpp": "llama-server",
    "vllm": "vllm",
    "sglang": "sglang",
    "fireworks": "fireworks",
    "cerebras": "cerebras",
    "edgewise-gateway": GATEWAY,
    "edgewise": "edgewise",
}
"""From what a server says of its models, in lower case, to its name."""


class UnknownEngine(CloudRejected):
    """What answers at an address is no engine that takes ids, as far as it says."""


_KNOWN = "llama-server, vLLM, SGLang, Fireworks, Cerebras or a gateway"
_LONGEST = 100


async def found_at(url: str, *, key: str | None = None, model: str | None = None) -> str:
    """The name of the engine, or of the gateway; raises a `CloudError`.

    It is whoever owns `model`, or else any of the models there: a catalogue names some by who
    made them.
    """
    asked = LlamaServerEngine(url, key=key)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            models = await served_models(asked)
            owner = _owner(models, model)
    except TimeoutError as error:
        raise CloudTimeout(f"{url!r} did not answer within {PROBE_SECONDS:g} s.") from error
    except Redirected:
        raise
    except (CloudProtocolError, CloudRejected) as error:
        raise UnknownEngine(
            f"What answers at {url!r} is no engine that Edgewise knows ({_KNOWN})",
            hint="check the address, or name the engine",
            setting="cloud_engine",
        ) from error
    finally:
        await asked.close()
    if owner not in OWNERS:
        raise UnknownEngine(
            f"{url!r} serves a model of {owner[:_LONGEST]!r}, which is none of {_KNOWN}",
            hint="if it is one of these all the same, name it",
            setting="cloud_engine",
        )
    return OWNERS[owner]


def _owner(models: Sequence[Served], model: str | None) -> str:
    """A key of `OWNERS`, or who owns the model where nobody there is one."""
    first = named(models, model) or models[0]
    owners = [one.owned_by for one in (first, *models)]
    return next((one.lower() for one in owners if one.lower() in OWNERS), first.owned_by)
