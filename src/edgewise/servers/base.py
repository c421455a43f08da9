"""Servers of models as values, without any connection ("sans-IO", as h11 and websockets are).

Each server is described once, for all who ask it: a cloud by ids (`IdServer`), a cloud by text
(`TextServer`), an edge model (`EdgeServer`). Values become a `Request`, the bytes of its reply
become values. A transport sends the one and hands over the other; what cannot be used is a `Fault`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec

from edgewise.completion import MOST_IDS, Completion
from edgewise.errors import CloudError, CloudProtocolError, UsageError

_T = TypeVar("_T")

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
"""Tokens, as a provider counts them: no context holds more."""

_Size = Annotated[int, msgspec.Meta(ge=1, le=MOST_IDS)]
_Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]

CONTEXT = 4096
"""Tokens, where a server does not say how many it holds."""

LONGEST_NAME, _MOST_SHOWN = 100, 8

Fields = Mapping[str, object]

GREEDY: Mapping[str, Any] = {"temperature": 0}
"""Sampling fields of who draws nothing."""


class Request(NamedTuple):
    """A POST of a JSON `body`, or a GET without one; `ids` is how many token ids it has."""

    path: str
    body: Mapping[str, Any] | None = None
    ids: int = 0

    def having(self, **fields: object) -> "Request":
        return self._replace(body={**(self.body or {}), **fields})


MODELS = Request("/v1/models")


class Fault(Exception):
    """A reply that cannot be used: what was sent, and the cloud's `error` with hint and setting."""

    def __init__(
        self,
        sent: str,
        error: type[CloudError] = CloudProtocolError,
        *,
        hint: str | None = None,
        setting: str | None = None,
    ) -> None:
        super().__init__(sent)
        self.error, self.hint, self.setting = error, hint, setting


def decoded(data: bytes, kind: type[_T]) -> _T:
    """JSON of this form; raises `Fault`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        begin = data[:16].lstrip()
        if begin.startswith(b"<"):
            hint = "check the address, its path too"
            raise Fault("a web page", hint=hint, setting="cloud") from error
        if begin.startswith((b"data:", b"event:", b":")):
            raise Fault("a stream that was not requested") from error
        raise Fault(
            f"a reply that is not of its form ({error})",
            hint="check the address, and which engine it is said to be",
            setting="cloud_engine",
        ) from error


def optional(data: bytes | None, kind: type[_T]) -> _T | None:
    """JSON of this form; None for anything else."""
    try:
        return None if data is None else decoded(data, kind)
    except Fault:
        return None


class Described(msgspec.Struct, frozen=True):
    """The model that an engine says it serves and its number of ids; None where it does not say."""

    model: str | None = None
    size: int | None = None


class _Meta(msgspec.Struct, frozen=True):
    n_vocab: _Size | None = None
    n_embd: _Amount = 0
    n_params: _Amount | None = None
    eos_token: str | None = None


class ListedModel(msgspec.Struct, frozen=True):
    """An entry of `/v1/models`; `meta` is llama-server's, `root` and `max_model_len` vLLM's."""

    id: str
    owned_by: str = ""
    parent: str | None = None
    root: str | None = None
    max_model_len: _Size | None = None
    meta: _Meta | None = None

    @property
    def described(self) -> Described:
        return Described(self.id, self.meta.n_vocab if self.meta else None)


class ListedModels(msgspec.Struct, frozen=True):
    data: list[ListedModel]


def named(names: Sequence[str], model: str | None) -> str | None:
    """The model of that name, or None. Ollama's tag `latest` may be left out."""
    return next((name for name in (model, f"{model}:latest") if name and name in names), None)


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Text(msgspec.Struct):
    """A reply's text, under the names of llama-server, vLLM and SGLang."""

    content: str | None = None
    prompt: str | None = None
    text: str | None = None


class Wanted(NamedTuple):
    """What is asked of a cloud by ids: `n` tokens after `ids`, or what it says of the last `n`.

    `drawn` are sampling fields. `session` keeps a replica's cache warm, `salt` the caches of
    tenants apart.
    """

    ids: Sequence[int]
    n: int
    drawn: Mapping[str, Any] = GREEDY
    model: str | None = None
    session: str = ""
    salt: object = None


class IdServer(ABC):
    """A server that takes and returns token ids: a cloud.

    `owner` is the `owned_by` of its models; `verifies`: it has `score`; `reads_once`: it bills a
    verification once, not for each token. `salts`: it may keep prefix caches apart. `names`: a
    request needs the model's name. `adapts`: it answers for an adapter that is named.
    """

    name: ClassVar[str]
    owner: ClassVar[str] = ""
    verifies: ClassVar[bool] = False
    reads_once: ClassVar[bool] = False
    salts: ClassVar[bool] = False
    names: ClassVar[bool] = False
    adapts: ClassVar[bool] = True

    @abstractmethod
    def complete(self, asked: Wanted) -> Request:
        """Asks for tokens."""

    @abstractmethod
    def completed(self, data: bytes) -> Completion:
        """The reply to `complete`; raises `Fault`."""

    def score(self, asked: Wanted) -> Request:
        """Asks what the model says of each of the last ids."""
        raise NotImplementedError

    def scored(self, data: bytes, block: Sequence[int]) -> Completion:
        """The reply to `score` for these last ids, as `verified`; raises `Fault`."""
        raise NotImplementedError

    def tokenize(self, text: str, model: str | None) -> Request:
        """Asks for the ids of `text` without special tokens, as vLLM and SGLang want it."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        return Request("/tokenize", body)

    def tokenized(self, data: bytes) -> list[int]:
        return decoded(data, _Tokens).tokens

    def detokenize(self, ids: Sequence[int], model: str | None) -> Request:
        """Asks for the text of ids, control tokens shown."""
        body = {"model": model, "tokens": ids, "skip_special_tokens": False}
        return Request("/detokenize", body)

    def detokenized(self, data: bytes) -> str | None:
        """The text, None where it has none; raises `Fault`."""
        said = decoded(data, _Text)
        return next((t for t in (said.content, said.prompt, said.text) if t is not None), None)


class TextContinuation(NamedTuple):
    """Raw text that an API wrote; it may begin with an echo of what was sent.

    `ended` where it ended the answer there, and was not cut. `prompt`, `cached` and `written` are
    tokens by the provider's own usage, `cached` those of the `prompt` that it had; None where it
    does not report them.
    """

    text: str
    ended: bool
    prompt: int | None = None
    cached: int | None = None
    written: int | None = None


class WantedText(NamedTuple):
    """At most `n` tokens of an answer to `turns` (roles and contents), by `drawn` sampling fields.

    `text` is the answer's beginning, or a whole prompt with it. With a JSON `schema` the answer of
    a server that reads fits it.
    """

    model: str
    turns: list[dict[str, Any]]
    text: str
    n: int
    drawn: Mapping[str, Any] = GREEDY
    schema: Fields | None = None


class TextServer(ABC):
    """A server that takes and returns text: a cloud of any vocabulary.

    `owner` is the `owned_by` of its models ("" if it varies). `prompts`: it takes the prompt as one
    text; `renders`: the template is rendered here, so that the model's tokenizer is needed.
    `names`: a request names the model. `reads`: it continues nothing, and answers whole. `filters`
    are the ways to draw that it has beside temperature and top-p. A path below `/v1` may lie
    elsewhere; `base` is where a consult goes, if that is not where models are listed.
    """

    name: str
    owner: str = ""
    prompts: bool = False
    renders: bool = False
    names: bool = True
    reads: bool = False
    filters: frozenset[str] = frozenset({"top_k", "min_p"})
    base: str = ""

    @abstractmethod
    def complete(self, asked: WantedText) -> Request:
        """Asks to go on with an answer."""

    @abstractmethod
    def continued(self, data: bytes) -> TextContinuation:
        """The reply; raises `Fault`."""

    def forms(self, asked: WantedText) -> Sequence[Sequence[Fields]]:
        """Fields that are sent beside the request, each in the first form that is not declined."""
        return ()

    def headers(self, key: str | None) -> Mapping[str, str]:
        """What carries the key: a bearer."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def template(self, turns: list[dict[str, Any]], *, thinks: bool) -> Request | None:
        """Asks for the messages as the model's template writes them; None where it does not."""
        return None

    def templated(self, data: bytes) -> str:
        """The reply to `template`; raises `Fault`."""
        raise NotImplementedError

    def control(self, text: str) -> str | None:
        """What the server would take for a control token in a text, by its form."""
        return None


class NextToken(NamedTuple):
    """A token that a server wrote, and the likeliest there with their logprobs, in any order.

    A token is its id, or its text where the server tells no ids. JSON has no infinity: an id of no
    probability has no number.
    """

    token: int | bytes
    top: Sequence[tuple[int | bytes, float | None]]


class Event(NamedTuple):
    """A part of a streamed answer: its `rows` and the `text` of all of them.

    `ended`: the model ended its answer there; `over`: nothing follows. `so_far` is how many tokens
    were written so far, where the server counts those too of which it says nothing.
    """

    rows: Sequence[NextToken] = ()
    text: str = ""
    ended: bool = False
    over: bool = False
    so_far: int | None = None


class ServedModel(NamedTuple):
    """A served model.

    `address` is where its tokenizer may be, `context` the most ids of an answer and its prompt, or
    0 where only a loaded model has one; `slots` is how many answers it writes at once, and None
    where the others wait.
    """

    name: str
    address: str
    context: int
    slots: int | None = None
    size: int | None = None
    hidden_size: int = 0
    parameters: int | None = None


class WantedStream(NamedTuple):
    """At most `tokens` greedy tokens after `prompt`, with `top` candidates; or a whole reply."""

    model: ServedModel
    prompt: list[int] | str
    tokens: int
    top: int = 0
    seed: int = 0
    stream: bool = True


class EdgeServer(ABC):
    """A server that may run the edge model: it streams its own greedy tokens with candidates.

    `top` are the candidates that it is asked for, `most` the most that it tells. `takes_text`: it
    continues a text instead of ids. `joins`: a character of several tokens comes with the
    candidates of its last one alone. `chunk`: it tells candidates in whole replies alone, and is
    asked for so many tokens at a time. `asks` are requests by which it is recognised: the first has
    a reply, or it is another program.
    """

    program: ClassVar[str]
    top: ClassVar[int]
    most: ClassVar[int]
    takes_text: ClassVar[bool] = False
    joins: ClassVar[bool] = False
    chunk: ClassVar[int | None] = None
    asks: ClassVar[Sequence[Request]] = (MODELS,)

    @abstractmethod
    def describe(
        self, url: str, model: str | None, context: int | None, *replies: bytes | None
    ) -> ServedModel | None:
        """The `model` at `url`, by the replies to `asks`; None where it is another program.

        Raises `UsageError` for a model, or a context, that it does not have.
        """

    @abstractmethod
    def stream(self, asked: WantedStream) -> Request:
        """Asks for tokens."""

    @abstractmethod
    def streamed(self, data: bytes) -> Event | None:
        """A line of the stream, or a whole reply; None for a line that says nothing.

        Raises `Fault`.
        """

    @abstractmethod
    def metered(self, data: bytes) -> tuple[int, int | None]:
        """Tokens of a whole reply's prompt, and how many were computed, if told. Raises `Fault`."""

    def single(self, asked: WantedStream, end: int) -> Request | None:
        """Asks for one token of which the stream said nothing; None: the stream is asked again."""
        return None

    busy: ClassVar[Request | None] = None
    """Asks which slots are busy."""

    def slots(self, data: bytes | None) -> list[tuple[object, int | None]]:
        """The seeds of requests that are being answered, and how many tokens each has written."""
        return []

    def loaded(self, model: ServedModel) -> Sequence[Request]:
        """Requests that `context` reads, once the model is loaded."""
        return ()

    def context(self, model: ServedModel, *replies: bytes | None) -> tuple[int, str]:
        """Most ids of answer and prompt, and what the server adds in vain. Raises `UsageError`."""
        return model.context, ""


def chosen(url: str, model: str | None, names: Sequence[str]) -> str:
    """The edge model that is named, or the only one; raises `UsageError`."""
    if model is None and len(names) == 1:
        return names[0]
    if found := named(names, model):
        return found
    some = ", ".join(repr(name[:LONGEST_NAME]) for name in names[:_MOST_SHOWN])
    lacks = "serves several models" if model is None else f"serves no model {model!r}"
    raise UsageError(
        f"The edge server at {url} {lacks if names else 'serves no model'}",
        hint=f"name one: {some}" if names else "load one there",
        setting="edge_model" if names else "edge",
    )


def fitting(wanted: int | None, held: int | None) -> int:
    """The context that is wanted, or the server's; raises `UsageError` for more than it holds."""
    if wanted is not None and held is not None and wanted > held:
        raise UsageError(
            f"The edge server holds {held} tokens a slot, not {wanted}",
            hint="start it with a larger context, or lower yours",
            setting="ctx",
        )
    return wanted or held or CONTEXT
