"""Every label on texts where the right value of each token is known by hand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from edgewise.cloud.local import LocalCloud
from edgewise.errors import UsageError
from edgewise.testing.scripted_edge import EOS, ScriptedEdge
from edgewise_lab.evaluation.tasks.base import Grading, Question
from edgewise_lab.rollouts import Continuation, Done, Prefix, Rollouts
from edgewise_lab.training.collect import Sample
from edgewise_lab.training.labels.base import (
    Case,
    Label,
    Labelling,
    Rollout,
    Writer,
    kept_values,
    label_all,
)
from edgewise_lab.training.labels.published import Final, Rescue, Value
from tests.doubles.completing import completing

PROMPT = "How many?"


class Told(NamedTuple):
    """A text; what each model would write, the first that fits; where labels are not 0."""

    text: str
    edge: Sequence[str]
    cloud: Sequence[str]
    labels: Sequence[str] = ()
    """The text with its worthwhile tokens as carets: of value, and of final."""

    right: bool = True


ANSWERS = (
    Told(  # another word for the same, and another number
        "Oh it is 7.",
        ["So it is 3.", "Oo it is 3.", "Oh it is 3.", "Oh it is 7."],
        ["Oh it is 7.", "Sh it is 7.", "So it is 7.", "Oo it is 7.", "Oh it is 3."],
        (".........^.", ".........^."),
    ),
    Told(  # a slip in the first sentence that the second one mends
        "Add 2. So 7.",
        ["Add 5. So 7.", "Add 2. So 7."],
        ["Add 2. So 7.", "Add 5. So 7."],
        ("............", "............"),
    ),
    Told(  # a word that says nothing by itself and leads astray in the next sentence
        "Hm. So 7.",
        ["Ha. So 7.", "Hm. So 7."],
        ["Hm. So 7.", "Ha. So 3."],
        (".^.......", ".^......."),
    ),
    Told(  # the cloud is wrong: no consult helps, but the two diverge
        "So it is 4.",
        ["So it is 3.", "So it is 4."],
        ["So it is 4.", "So it is 3."],
        ("...........", ".........^."),
        right=False,
    ),
    Told(  # the edge would end before it has answered
        "So it is 7.",
        ["So"],
        ["So it is 7."],
        ("..^^^^^^^^.", "..^^^^^^^^."),
    ),
    Told(  # nothing differs
        "So it is 7.", ["So it is 7."], ["So it is 7."], ("...........",) * 2
    ),
)


def model(texts: Sequence[str]) -> ScriptedEdge:
    return ScriptedEdge(completing(*texts, prompt=PROMPT))


def written_along(texts: Sequence[str], ids: Sequence[int]) -> list[int]:
    """What a model would write at each position of `ids`."""
    script = model(texts).script
    prompt = [*PROMPT.encode()]
    return [int(script([*prompt, *ids[:at]]).argmax()) for at in range(len(ids))]


def case(told: Told, *, cloud: Sequence[int] = (), name: str = "q") -> Case:
    ids = (*told.text.encode(), EOS)
    sample = Sample(name, tuple(PROMPT.encode()), ids, told.right, tuple(cloud))
    question = Question(name, "sums", PROMPT, "7", "number")
    return Case(question, sample, written_along(told.edge, ids), model([]).tokenizer, 40)


def marked(values: Sequence[float], text: str) -> str:
    return "".join(".^"[value > 0] for value in values[: len(text)])


class Asked(Rollouts):
    """Keeps what it is asked for."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(LocalCloud(model(texts)), 1)
        self.sizes: list[int] = []

    def run(self, prefixes: Sequence[Prefix], done: Done = lambda *_: None) -> list[Continuation]:
        self.sizes.append(len(prefixes))
        return super().run(prefixes, done)


@pytest.mark.parametrize(("label", "column"), [(Value(), 0), (Final(), 1)])
@pytest.mark.parametrize("told", ANSWERS, ids=lambda told: told.text)
def test_labels_of_answers(told: Told, label: Label, column: int, tmp_path: Path) -> None:
    """`Final` is, of numbers, whether the cloud's own answer changes, be it right or wrong."""
    found = label_all(label, [case(told)], {"cloud": Asked(told.cloud)}, tmp_path)["q"]
    assert marked(found, told.text) == told.labels[column]
    assert set(found) <= {0.0, 1.0}


def test_final_is_graded_by_the_words_that_only_one_reply_has(tmp_path: Path) -> None:
    told = Told("A red rose.", ["A bed rose.", "A red rose."], ["A red rose.", "A bed rose."])
    words = Question("q", "flowers", PROMPT, "", "words", known=False)
    labelled = case(told)._replace(question=words)
    found = label_all(Final(), [labelled], {"cloud": Asked(told.cloud)}, tmp_path)["q"]
    assert {at: value for at, value in enumerate(found) if value} == {2: pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    ("check", "one", "other", "alike"),
    [
        ("number", "So 1,000.", "The answer is 1000.0", True),
        ("number", "So 3.", "So 4.", False),
        ("number", "None.", "So 4.", False),
        ("number", "None.", "Nothing.", True),
        ("choice", "Therefore, the answer is wood.", "Therefore, the answer is Wood (a).", True),
        ("choice", "Therefore, the answer is wood.", "Therefore, the answer is iron.", False),
        ("choice", "Therefore, the answer is wood.", "Well.", False),
    ],
)
def test_answers_that_conclude_alike(check: Grading, one: str, other: str, alike: bool) -> None:
    right = "4" if check == "number" else "wood"
    question = Question("q", "any", PROMPT, right, check, choices=("wood", "iron"))
    assert Final().difference(question, one, other) == (not alike)


@pytest.mark.parametrize(("right", "rescued"), [(False, ".........^."), (True, "...........")])
def test_rescue_is_where_the_clouds_token_turns_a_wrong_answer_right(
    right: bool, rescued: str, tmp_path: Path
) -> None:
    """The cloud would write "Oh it is 7." along the edge's own answer; the edge goes on."""
    told = Told("So it is 3.", ["Oo it is 3.", "Sh it is 3.", "So it is 7.", "So it is 3."], [])
    own = case(told._replace(right=right), cloud=(*b"Oh it is 7.", EOS))
    found = label_all(Rescue(), [own], {"edge": Asked(told.edge)}, tmp_path)["q"]
    assert marked(found, told.text) == rescued


def test_rollouts_of_many_answers_go_together_and_are_kept(tmp_path: Path) -> None:
    cases = [case(ANSWERS[0], name=f"{i}") for i in range(20)]
    cloud = Asked(ANSWERS[0].cloud)
    found = label_all(Value(), cases, {"cloud": cloud}, tmp_path)
    assert cloud.sizes == [48, 12]
    left: list[int] = []

    def begin(count: int) -> Callable[[], None]:
        left.append(count)
        return lambda: None

    assert label_all(Value(), cases, {}, tmp_path, begin) == found
    assert left == [0], "what is kept is no progress"


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
        label_all(Own(gives), [case(ANSWERS[0])], {}, tmp_path)
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
                assert [len(one) for one in written] == [12 - at for at in range(turn + 1)]
                values[turn] = len(written[-1]) / 12
            return values

    cases = [case(ANSWERS[0], name=f"{count}") for count in (2, 0, 3, 1)]
    cloud = Asked(ANSWERS[0].cloud)
    found = label_all(Turns(), cases, {"cloud": cloud}, tmp_path)
    for count in range(4):
        lengths = [(12 - at) / 12 for at in range(count)]
        assert found[f"{count}"] == (*lengths, *[0.0] * (12 - count))
