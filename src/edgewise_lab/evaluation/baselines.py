"""What a router must beat: one consult at the commit point."""

from collections.abc import Sequence

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel, Needs, Step, Tokenizer
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise_lab.evaluation.systems import Decoded, Outcome, edge_alone, outcome_of, question_ids
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import first_mention


class CommitPoint:
    """One consult an answer, where the edge names a choice for the first time.

    In most answers to choices the choice is named before the conclusion, so this one token is
    the decisive one. Where it is shows in the edge's own answer, which is the same up to there,
    however its tokenizer cuts text. An answer that names no choice, or a question that has none,
    is the edge's alone.
    """

    def __init__(self, edge: EdgeModel, cloud: CloudModel, max_tokens: int) -> None:
        self._edge, self._cloud, self._max_tokens = edge, cloud, max_tokens

    def answer(self, question: Question) -> Outcome:
        """At most one consult."""
        answer = edge_alone(self._edge, self._max_tokens).ask(question)
        at = commit_point(self._edge.tokenizer, [t.id for t in answer.tokens], question)
        if at is None:
            return outcome_of(question, answer)
        before = len(question_ids(self._edge.tokenizer, question))
        policy = Policy(threshold=1.0, max_cloud_tokens=1, on_cloud_error="raise")
        decoder = Decoder(
            self._edge, router=AtPosition(before + at), policy=policy, cloud=self._cloud
        )
        return Decoded(decoder, self._max_tokens).answer(question)


class AtPosition:
    """A router that scores 1 at one position; None: nowhere."""

    needs, top = Needs.NOTHING, 0

    def __init__(self, position: int | None) -> None:
        self.position = position

    def score(self, step: Step) -> float:
        return float(step.position == self.position)


def commit_point(tokenizer: Tokenizer, ids: Sequence[int], question: Question) -> int | None:
    """The index of the id that brings the first letter of the first choice named, or its label.

    None where no choice is named, or there is none to name.
    """
    pieces = [b"" if token in tokenizer.eos_ids else tokenizer.piece(token) for token in ids]
    # Surrogates stand for bytes that are no text, so that places in the text are places in these.
    text = b"".join(pieces).decode("utf-8", "surrogateescape")
    at = first_mention(text, question.choices or ())
    if at is None:
        return None
    left = len(text[:at].encode("utf-8", "surrogateescape"))
    for index, piece in enumerate(pieces):
        if left < len(piece):
            return index
        left -= len(piece)
    raise AssertionError("a place in the text lies in one of its pieces")
