"""Dialects of servers: how each is recognised, asked to continue, and read."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from itertools import groupby
from typing import Annotated, ClassVar, NamedTuple

import msgspec

from edgewise.edge.base import PROBES, Tokenizer
from edgewise.edge.served.server import Server
from edgewise.edge.vocabulary import bytes_of
from edgewise.errors import EdgeError, UsageError

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
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

    def prompt(self, ids: Sequence[int]) -> list[int] | str:
        """What the server is sent to continue `ids`; raises `EdgeError` if it would read others."""
        return list(ids)

    def context(self) -> int:
        """Most ids of an answer and its prompt, once the model is loaded; raises `UsageError`."""
        return self.described.context

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
        raise self.server.broken("it ended the answer and gave no reason")

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

        It puts a BOS, and a SentencePiece vocabulary a blank, before the text by itself, and makes
        control tokens of their texts. Raises `EdgeError` for ids that end inside a character, and
        where it would read other control tokens than there are.
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
            raise self._unreadable("ends inside a UTF-8 character") from error
        again = read(text)
        if text.startswith(" ") and again != list(ids) == read(text[1:]):
            return text[1:]
        if self._parts(again[len(start) :]) != self._parts(kept):
            plain = bytes_of(self.tokenizer, ids).decode("utf-8", "replace")
            signs = (one for one in special.values() if one and one in plain)
            raise self._unreadable(f"holds {max(signs, key=len, default='a control token')!r}")
        return text

    def _parts(self, ids: Sequence[int]) -> list[bytes | int]:
        """Control tokens and the text before each of them and after the last.

        Without blanks around it: servers drop those beside some control tokens.
        """
        parts: list[bytes | int] = []
        for control, group in groupby(ids, self.tokenizer.special.__contains__):
            run = list(group)
            parts += run if control else [bytes_of(self.tokenizer, run).strip()]
        return [part for part in parts if part != b""]

    def _unreadable(self, why: str) -> EdgeError:
        return EdgeError(
            f"The edge server at {self.server.url} takes text, and what it is to continue {why}",
            hint=f"name the model's file instead ({self.described.address})",
            setting="edge",
        )

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
    n_vocab: Count | None = None
    n_embd: Amount = 0
    n_params: Amount | None = None


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
    # Ollama's tag may be left out.
    if found := [name for name in (model, f"{model}:latest") if name in names]:
        return str(found[0])
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
