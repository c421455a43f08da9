"""How engines say the same: for a scripted engine that speaks as any of them.

They are as their sources say. Values are whatever they are told to be, right or not: an id may be a
word, a meter negative.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

Dialect = Literal["llama-server", "vllm", "sglang"]


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says it wrote: `ids`, with `logprobs` and candidates (id, logprob) each.

    `ended` says whether the model ended it, or is the reason in the dialect's own word. `cached`
    and `computed` are its meter, `took` its time in the dialect's own unit.
    """

    ids: list[object]
    logprobs: list[object]
    top: list[list[tuple[object, object]]]
    ended: object = False
    cached: object = 0
    computed: object = 1
    took: object = 0.0


class Read(NamedTuple):
    """What an engine says of an id that it was given: its logprob there, the likeliest ids."""

    token: object
    logprob: object
    top: list[tuple[object, object]]


class Wanted(NamedTuple):
    """What a request asks for: `n` tokens after `ids`; or what it thinks of the last `verify`.

    One that verifies by writing has them among `ids` too. `prompts` are those of a request with
    several: then nobody says which id comes after the last. `plain`: it must write ASCII, and say
    what the `top` likeliest are.
    """

    ids: list[int]
    n: int
    verify: int = 0
    prompts: Sequence[list[int]] = ()
    plain: bool = False
    top: int = 1


class Spoken(NamedTuple):
    """A dialect: where it is asked, by whose models it is known, how it asks and answers.

    `ids` and `n` are its names for these, `spelled` is what it calls the text of ids. `read` is how
    it answers a request to verify.
    """

    path: str
    owner: str
    reply: Callable[[Writing], object]
    read: Callable[[Sequence[Read], int], object]
    ids: str
    n: str
    spelled: str = "prompt"

    def wanted(self, body: bytes) -> Wanted:
        """Raises `msgspec.ValidationError`, also for a salt that is no text.

        SGLang has the number among its parameters.
        """
        asked = msgspec.json.decode(body, type=dict[str, object])
        msgspec.convert(asked.get("cache_salt", ""), str)
        asked |= msgspec.convert(asked.get("sampling_params", {}), dict[str, object])
        number = msgspec.convert(asked.get(self.n, 1), int)
        sent = msgspec.convert(asked.get(self.ids), list[int | list[int]])
        if prompts := [one for one in sent if isinstance(one, list)]:
            return Wanted(prompts[-1], number, len(prompts), prompts)
        ids = [one for one in sent if isinstance(one, int)]
        if forced := _forced(asked):
            return Wanted([*ids, *forced], number, len(forced))
        if asked.get("grammar"):
            return Wanted(ids, 1, plain=True, top=msgspec.convert(asked.get("n_probs"), int))
        start = msgspec.convert(asked.get("logprob_start_len", -1), int)
        return Wanted(ids, number, len(ids) - start - 1 if start >= 0 else 0)


def _forced(asked: Mapping[str, object]) -> list[int]:
    """The ids that llama-server must write."""
    rule = msgspec.convert(asked.get("grammar", ""), str)
    biased = msgspec.convert(asked.get("logit_bias", []), list[tuple[int, float]])
    first = [int(token) for token in re.findall(r"<\[(\d+)\]>(?!\?)", rule)]
    return [*first, *(token for token, _ in biased)]


def _llama_reply(writing: Writing) -> object:
    return {
        "tokens": writing.ids,
        "completion_probabilities": [
            {
                "id": token,
                "logprob": logprob,
                "top_logprobs": [{"id": one, "logprob": value} for one, value in top],
            }
            for token, logprob, top in _rows(writing)
        ],
        "timings": {
            "cache_n": writing.cached,
            "prompt_n": writing.computed,
            "prompt_ms": writing.took,
        },
        "stop_type": "eos" if writing.ended else "limit",
    }


def _llama_read(rows: Sequence[Read], length: int) -> object:
    reported = Writing(
        ids=[row.token for row in rows],
        logprobs=[row.logprob for row in rows],
        top=[row.top[:1] for row in rows],
        cached=length - len(rows) - 1,
    )
    return _llama_reply(reported)


def _completion_read(rows: Sequence[Read], length: int) -> object:
    """The last is first: choices come in no order."""
    choices = [
        {
            "index": index,
            "text": "",
            "logprobs": {
                "tokens": [_named(row.top[0][0])],
                "token_logprobs": [row.top[0][1]],
                "top_logprobs": [{str(_named(one)): value for one, value in row.top}],
            },
            "finish_reason": "length",
        }
        for index, row in enumerate(rows)
    ]
    sent = sum(length - 1 - place for place in range(len(rows)))
    usage = {"prompt_tokens": sent, "prompt_tokens_details": {"cached_tokens": 0}}
    return {"choices": choices[::-1], "usage": usage}


def _sglang_read(rows: Sequence[Read], length: int) -> object:
    meta = {
        "finish_reason": {"type": "length"},
        "prompt_tokens": length,
        "cached_tokens": length - len(rows) - 1,
        "e2e_latency": 0.0,
        "input_token_logprobs": [[None, 0, None], *([row[1], row[0], None] for row in rows)],
        "input_top_logprobs": [
            None,
            *([[value, one, None] for one, value in row.top[:1]] for row in rows),
        ],
        "output_token_logprobs": [[-0.1, 97, None]],
        "output_top_logprobs": [[[-0.1, 97, None]]],
    }
    return {"output_ids": [97], "meta_info": meta}


def _completion_reply(writing: Writing) -> object:
    logprobs = {
        "tokens": [_named(token) for token in writing.ids],
        "token_logprobs": writing.logprobs,
        "top_logprobs": [{str(_named(one)): value for one, value in top} for top in writing.top],
    }
    choice = {"text": "", "logprobs": logprobs, "finish_reason": _reason(writing)}
    details = {"cached_tokens": writing.cached}
    usage = {"prompt_tokens": _total(writing), "prompt_tokens_details": details}
    return {"choices": [choice], "usage": usage}


def _sglang_reply(writing: Writing) -> object:
    meta = {
        "finish_reason": {"type": _reason(writing)},
        "prompt_tokens": _total(writing),
        "cached_tokens": writing.cached,
        "e2e_latency": writing.took,
        "output_token_logprobs": [[logprob, token, None] for token, logprob, _ in _rows(writing)],
        "output_top_logprobs": [[[value, one, None] for one, value in top] for top in writing.top],
    }
    return {"output_ids": writing.ids, "meta_info": meta}


def _rows(writing: Writing) -> list[tuple[object, object, list[tuple[object, object]]]]:
    return list(zip(writing.ids, writing.logprobs, writing.top, strict=False))


def _named(token: object) -> object:
    """As vLLM writes an id where it was asked for no text."""
    whole = isinstance(token, int) and not isinstance(token, bool)
    return f"token_id:{token}" if whole else token


def _reason(writing: Writing) -> str:
    if isinstance(writing.ended, str):
        return writing.ended
    return "stop" if writing.ended else "length"


def _total(writing: Writing) -> object:
    """Both parts of a prompt, where they are numbers."""
    if isinstance(writing.cached, int) and isinstance(writing.computed, int):
        return writing.cached + writing.computed
    return writing.computed


DIALECTS: Mapping[Dialect, Spoken] = {
    "llama-server": Spoken(
        "/completion", "llamacpp", _llama_reply, _llama_read, "prompt", "n_predict", "content"
    ),
    "vllm": Spoken(
        "/v1/completions", "vllm", _completion_reply, _completion_read, "prompt", "max_tokens"
    ),
    "sglang": Spoken(
        "/generate", "sglang", _sglang_reply, _sglang_read, "input_ids", "max_new_tokens", "text"
    ),
}
