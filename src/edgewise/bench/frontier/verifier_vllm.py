"""A verifier behind vLLM, by its `/v1/completions` with token ids.

vLLM verifies in two forms. `prompts`: each beginning of the draft is a prompt of one request, one
token after each; the prefix cache has all but the last block of them, and each is billed.
`prompt_logprobs`: the draft is the end of one prompt, and what the model would have written at
each of its positions comes back; nothing is read from the prefix cache then, so the whole prompt is
computed each time, and the reply grows with it. For short prompts that takes less time, for long
ones much more, so an answer goes from the second form to the first where it grows long.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import msgspec

from edgewise.bench.frontier.base import CloudRequest
from edgewise.bench.frontier.verifiers import Choice, Requested, Verified, judged
from edgewise.cloud.io_thread import IoThread
from edgewise.completion import Sent
from edgewise.edge.base import Tokenizer
from edgewise.engines.base import COMPLETIONS, PROBE_SECONDS, Client, Meter, only
from edgewise.engines.http import decoded
from edgewise.engines.vllm import VllmEngine, id_of
from edgewise.errors import CloudProtocolError
from edgewise.testing.link import Link

Form = Literal["auto", "prompts", "prompt_logprobs"]
"""How vLLM is asked; `auto` is by the length of what stands before a draft."""

SHORT = 128
"""Ids up to which computing all of them took less time than k + 1 prompts (vLLM 0.32 on a CPU)."""

DEADLINE = 60.0
"""Of a request, seconds."""

_CANDIDATES = 2


class _Likely(msgspec.Struct):
    logprob: float


class _Written(msgspec.Struct):
    tokens: list[str]
    top_logprobs: list[dict[str, float | None] | None] = []


class _Answered(msgspec.Struct):
    index: int
    logprobs: _Written
    prompt_logprobs: list[dict[str, _Likely] | None] | None = None


class _Answers(msgspec.Struct):
    choices: list[_Answered]
    usage: Meter | None = None


class VllmVerifier:
    """Implements `Verifier`. With a `link` before the engine, `url` is the link's.

    `Speculative` proves the vocabulary before the first draft.
    """

    context = None

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        model: str | None = None,
        form: Form = "auto",
        link: Link | None = None,
        deadline: float = DEADLINE,
    ) -> None:
        """Bytes are the link's where there is one, else those of the bodies.

        `deadline` is for a request, seconds; the proof of a vocabulary has 30 at least.
        """
        self.engine = VllmEngine(url, key=key, model=model)
        self.form: Form = form
        self.link = link
        self._io = IoThread(self.engine.url)
        self._deadline = deadline

    def check(self, tokenizer: Tokenizer) -> None:
        self._io.submit(self.engine.probe(), max(self._deadline, PROBE_SECONDS)).result()
        self.engine.prove(tokenizer)

    def open(self) -> "VllmVerification":
        return VllmVerification(self)

    def ask(self, work: Any) -> "Future[Verified]":
        """Run a request in the thread of the connections."""
        return self._io.submit(work, self._deadline)

    def close(self) -> None:
        """Give up what flies and close the connections."""
        self._io.close(_nothing(), self.engine.close())


class VllmVerification:
    """Implements `VerifierSession`; the KV cache is what vLLM keeps of prefixes."""

    def __init__(self, verifier: VllmVerifier) -> None:
        self._verifier = verifier
        self._requested = Requested()
        self._sent, self._received = Sent(), 0
        self._before = self._counted()

    @property
    def traffic(self) -> tuple[int, int]:
        up, down = self._counted()
        return up - self._before[0], down - self._before[1]

    def verify(self, ids: Sequence[int], draft: Sequence[int]) -> "Future[Verified]":
        return self._verifier.ask(self._verify(list(ids), list(draft)))

    def close(self) -> None:
        """Nothing is held."""

    def _counted(self) -> tuple[int, int]:
        link = self._verifier.link
        return (self._sent.bytes, self._received) if link is None else (link.up, link.down)

    async def _verify(self, ids: list[int], draft: list[int]) -> Verified:
        form = self._verifier.form
        if form == "prompts" or (form == "auto" and len(ids) > SHORT):
            prompts = [ids + draft[:end] for end in range(len(draft) + 1)]
            seen = [self._requested.begin(prompt) for prompt in prompts]
            reply = await self._post({"prompt": prompts}, sum(map(len, prompts)))
            choices = _each(reply, len(prompts))
        else:
            prompts = [ids + draft]
            seen = [self._requested.begin(prompts[0])]
            more = {"prompt": prompts[0], "prompt_logprobs": _CANDIDATES}
            reply = await self._post(more, len(prompts[0]))
            choices = _whole(reply, len(ids), len(draft))
        # Of several prompts vLLM meters one.
        meter = (reply.usage if len(prompts) == 1 else None) or Meter()
        requests = [
            CloudRequest(
                prompt=len(prompt),
                seen=first,
                written=1,
                cached=meter.cached,
                computed=meter.computed,
            )
            for prompt, first in zip(prompts, seen, strict=True)
        ]
        for prompt, choice in zip(reversed(prompts), reversed(choices), strict=False):
            self._requested.replied(prompt, choice.token)
        return judged(draft, choices, requests)

    async def _post(self, more: Mapping[str, object], ids: int) -> _Answers:
        engine = self._verifier.engine
        body = {
            "model": await engine.model_name(),
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": _CANDIDATES,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            # Without, a reply may hold an end token's reason and not its id.
            "ignore_eos": True,
            **more,
        }
        answered = await engine.post(COMPLETIONS, body, Client(sent=self._sent), ids=ids)
        self._received += len(answered)
        return decoded(answered, _Answers, engine.dialect)


def _each(reply: _Answers, prompts: int) -> list[Choice]:
    """What was written after each prompt."""
    found = {answer.index: answer for answer in reply.choices}
    if set(found) != set(range(prompts)) or len(reply.choices) != prompts:
        raise CloudProtocolError(f"vLLM sent {len(found)} choices for {prompts} prompts.")
    return [_written(found[index]) for index in range(prompts)]


def _whole(reply: _Answers, before: int, drafted: int) -> list[Choice]:
    """What would have been written at each position of the draft, and was written behind it."""
    answer = only(reply.choices, VllmEngine.dialect)
    rows = answer.prompt_logprobs or []
    if len(rows) != before + drafted:
        raise CloudProtocolError(
            f"vLLM sent logprobs of {len(rows)} positions of a prompt of {before + drafted}."
        )
    told = [
        _likeliest({_number(token): one.logprob for token, one in (row or {}).items()})
        for row in rows[before:]
    ]
    return [*told, _written(answer)]


def _written(answer: _Answered) -> Choice:
    """The one token after a prompt."""
    tokens, tops = answer.logprobs.tokens, answer.logprobs.top_logprobs
    if len(tokens) != 1 or len(tops) != 1:
        raise CloudProtocolError(f"vLLM wrote {len(tokens)} tokens where 1 was asked for.")
    known = {id_of(token): logprob for token, logprob in (tops[0] or {}).items()}
    likely = _likeliest({token: one for token, one in known.items() if one is not None})
    return Choice(id_of(tokens[0]), likely.margin)


def _likeliest(logprobs: Mapping[int, float]) -> Choice:
    """Of two candidates at least; among equals the lower id, as an argmax."""
    best = sorted(logprobs.items(), key=lambda one: (-one[1], one[0]))[:_CANDIDATES]
    if len(best) < _CANDIDATES:
        raise CloudProtocolError("vLLM told fewer candidates than it was asked for.")
    return Choice(best[0][0], best[0][1] - best[1][1])


def _number(token: str) -> int:
    """An id, as vLLM writes it where it is a key."""
    return id_of(token if token.startswith("token_id:") else f"token_id:{token}")


async def _nothing() -> None:
    """There is nothing to say goodbye to."""
