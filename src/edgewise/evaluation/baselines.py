"""What a router must beat: one consult at the commit point."""

from collections.abc import Sequence

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel, Needs, Step, Tokenizer
from edgewise.evaluation.systems import Decoded, Outcome
from edgewise.evaluation.tasks.base import Question
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy


class CommitPoint:
    """One consult an answer, where the edge is about to name a choice for the first time.

    In most answers to choices the choice is named before the conclusion, so this one token is
    the decisive one.
    """

    def __init__(self, edge: EdgeModel, cloud: CloudModel, max_tokens: int) -> None:
        self._edge, self._cloud, self._max_tokens = edge, cloud, max_tokens

    def answer(self, question: Question) -> Outcome:
        """The question must have choices."""
        assert question.choices is not None
        router = _Named(_openings(self._edge.tokenizer, question.choices))
        policy = Policy(threshold=1.0, max_cloud_tokens=1, on_cloud_error="raise")
        decoder = Decoder(self._edge, router=router, policy=policy, cloud=self._cloud)
        return Decoded(decoder, self._max_tokens).answer(question)


class _Named:
    """Scores 1 where the proposed token begins one of the choices."""

    needs, top = Needs.NOTHING, 0

    def __init__(self, openings: frozenset[int]) -> None:
        self._openings = openings

    def score(self, step: Step) -> float:
        return 1.0 if step.proposed in self._openings else 0.0


def _openings(tokenizer: Tokenizer, choices: Sequence[str]) -> frozenset[int]:
    """The first id of every choice, as it stands in the middle of a sentence."""
    return frozenset(tokenizer.encode(f" {choice}")[0] for choice in choices)
