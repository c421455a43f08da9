"""A prompt that must stay here: the loop opens no session for it, whatever the policy."""

import pytest

from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Budget, Policy
from edgewise.pair import Pair
from edgewise.prompts import Message, Prompt
from edgewise.routers.constant import Constant
from edgewise.testing import ScriptedCloud, ScriptedEdge, noise

IDS = tuple(b"Q: sky? A:")
POLICIES = [
    Policy(threshold=0.0, speculate=4),
    Policy(cloud_share=0.5),
    Policy().cloud_alone(),
    Policy(threshold=0.0, on_cloud_error="raise"),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(IDS, local=True),
        Prompt(IDS, (Message("user", "sky?", local=True),)),
        Prompt(IDS, (Message("system", "x", local=True), Message("user", "sky?"))),
    ],
)
def test_a_prompt_that_stays_opens_no_session(policy: Policy, prompt: Prompt) -> None:
    cloud = ScriptedCloud(noise(1))
    decoder = Decoder(ScriptedEdge(noise()), router=Constant(1.0), policy=policy, cloud=cloud)
    with decoder.stream(prompt, max_tokens=8, budget=Budget(credit=7.0, shift=1.0)) as events:
        told = list(events)
        left = events.budget
    assert told
    assert (cloud.opened, cloud.asks) == (0, [])
    # It neither spends nor earns.
    assert (left.credit, left.shift) == (7.0, 1.0)
    decoder.generate(IDS, max_tokens=8)
    assert cloud.opened == 1


def test_a_pair_takes_marks_with_messages() -> None:
    cloud = ScriptedCloud(noise(1))
    edge = ScriptedEdge(noise())
    with Pair(edge, cloud=cloud, router=Constant(1.0), threshold=0.5) as pair:
        said: list[Message | dict[str, object]] = [
            {"role": "user", "content": "a", "local": True},
            Message("assistant", "b"),
            Message("user", "c"),
        ]
        pair.ask(said, max_tokens=4)  # type: ignore[arg-type]
        assert cloud.opened == 0
        pair.ask(said[1:], max_tokens=4)  # type: ignore[arg-type]
        assert cloud.opened == 1
        with pytest.raises(UsageError, match=r"\$\.local"):
            pair.ask([{"role": "user", "content": "a", "local": "yes"}])
