"""Edge alone, pair and cloud alone over the same questions."""

from collections.abc import Callable, Sequence

import msgspec

from edgewise.decoding import Answer, Decoder
from edgewise.evaluation.questions import Question, is_right
from edgewise.evaluation.statistics import difference_interval
from edgewise.evaluation.systems import ask


class Accuracy(msgspec.Struct, frozen=True):
    """Fraction of right answers of each system."""

    edge: float
    pair: float
    cloud: float


class Family(msgspec.Struct, frozen=True):
    """One family of questions."""

    questions: int
    accuracy: Accuracy
    cloud_share: float


class Comparison(msgspec.Struct, frozen=True):
    """`interval` is the 95 % interval of pair minus edge; speeds are tokens per second."""

    questions: int
    accuracy: Accuracy
    interval: tuple[float, float]
    cloud_share: float
    cloud_calls: int
    tokens_per_second: Accuracy
    families: dict[str, Family]


class Row(msgspec.Struct, frozen=True):
    """One question's answers."""

    question: Question
    edge: Answer
    pair: Answer
    cloud: Answer

    def right(self, system: str) -> bool:
        """Whether the named system's answer is right."""
        answer: Answer = getattr(self, system)
        return is_right(self.question, answer.text)


def compare(
    questions: Sequence[Question],
    *,
    edge: Decoder,
    pair: Decoder,
    cloud: Decoder,
    done: Callable[[], None] = lambda: None,
) -> Comparison:
    """Run the three systems question by question, interleaved; `done` is called after each."""
    rows: list[Row] = []
    for question in questions:
        rows.append(Row(question, ask(edge, question), ask(pair, question), ask(cloud, question)))
        done()
    families = sorted({question.family for question in questions})
    return Comparison(
        questions=len(rows),
        accuracy=_accuracy(rows),
        interval=difference_interval(
            [row.right("pair") for row in rows], [row.right("edge") for row in rows]
        ),
        cloud_share=_share(rows),
        cloud_calls=sum(row.pair.usage.cloud_calls for row in rows),
        tokens_per_second=Accuracy(*(_speed(rows, name) for name in ("edge", "pair", "cloud"))),
        families={
            name: _family([row for row in rows if row.question.family == name]) for name in families
        },
    )


def _family(rows: list[Row]) -> Family:
    return Family(len(rows), _accuracy(rows), _share(rows))


def _accuracy(rows: list[Row]) -> Accuracy:
    return Accuracy(
        *(sum(row.right(name) for row in rows) / len(rows) for name in ("edge", "pair", "cloud"))
    )


def _share(rows: list[Row]) -> float:
    usages = [row.pair.usage for row in rows]
    cloud = sum(usage.cloud_tokens + usage.wasted_tokens for usage in usages)
    return cloud / sum(usage.cloud_tokens + usage.edge_tokens for usage in usages)


def _speed(rows: list[Row], system: str) -> float:
    answers: list[Answer] = [getattr(row, system) for row in rows]
    seconds = sum(answer.timing.total for answer in answers)
    return sum(len(answer.tokens) for answer in answers) / seconds
