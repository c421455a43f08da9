"""Which pair answers a request, and how: by its model id and its fields.

`NAME` is as the server was started, `NAME@0.05` another cloud share, `NAME:t0.3` a fixed threshold,
`NAME:edge` and `NAME:cloud` one of the models.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from fastapi import Request
from msgspec.structs import replace

from edgewise.edge.vocabulary import CHUNK
from edgewise.errors import UsageError
from edgewise.loop.policy import Policy
from edgewise.parts import make_policy
from edgewise.prompts import Message, Prompt
from edgewise.sampling import Sampling
from edgewise.server.answering import Answering, DecodeRequest, Unread
from edgewise.server.callers import caller_of
from edgewise.server.errors import ApiError
from edgewise.server.local_messages import LocalMessages
from edgewise.server.requests import AnswerRequest, EdgewiseOptions

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

    def find(self, model: str) -> Answering | None:
        """The pair that a model id names, if there is one."""
        return self._named.get(re.split("[@:]", model, maxsplit=1)[0])

    def asked(self, model: str) -> Answering:
        """The pair that a model id names. Raises `ApiError` 404, which lists the names."""
        if (answering := self.find(model)) is None:
            raise _unknown(model, list(self._named))
        return answering

    def ids(self) -> list[str]:
        """The listed ids; any share and threshold may be asked for as well."""
        listed = ("", "@0.02", "@0.05", "@0.1", ":edge")
        return [
            name + suffix
            for name, one in self._named.items()
            for suffix in (*listed, *([":cloud"] if one.cloud else []))
        ]


def models_of(request: Request) -> Models:
    """The models of the server that was asked."""
    return cast(Models, request.app.state.models)


def edge_alone(answering: Answering) -> str:
    """The model id that is its edge model alone."""
    return f"{answering.name}:edge"


def cloud_alone(answering: Answering) -> str:
    """The model id that is its cloud model alone."""
    return f"{answering.name}:cloud"


def policy_for(answering: Answering, model: str) -> Policy:
    """The policy that one of its model ids names. Raises `ApiError` 404 for another."""
    pair = make_policy(answering.settings, answering.starts)
    suffix = model.removeprefix(answering.name)
    if not suffix:
        return pair
    if suffix == ":edge":
        return pair.edge_alone()
    if suffix == ":cloud":
        if answering.cloud is None:
            message = f"{model!r} needs a cloud model, and the server has none."
            raise ApiError(404, message, code="model_not_found", param="model")
        return pair.cloud_alone()
    if suffix[0] == "@" and _SHARE.fullmatch(suffix[1:]):
        shared = replace(answering.settings, cloud_share=float(suffix[1:]), threshold=None)
        return make_policy(shared, answering.starts)
    if suffix.startswith(":t") and _SHARE.fullmatch(suffix[2:]):
        # No budget moves it, so the same request has the same answer.
        fixed = replace(answering.settings, cloud_share=None, threshold=float(suffix[2:]))
        return make_policy(fixed, answering.starts)
    raise _unknown(model, [answering.name])


def _unknown(model: str, names: Sequence[str]) -> ApiError:
    """A 404 that lists the ids there are."""
    one = names[0]
    message = (
        f"There is no model {model[:60]!r}; ask for {', '.join(names)}, or {one}@0.05 (a cloud "
        f"share), {one}:t0.3 (a threshold), {one}:edge or {one}:cloud."
    )
    return ApiError(404, message, code="model_not_found", param="model")


LOCAL_HEADER = "X-Edgewise-Cloud"
"""Says "none" for clients that cannot send the field `edgewise`."""


async def marked(
    local: LocalMessages,
    options: EdgewiseOptions,
    request: Request,
    messages: Sequence[Message],
    parts: Sequence[Sequence[str]] = (),
) -> list[Message]:
    """The conversation, with every local message marked. Raises `ApiError`."""
    said = request.headers.getlist(LOCAL_HEADER)
    if any(one.strip().lower() != "none" for one in said):
        raise ApiError(400, f"{LOCAL_HEADER} may say none, and nothing else.", param=LOCAL_HEADER)
    mark = partial(
        local.marked,
        messages,
        local=bool(said) or options.cloud == "none",
        owner=caller_of(request).name,
        parts=parts,
    )
    if sum(len(message.content) for message in messages) <= CHUNK:
        return mark()
    return await asyncio.to_thread(mark)


def decode_request(
    answering: Answering, body: AnswerRequest, prompt: Unread, *, messages: Sequence[Message]
) -> DecodeRequest:
    """The request to the pair, with the server's settings for missing fields. What is local goes
    to no cloud that is not trusted (`Decoder`). Raises `ApiError`."""
    local = messages[-1].local
    policy = policy_for(answering, body.model)
    if body.model == cloud_alone(answering):
        if local:
            raise _local(answering)
        prompt = replace(prompt, read=partial(_sent, answering, prompt.read))
    if body.stream_options and not body.stream:
        raise ApiError(400, "stream_options needs stream true.", param="stream_options")
    if body.edgewise.pending and not body.stream:
        raise ApiError(400, "edgewise.pending needs stream true.", param="edgewise.pending")
    own, most = answering.settings, body.most
    return DecodeRequest(
        prompt=prompt,
        messages=messages,
        policy=policy,
        max_tokens=own.max_tokens if most is None else most,
        sampling=Sampling(
            temperature=(own.temperature or 0.0) if body.temperature is None else body.temperature,
            top_k=body.top_k or 0,
            top_p=own.top_p if body.top_p is None else body.top_p,
            min_p=body.min_p or 0.0,
            seed=_seed(body.seed, own.seed),
        ),
        stop=body.stops,
        candidates=bool(body.candidates) or body.edgewise.provenance,
        pending=body.edgewise.pending,
    )


def _seed(given: int | None, own: int | None) -> int:
    """OpenAI's seeds may be negative; without one, every answer is drawn anew."""
    chosen = own if given is None else given
    return secrets.randbelow(1 << 63) if chosen is None else chosen % (1 << 63)


def _sent(answering: Answering, read: Callable[[], Prompt]) -> Prompt:
    """The prompt. Raises `ApiError` if the context filter keeps it here."""
    prompt = read()
    if answering.cloud is not None and answering.cloud.local_only(prompt):
        raise _local(answering)
    return prompt


def _local(answering: Answering) -> ApiError:
    message = (
        f"This conversation is local, so {cloud_alone(answering)!r} cannot answer; ask for "
        f"{answering.name}."
    )
    return ApiError(400, message, param="model")
