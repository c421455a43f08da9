"""Token-level routing: a small model on your device, a large one only where it counts.

>>> from edgewise import Pair
>>> print(Pair().ask("Spell the word cat.").text)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise.cloud.engine import LlamaServer
    from edgewise.cloud.local import LocalCloud
    from edgewise.edge.base import Needs, Step
    from edgewise.edge.llamacpp import LlamaModel
    from edgewise.errors import EdgewiseError
    from edgewise.events import Consult, Event, Finished, Token
    from edgewise.loop.decoder import Answer, Decoder
    from edgewise.loop.policy import Policy
    from edgewise.pair import Pair
    from edgewise.prompts import Message, Prompt
    from edgewise.routers.uncertainty import Entropy, Margin, MaxProb
    from edgewise.sampling import Sampling

# Imported when it is first used, so that a command waits for nothing that it does not need.
_MODULES = {
    "LlamaServer": "cloud.engine",
    "LocalCloud": "cloud.local",
    "Needs": "edge.base",
    "Step": "edge.base",
    "LlamaModel": "edge.llamacpp",
    "EdgewiseError": "errors",
    "Consult": "events",
    "Event": "events",
    "Finished": "events",
    "Token": "events",
    "Answer": "loop.decoder",
    "Decoder": "loop.decoder",
    "Policy": "loop.policy",
    "Pair": "pair",
    "Message": "prompts",
    "Prompt": "prompts",
    "Entropy": "routers.uncertainty",
    "Margin": "routers.uncertainty",
    "MaxProb": "routers.uncertainty",
    "Sampling": "sampling",
}

__all__ = [
    "Answer",
    "Consult",
    "Decoder",
    "EdgewiseError",
    "Entropy",
    "Event",
    "Finished",
    "LlamaModel",
    "LlamaServer",
    "LocalCloud",
    "Margin",
    "MaxProb",
    "Message",
    "Needs",
    "Pair",
    "Policy",
    "Prompt",
    "Sampling",
    "Step",
    "Token",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
