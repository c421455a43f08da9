"""The setting `verify`: what auto comes to, what else excludes it, and what one answer may ask."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from edgewise import LocalCloud, Pair, Policy
from edgewise.edge.base import EdgeAbilities
from edgewise.errors import UsageError
from edgewise.loop.decoder import collect
from edgewise.opening import make_policy
from edgewise.routers.untrained import Constant
from edgewise.settings import load, require_honoured
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


OTHER = ByteTokenizer("<other>")
AGAINST: list[dict[str, Any]] = [
    *({"router": "entropy"}, {"router": Constant(1.0)}, {"threshold": 0.5}, {"span": 2}),
    *({"speculate": 0}, {"cloud_share": 0.0}, {"cloud_share": 1.0}, {"redact": "email"}),
    *({"edge": rooted()}, {"able": False}, {"cloud": "none"}, {"cloud": [grey(), grey()]}),
    {"cloud": LocalCloud(ScriptedEdge(noise(), tokenizer=OTHER))},
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


PRICE = {"price": "0.28,0.028,0.42"}


@pytest.mark.parametrize(
    ("given", "comes_to"),
    [
        ({"verify": "on", "cloud_share": 0.25, "router": "auto"}, ("on", 0.25)),
        ({"verify": "ON", "cloud_share": 0.25}, ("on", 0.25)),
        ({"verify": "Auto", "cloud_share": 0.25}, ("on", 0.25)),
        ({"verify": "exact"}, ("exact", None)),
        # At a price a router asks unless it is wished.
        ({"verify": "auto", **PRICE}, ("off", 0.05)),
        ({"verify": "on", **PRICE}, ("on", 0.10)),
        ({"verify": "exact", **PRICE}, ("exact", None)),
    ],
    ids=str,
)
def test_what_a_word_comes_to(given: dict[str, Any], comes_to: tuple[str, float | None]) -> None:
    with pair(**given) as made:
        assert (made.policy.verify, made.policy.cloud_share) == comes_to


def test_exact_has_no_share_and_no_cloud_that_bills_each_time() -> None:
    with pytest.raises(UsageError) as caught:
        pair(verify="exact", cloud_share=0.1)
    assert caught.value.setting == "verify"
    cloud = grey()
    cloud.reads_once = False
    with pytest.raises(UsageError, match="bills each"):
        pair(verify="exact", cloud=cloud, **PRICE)


def test_off_is_for_routers_whatever_the_cloud_can() -> None:
    with pair(verify="off", router="constant:1", threshold=0.5) as made:
        assert made.policy.verify == "off"
        usage = made.ask(IDS).usage
    assert usage.cloud_tokens > 1
    assert usage.verified_tokens == 0


def test_what_cannot_be_is_refused_before_a_model_is_loaded_and_for_one_answer() -> None:
    with pytest.raises(UsageError) as caught:
        Pair("no-such.gguf", cloud="no-such.gguf", verify="on", threshold=0.5)
    assert caught.value.setting == "verify"
    with pair(able=False) as made, pytest.raises(UsageError):
        made.stream(IDS, policy=Policy(verify="exact"))


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


def test_an_answer_may_ask_for_a_share_or_a_threshold() -> None:
    """As the server's model ids and the chat's `/share` do."""
    with pair(verify="exact") as made:
        chosen = made.settings
    policy = make_policy(replace(chosen, cloud_share=0.2), {})
    assert (policy.verify, policy.cloud_share) == ("on", 0.2)
    assert not make_policy(replace(chosen, cloud_share=0.0), {}).verifies
    fixed = make_policy(replace(chosen, threshold=0.3), {})
    assert (fixed.verify, fixed.threshold, fixed.cloud_share) == ("off", 0.3, None)


def test_a_reader_of_routers_takes_off_as_no_wish(tmp_path: Path) -> None:
    off, exact = (
        load({}, environment={"EDGEWISE_VERIFY": word}, folder=tmp_path)
        for word in ("off", "exact")
    )
    require_honoured(*off, ["verify"], "it")
    with pytest.raises(UsageError):
        require_honoured(*exact, ["verify"], "it")
