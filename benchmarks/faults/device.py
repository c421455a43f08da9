"""A device in a process of its own: an order a line on its standard input, JSON both ways.

What comes from its cloud may end it; then only it ends.
"""

import json
import sys
from typing import Any, Literal

from benchmarks.faults.rig import Tireless
from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel
from edgewise.cloud.connect import open_engine
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import EdgewiseError
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Message, prompt_ids
from edgewise.routers.untrained import Constant

QUESTION = (
    "Question: Take creche first. Which broader word takes in kayak? Choices: fabric, hospital, "
    "canoe, clothing, decoration. Write out what you know. Answer and Reasoning:"
)
"""One that the bundled edge model answers at length."""


class Session:
    """An edge model, and the cloud it was told of."""

    def __init__(self, edge: LlamaModel) -> None:
        self._edge = edge
        self._ids = prompt_ids(edge.tokenizer, [Message("user", QUESTION)])
        self._cloud: CloudModel | None = None

    def open(self, order: dict[str, Any]) -> dict[str, Any]:
        if self._cloud is not None:
            self._cloud.close()
            self._cloud = None
        cloud = open_engine(order["url"], key=order["key"], engine=order["engine"])
        try:
            cloud.check_vocabulary(self._edge.tokenizer)
        except BaseException:
            cloud.close()
            raise
        self._cloud = cloud
        return {}

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        return self._generated(self._cloud, order["deadline"], order["tokens"], order["verify"])

    def alone(self, order: dict[str, Any]) -> dict[str, Any]:
        return self._generated(None, 1.0, order["tokens"])

    def _generated(
        self,
        cloud: CloudModel | None,
        deadline: float,
        tokens: int,
        verify: Literal["off", "on", "exact"] = "off",
    ) -> dict[str, Any]:
        policy = Policy(threshold=0.5, deadline=deadline, verify=verify)
        decoder = Decoder(
            self._edge, router=Constant(1.0), policy=policy, cloud=cloud, breaker=Tireless()
        )
        return {"prompt": self._ids, **_told(decoder.generate(self._ids, max_tokens=tokens))}


def _told(answer: Answer) -> dict[str, Any]:
    usage = answer.usage
    return {
        "ids": [token.id for token in answer.tokens],
        "reasons": [str(token.reason) for token in answer.tokens],
        "consults": usage.cloud_calls,
        "cloud": usage.cloud_tokens + usage.verified_tokens,
    }


def main() -> None:
    with LlamaModel(bundled("edge"), threads=1) as edge:
        session = Session(edge)
        does = {"open": session.open, "answer": session.answer, "alone": session.alone}
        for said in sys.stdin:
            order = json.loads(said)
            try:
                reply = does[order["do"]](order)
            except EdgewiseError as error:
                reply = {"error": str(error), "own": True}
            except Exception as error:
                reply = {"error": repr(error), "own": False}
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
