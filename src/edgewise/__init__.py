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
    from edgewise.routers.untrained import Entropy, Margin, MaxProb
    from edgewise.sampling import Sampling

# Imported when it is first used, so that a command waits for nothing that it does not need.
_MODULES = {
    "cloud.engine": ("LlamaServer",),
    "cloud.local": ("LocalCloud",),
    "edge.base": ("Needs", "Step"),
    "edge.llamacpp": ("LlamaModel",),
    "errors": ("EdgewiseError",),
    "events": ("Consult", "Event", "Finished", "Token"),
    "loop.decoder": ("Answer", "Decoder"),
    "loop.policy": ("Policy",),
    "pair": ("Pair",),
    "prompts": ("Message", "Prompt"),
    "routers.untrained": ("Entropy", "Margin", "MaxProb"),
    "sampling": ("Sampling",),
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
    for module, names in _MODULES.items():
        if name in names:
            # Kept: Python calls this only for names that the module lacks.
            value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
