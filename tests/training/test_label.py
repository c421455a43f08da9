"""What a consult is worth, by each label, on texts where that is known."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgewise.errors import UsageError
from edgewise.routers.constant import Constant
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import EOS, ScriptedEdge, replying
from edgewise_lab.evaluation.systems import paired
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.rollouts import Continuation, Done, Prefix, SequentialRollouts, ignore
from edgewise_lab.training.collect import PairRollouts, Sample
from edgewise_lab.training.labels.base import (
    Case,
    Label,
    Labelling,
    Rollout,
    Writer,
    kept_values,
    label_all,
)
from edgewise_lab.training.labels.published import Rescue, Value

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
    rollouts: dict[Writer, SequentialRollouts] = {
        "edge": SequentialRollouts(model(edge)),
        "cloud": SequentialRollouts(model(cloud)),
        "pair": SequentialRollouts(model(cloud)),
    }
    return label_all(label, [found], rollouts, folder)["q"]


def positive(found: Sequence[float]) -> dict[int, float]:
    return {at: value for at, value in enumerate(found) if value}


@pytest.mark.parametrize(("right", "expected"), [(False, {9: 1.0}), (True, {})])
def test_rescue_is_where_the_clouds_token_turns_a_wrong_answer_right(
    right: bool, expected: dict[int, float], tmp_path: Path
) -> None:
    """The cloud would write "Oh it is 7." along the edge's own answer; the edge goes on."""
    own = case("So it is 3.", "So it is 3.", right=right)
    read = replace(own.sample, cloud=(*b"Oh it is 7.", EOS))
    assert positive(values(Rescue(), own._replace(sample=read), tmp_path, edge="x" * 10 + ".")) == (
        expected
    )


def test_rollouts_of_many_answers_go_together_and_are_kept(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Calls(SequentialRollouts):
        def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
            sizes.append(len(prefixes))
            return super().run(prefixes, done)

    cases = [case("So it is 3.", "Oh it is 7.", name=f"{i}") for i in range(20)]
    cloud = Calls(model("Oh it is 7."))
    found = label_all(Value(), cases, {"cloud": cloud}, tmp_path)
    assert sizes == [48, 12]
    assert label_all(Value(), cases, {}, tmp_path) == found


class Own(Label):
    """Gives what it is told to, after rollouts by whom it is told."""

    name = "own"
    described = "as told"

    def __init__(self, gives: Sequence[float] = (), asks: Writer | None = None) -> None:
        self._gives, self._asks = list(gives), asks

    def of(self, case: Case) -> Labelling:
        if self._asks:
            yield [Rollout(self._asks, Prefix(case.sample.prompt, 1))]
        else:
            yield from ()
        return self._gives


@pytest.mark.parametrize(
    "gives", [[], [0.5] * 3, [0.5] * 13, [1.5] * 12, [-0.1] * 12, [float("nan")] * 12]
)
def test_values_that_are_none(tmp_path: Path, gives: list[float]) -> None:
    with pytest.raises(UsageError, match=r"'own'.* 12"):
        label_all(Own(gives), [case("So it is 3.", "Oh it is 7.")], {}, tmp_path)
    assert kept_values(Own(), tmp_path) == {}


def test_labels_that_take_turns_get_their_own_continuations(tmp_path: Path) -> None:
    """Cases that ask for one, two and no rollouts side by side."""

    class Turns(Label):
        name = "turns"
        described = "how long the first continuation of each turn is"

        def of(self, case: Case) -> Labelling:
            values = [0.0] * len(case.proposed)
            for turn in range(int(case.question.id)):
                written = yield [
                    Rollout("cloud", Prefix((*case.sample.prompt, *case.sample.ids[:at]), 20))
                    for at in range(turn + 1)
                ]
                assert [len(one.ids) for one in written] == [12 - at for at in range(turn + 1)]
                values[turn] = len(written[-1].ids) / 12
            return values

    cases = [case("So it is 3.", "Oh it is 7.", name=f"{count}") for count in (2, 0, 3, 1)]
    cloud = SequentialRollouts(model("Oh it is 7."))
    found = label_all(Turns(), cases, {"cloud": cloud}, tmp_path)
    assert [positive(found[name]) for name in ("0", "1", "2", "3")] == [
        {at: (12 - at) / 12 for at in range(count)} for count in range(4)
    ]


def test_a_pair_writes_rollouts() -> None:
    edge, cloud = model("So it is 3."), ScriptedCloud(replying("Oh it is 7.", prompt=PROMPT))
    prompt = tuple(PROMPT.encode())
    told: list[tuple[int, Continuation]] = []
    for score, text in ((0.0, "So it is 3."), (1.0, "Oh it is 7.")):
        told.clear()
        pair = PairRollouts(paired(edge, Constant(score), 0.5, cloud))
        written = pair.run(
            [Prefix(prompt, 40), Prefix((*prompt, *b"So it"), 3)],
            lambda index, one: told.append((index, one)),
        )
        pair.close()
        assert bytes(written[0].ids[:-1]).decode() == text
        assert bytes(written[1].ids).decode() == text[5:8]
        assert told == list(enumerate(written))
        assert all(len(one.ids) == len(one.logprobs) for one in written)
        # The scripted cloud tells none of its tokens.
        assert all((one.logprobs[0] is None) == (score == 1.0) for one in written)
