"""Chat APIs in OpenAI's form (`/chat/completions`); constants such as `MISTRAL` describe each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgewise.servers.base import GREEDY, Fields, Request, WantedText
from edgewise.servers.openai import OpenAiReplies

_PATH = "/v1/chat/completions"
_NO_TEMPLATE_THOUGHTS = {"chat_template_kwargs": {"enable_thinking": False}}
_NO_THOUGHTS = {"thinking": {"type": "disabled"}}
_NO_EFFORT = {"reasoning_effort": "none"}
_NONE = frozenset[str]()
_ALL = frozenset({"top_k", "min_p"})
_OFF = {"top_k": 0, "min_p": 0, "top_p": 1}


@dataclass(frozen=True, kw_only=True)
class ChatServer(OpenAiReplies):
    """A chat API that continues an answer: its beginning is sent as the last, assistant's message.

    `name` is its name in messages, `owner` the `owned_by` of its models ("" if that varies).
    `begun` are request fields, and `last` fields of the last message, that make the API continue
    that message. `quiet` are the fields that switch reasoning off. `filters` names its sampling
    filters besides `top_p`, sent only where they have an effect, unless `always`. `seed` is the
    API's name for the seed (None: it has none). `base` replaces `/v1` in POST requests (unless "").
    """

    name: str
    owner: str = ""
    begun: Mapping[str, object] = field(default_factory=dict[str, object])
    last: Mapping[str, object] = field(default_factory=dict[str, object])
    quiet: Mapping[str, object] = field(default_factory=lambda: _NO_EFFORT)
    filters: frozenset[str] = _NONE
    always: bool = False
    seed: str | None = "seed"
    base: str = ""

    def complete(self, asked: WantedText) -> Request:
        body: dict[str, Any] = {"model": asked.model, "messages": asked.turns}
        if asked.text:
            last = {"role": "assistant", "content": asked.text, **self.last}
            body |= {"messages": [*asked.turns, last], **self.begun}
        body |= {"max_tokens": asked.n, "stream": False}
        return Request(_PATH, body if asked.drawn == GREEDY else {**body, **self._drawn(asked)})

    def forms(self, asked: WantedText) -> Sequence[Sequence[Fields]]:
        """Return optional fields: to switch reasoning off, and the seed (greedy: temperature 0)."""
        seed = {self.seed: asked.drawn["seed"]} if self.seed and asked.drawn != GREEDY else {}
        return (self.quiet, {}), (GREEDY if asked.drawn == GREEDY else seed, {})

    def _drawn(self, asked: WantedText) -> dict[str, Any]:
        """Return the sampling fields but the seed; unless `always`, only those with an effect."""
        without = {"seed", *(_ALL - self.filters)}
        fields = {name: value for name, value in asked.drawn.items() if name not in without}
        if self.always:
            return {**fields, "top_k": fields["top_k"] or -1}
        return {name: value for name, value in fields.items() if value != _OFF.get(name)}


def temperature_of(drawn: Mapping[str, Any]) -> Fields:
    """Return from the sampling fields `drawn` only `temperature` and, if below 1, `top_p`."""
    # Some models take one of the two at most.
    filters = {} if drawn["top_p"] == 1 else {"top_p": drawn["top_p"]}
    return {"temperature": drawn["temperature"], **filters}


class OpenAiServer(OpenAiReplies):
    """OpenAI's chat API, which Gemini, OpenRouter and most others have too.

    It cannot continue a begun answer, so it verifies passages or writes whole answers.
    """

    name, reads, filters = "OpenAI chat", True, _NONE

    def complete(self, asked: WantedText) -> Request:
        body: dict[str, Any] = {"model": asked.model, "messages": asked.turns, "stream": False}
        if asked.drawn != GREEDY:
            body |= temperature_of(asked.drawn)
        return Request(_PATH, body)

    def forms(self, asked: WantedText) -> Sequence[Sequence[Fields]]:
        n, drawn = asked.n, asked.drawn
        # Newer models of OpenAI's take only the longer name, and decline any temperature.
        forms: list[Sequence[Fields]] = [
            (_NO_EFFORT, {"reasoning_effort": "low"}, {}),
            (GREEDY if drawn == GREEDY else {"seed": drawn["seed"]}, {}),
            ({"max_tokens": n}, {"max_completion_tokens": n}),
        ]
        if asked.schema is not None:
            named = {"name": "verdict", "strict": True, "schema": asked.schema}
            by_schema = {"type": "json_schema", "json_schema": named}
            by_form = {"type": "json_object"}
            forms.append(({"response_format": by_schema}, {"response_format": by_form}, {}))
        return forms


CHAT = ChatServer(name="chat completions")

VLLM = ChatServer(
    name="vLLM",
    owner="vllm",
    begun={"continue_final_message": True, "add_generation_prompt": False},
    quiet=_NO_TEMPLATE_THOUGHTS,
    filters=_ALL,
    always=True,
)

SGLANG = ChatServer(
    name="SGLang",
    owner="sglang",
    begun={"continue_final_message": True},
    quiet=_NO_TEMPLATE_THOUGHTS,
    filters=_ALL,
    always=True,
)

DEEPSEEK = ChatServer(
    name="DeepSeek", last={"prefix": True}, quiet=_NO_THOUGHTS, seed=None, base="/beta"
)

MISTRAL = ChatServer(name="Mistral", last={"prefix": True}, seed="random_seed")

QWEN = ChatServer(
    name="Qwen",
    last={"partial": True},
    quiet={"enable_thinking": False},
    filters=frozenset({"top_k"}),
)

MOONSHOT = ChatServer(name="Moonshot", last={"partial": True}, quiet=_NO_THOUGHTS, seed=None)

LM_STUDIO = ChatServer(name="LM Studio", filters=frozenset({"top_k"}))

EDGEWISE = ChatServer(name="Edgewise", owner="edgewise", filters=_ALL)
