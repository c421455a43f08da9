"""Token-level routing: a small model on your device, a large one only where it counts.

>>> from edgewise import Decoder, LlamaModel, LocalCloud, MaxProb, Policy
"""

from edgewise.cloud.engine import LlamaServer
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import EdgewiseError
from edgewise.events import Consult, Event, Finished, Token
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.uncertainty import Entropy, LogTokU, Margin, MaxProb
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
    "LogTokU",
    "Margin",
    "MaxProb",
    "Policy",
    "Sampling",
    "Token",
]
