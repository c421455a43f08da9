"""Rules in rows: the same answers as one by one, and as the product's own."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from edgewise.addresses import bundled
from edgewise.edge.base import Tokenizer
from edgewise.edge.named import open_tokenizer
from edgewise.errors import EdgewiseError
from edgewise.opening import open_edge
from edgewise.settings import Settings
from edgewise_lab.bench.rules.engine import RowEngine
from edgewise_lab.bench.rules.models import RowModel, open_rows, padded
from edgewise_lab.bench.rules.rule import CLOUD, EDGE, RULES, SIGNALS, WINDOW, Rule, look
from edgewise_lab.commands.bench import app
from edgewise_lab.evaluation.systems import edge_alone, max_answer_tokens, question_ids
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.hub_models import write_hub_model
from tests.installed import require

require("transformers", "torch")

PROMPTS = [list(f"{word} and so on".encode()) for word in ("one", "a longer one", "two", "xyz")]
ROOM = 24
THRESHOLDS = {"ratio": 1.0, "p": 4.0, "margin": 0.2, "rank": 2.0, "spike": 1.2, "entropy": 3.0}
THRESHOLDS |= {"random": 0.5, "max-prob": 0.7, "edge margin": 0.8}


class Pair:
    """Two tiny random models of one vocabulary."""

    def __init__(self, folder: Path) -> None:
        folders = [write_hub_model(folder / f"{seed}", "llama", seed=seed) for seed in (1, 2)]
        self.addresses = [str(one) for one in folders]
        self.edge, self.cloud = (open_rows(one, "edge", "cpu") for one in self.addresses)
        self.tokenizer = open_tokenizer(self.addresses[0])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    import torch

    torch.set_num_threads(1)
    return Pair(tmp_path_factory.mktemp("pair"))


@cache
def logits(model: RowModel, *ids: int) -> Any:
    return model.begin(*padded(model.torch, [ids], "cpu"), model.torch.tensor([0]))


def one_by_one(pair: Pair, prompt: list[int], rule: Rule, threshold: float) -> list[int]:
    """The answer by whole passes, without rows, caches or windows that take back."""
    ids: list[int] = []
    surprises: list[float] = []
    mean, held, checked = 0.0, False, 0

    random, torch = np.random.default_rng(prompt).random(ROOM, np.float32), pair.edge.torch

    def seen(ids: list[int], at: int) -> Any:
        both = [logits(model, *prompt, *ids) for model in (pair.edge, pair.cloud)]
        return look(torch, both, torch.tensor([mean]), torch.tensor([random[min(at, ROOM - 1)]]))

    while len(ids) < ROOM and not (ids and ids[-1] in pair.tokenizer.eos_ids):
        now = seen(ids, len(ids))
        own, other = int(now.edge), int(now.cloud)
        wants = float(SIGNALS[rule.signal](now)) >= threshold or (rule.verifies and not ids)
        wants &= not (rule.verifies and own == other)
        wants &= len(ids) >= checked
        begins = pair.tokenizer.piece(other)[:1]
        if held and (begins.isalnum() or begins >= b"\x80"):
            wants = True
        if wants and rule.then == "window" and own not in pair.tokenizer.eos_ids:
            ahead = [*ids, own]
            while len(ahead) <= len(ids) + WINDOW and len(ahead) < ROOM:
                after = seen(ahead, len(ahead))
                if int(after.edge) != int(after.cloud):
                    break
                ahead.append(int(after.edge))
                if ahead[-1] in pair.tokenizer.eos_ids:
                    break
            else:
                wants = False
            if ahead[-1] in pair.tokenizer.eos_ids:
                wants = False
            if not wants:
                checked = len(ahead)
        surprises.append(-float(now.cloud_p))
        ids.append(other if wants else own)
        mean += (surprises[-1] - mean) / min(len(ids), 16)
        held = wants and rule.then == "word"
    return ids


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rows_answer_as_one_by_one(pair: Pair, rule: Rule) -> None:
    threshold = THRESHOLDS[rule.signal] if rule.threshold is None else rule.threshold
    engine = RowEngine(pair.edge, pair.cloud, pair.tokenizer)
    asked = [(at, one, t) for at in range(4) for one, t in ((rule, threshold), (EDGE, 2.0))]
    found = [
        answer for answers in engine.in_batches(PROMPTS, [ROOM] * 4, asked, 5) for answer in answers
    ]
    for (at, one, t), answer in zip(asked, found, strict=True):
        assert answer.ids.tolist() == one_by_one(pair, PROMPTS[at], one, t)
        assert len(answer.by_cloud) == len(answer.signals) == len(answer.ids)


def test_exact_is_the_clouds_own_answer(pair: Pair) -> None:
    engine = RowEngine(pair.edge, pair.cloud, pair.tokenizer)
    exact = next(rule for rule in RULES if rule.name == "exact")
    asked = [(at, *one) for at in range(4) for one in ((exact, -1e9), (CLOUD, -1.0))]
    found = engine.answers(PROMPTS, [ROOM, 3, 1, ROOM], asked)
    for ours, clouds in zip(found[::2], found[1::2], strict=True):
        assert ours.ids.tolist() == clouds.ids.tolist()
        assert clouds.by_cloud.all()
    assert [len(one.ids) for one in found[2:6]] == [3, 3, 1, 1]


def first_difference(ours: list[int], theirs: list[int]) -> int | None:
    both = zip(ours, theirs, strict=False)
    return next((at for at, (one, other) in enumerate(both) if one != other), None)


@pytest.mark.parametrize("address", ["bundled", "folder"])
def test_the_edge_alone_answers_as_the_product_does(pair: Pair, address: str) -> None:
    """20 questions: where rounding decides, two tokens are nearly as likely."""
    own = pair.addresses[0] if address == "folder" else address
    small, large = pair.edge, pair.cloud
    if address == "bundled":
        small, large = open_rows("bundled", "edge", "cpu"), open_rows("bundled", "cloud", "cpu")
    tokenizer: Tokenizer = open_tokenizer(own)
    questions = pocketqa().questions[:20]
    prompts = [question_ids(tokenizer, question) for question in questions]
    engine = RowEngine(small, large, tokenizer)
    rooms = [max_answer_tokens(len(prompt), 40, small.context) for prompt in prompts]
    found = engine.answers(prompts, rooms, [(at, EDGE, 2.0) for at in range(20)])
    settings = Settings(edge=own, threads=1)
    with open_edge(settings) as model:
        alone = edge_alone(model, 40)
        theirs = [[t.id for t in alone.ask(question).tokens] for question in questions]
    parted = 0
    for prompt, answer, other in zip(prompts, found, theirs, strict=True):
        at = first_difference(answer.ids.tolist(), other)
        if at is None:
            assert len(answer.ids) == len(other)
            continue
        parted += 1
        rows = logits(small, *prompt, *other[:at])[0].log_softmax(0)
        assert abs(float(rows[other[at]] - rows[int(answer.ids[at])])) < 0.1
    assert parted <= (0 if address == "folder" else 8)


def test_the_command_compares_rules_at_equal_shares_and_goes_on(tmp_path: Path) -> None:
    command = ["rules", "pocketqa", "--limit", "6", "--calibration", "6", "--threads", "1"]
    command += ["--rules", "verify ratio,max-prob,exact", "--max-tokens", "24", "--cloud-share"]
    command += ["0.1", "--device", "cpu", "--rows", "20", "--json", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    systems = {one["system"]: one for one in told["systems"]}
    assert list(systems) == ["edge", "cloud", "exact", "verify ratio", "max-prob"]
    assert systems["edge"]["cloud_share"] == 0.0
    assert systems["exact"]["accuracy"] == systems["cloud"]["accuracy"]
    assert 0 < systems["max-prob"]["cloud_share"] < 0.3
    kept = (tmp_path / "out" / "outcomes.jsonl").read_bytes()
    assert kept.count(b"\n") == 30
    assert CliRunner().invoke(app, command).stdout == done.stdout
    assert (tmp_path / "out" / "outcomes.jsonl").read_bytes() == kept


def test_where_no_answer_is_known_the_cloud_agrees_with_itself(tmp_path: Path) -> None:
    """Seen: nobody was right, the cloud neither."""
    (tmp_path / "p.jsonl").write_text('{"prompt": "Is it so?"}\n{"prompt": "Is it not?"}\n' * 2)
    command = ["rules", str(tmp_path / "p.jsonl"), "--limit", "2", "--calibration", "1", "--json"]
    command += ["--rules", "exact", "--max-tokens", "4", "--device", "cpu"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    found = {one["system"]: one["accuracy"] for one in json.loads(done.stdout)["systems"]}
    assert (found["cloud"], found["exact"]) == (1.0, 1.0)


def test_answers_of_another_context_are_not_taken_over(tmp_path: Path) -> None:
    command = ["rules", "pocketqa", "--limit", "1", "--calibration", "1", "--rules", "exact"]
    command += ["--max-tokens", "2", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(app, command).exit_code == 0
    done = CliRunner().invoke(app, [*command, "--ctx", "200"])
    assert isinstance(done.exception, EdgewiseError)
    assert "other models" in str(done.exception)


def test_json_names_the_rule_that_differences_are_to() -> None:
    """A rule without a share comes first in the table."""
    command = ["rules", "pocketqa", "--limit", "1", "--calibration", "1", "--rules"]
    command += ["exact,verify ratio", "--max-tokens", "2", "--device", "cpu", "--json"]
    done = CliRunner().invoke(app, [*command, "--cloud-share", "0.9"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["main"] == {"system": "verify ratio", "share": 0.9}
    (main,) = (one for one in told["systems"] if one["system"] == "verify ratio")
    assert main["difference"] == 0


def test_replies_that_a_person_must_read_are_told_before_any_is_made(tmp_path: Path) -> None:
    file = tmp_path / "poems.jsonl"
    line = '{"prompt": "Write a poem.", "answer": "It rhymes.", "check": "read"}\n'
    file.write_text(line + line.replace("poem", "song"))
    done = CliRunner().invoke(app, ["rules", str(file), "--calibration", "1", "--device", "cpu"])
    assert isinstance(done.exception, EdgewiseError)
    assert "are to be read" in str(done.exception)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (["--rules", "nonsense"], "no rule 'nonsense'"),
        (["--device", "abacus"], "abacus"),
        (["--cloud", "none"], "need a cloud"),
        (["--edge", "http://127.0.0.1:1", "--cloud", str(bundled("cloud"))], ""),
    ],
)
def test_what_rules_cannot_do_is_one_sentence(wrong: list[str], problem: str) -> None:
    done = CliRunner().invoke(app, ["rules", "pocketqa", *wrong])
    assert isinstance(done.exception, EdgewiseError)
    assert problem in str(done.exception)


def test_recurrent_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EdgewiseError, match="recurrent"):
        open_rows(str(write_hub_model(tmp_path / "m", "lfm2")), "edge", "cpu")
