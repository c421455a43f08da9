"""Model ids choose a pair and the trade-off.

`NAME` is as the server was started, `NAME@0.05` another cloud share, `NAME:t0.3` a fixed threshold,
`NAME:edge` and `NAME:cloud` one of the models.
"""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from edgewise.errors import UsageError
from edgewise.loop.policy import Policy
from edgewise.parts import make_policy
from edgewise.server.answering import PAIR, Answering
from edgewise.server.errors import ApiError
from edgewise.server.local_messages import LocalMessages

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHARE = re.compile(r"0(?:\.\d{1,6})?|1(?:\.0{1,6})?")


def require_name(name: str) -> None:
    """Raises `UsageError` for an invalid model name: ids add to it after @ and :."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid model name",
            hint="take up to 64 letters, digits, dots, dashes and underscores",
        )


class Models:
    """The loaded pairs that a server answers by, each under its `name`."""

    def __init__(self, answerings: Sequence[Answering]) -> None:
        """The first one is the default."""
        self.all = tuple(answerings)
        self._named = {one.name: one for one in answerings}

    @property
    def first(self) -> Answering:
        """The default."""
        return self.all[0]

    @property
    def local(self) -> LocalMessages:
        """The memory of local texts, which all of them share."""
        return self.first.local

    @property
    def told_apart(self) -> bool:
        """Whether metrics name the model: not for one model with the default name."""
        return tuple(self._named) != (PAIR,)

    def find(self, model: str) -> Answering | None:
        """The pair that a model id names, if there is one."""
        return self._named.get(re.split("[@:]", model, maxsplit=1)[0])

    def asked(self, model: str) -> Answering:
        """The pair that a model id names. Raises `ApiError` 404, which lists the names."""
        if (found := self.find(model)) is None:
            raise _unknown(model, list(self._named))
        return found

    def ids(self) -> list[str]:
        """The listed ids; any share and threshold may be asked for as well."""
        return [
            name + form
            for name, one in self._named.items()
            for form in ("", "@0.02", "@0.05", "@0.1", ":edge", *([":cloud"] if one.cloud else []))
        ]


def edge_alone(answering: Answering) -> str:
    """The model id that is its edge model alone."""
    return f"{answering.name}:edge"


def cloud_alone(answering: Answering) -> str:
    """The model id that is its cloud model alone."""
    return f"{answering.name}:cloud"


def policy_for(answering: Answering, model: str) -> Policy:
    """The policy that one of its model ids names. Raises `ApiError` 404 for another."""
    pair = make_policy(answering.settings, answering.card)
    form = model.removeprefix(answering.name)
    if not form:
        return pair
    if form == ":edge":
        return pair.edge_alone()
    if form == ":cloud":
        if answering.cloud is None:
            message = f"{model!r} needs a cloud model, and the server has none."
            raise ApiError(404, message, code="model_not_found", param="model")
        return pair.cloud_alone()
    if form[0] == "@" and _SHARE.fullmatch(form[1:]):
        shared = replace(answering.settings, cloud_share=float(form[1:]), threshold=None)
        return make_policy(shared, answering.card)
    if form.startswith(":t") and _SHARE.fullmatch(form[2:]):
        # No budget moves it, so the same request has the same answer.
        fixed = replace(answering.settings, cloud_share=None, threshold=float(form[2:]))
        return make_policy(fixed, answering.card)
    raise _unknown(model, [answering.name])


def _unknown(model: str, names: Sequence[str]) -> ApiError:
    """A 404 that lists the ids there are."""
    one = names[0]
    forms = (
        f"{one}@0.05 (a cloud share from 0 to 1), {one}:t0.3 (a threshold from 0 to 1), {one}:edge "
        f"or {one}:cloud"
    )
    if len(names) == 1:
        there = f"ask for {one}, {forms}."
    else:
        there = f"there are {', '.join(names)}, each in the forms {one}, {forms}."
    message = f"There is no model {model[:60]!r}; {there}"
    return ApiError(404, message, code="model_not_found", param="model")
