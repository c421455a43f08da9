"""Token-level routing: a small model on your device, a large one only where it counts.

>>> from edgewise import Pair
>>> print(Pair().ask("Spell the word cat.").text)
"""

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
