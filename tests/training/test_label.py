"""What a consult is worth, by each label, on texts where that is known."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edgewise.edge.base import Floats
from edgewise.errors import UsageError
from edgewise.evaluation.tasks.base import Question
from edgewise.rollouts.base import Continuation, Done, OneByOne, Prefix, ignore
from edgewise.testing.scripted_edge import EOS, SIZE, ScriptedEdge, replying
from edgewise.training.collect import Sample
from edgewise.training.labels.base import Case, Label, Writer
from edgewise.training.labels.citer import Citer
from edgewise.training.labels.co_llm import CoLlm
from edgewise.training.labels.labelling import label_all
from edgewise.training.labels.mismatch import Mismatch
from edgewise.training.labels.named import labels_named
from edgewise.training.labels.value import Value

PROMPT = "How many?"
QUESTION = Question("q", "sums", PROMPT, "7", "number")


def model(text: str) -> ScriptedEdge:
    return ScriptedEdge(replying(text, prompt=PROMPT))


def case(edge: str, text: str, *, right: bool = True, name: str = "q") -> Case:
    """The edge would write `edge`, whatever was written before; the text is `text`."""
    tokenizer = model("").tokenizer
    ids = (*text.encode(), EOS)
    proposed = [*edge.encode(), EOS, *[EOS] * len(ids)][: len(ids)]
    answer = Sample(name, tuple(PROMPT.encode()), ids, (0.0,) * len(ids), right)
    question = Question(name, "sums", PROMPT, "7", "number")
    return Case(question, answer, proposed, tokenizer, 40)


def values(
    label: Label, found: Case, folder: Path, *, edge: str = "", cloud: str = ""
) -> tuple[float, ...]:
    rollouts: dict[Writer, OneByOne] = {
        "edge": OneByOne(model(edge)),
        "cloud": OneByOne(model(cloud)),
        "pair": OneByOne(model(cloud)),
    }
    return label_all(label, [found], rollouts, folder)["q"]


def positive(found: Sequence[float]) -> dict[int, float]:
    return {at: value for at, value in enumerate(found) if value}


@pytest.mark.parametrize("label", [Mismatch(), CoLlm()])
def test_mismatch_is_where_the_edge_would_write_something_else(
    label: Label, tmp_path: Path
) -> None:
    found = values(label, case("So it is 3.", "Oh it is 7."), tmp_path)
    assert positive(found) == {0: 1.0, 1: 1.0, 9: 1.0}


def test_value_is_where_the_edge_spoils_the_answer(tmp_path: Path) -> None:
    found = values(Value(), case("So it is 3.", "Oh it is 7."), tmp_path, cloud="Oh it is 7.")
    assert positive(found) == {9: 1.0}


def test_value_counts_an_edge_that_stops_too_early(tmp_path: Path) -> None:
    found = values(Value(), case("Oh", "Oh it is 7."), tmp_path, cloud="Oh it is 7.")
    assert positive(found)[2] == 1.0


def test_a_wrong_answer_of_the_cloud_is_worth_nothing(tmp_path: Path) -> None:
    wrong = case("So it is 3.", "Oh it is 4.", right=False)
    assert positive(values(Value(), wrong, tmp_path)) == {}


def test_more_rollouts_give_probabilities(tmp_path: Path) -> None:
    def coin(ids: Sequence[int]) -> Floats:
        """Writes "7" or "3" with equal chance after "is ", else the text."""
        logits = np.full(SIZE, -30.0, np.float32)
        offset = len(ids) - len(PROMPT)
        written = bytes(token for token in ids[len(PROMPT) :])
        if written.endswith(b"is "):
            logits[[ord("7"), ord("3")]] = 5.0
        else:
            text = [*b"Oh it is 3.", EOS]
            logits[text[min(offset, len(text) - 1)]] = 5.0
        return logits

    found = case("Oh it xs 3.", "Oh it is 7.")
    rollouts: dict[Writer, OneByOne] = {"cloud": OneByOne(ScriptedEdge(coin))}
    values = label_all(Value(16), [found], rollouts, tmp_path)["q"]
    assert set(positive(values)) <= {6, 9}
    assert values[9] == 1.0  # 7 against 3, with nothing left to chance after it
    assert 0.1 < values[6] < 0.9  # "xs" never ends right here, "is" half of the time


REFERENCE = "I see 7."


def test_citer_prefers_the_reference(tmp_path: Path) -> None:
    found = case("I saw 3.", REFERENCE)
    preferred = values(Citer(), found, tmp_path, cloud=REFERENCE)
    assert positive(preferred) == {3: 1.0, 4: 1.0, 6: 1.0}


def test_citer_rolls_out_where_both_differ_from_the_reference(tmp_path: Path) -> None:
    """At the number the edge wants 3, the cloud 8: only who ends right afterwards is preferred."""

    class Scribe(OneByOne):
        """Records what it continues, and writes a number at once."""

        def __init__(self, number: str) -> None:
            super().__init__(model(number))
            self.asked: list[Prefix] = []

        def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
            self.asked += prefixes
            after = [Continuation((*b" or 7", EOS), (0.0,) * 6) for _ in prefixes]
            spoiled = [Continuation((*b" or 4", EOS), (0.0,) * 6) for _ in prefixes]
            return [
                good if prefix.ids[-1] == ord("8") else bad
                for prefix, good, bad in zip(prefixes, after, spoiled, strict=True)
            ]

    edge = Scribe("")
    cloud = OneByOne(model("I see 8."))
    rollouts: dict[Writer, OneByOne] = {"edge": edge, "cloud": cloud}
    found = label_all(Citer(), [case("I see 3.", REFERENCE)], rollouts, tmp_path)["q"]
    assert positive(found) == {6: 1.0}
    assert [bytes(p.ids[len(PROMPT) :]) for p in edge.asked] == [b"I see 3", b"I see 8"]


def test_the_second_round_asks_the_pair() -> None:
    names = [label.name for label in labels_named("citer")]
    assert names == ["citer-edge", "citer-pair"]
    with pytest.raises(UsageError, match="rounds must be 1 or 2"):
        labels_named("citer", rounds=3)
    with pytest.raises(UsageError, match="rollouts must be 1 or more"):
        labels_named("value", rollouts=0)


def test_rollouts_of_many_answers_go_together_and_are_kept(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Calls(OneByOne):
        def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
            sizes.append(len(prefixes))
            return super().run(prefixes, done)

    cases = [case("So it is 3.", "Oh it is 7.", name=f"{i}") for i in range(20)]
    cloud = Calls(model("Oh it is 7."))
    found = label_all(Value(), cases, {"cloud": cloud}, tmp_path)
    assert sizes == [60]
    assert label_all(Value(), cases, {}, tmp_path) == found
