"""`edgewise tune`: thresholds that run and serve begin from."""

import json
from pathlib import Path

import pytest

from edgewise.pair import Pair
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.cli.conftest import Edgewise

pytestmark = pytest.mark.deep


def write_prompts(path: Path, count: int) -> None:
    lines = [{"prompt": question.prompt} for question in pocketqa("train").questions[:count]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def realised(share: float) -> float:
    """Of answers to other questions, each with a budget of its own as in a run."""
    output = cloud = 0
    with Pair("bundled", router="entropy", cloud_share=share, threads=1) as pair:
        for question in pocketqa("test").questions[:120]:
            pair.forget()
            answer = pair.ask(question.prompt, max_tokens=96)
            output += len(answer.tokens)
            cloud += answer.usage.cloud_tokens + answer.usage.wasted_tokens
    return cloud / output


def test_what_is_tuned_is_realised(
    edgewise: Edgewise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_prompts(tmp_path / "mine.jsonl", 120)
    done = edgewise("tune", "mine.jsonl", "--router", "entropy", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    with Pair("bundled", router="entropy", cloud_share=0.05) as pair:
        assert pair.policy.threshold == told["thresholds"]["0.05"]
    # Another router, or cloud, is another matter.
    with Pair("bundled", router="margin", cloud_share=0.05) as pair:
        assert pair.policy.threshold != told["thresholds"]["0.05"]
    for share in (0.05, 0.1):
        assert told["realised"][f"{share:g}"][0] == pytest.approx(share, rel=0.05)
        assert realised(share) == pytest.approx(share, rel=0.15)


def test_too_few_prompts_are_refused(edgewise: Edgewise, tmp_path: Path) -> None:
    write_prompts(tmp_path / "mine.jsonl", 19)
    done = edgewise("tune", "mine.jsonl")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "19 prompts" in done.err


def test_what_is_kept_is_what_a_pair_answers_at(
    edgewise: Edgewise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_prompts(tmp_path / "mine.jsonl", 40)
    done = edgewise("tune", "mine.jsonl", "--keep", "50%", "--max-tokens", "12", "--json")
    assert done.code == 0, done.err
    kept = json.loads(done.out)["kept"]
    assert kept["least"] >= 0.5
    with Pair("bundled", cloud="bundled") as pair:
        assert (pair.policy.threshold, pair.policy.cloud_share) == (kept["threshold"], None)
    # A share is another promise, and starts where it started before.
    with Pair("bundled", cloud="bundled", cloud_share=0.05) as pair:
        assert pair.card is not None
        assert pair.policy.threshold == pytest.approx(pair.card.thresholds["0.05"])


@pytest.mark.parametrize(("keep", "named"), [("95%", "59"), ("100%", "between 0 and 1")])
def test_what_so_few_prompts_cannot_show_is_refused(
    keep: str, named: str, edgewise: Edgewise, tmp_path: Path
) -> None:
    write_prompts(tmp_path / "mine.jsonl", 58)
    done = edgewise("tune", "mine.jsonl", "--keep", keep)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert named in done.err
