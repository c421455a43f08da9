"""Dialects of servers: how each is recognised, asked to continue, and read."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import Annotated, ClassVar, NamedTuple

import msgspec

from edgewise.edge.base import PROBES, Tokenizer
from edgewise.edge.served.server import Server
from edgewise.errors import EdgeError, UsageError

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
_MOST_SHOWN, LONGEST_NAME = 8, 100
CONTEXT = 4096
"""Tokens, where a server does not say how many it holds."""


class NextToken(NamedTuple):
    """The token that a server wrote, and the likeliest there with their logprobs, in any order.

    JSON has no infinity: an id of no probability has no number. A server that says nothing of a
    token is taken to be sure of it: one candidate, at 0.
    """

    token: int
    top: Sequence[tuple[int, float | None]]


class ServedModel(NamedTuple):
    """A served model.

    `address` is where its tokenizer may be, `context` the most ids of an answer and its prompt;
    `slots` is how many answers it writes at once, and None where the others wait.
    """

    name: str
    address: str
    context: int
    slots: int | None = None
    size: int | None = None
    hidden_size: int = 0
    parameters: int | None = None


class Dialect(ABC):
    """A server's requests and replies. Every method may raise `EdgeError`."""

    program: ClassVar[str]
    top: ClassVar[int]
    """Candidates of a token that it is asked for."""

    most: ClassVar[int]
    """The most that it tells."""

    takes_text: ClassVar[bool] = False
    """Whether it continues a text instead of ids."""

    tokenizer: Tokenizer

    def __init__(self, server: Server, described: ServedModel) -> None:
        self.server, self.described = server, described

    @classmethod
    @abstractmethod
    def find(cls, server: Server, model: str | None, context: int | None) -> "Dialect | None":
        """The dialect of `server`, with the `model` it serves; None where it is another program."""

    @abstractmethod
    def reads_alike(self, text: str) -> bool:
        """Whether `text` is the same tokens, or as many, to the server and to `tokenizer`."""

    def vocabulary_matches(self) -> bool:
        """Whether the server's vocabulary is that of `tokenizer`."""
        return all(map(self.reads_alike, PROBES))

    @abstractmethod
    def stream(self, ids: Sequence[int], tokens: int, top: int, seed: int) -> Generator[NextToken]:
        """Streams greedy tokens after `ids`, at most `tokens`.

        Ends early at a token without candidates. Closing it cancels the request. The `seed` is the
        session's own; a server may tell its requests from others by it.
        """

    def single(self, ids: Sequence[int], top: int, seed: int) -> NextToken:
        """Requests one token after `ids`, when `stream` had no candidates for it."""
        with closing(self.stream(ids, 1, top, seed)) as stream:
            for token in stream:
                return token
        raise self.server.broken("no candidates of a token")

    def overrun(self, seed: int) -> int | None:
        """Tokens that the session's stream had written when it ended, by the server's meter."""
        return None

    def computed(self, ids: Sequence[int]) -> int | None:
        """Number of a prompt's ids that the server computes, by its own meter; None without one."""
        return None

    @cached_property
    def end(self) -> NextToken:
        """The end token, for servers that only say that an answer ended."""
        ends = self.tokenizer.eos_ids
        named = self.tokenizer.special_text("eos")
        special = self.tokenizer.special
        token = next((i for i in sorted(ends) if special.get(i) == named), min(ends))
        return NextToken(token, [(token, 0.0)])


class TextDialect(Dialect):
    """A server that takes a text, and mostly sends texts.

    The model's tokenizer makes ids of the texts; it is checked against the server by the number of
    tokens that the server counts.
    """

    takes_text = True

    @abstractmethod
    def count(self, text: str) -> int:
        """Number of tokens of the prompt `text`, by the server."""

    def reads_alike(self, text: str) -> bool:
        return self.count(text) == len(self.tokenizer.encode_prompt(text))

    def prompt(self, ids: Sequence[int]) -> list[int] | str:
        """The text that the server reads as `ids`, or as close to them as a text can be.

        It puts a BOS, and a SentencePiece vocabulary a blank, before the text by itself. Raises
        `EdgeError` for ids that end inside a character.
        """
        read = self.tokenizer.encode_prompt
        special, start = self.tokenizer.special, read("")
        kept = ids[len(start) :] if list(ids[: len(start)]) == start else ids
        data = b"".join(
            special[one].encode() if one in special else self.tokenizer.piece(one) for one in kept
        )
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise EdgeError(
                f"The edge server at {self.server.url} takes text, and the answer ends "
                "inside a UTF-8 character",
                hint="name the model's file as the edge model",
                setting="edge",
            ) from error
        if text.startswith(" ") and read(text) != list(ids) == read(text[1:]):
            return text[1:]
        return text

    @cached_property
    def _by_bytes(self) -> Mapping[bytes, int]:
        """The id of each text. Of two of the same text it is the one that tokenizing gives."""
        tokenizer = self.tokenizer
        known = {text.encode(): token for token, text in tokenizer.special.items() if text}
        for token in range(tokenizer.size):
            piece = tokenizer.piece(token)
            if piece and (
                piece not in known or tokenizer.encode(piece.decode("utf-8", "replace")) == [token]
            ):
                known[piece] = token
        return known

    def token_of(
        self, text: bytes, logprob: float | None, top: Sequence[tuple[bytes, float | None]]
    ) -> NextToken | None:
        """A token by its bytes, or None. An id keeps its first candidate, the likeliest."""
        token = self._by_bytes.get(text)
        if token is None:
            return None
        known: dict[int, float | None] = {}
        for name, p in (*top, (text, logprob)):
            if (one := self._by_bytes.get(name)) is not None:
                known.setdefault(one, p)
        return NextToken(token, [*known.items()])


class ModelMeta(msgspec.Struct):
    n_vocab: int | None = None
    n_embd: int = 0
    n_params: int | None = None


class ListedModel(msgspec.Struct):
    id: str
    owned_by: str = ""
    root: str | None = None
    max_model_len: Count | None = None
    meta: ModelMeta | None = None


class ListedModels(msgspec.Struct):
    data: list[ListedModel]


class Ids(msgspec.Struct):
    """A reply of `/tokenize`."""

    tokens: list[int]


class ById(msgspec.Struct):
    id: int
    logprob: float | None = None


def candidates(rows: Sequence[ById]) -> list[tuple[int, float | None]]:
    return [(row.id, row.logprob) for row in rows]


def chosen(server: Server, model: str | None, names: Sequence[str]) -> str:
    """The model that is named, or the only one."""
    if model is None and len(names) == 1:
        return names[0]
    if model is not None and model in names:
        return model
    some = ", ".join(repr(name[:LONGEST_NAME]) for name in names[:_MOST_SHOWN])
    lacks = "serves several models" if model is None else f"serves no model {model!r}"
    raise UsageError(
        f"The edge server at {server.url} {lacks if names else 'serves no model'}",
        hint=f"name one: {some}" if names else "load one there",
        setting="edge_model" if names else "edge",
    )


def fitting(wanted: int | None, held: int | None) -> int:
    if wanted is not None and held is not None and wanted > held:
        raise UsageError(
            f"The edge server holds {held} tokens a slot, not {wanted}",
            hint="start it with a larger context, or lower yours",
            setting="ctx",
        )
    return wanted or held or CONTEXT
