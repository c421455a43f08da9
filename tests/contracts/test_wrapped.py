"""What stands before a cloud model hands on every member of the contract that it does not change.

Members are those of the protocols: one that is added is asked for here by itself.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from typing_extensions import get_protocol_members

from edgewise.cloud.base import CloudModel, CloudSession, WrappedCloud, WrappedSession
from edgewise_lab.bench.frontier.billing import RecordedCloud
from edgewise_lab.bench.pace import LateCloud


class Call:
    """A method that notes what it is given."""

    def __init__(self, contract: Callable[..., Any]) -> None:
        self._contract = inspect.signature(contract)
        self.given: Mapping[str, Any] | None = None
        self.told = object()

    def __call__(self, *args: Any, **more: Any) -> object:
        self.given = self._contract.bind(self, *args, **more).arguments
        return self.told


class Members:
    """Each member of a protocol: methods note what they are given, the rest is told apart."""

    def __init__(self, protocol: type) -> None:
        for name in get_protocol_members(protocol):
            contract = inspect.getattr_static(protocol, name, None)
            setattr(self, name, Call(contract) if inspect.isfunction(contract) else object())


MODELS: dict[str, Callable[[Any], Any]] = {
    "as it is": WrappedCloud,
    "late": lambda cloud: LateCloud(cloud, lambda written, computed: 0.0),
    "recorded": RecordedCloud,
}
MEMBERS = [
    (kind, name)
    for kind in MODELS
    for name in sorted(get_protocol_members(CloudModel))
    # Whoever is more than the base has sessions of its own.
    if kind == "as it is" or name != "open"
]


def hands_on(wrapper: Any, wrapped: Members, contract: type, name: str) -> None:
    """The very object, or call and outcome of a method that takes what the contract's does."""
    member = getattr(wrapped, name)
    if not isinstance(member, Call) or not hasattr(type(wrapper), name):
        assert getattr(wrapper, name) is member
        return
    own, theirs = (inspect.signature(getattr(one, name)) for one in (type(wrapper), contract))
    told = [(one.name, one.kind, one.default) for one in own.parameters.values()]
    assert told == [(one.name, one.kind, one.default) for one in theirs.parameters.values()]
    _, *parameters = theirs.parameters.values()
    given = {one.name: object() for one in parameters}
    named = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    plain = [given[one.name] for one in parameters if one.name not in named]
    found = getattr(wrapper, name)(*plain, **{key: given[key] for key in named})
    assert found is (None if theirs.return_annotation is None else member.told)
    assert member.given is not None
    assert {key: value for key, value in member.given.items() if key != "self"} == given


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_a_model(kind: str, name: str) -> None:
    cloud = Members(CloudModel)
    hands_on(MODELS[kind](cloud), cloud, CloudModel, name)


@pytest.mark.parametrize("name", sorted(get_protocol_members(CloudSession)))
def test_a_session(name: str) -> None:
    session: Any = Members(CloudSession)
    hands_on(WrappedSession(session), session, CloudSession, name)
