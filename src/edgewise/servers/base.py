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
    """An HTTP request: a POST of the JSON `body` (None: a GET); `ids` are all token ids in it."""

    path: str
    body: Mapping[str, Any] | None = None
    ids: Sequence[int] = ()

    def having(self, **fields: object) -> "Request":
        """Return this request with `fields` added to its body, in place of equally named ones."""
        return self._replace(body={**(self.body or {}), **fields})


MODELS = Request("/v1/models")


class Fault(Exception):
    """A server's reply that cannot be used; `sent` says what came instead, such as "a web page".

    The client of a cloud model raises `error` in its place, with a `hint` on what to do and the
    name of the `setting` at fault, if known. The client of an edge server raises `EdgeError`.
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
    """Return the JSON in `data` as an object of type `kind`; None if `data` is None or not that."""
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
    """An entry of `/v1/models`; `parent` is the base model of a LoRA adapter, else None.

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
        """The model's name and vocabulary size; the size is None if the entry has no `meta`."""
        return Described(self.id, self.meta.n_vocab if self.meta else None)


class ListedModels(msgspec.Struct, frozen=True):
    """A reply of `/v1/models`."""

    data: list[ListedModel]


def named(names: Sequence[str], model: str | None) -> str | None:
    """Return `model`, or else `model:latest` (as in Ollama), if it is in `names`; None if not."""
    return next((name for name in (model, f"{model}:latest") if name and name in names), None)


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Text(msgspec.Struct):
    """A reply's text, under the names of llama-server, vLLM and SGLang."""

    content: str | None = None
    prompt: str | None = None
    text: str | None = None


class Wanted(NamedTuple):
    """A request to a cloud model in ids: continue `ids` with `n` tokens, or score the last `n` ids.

    To score an id is to report its logprob. `model` is the served model's name (None: the server
    chooses). `drawn` holds sampling fields such as `temperature`. By the key `session` a load
    balancer finds the replica that has the prefix in its cache. Only requests with the same cache
    `salt` share a prefix cache (None: no salt is sent).
    """

    ids: Sequence[int]
    n: int
    drawn: Mapping[str, Any] = GREEDY
    model: str | None = None
    session: str = ""
    salt: object = None


class IdServer(ABC):
    """Description of a server that takes and returns token ids, for a cloud model.

    `name` is its name in messages, `owner` the `owned_by` of its models in `/v1/models`.
    `verifies`: `score` is implemented. `reads_once`: a verification is billed as one prompt, not as
    one for each token. `salts`: requests may carry a cache salt. `names`: every request must name
    the model. `adapts`: a request that names a LoRA adapter is answered by that adapter, not by its
    base model. Methods that read a reply raise `Fault` if it cannot be used.
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
        """Return the request for logprobs of the last `asked.n` ids and of the likeliest ids."""
        raise NotImplementedError

    def scored(self, data: bytes, block: Sequence[int]) -> Completion:
        """Return a `Completion` whose `verified` has a verdict on each of the scored ids (`block`).

        A verdict is the id's logprob, and the likeliest id with its logprob. Raises `Fault`.
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

    `ended` is True if the model ended its answer, False if the text was cut. The others are the
    provider's token counts, None if not reported: of the `prompt`, of the part of the prompt that
    came from the provider's cache (`cached`), and of the text (`written`).
    """

    text: str
    ended: bool
    prompt: int | None = None
    cached: int | None = None
    written: int | None = None


class WantedText(NamedTuple):
    """A request for at most `n` tokens that continue an answer to the messages `turns`.

    `turns` are dicts with role and content. `text` is the beginning of the answer, maybe ""; for a
    server that takes prompts (`TextServer.prompts`), it is the rendered prompt with that beginning.
    `drawn` holds sampling fields such as `temperature`. `schema` is the JSON schema that the answer
    must fit (None: any answer); servers without a field for it ignore it.
    """

    model: str
    turns: list[dict[str, Any]]
    text: str
    n: int
    drawn: Mapping[str, Any] = GREEDY
    schema: Fields | None = None


class TextServer(ABC):
    """Description of a server that takes and returns text: a cloud model of any vocabulary.

    `name` is its name in messages, `owner` the `owned_by` of its models in `/v1/models` ("" if that
    varies). `prompts`: it takes the prompt as one text, not as messages. `renders`: Edgewise
    applies the chat template, for which it needs the model's tokenizer. `names`: every request must
    name the model. `reads`: it cannot continue a begun answer, and is only asked for whole replies.
    `filters`: its sampling filters besides top-p. `base`: what replaces `/v1` in the paths of POST
    requests ("": nothing does). Methods that read a reply raise `Fault` if it cannot be used.
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

        The client adds the first alternative of each list that the API has not declined; `{}` as
        the last adds nothing. If the API declines its first request but names no field, the client
        tries the next alternative of the first list, which should be there to disable reasoning.
        """
        return ()

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Return the HTTP headers that carry the API `key`; by default a bearer token."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def template(self, turns: list[dict[str, Any]], *, thinks: bool) -> Request | None:
        """Return the request to render messages by the chat template; None if the server cannot.

        `turns` are dicts with role and content. `thinks`: the answer begins with reasoning.
        """
        return None

    def templated(self, data: bytes) -> str:
        """Return the prompt in a reply to `template`. Raises `Fault`."""
        raise NotImplementedError

    def control(self, text: str) -> str | None:
        """Return the first part of `text` that the server reads as a control token, else None."""
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
    many tokens the server has written in all (None: not reported); if that is more than the number
    of rows received, the stream left tokens out.
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
    """A request to an edge server: at most `tokens` greedy tokens after `prompt` (ids or text).

    `top` is how many candidates (likeliest tokens, with logprobs) to report for each. `seed` does
    not affect greedy decoding: by it a session finds its own requests in the server's list of slots
    (`EdgeServer.slots`). With `stream` False the reply comes whole.
    """

    model: ServedModel
    prompt: list[int] | str
    tokens: int
    top: int = 0
    seed: int = 0
    stream: bool = True


class EdgeServer(ABC):
    """Description of a server that runs the edge model and streams greedy tokens with candidates.

    Candidates are the likeliest tokens at a position, with logprobs: `top` are requested by
    default, at most `most` are reported. `program` is the server's name in messages. `takes_text`:
    it continues a text, not ids. `joins`: for a character of several tokens it reports candidates
    of the last token only. `chunk`: how many tokens to request at a time if only whole replies have
    candidates, else None. `asks` are the requests that identify the program: if the first gets no
    status 200, it is another program. Methods that read a reply raise `Fault` if it cannot be used.
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

        `replies` are the bodies of the replies to the requests `asks`, None unless the status was
        200. With `model` None the server must have only one. `context` is the wanted context in
        tokens (None: the server's). Raises `UsageError` if it lacks this model or this context.
        """

    @abstractmethod
    def stream(self, asked: WantedStream) -> Request:
        """Return the request for tokens, as a stream or as a whole reply (`asked.stream`)."""

    @abstractmethod
    def streamed(self, data: bytes) -> Event | None:
        """Return the event in a whole reply or one line of a stream; None if a line has none."""

    @abstractmethod
    def metered(self, data: bytes) -> tuple[int, int | None]:
        """Return, from a whole reply, how many tokens the prompt had and how many were computed.

        The others came from the KV cache. Counts that are not reported are 0 and None.
        """

    def single(self, asked: WantedStream, end: int) -> Request | None:
        """Return a request for one token whose candidates the stream left out; None if needless.

        `asked` is the ordinary request for that token, as a whole reply; `end` is the
        end-of-sequence id. With None, the stream is requested again from that token on.
        """
        return None

    busy: ClassVar[Request | None] = None
    """The request that lists the server's slots; None if it has no such list."""

    def slots(self, data: bytes | None) -> list[tuple[object, int | None]]:
        """Return (seed, tokens written or None) of each busy slot, from the reply to `busy`."""
        return []

    def loaded(self, model: ServedModel) -> Sequence[Request]:
        """Return the requests to send once the model is loaded; `context` reads their replies."""
        return ()

    def context(self, model: ServedModel, *replies: bytes | None) -> tuple[int, str]:
        """Return the most ids of prompt and answer together, and the model's unused settings.

        `replies` are those to `loaded` (None: not status 200). The settings are kept with the model
        by the server and not used by Edgewise, as text such as "TEMPLATE, SYSTEM". Raises
        `UsageError` if the wanted context (`model.context`) is larger than the server's.
        """
        return model.context, ""


def chosen(url: str, model: str | None, names: Sequence[str]) -> str:
    """Return which of the served `names` is `model` or `model:latest`; with None, the only name.

    Raises `UsageError` about `url` if it serves no such model or, with None, not exactly one.
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
    """Return the context in tokens: `wanted`, else the server's own (`held`), else 4,096.

    Raises `UsageError` if `wanted` is more than `held`.
    """
    if wanted is not None and held is not None and wanted > held:
        raise UsageError(
            f"The edge server holds {held} tokens a slot, not {wanted}",
            hint="start it with a larger context, or lower yours",
            setting="ctx",
        )
    return wanted or held or CONTEXT
