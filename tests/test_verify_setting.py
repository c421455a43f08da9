"""The setting `verify`: what auto comes to, what else excludes it, and what one answer may ask."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from edgewise import LocalCloud, Pair, Policy
from edgewise.edge.base import EdgeAbilities
from edgewise.errors import UsageError
from edgewise.loop.decoder import collect
from edgewise.opening import make_policy
from edgewise.routers.untrained import Constant
from edgewise.settings import Settings, load, require_honoured
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise, replying

PROMPT = "Q: sky? A:"
IDS = list(PROMPT.encode())


def pair(*, able: bool = True, cloud: Any = None, edge: Any = None, **settings: Any) -> Pair:
    """The edge writes "gray sky", the cloud, which is `able` to verify, "grey sky"."""
    small = edge or ScriptedEdge(replying("gray sky", prompt=PROMPT))
    return Pair(small, cloud=grey(able) if cloud is None else cloud, **settings)


def grey(able: bool = True) -> ScriptedCloud:
    return ScriptedCloud(replying("grey sky", prompt=PROMPT), verifies=able)


def rooted() -> ScriptedEdge:
    """An edge model that cannot roll back."""
    edge = ScriptedEdge(replying("gray sky", prompt=PROMPT))
    edge.abilities = replace(EdgeAbilities(), rewinds="no")
    return edge


AGAINST: list[dict[str, Any]] = [
    {"router": "entropy"},
    {"router": Constant(1.0)},
    {"threshold": 0.5},
    {"span": 2},
    {"speculate": 0},
    {"cloud_share": 0.0},
    {"cloud_share": 1.0},
    {"cloud": "none"},
    {"cloud": [grey(), grey()]},
    {"redact": "email"},
    {"edge": rooted()},
    {"able": False},
    {"cloud": LocalCloud(ScriptedEdge(noise(), tokenizer=ByteTokenizer("<other>")))},
]


@pytest.mark.parametrize("given", AGAINST, ids=lambda given: ",".join(given))
def test_auto_leaves_it_to_routers_where_something_is_against_it(given: dict[str, Any]) -> None:
    """And `on` and `exact` are refused there."""
    with pair(**given) as made:
        assert (made.settings.verify, made.policy.verify) == ("off", "off")
    for word in ("on", "exact"):
        with pytest.raises(UsageError) as caught:
            pair(verify=word, **given)
        assert caught.value.setting == "verify"


def test_auto_verifies_and_then_no_router_asks() -> None:
    with pair() as made:
        assert made.policy.verify == "on"
        assert made.policy.cloud_share == 0.10
        assert made.starts == {}, "the edge writes nothing to find some"
        answer = made.ask(IDS)
    assert answer.text == "grey sky"
    assert answer.usage.cloud_tokens == 1
    assert answer.usage.verified_tokens > 0


def test_at_a_price_a_router_asks_unless_it_is_wished() -> None:
    for word, comes_to in (("auto", "off"), ("on", "on"), ("exact", "exact")):
        with pair(price="0.28,0.028,0.42", verify=word) as made:
            assert made.policy.verify == comes_to
    cloud = grey()
    cloud.reads_once = False
    with pytest.raises(UsageError, match="bills each"):
        pair(price="0.28,0.028,0.42", verify="exact", cloud=cloud)


@pytest.mark.parametrize("word", ["on", "ON", "Auto"])
def test_a_share_is_kept_and_words_may_be_in_any_case(word: str) -> None:
    with pair(verify=word, cloud_share=0.25, router="auto") as made:
        assert (made.policy.verify, made.policy.cloud_share) == ("on", 0.25)


def test_exact_has_no_share() -> None:
    with pair(verify="exact") as made:
        assert (made.policy.verify, made.policy.cloud_share) == ("exact", None)
    with pytest.raises(UsageError) as caught:
        pair(verify="exact", cloud_share=0.1)
    assert caught.value.setting == "verify"


def test_off_is_for_routers_whatever_the_cloud_can() -> None:
    with pair(verify="off", router="constant:1", threshold=0.5) as made:
        assert made.policy.verify == "off"
        usage = made.ask(IDS).usage
    assert usage.cloud_tokens > 1
    assert usage.verified_tokens == 0


def test_what_cannot_be_is_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(UsageError) as caught:
        Pair("no-such.gguf", cloud="no-such.gguf", verify="on", threshold=0.5)
    assert caught.value.setting == "verify"


def test_an_answer_may_leave_it_to_the_router_or_to_one_model() -> None:
    with pair() as made:
        policies = made.policy.edge_alone(), made.policy.cloud_alone(), Policy(threshold=0.0)
        shares: list[float] = []
        for policy in policies:
            with made.stream(IDS, policy=policy) as events:
                usage = collect(events).usage
            assert usage.verified_tokens == 0
            shares.append(usage.cloud_share)
    assert shares == [0, 1, 1]


def test_a_policy_that_the_cloud_cannot_follow_is_refused() -> None:
    with pair(able=False) as made, pytest.raises(UsageError):
        made.stream(IDS, policy=Policy(verify="exact"))


@pytest.fixture
def chosen() -> Iterator[Settings]:
    """As a pair keeps them that verifies exactly."""
    with pair(verify="exact") as made:
        yield made.settings


def test_an_answer_may_ask_for_a_share_or_a_threshold(chosen: Settings) -> None:
    """As the server's model ids and the chat's `/share` do."""
    policy = make_policy(replace(chosen, cloud_share=0.2), {})
    assert (policy.verify, policy.cloud_share) == ("on", 0.2)
    assert not make_policy(replace(chosen, cloud_share=0.0), {}).verifies
    fixed = make_policy(replace(chosen, threshold=0.3), {})
    assert (fixed.verify, fixed.threshold, fixed.cloud_share) == ("off", 0.3, None)


def test_a_reader_of_routers_takes_off_as_no_wish(tmp_path: Any) -> None:
    off, exact = (
        load({}, environment={"EDGEWISE_VERIFY": word}, folder=tmp_path)
        for word in ("off", "exact")
    )
    require_honoured(*off, ["verify"], "it")
    with pytest.raises(UsageError):
        require_honoured(*exact, ["verify"], "it")
