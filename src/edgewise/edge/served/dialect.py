"""`Dialect`: asks a server for tokens of its model, in token ids, whatever the server's API.

Where the server takes text, it is sent the text of the ids; the texts of its tokens become ids.
"""

import logging
import time
from collections.abc import Generator, Mapping, Sequence
from functools import cache, cached_property
from itertools import accumulate, groupby
from typing import NamedTuple

from edgewise.edge.base import PROBES, Tokenizer
from edgewise.edge.served.server import Server
from edgewise.edge.vocabulary import bytes_of, ids_of_text
from edgewise.errors import EdgeError
from edgewise.servers.base import (
    LONGEST_NAME,
    EdgeServer,
    Event,
    IdServer,
    NextToken,
    Request,
    ServedModel,
    WantedStream,
)
from edgewise.servers.llama_server import LlamaCppServer
from edgewise.servers.ollama import OllamaServer
from edgewise.servers.openai import LmStudioServer, MlxServer, VllmServer

SERVERS: tuple[EdgeServer, ...] = (
    LlamaCppServer(),
    OllamaServer(),
    VllmServer(),
    LmStudioServer(),
    MlxServer(),
)
"""The servers that are supported, in the order in which an address is tried."""

LINGER = 5.0
"""Most seconds that a request waits for the slot of a stream that was closed just before."""

# Between two looks whether the slot of a closed stream is free.
_LOOK_SECONDS = 0.002
_log = logging.getLogger(__name__)


class ServedToken(NamedTuple):
    """A token that a server wrote, and the likeliest ids at its position with their logprobs.

    If the server reported no candidates, `top` holds the token alone, with logprob 0. A logprob is
    None where the server says that the probability is 0.
    """

    token: int
    top: Sequence[tuple[int, float | None]]


class Dialect:
    """The model of a server. Methods take and return ids; `EdgeError` if the server fails.

    `kind` describes the server's API, `server` sends the requests, `described` is the server's
    report on the model. `tokenizer` is the model's; set it before a call that requests tokens.
    """

    tokenizer: Tokenizer

    def __init__(self, kind: EdgeServer, server: Server, described: ServedModel) -> None:
        self.kind, self.server, self.described = kind, server, described

    def reads_alike(self, text: str) -> bool:
        """Return whether the server tokenizes `text` as `tokenizer` does.

        If the server does not return ids, only the number of tokens is compared.
        """
        kind, tokenizer = self.kind, self.tokenizer
        if not isinstance(kind, IdServer):
            return self._metered(text)[0] == len(tokenizer.encode_prompt(text))
        reply = self.server.send(kind.tokenize(text, self.described.name if kind.names else None))
        with self.server.reading():
            return kind.tokenized(reply) == tokenizer.encode(text)

    def vocabulary_matches(self) -> bool:
        """Return whether server and `tokenizer` have the same number of ids, and tokenize alike.

        Both tokenize five test strings. The number of ids is compared if the server reports it.
        """
        same = self.described.size in (None, self.tokenizer.size)
        return same and all(map(self.reads_alike, PROBES))

    def context(self) -> int:
        """Return the most ids of a prompt and its answer together.

        Raises `UsageError` if the setting `ctx` asks for more.
        """
        replies = [self.server.found(one) for one in self.kind.loaded(self.described)]
        context, unused = self.kind.context(self.described, *replies)
        _warn(self.kind.program, self.server.url, self.described.name, unused)
        return context

    def prompt(self, ids: Sequence[int]) -> list[int] | str:
        """Return what is sent for the server to continue `ids`: the ids, or their text.

        Raises `EdgeError` where the text cannot be sent: `ids` end inside a UTF-8 character, or the
        server would read other control tokens in the text.
        """
        return self._text(ids) if self.kind.takes_text else list(ids)

    def stream(
        self, ids: Sequence[int], tokens: int, top: int, seed: int
    ) -> Generator[ServedToken]:
        """Stream the tokens that the model writes greedily after `ids`, at most `tokens` of them.

        `top` is the number of candidates (likeliest ids) for each. The stream ends early at a token
        without candidates, or whose text belongs to no id. Closing the generator cancels the
        request. `seed`, a random number, marks the session's slot in the server's list of slots; it
        changes no token.
        """
        if self.kind.chunk is not None:
            yield from self._in_chunks(ids, tokens, top, self.kind.chunk)
            return
        # With one slot there is no other that the server could choose.
        if self.described.slots not in (None, 1):
            self.overrun(seed)
        asked = WantedStream(self.described, self.prompt(ids), tokens, top, seed)
        written = list(ids)
        with self.server.lines(self.kind.stream(asked)) as lines:
            for line in lines:
                with self.server.reading():
                    event = self.kind.streamed(line)
                if event is None:
                    continue
                told = len(written) - len(ids) + len(event.rows)
                # The server has written more than it told of: it left some tokens out.
                if event.so_far is not None and (event.so_far != told or not event.rows):
                    return
                for token in self._tokens(event, written):
                    if token is None:
                        return
                    written.append(token.token)
                    yield token
                    lines.token()
                # Some servers only say that the answer ended, and leave the end token out.
                if event.ended and written[-1:] not in [[end] for end in self.tokenizer.eos_ids]:
                    yield self.end
                if event.over:
                    return

    def _in_chunks(
        self, ids: Sequence[int], tokens: int, top: int, chunk: int
    ) -> Generator[ServedToken]:
        written, end = list(ids), len(ids) + tokens
        while (left := end - len(written)) and (new := self._whole(written, min(left, chunk), top)):
            for token in new:
                written.append(token.token)
                yield token
                if token.token in self.tokenizer.eos_ids:
                    return

    def single(self, ids: Sequence[int], top: int, seed: int) -> ServedToken | None:
        """Request the one token after `ids` of which `stream` got no candidates, and return it.

        `top` and `seed` are those of `stream`. Returns None if the server's API has no request for
        that; then call `stream` again.
        """
        wanted = self._whole_of(list(ids), 1, top, seed)
        if (asked := self.kind.single(wanted, self.end.token)) is None:
            return None
        if self.described.slots != 1:
            self.overrun(seed)
        rows = self._event(asked).rows
        if len(rows) != 1:
            raise self.server.broken("no candidates of a token")
        return _by_id(rows[0])

    def overrun(self, seed: int) -> int | None:
        """Wait up to `LINGER` (5) seconds until the server frees the slot of a closed stream.

        `seed` is the one of that stream. Returns how many tokens the stream had written when the
        server last listed its slot; None if it was not listed.
        """
        # A server notices only at its next token that a stream is closed. Until then the session's
        # next request would be given another slot, without the KV cache.
        written, end = None, time.monotonic() + LINGER
        while self.kind.busy is not None and time.monotonic() < end:
            slots = self.kind.slots(self.server.found(self.kind.busy))
            own = [count for whose, count in slots if whose == seed]
            if not own:
                break
            written = own[0]
            time.sleep(_LOOK_SECONDS)
        return written

    def computed(self, ids: Sequence[int]) -> int | None:
        """Send a prompt; return how many ids were not in the server's KV cache, None if unknown."""
        return self._metered(self.prompt(ids))[1]

    @cached_property
    def end(self) -> ServedToken:
        """The model's end-of-sequence token, for servers that say only that an answer ended."""
        ends = self.tokenizer.eos_ids
        named = self.tokenizer.special_text("eos")
        special = self.tokenizer.special
        token = next((i for i in sorted(ends) if special.get(i) == named), min(ends))
        return ServedToken(token, [(token, 0.0)])

    def _metered(self, prompt: list[int] | str) -> tuple[int, int | None]:
        reply = self.server.send(self.kind.stream(self._whole_of(prompt, 1)))
        with self.server.reading():
            return self.kind.metered(reply)

    def _whole_of(
        self, prompt: list[int] | str, tokens: int, top: int = 0, seed: int = 0
    ) -> WantedStream:
        return WantedStream(self.described, prompt, tokens, top, seed, stream=False)

    def _event(self, request: Request) -> Event:
        reply = self.server.send(request)
        with self.server.reading():
            return self.kind.streamed(reply) or Event()

    def _tokens(self, event: Event, before: Sequence[int]) -> Sequence[ServedToken | None]:
        """Return the tokens of `event`; None for a token whose text belongs to no id."""
        if not self.kind.takes_text:
            return [_by_id(row) for row in event.rows]
        tokens = [self._token(row) for row in event.rows]
        known = [token.token for token in tokens if token is not None]
        same = len(known) == len(tokens) and bytes_of(self.tokenizer, known) == event.text.encode()
        if same or not self.kind.joins:
            return tokens
        ids = ids_of_text(self.tokenizer, before, event.text)
        return [None] if ids is None else [ServedToken(token, [(token, 0.0)]) for token in ids]

    def _whole(self, ids: Sequence[int], most: int, top: int) -> list[ServedToken]:
        """Return up to `most` tokens after `ids` from a whole reply, to the end of a character."""
        # One more than is used: mlx_lm.server 0.32 ends for good if it is to continue exactly
        # what its cache holds.
        event = self._event(self.kind.stream(self._whole_of(self.prompt(ids), most + 1, top)))
        tokens, size = [_by_id(row) for row in event.rows], self.tokenizer.size
        if not tokens or not all(0 <= one.token < size for one in tokens):
            raise self.server.broken("no candidates of a token")
        ends, said = self.tokenizer.eos_ids, event.text.lstrip()
        pieces = (b"" if one.token in ends else self.tokenizer.piece(one.token) for one in tokens)
        texts = [data.decode("utf-8", "replace").lstrip() for data in accumulate(pieces)]
        whole = [
            n
            for n, text in enumerate(texts[:most], 1)
            if not text.endswith("\ufffd") and (n == 1 or said.startswith(text))
        ]
        # At a tie the server may have written another than the first of the likeliest.
        return tokens[: (max if texts[-1] == said else min)(whole, default=0)]

    def _text(self, ids: Sequence[int]) -> str:
        """Return the text to send for `ids`. Raises `EdgeError` if there is none (see `prompt`)."""
        read = self.tokenizer.encode_prompt
        # The server puts a BOS before a text by itself.
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
        # And a blank, with a SentencePiece vocabulary.
        if text.startswith(" ") and again != list(ids) == read(text[1:]):
            return text[1:]
        # What looks like a control token becomes one there: the answer would be to another prompt.
        if self._parts(again[len(start) :]) != self._parts(kept):
            plain = bytes_of(self.tokenizer, ids).decode("utf-8", "replace")
            signs = (one for one in special.values() if one and one in plain)
            raise self._unreadable(f"holds {max(signs, key=len, default='a control token')!r}")
        return text

    def _parts(self, ids: Sequence[int]) -> list[bytes | int]:
        """Return control tokens, and the text between them, stripped."""
        parts: list[bytes | int] = []
        for control, group in groupby(ids, self.tokenizer.special.__contains__):
            run = list(group)
            # Servers drop blanks beside control tokens.
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
        """The id of each token's bytes; of several such ids, the one that tokenizing gives."""
        tokenizer = self.tokenizer
        known = {text.encode(): token for token, text in tokenizer.special.items() if text}
        for token in range(tokenizer.size):
            piece = tokenizer.piece(token)
            if piece and (
                piece not in known or tokenizer.encode(piece.decode("utf-8", "replace")) == [token]
            ):
                known[piece] = token
        return known

    def _token(self, row: NextToken) -> ServedToken | None:
        """Return a token with ids in place of texts; None if its own text belongs to no id."""
        token = self._by_bytes.get(row.token) if isinstance(row.token, bytes) else None
        if token is None:
            return None
        known: dict[int, float | None] = {}
        for name, logprob in row.top:
            one = self._by_bytes.get(name) if isinstance(name, bytes) else name
            if one is not None:
                known.setdefault(one, logprob)
        return ServedToken(token, [*known.items()])


def _by_id(row: NextToken) -> ServedToken:
    return ServedToken(int(row.token), [(int(one), logprob) for one, logprob in row.top])


@cache
def _warn(program: str, url: str, name: str, own: str) -> None:
    """Log once per model that settings which the server keeps with it (`own`) are not used."""
    if own:
        _log.warning(
            "the %s that %s has for %r are not used, but for num_ctx and num_thread: the chat "
            "template is that of the model's file",
            own,
            program,
            name[:LONGEST_NAME],
        )


def found_at(server: Server, model: str | None, context: int | None) -> Dialect:
    """Find out which of `SERVERS` runs at `server`; return the model there as a `Dialect`.

    `model` is the model's name (None: the server's only one), `context` the wanted context in ids.
    Raises `UsageError` if the server lacks either, `EdgeError` if it is none of `SERVERS`.
    """
    for kind in SERVERS:
        if (described := described_at(kind, server, model, context)) is not None:
            return Dialect(kind, server, described)
    raise EdgeError(
        f"The server at {server.url} is none of {', '.join(kind.program for kind in SERVERS)}",
        hint="give the address of one of them, or name a model's file",
        setting="edge",
    )


def described_at(
    kind: EdgeServer, server: Server, model: str | None, context: int | None
) -> ServedModel | None:
    """Return what `server` says of the model; None if it is not a server of this `kind`.

    `model` is the model's name (None: the server's only one), `context` the wanted context in ids.
    Raises `UsageError` if the server lacks either, `EdgeError` if it does not answer.
    """
    first, *others = kind.asks
    if (reply := server.found(first)) is None:
        return None
    return kind.describe(server.url, model, context, reply, *map(server.found, others))
