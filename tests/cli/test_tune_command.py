"""`edgewise tune`: thresholds that run and serve begin from."""

from typing import Any

import pytest

from edgewise.addresses import bundled
from edgewise.pair import Pair
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.cli.conftest import Edgewise

pytestmark = pytest.mark.deep


@pytest.fixture(autouse=True)
def cache(edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its own; and few shares are tuned for."""
    monkeypatch.setattr("edgewise_lab.commands.tune.SHARES", (0.05, 0.1))
    edgewise.setenv(XDG_CACHE_HOME=str(edgewise.folder / "cache"))


def write_prompts(edgewise: Edgewise, count: int) -> None:
    asked = ({"prompt": question.prompt} for question in pocketqa("train").questions[:count])
    edgewise.write_lines("mine.jsonl", *asked)


def realised(share: float) -> float:
    """Of answers to other questions, with one budget as in serve: a new one is spent at once."""
    output = cloud = 0
    with Pair("bundled", router="entropy", cloud_share=share, threads=1) as pair:
        for question in pocketqa("test").questions[:60]:
            answer = pair.ask(question.prompt, max_tokens=96)
            output += len(answer.tokens)
            cloud += answer.usage.cloud_tokens + answer.usage.wasted_tokens
    return cloud / output


def test_what_is_tuned_is_realised(edgewise: Edgewise) -> None:
    write_prompts(edgewise, 60)
    told = edgewise.json("tune", "mine.jsonl", "--router", "entropy")
    with Pair("bundled", router="entropy", cloud_share=0.05) as pair:
        assert pair.policy.threshold == told["thresholds"]["0.05"]
    # Another router, or cloud, is another matter.
    with Pair("bundled", router="margin", cloud_share=0.05) as pair:
        assert pair.policy.threshold != told["thresholds"]["0.05"]
    for share in (0.05, 0.1):
        assert told["realised"][f"{share:g}"][0] == pytest.approx(share, rel=0.05)
        assert realised(share) == pytest.approx(share, rel=0.1)


def test_each_further_cloud_has_thresholds_of_its_own(edgewise: Edgewise) -> None:
    """They are where a pair with these clouds begins; a share of fewer has a higher one."""
    write_prompts(edgewise, 20)
    large = str(bundled("cloud"))
    clouds = [word for _ in range(2) for word in ("--cloud", large)]
    flags = ("--edge", "bundled", "--router", "entropy", "--max-tokens", "48")
    (thresholds,) = edgewise.json("tune", "mine.jsonl", *flags, *clouds)["tiers"].values()
    assert 0 <= thresholds["0.1"] <= thresholds["0.05"] <= 1
    pair: dict[str, Any] = {"router": "entropy", "cloud": [large, large], "tier_share": 0.05}
    with Pair("bundled", **pair) as tuned, Pair("bundled", **pair, tier_threshold=0.7) as named:
        assert tuned.decoder.tiers[1].threshold == thresholds["0.05"]
        assert named.decoder.tiers[1].threshold == 0.7


def test_too_few_prompts_are_refused(edgewise: Edgewise) -> None:
    write_prompts(edgewise, 19)
    assert "19 prompts" in edgewise.refusal("tune", "mine.jsonl")


def test_what_ran_out_of_time_goes_on(edgewise: Edgewise) -> None:
    """A cloud in this process has no deadline but the user's; the error names flag and prompt."""
    write_prompts(edgewise, 20)
    command = ("tune", "mine.jsonl", "--router", "entropy", "--max-tokens", "24")
    failed = edgewise(*command, "--deadline", "0.000001", code=2)
    for word in ("--deadline", "Question '", "goes on"):
        assert word in failed.err
    (kept,) = (edgewise.folder / "cache/edgewise/tuning").iterdir()
    assert kept.read_text().count("\n") >= 20, "the edge's own answers need no cloud"
    done = edgewise(*command)
    assert not kept.exists()
    assert "Warning" not in done.err
    shown, rest = done.out.split("cloud share", 1)
    assert str(edgewise.folder) not in shown
    assert "edgewise eval" in rest
