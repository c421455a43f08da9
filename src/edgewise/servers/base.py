"""Descriptions of model servers, without any connection ("sans-IO", as h11 and websockets are).

Each server program is described once for all callers: as a cloud model that takes token ids
(`IdServer`), a cloud model that takes text (`TextServer`), or the server of an edge model
(`EdgeServer`). A description builds the `Request` for what a caller wants, and parses the bytes of
the reply (raising `Fault` if it cannot be used). Other modules send the requests.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec

from edgewise.completion import MOST_IDS, Completion
from edgewise.errors import CloudError, CloudProtocolError, UsageError

_T = TypeVar("_T")

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
"""A number of tokens in a provider's reply; more than 16,777,216 make the reply invalid."""

_Size = Annotated[int, msgspec.Meta(ge=1, le=MOST_IDS)]
_Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]

CONTEXT = 4096
"""Assumed context in tokens, for a server that does not report its own."""

# Names of models come from the server: an error repeats some of them, cut.
LONGEST_NAME, _MOST_SHOWN = 100, 8

Fields = Mapping[str, object]

GREEDY: Mapping[str, Any] = {"temperature": 0}
"""Sampling fields of a greedy request."""


class Request(NamedTuple):
    """An HTTP request: a POST of a JSON `body`, or a GET without; `ids` counts its token ids."""

    path: str
    body: Mapping[str, Any] | None = None
    ids: int = 0

    def having(self, **fields: object) -> "Request":
        """Return this request with `fields` added to its body, in place of equally named ones."""
        return self._replace(body={**(self.body or {}), **fields})


MODELS = Request("/v1/models")


class Fault(Exception):
    """A server's reply that cannot be used.

    `sent` says what came instead, such as "a web page". A cloud's client then raises `error`, with
    a `hint` on what to do and the name of the `setting` at fault; an edge's client, `EdgeError`.
    """

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
    """Return the JSON in `data` as an object of type `kind`. Raises `Fault` if it is not one."""
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
    """Return the JSON in `data` as an object of type `kind`, or None if `data` is not that."""
    try:
        return None if data is None else decoded(data, kind)
    except Fault:
        return None


class Described(msgspec.Struct, frozen=True):
    """An engine's report on its model: name, and vocabulary size in ids; None if not reported."""

    model: str | None = None
    size: int | None = None


class _Meta(msgspec.Struct, frozen=True):
    n_vocab: _Size | None = None
    n_embd: _Amount = 0
    n_params: _Amount | None = None
    eos_token: str | None = None


class ListedModel(msgspec.Struct, frozen=True):
    """An entry of `/v1/models`; `parent` is the base model of an adapter (LoRA).

    `meta` (sizes) comes from llama-server, `root` (model path) and `max_model_len` from vLLM.
    """

    id: str
    owned_by: str = ""
    parent: str | None = None
    root: str | None = None
    max_model_len: _Size | None = None
    meta: _Meta | None = None

    @property
    def described(self) -> Described:
        """The model's name and vocabulary size, as a `Described`."""
        return Described(self.id, self.meta.n_vocab if self.meta else None)


class ListedModels(msgspec.Struct, frozen=True):
    """A reply of `/v1/models`."""

    data: list[ListedModel]


def named(names: Sequence[str], model: str | None) -> str | None:
    """Return `model`, else `model:latest` (Ollama), if it is among `names`; None if neither is."""
    return next((name for name in (model, f"{model}:latest") if name and name in names), None)


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Text(msgspec.Struct):
    """A reply's text, under the names of llama-server, vLLM and SGLang."""

    content: str | None = None
    prompt: str | None = None
    text: str | None = None


class Wanted(NamedTuple):
    """A request to a cloud model in ids: continue `ids` with `n` tokens, or score the last `n`.

    `model` is the served model's name, None to leave it to the server. `drawn` holds sampling
    fields such as `temperature`. `session` is a key by which a load balancer finds the replica that
    has the prefix in its cache. `salt` separates the prefix caches of tenants.
    """

    ids: Sequence[int]
    n: int
    drawn: Mapping[str, Any] = GREEDY
    model: str | None = None
    session: str = ""
    salt: object = None


class IdServer(ABC):
    """Description of a server that takes and returns token ids, for a cloud model.

    `owner` is the `owned_by` of its entries in `/v1/models`. `verifies`: `score` is implemented.
    `reads_once`: a verification is billed as one prompt, not as one for each token. `salts`:
    requests may carry a cache salt. `names`: every request must name the model. `adapts`: a request
    that names a LoRA adapter is answered by that adapter, not by its base model.
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
        """Return the request for `asked.n` tokens after `asked.ids`."""

    @abstractmethod
    def completed(self, data: bytes) -> Completion:
        """Return the completion in a reply to `complete`. Raises `Fault`."""

    def score(self, asked: Wanted) -> Request:
        """Return the request to score the last `asked.n` ids, if the server `verifies`.

        For each position the reply has the scored id's logprob, and the likeliest id with its own.
        """
        raise NotImplementedError

    def scored(self, data: bytes, block: Sequence[int]) -> Completion:
        """Return a `Completion` whose `verified` has a verdict on each of the scored ids (`block`).

        A verdict is the id's logprob, and the likeliest id with its own. Raises `Fault`.
        """
        raise NotImplementedError

    def tokenize(self, text: str, model: str | None) -> Request:
        """Return the request for the ids of `text` without a BOS, in vLLM's and SGLang's form."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        return Request("/tokenize", body)

    def tokenized(self, data: bytes) -> list[int]:
        """Return the ids in a reply to `tokenize`. Raises `Fault`."""
        return decoded(data, _Tokens).tokens

    def detokenize(self, ids: Sequence[int], model: str | None) -> Request:
        """Return the request for the text of `ids`, in which control tokens are visible."""
        body = {"model": model, "tokens": ids, "skip_special_tokens": False}
        return Request("/detokenize", body)

    def detokenized(self, data: bytes) -> str | None:
        """Return the text in a reply to `detokenize`; None if it has none. Raises `Fault`."""
        said = decoded(data, _Text)
        return next((t for t in (said.content, said.prompt, said.text) if t is not None), None)


class TextContinuation(NamedTuple):
    """A reply's `text`, which continues an answer. Some APIs repeat the answer's beginning in it.

    `ended` is True if the model ended its answer, False if the text was cut. The others are token
    counts by the provider, None if not reported: of the `prompt`, of its part that came from the
    provider's cache (`cached`), and of the text (`written`).
    """

    text: str
    ended: bool
    prompt: int | None = None
    cached: int | None = None
    written: int | None = None


class WantedText(NamedTuple):
    """A request for at most `n` tokens that continue an answer to the messages `turns`.

    `turns` are dicts with role and content. `text` is the beginning of the answer; for a server
    that takes prompts (`TextServer.prompts`), it is the rendered prompt with that beginning.
    `drawn` holds sampling fields such as `temperature`. The answer must fit a given JSON `schema`.
    """

    model: str
    turns: list[dict[str, Any]]
    text: str
    n: int
    drawn: Mapping[str, Any] = GREEDY
    schema: Fields | None = None


class TextServer(ABC):
    """Description of a server that takes and returns text: a cloud model of any vocabulary.

    `owner` is the `owned_by` of its entries in `/v1/models` ("" if that varies). `prompts`: it
    takes the prompt as one text, not as messages. `renders`: Edgewise applies the chat template,
    for which it needs the model's tokenizer. `names`: every request must name the model. `reads`:
    it cannot continue an answer that was begun, and is only asked for whole replies. `filters`: the
    sampling filters that it has besides top-p. `base`: the path in place of `/v1` in requests
    with a body ("" for `/v1` itself); the request that lists models has no body.
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
        """Return the request that continues an answer."""

    @abstractmethod
    def continued(self, data: bytes) -> TextContinuation:
        """Return the text and counts in a reply to `complete`. Raises `Fault`."""

    def forms(self, asked: WantedText) -> Sequence[Sequence[Fields]]:
        """Return fields to add to the request: for each purpose a list of alternatives.

        The first purpose is to switch reasoning off. Of each list the client adds the first
        alternative that the API has not declined. An empty last one adds nothing.
        """
        return ()

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Return the HTTP headers that carry the API `key`; by default a bearer token."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def template(self, turns: list[dict[str, Any]], *, thinks: bool) -> Request | None:
        """Return the request to render `turns` by the chat template; None if the server cannot.

        `thinks`: the answer begins with a block of reasoning.
        """
        return None

    def templated(self, data: bytes) -> str:
        """Return the prompt in a reply to `template`. Raises `Fault`."""
        raise NotImplementedError

    def control(self, text: str) -> str | None:
        """Return the first part of `text` that the server reads as a control token, if any."""
        return None


class NextToken(NamedTuple):
    """A token that an edge model's server wrote, and the likeliest tokens at its position (`top`).

    A token is its id, or its bytes if the server reports no ids. `top` holds (token, logprob) in
    any order; the logprob is None where the probability is 0, since JSON has no infinity.
    """

    token: int | bytes
    top: Sequence[tuple[int | bytes, float | None]]


class Event(NamedTuple):
    """A part of a streamed answer: its tokens (`rows`) and their joint `text`, if it is sent.

    `ended`: the model ended its answer here. `over`: the stream sends nothing more. `so_far`: how
    many tokens the server has written in all, if it reports that; None otherwise. If these are more
    than the rows so far, the stream left tokens out.
    """

    rows: Sequence[NextToken] = ()
    text: str = ""
    ended: bool = False
    over: bool = False
    so_far: int | None = None


class ServedModel(NamedTuple):
    """A model that an edge server serves, by the server's own report.

    `address` names the model's files, from which its tokenizer may be read: a path, or for example
    `ollama:NAME`. `context` is the most ids of prompt and answer together, 0 if that is known only
    once the model is loaded. `slots` is how many answers the server decodes at once, None if it
    does not say. `size` is the number of ids in the vocabulary, `parameters` the number of weights
    (None: unknown), `hidden_size` the width of its embeddings (0: unknown).
    """

    name: str
    address: str
    context: int
    slots: int | None = None
    size: int | None = None
    hidden_size: int = 0
    parameters: int | None = None


class WantedStream(NamedTuple):
    """A request to an edge server: at most `tokens` greedy tokens after `prompt`.

    `top` is how many candidates to report for each. `seed` does not affect greedy decoding: by it a
    session finds its own requests in the server's list of slots (`EdgeServer.slots`). With `stream`
    False the reply comes whole.
    """

    model: ServedModel
    prompt: list[int] | str
    tokens: int
    top: int = 0
    seed: int = 0
    stream: bool = True


class EdgeServer(ABC):
    """Description of a server that runs the edge model and streams greedy tokens with candidates.

    `program` is its name in messages. `top` is how many candidates are requested by default, `most`
    how many the server reports at most. `takes_text`: it continues a text, not ids. `joins`: for a
    character of several tokens it reports candidates of the last token only. `chunk`: how many
    tokens to request at a time if only whole replies have candidates, else None. `asks` are the
    requests that identify the program: if the first gets no status 200, it is another program.
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
        """Return the `model` served at `url`; None if the server runs another program.

        `replies` are those to `asks`, None for one whose status was not 200. With `model` None the
        server must have only one. `context` is the wanted context in tokens (None: the server's).
        Raises `UsageError` for a model or a context that the server does not have.
        """

    @abstractmethod
    def stream(self, asked: WantedStream) -> Request:
        """Return the request for tokens, as a stream or as a whole reply (`asked.stream`)."""

    @abstractmethod
    def streamed(self, data: bytes) -> Event | None:
        """Return the event in a line or a whole reply; None if a line has none. Raises `Fault`."""

    @abstractmethod
    def metered(self, data: bytes) -> tuple[int, int | None]:
        """Return from a whole reply how many tokens the prompt had, and how many were computed.

        All others came from the KV cache. If unreported, they are 0 and None. Raises `Fault`.
        """

    def single(self, asked: WantedStream, end: int) -> Request | None:
        """Return the request for one token of which the stream reported no candidates.

        `asked` wants that one token, as a whole reply. `end` is the end-of-sequence id. None: no
        special request is needed; the ordinary stream is requested again from that token on.
        """
        return None

    busy: ClassVar[Request | None] = None
    """The request that lists the server's slots; None if it has no such list."""

    def slots(self, data: bytes | None) -> list[tuple[object, int | None]]:
        """Return (seed, tokens written if known) of each working slot in a reply to `busy`."""
        return []

    def loaded(self, model: ServedModel) -> Sequence[Request]:
        """Return requests to send once the server has loaded the model, for `context` to read."""
        return ()

    def context(self, model: ServedModel, *replies: bytes | None) -> tuple[int, str]:
        """Return the most ids of prompt and answer, and which settings of the model are ignored.

        Both come from the `replies` to `loaded`. The settings are those that the server keeps with
        the model and Edgewise does not use, as text such as "TEMPLATE, SYSTEM". Raises `UsageError`
        if the wanted context is larger than the server's.
        """
        return model.context, ""


def chosen(url: str, model: str | None, names: Sequence[str]) -> str:
    """Return which of the served `names` is `model`; without a model, the only name.

    Raises `UsageError` about the server at `url` if it serves no such model, or not exactly one.
    """
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
    """Return the context in tokens: `wanted`, else the server's own (`held`), else `CONTEXT`.

    Raises `UsageError` if `wanted` is more than `held`.
    """
    if wanted is not None and held is not None and wanted > held:
        raise UsageError(
            f"The edge server holds {held} tokens a slot, not {wanted}",
            hint="start it with a larger context, or lower yours",
            setting="ctx",
        )
    return wanted or held or CONTEXT
