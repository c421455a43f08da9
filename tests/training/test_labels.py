"""Every label on texts where the right value of each token is known by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from edgewise.errors import UsageError
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import EOS, ScriptedEdge, replying
from edgewise_lab.evaluation.systems import paired
from edgewise_lab.evaluation.tasks.base import Grading, Question
from edgewise_lab.rollouts import Continuation, Done, Prefix, Rollouts, SequentialRollouts, ignore
from edgewise_lab.training.collect import PairRollouts, Sample
from edgewise_lab.training.labels.base import (
    Case,
    Label,
    Labelling,
    Rollout,
    Writer,
    kept_values,
    label_all,
    labels_named,
)
from edgewise_lab.training.labels.published import (
    R2R,
    Citer,
    CoLlm,
    Final,
    Mismatch,
    Rescue,
    Value,
    same_end,
    sentences,
)
from tests.doubles.completing import completing
from tests.training.scripted_judge import drafts, judging

PROMPT = "How many?"


class Told(NamedTuple):
    """A text; what each model would write, the first that fits; where labels are not 0."""

    text: str
    edge: Sequence[str]
    cloud: Sequence[str]
    labels: Sequence[str] = ()
    """The text with its worthwhile tokens as carets: mismatch, value, R2R's, by the outcome."""

    right: bool = True


ANSWERS = (
    Told(  # another word for the same, and another number
        "Oh it is 7.",
        ["So it is 3.", "Oo it is 3.", "Oh it is 3.", "Oh it is 7."],
        ["Oh it is 7.", "Sh it is 7.", "So it is 7.", "Oo it is 7.", "Oh it is 3."],
        ("^^.......^.", ".........^.", ".........^.", ".........^."),
    ),
    Told(  # a slip in the first sentence that the second one mends
        "Add 2. So 7.",
        ["Add 5. So 7.", "Add 2. So 7."],
        ["Add 2. So 7.", "Add 5. So 7."],
        ("....^.......", "............", "....^.......", "............"),
    ),
    Told(  # a word that says nothing by itself and leads astray in the next sentence
        "Hm. So 7.",
        ["Ha. So 7.", "Hm. So 7."],
        ["Hm. So 7.", "Ha. So 3."],
        (".^.......", ".^.......", ".........", ".^......."),
    ),
    Told(  # the cloud is wrong: no consult helps, but the two diverge
        "So it is 4.",
        ["So it is 3.", "So it is 4."],
        ["So it is 4.", "So it is 3."],
        (".........^.", "...........", ".........^.", ".........^."),
        right=False,
    ),
    Told(  # the edge would end before it has answered
        "So it is 7.",
        ["So"],
        ["So it is 7."],
        ("..^^^^^^^^^", "..^^^^^^^^.", "..^^^^^^^^.", "..^^^^^^^^."),
    ),
    Told(  # nothing differs
        "So it is 7.", ["So it is 7."], ["So it is 7."], ("...........",) * 4
    ),
)

LABELS: dict[str, tuple[Label, int]] = {
    "mismatch": (Mismatch(), 0),
    "co-llm": (CoLlm(), 0),
    "value": (Value(), 1),
    "r2r": (R2R(), 2),
    "r2r-outcome": (R2R("outcome"), 3),
    # Of numbers: whether the cloud's own answer changes, be it right or wrong.
    "final": (Final(), 3),
}
"""Each with its column."""


def model(texts: Sequence[str]) -> ScriptedEdge:
    return ScriptedEdge(judging(completing(*texts, prompt=PROMPT)))


def written_along(texts: Sequence[str], ids: Sequence[int]) -> list[int]:
    """What a model would write at each position of `ids`."""
    script = model(texts).script
    prompt = [*PROMPT.encode()]
    return [int(script([*prompt, *ids[:at]]).argmax()) for at in range(len(ids))]


def case(told: Told, *, ended: bool = True, cloud: Sequence[int] = (), name: str = "q") -> Case:
    ids = (*told.text.encode(), *([EOS] if ended else []))
    sample = Sample(name, tuple(PROMPT.encode()), ids, (0.0,) * len(ids), told.right, tuple(cloud))
    question = Question(name, "sums", PROMPT, "7", "number")
    return Case(question, sample, written_along(told.edge, ids), model([]).tokenizer, 40)


def marked(values: Sequence[float], text: str) -> str:
    return "".join(".^"[value > 0] for value in values[: len(text)])


class Asked(SequentialRollouts):
    """Keeps what it is asked for."""

    def __init__(self, texts: Sequence[str], script: ScriptedEdge | None = None) -> None:
        super().__init__(script or model(texts))
        self.prefixes: list[Prefix] = []
        self.sizes: list[int] = []

    def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
        self.prefixes += prefixes
        self.sizes.append(len(prefixes))
        return super().run(prefixes, done)


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("told", ANSWERS, ids=lambda told: told.text)
def test_labels_of_answers(told: Told, name: str, tmp_path: Path) -> None:
    label, column = LABELS[name]
    found = label_all(label, [case(told)], {"cloud": Asked(told.cloud)}, tmp_path)["q"]
    assert marked(found, told.text) == told.labels[column]
    assert set(found) <= {0.0, 1.0}


REFERENCE = "I see 7."
PREFERENCES = (
    # (edge, cloud) along the reference, and what comes of "I see 3" and of "I see 8".
    (["I see 7."], ["I see 7."], [], "........"),
    (["I saw 7.", "I see 7."], ["I see 7."], [], "...^...."),
    (["I see 7."], ["I saw 7.", "I see 7."], [], "........"),
    (["I see 3."], ["I see 3."], ["I see 3."], "........"),  # one branch: nothing to prefer
    (["I see 3."], ["I see 8."], ["I see 3.", "I see 8 or 7."], "......^."),
    (["I see 3."], ["I see 8."], ["I see 3 or 7.", "I see 8."], "........"),
    (["I see 3."], ["I see 8."], ["I see 3 or 7.", "I see 8 or 7."], "........"),
    (["I see 3."], ["I see 8."], ["I see 3.", "I see 8."], "........"),
)


@pytest.mark.parametrize("by", ["edge", "pair"])
@pytest.mark.parametrize(("edge", "cloud", "ends", "preferred"), PREFERENCES)
def test_preferences_of_citer(
    edge: list[str], cloud: list[str], ends: list[str], preferred: str, by: Writer, tmp_path: Path
) -> None:
    """In the second round the pair writes what in the first one the edge does, and only that."""
    label = next(label for label in labels_named("citer") if by in label.writers)
    assert isinstance(label, Citer)
    told = Told(REFERENCE, [*edge, REFERENCE], [*cloud, REFERENCE])
    writers: dict[Writer, Rollouts] = {"cloud": Asked(told.cloud), by: Asked(ends)}
    found = label_all(label, [case(told, ended=False)], writers, tmp_path)["q"]
    assert marked(found, REFERENCE) == preferred


@pytest.mark.parametrize(
    ("cloud", "begins"), [([REFERENCE], "...^..^."), (["I see 8.", REFERENCE], "...^....")]
)
def test_what_the_head_of_co_llm_begins_with(cloud: list[str], begins: str, tmp_path: Path) -> None:
    """Where the cloud is right and the edge wrong."""
    told = Told(REFERENCE, ["I saw 7.", "I see 3.", REFERENCE], cloud)
    read = case(told, ended=False, cloud=written_along(cloud, [*REFERENCE.encode()]))
    found = label_all(CoLlm(), [read], {}, tmp_path)["q"]
    assert marked(found, REFERENCE) == begins


def test_the_judge_is_shown_the_sentence_and_no_more(tmp_path: Path) -> None:
    told = ANSWERS[1]
    cloud = Asked(told.cloud)
    label_all(R2R(), [case(told)], {"cloud": cloud}, tmp_path)
    assert drafts(cloud.prefixes[-1].ids) == ("Add 2.", "Add 5.")


def test_final_is_graded_by_the_words_that_only_one_reply_has(tmp_path: Path) -> None:
    told = Told("A red rose.", ["A bed rose.", "A red rose."], ["A red rose.", "A bed rose."])
    words = Question("q", "flowers", PROMPT, "", "words", known=False)
    labelled = case(told)._replace(question=words)
    found = label_all(Final(), [labelled], {"cloud": Asked(told.cloud)}, tmp_path)["q"]
    assert {at: value for at, value in enumerate(found) if value} == {2: pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    ("answers", "begins"), [(("yes", "yes"), "yes"), (("Well", "Maybe"), "Well"), (("", ""), "")]
)
def test_a_cloud_that_cannot_judge(answers: tuple[str, str], begins: str, tmp_path: Path) -> None:
    told = ANSWERS[0]
    cloud = Asked([], ScriptedEdge(judging(completing(*told.cloud, prompt=PROMPT), answers)))
    right = 6 if begins == "yes" else 0
    with pytest.raises(UsageError, match=rf"{right} of 12") as caught:
        label_all(R2R(), [case(told)], {"cloud": cloud}, tmp_path)
    assert caught.value.setting == "judge"
    assert label_all(R2R("outcome"), [case(told)], {"cloud": cloud}, tmp_path)


def test_the_judge_is_tried_once_and_not_for_what_is_kept(tmp_path: Path) -> None:
    told = ANSWERS[5]
    cloud = Asked(told.cloud)
    label_all(R2R(), [case(told)], {"cloud": cloud}, tmp_path)
    assert len(cloud.prefixes) == 12
    label_all(R2R(), [case(told)], {}, tmp_path)


@pytest.mark.parametrize(
    ("first", "second", "parted"),
    [
        ("It is 3.5 now. Yes.", "It is 3.7 now. No.", ("", "It is 3.5 now.", "It is 3.7 now.")),
        ("A. B is c. D.", "A. B is e! D.", ("A.", "B is c.", "B is e!")),
        ("A\nB is c\nD", "A\nB is e", ("A", "B is c", "B is e")),
        ("A. B.", "A.", ("A.", "B.", "")),
        ("A.\n\nB.", "A.\n\n\n C.", ("A.", "B.", "C.")),
        ("雪は白い。山だ。", "雪は白い。川だ。", ("雪は白い。", "山だ。", "川だ。")),
        ("no end", "no stop", ("", "no end", "no stop")),
    ],
)
def test_where_a_sentence_ends(first: str, second: str, parted: tuple[str, str, str]) -> None:
    shared = next(i for i in range(len(first) + 1) if first[: i + 1] != second[: i + 1])
    assert sentences(first[:shared], first, second) == parted


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
        ("exact", " wood", "wood\n", True),
        ("exact", "wood", "iron", False),
        ("regex", "iron", "lead", True),
        ("regex", "wood", "lead", False),
    ],
)
def test_answers_that_conclude_alike(check: Grading, one: str, other: str, alike: bool) -> None:
    right = "4" if check == "number" else "wood"
    question = Question("q", "any", PROMPT, right, check, choices=("wood", "iron"))
    assert same_end(question, one, other) is alike


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
    assert label_all(Value(), cases, {}, tmp_path, begun=left.append) == found
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
                assert [len(one.ids) for one in written] == [12 - at for at in range(turn + 1)]
                values[turn] = len(written[-1].ids) / 12
            return values

    cases = [case(ANSWERS[0], name=f"{count}") for count in (2, 0, 3, 1)]
    cloud = Asked(ANSWERS[0].cloud)
    found = label_all(Turns(), cases, {"cloud": cloud}, tmp_path)
    for count in range(4):
        lengths = [(12 - at) / 12 for at in range(count)]
        assert found[f"{count}"] == (*lengths, *[0.0] * (12 - count))


def test_a_pair_writes_rollouts() -> None:
    edge, cloud = (
        ScriptedEdge(replying("So it is 3.", prompt=PROMPT)),
        ScriptedCloud(replying("Oh it is 7.", prompt=PROMPT)),
    )
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
