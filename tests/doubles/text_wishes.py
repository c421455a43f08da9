"""What each API that takes text wants of a request, by its documents: for a scripted one.

A request with a field that its documents do not have is declined, also where the real API would
overlook it. No paid API was ever asked.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from edgewise.prompts import Message

THINK = "<think>"
UNTHOUGHT = "<think>\n\n</think>\n\n"
"""A block of thoughts that was closed at once."""

OPEN, CLOSE = "<|{role}|>", "<|end|>"
"""How a conversation is written as text: `TEMPLATE` says so to who renders it."""

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Least = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Wish(NamedTuple):
    """What a request asks for: `n` tokens behind `answer`.

    `quiet` where thinking is switched off; `temperature` as it came.
    """

    messages: list[Message]
    answer: str
    n: int
    quiet: bool = True
    temperature: float | None = None


class Wrong(Exception):
    """A request that is declined with an HTTP `status`, for a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class _Turn(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class _PrefixTurn(_Turn):
    prefix: bool = False


class _PartialTurn(_Turn):
    partial: bool = False


class _Chat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    messages: Any
    max_tokens: Count
    stream: Literal[False] = False
    temperature: Temperature | None = None
    top_p: Share = 1.0


class _KwargsOfTemplate(msgspec.Struct, forbid_unknown_fields=True):
    enable_thinking: bool = True


class _Thinking(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["enabled", "disabled"]


class _Engine(_Chat):
    messages: Annotated[list[_Turn], msgspec.Meta(min_length=1)]
    continue_final_message: bool = False
    chat_template_kwargs: _KwargsOfTemplate = msgspec.field(default_factory=_KwargsOfTemplate)
    top_k: Annotated[int, msgspec.Meta(ge=-1)] = -1
    min_p: Least = 0.0
    seed: int | None = None


class _Vllm(_Engine):
    add_generation_prompt: bool = True


class _DeepSeek(_Chat):
    messages: Annotated[list[_PrefixTurn], msgspec.Meta(min_length=1)]
    thinking: _Thinking = msgspec.field(default_factory=lambda: _Thinking("enabled"))


class _Mistral(_Chat):
    messages: Annotated[list[_PrefixTurn], msgspec.Meta(min_length=1)]
    random_seed: int | None = None
    reasoning_effort: Literal["none", "high"] | None = None


class _Qwen(_Chat):
    messages: Annotated[list[_PartialTurn], msgspec.Meta(min_length=1)]
    enable_thinking: bool = True
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    seed: int | None = None


class _Moonshot(_Chat):
    messages: Annotated[list[_PartialTurn], msgspec.Meta(min_length=1)]
    thinking: _Thinking = msgspec.field(default_factory=lambda: _Thinking("enabled"))


class _Trailing(_Chat):
    messages: Annotated[list[_Turn], msgspec.Meta(min_length=1)]
    reasoning_effort: Literal["none", "low", "medium", "high"] | None = None
    seed: int | None = None


class _LmStudio(_Trailing):
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0


class _Edgewise(_LmStudio):
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0


class _OllamaOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    num_predict: Count
    repeat_penalty: float = 1.1
    temperature: Temperature | None = None
    top_k: int = 40
    top_p: Share = 0.9
    min_p: Least = 0.0
    seed: int | None = None


class _Ollama(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    messages: Annotated[list[_Turn], msgspec.Meta(min_length=1)]
    options: _OllamaOptions
    stream: bool = True
    think: bool = True
    truncate: bool = True
    shift: bool = True


class _Prompted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    prompt: str
    max_tokens: Count
    stream: Literal[False] = False
    temperature: Temperature | None = None
    top_p: Share = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=-1)] = -1
    min_p: Least = 0.0
    seed: int | None = None


class _Completed(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    prompt: str
    n_predict: Count
    cache_prompt: bool = True
    response_fields: list[str] = []
    samplers: list[str] = []
    temperature: Temperature | None = None
    top_k: int = 40
    top_p: Share = 0.95
    min_p: Least = 0.05
    seed: int | None = None


class _Templated(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    messages: list[_Turn]
    chat_template_kwargs: _KwargsOfTemplate = msgspec.field(default_factory=_KwargsOfTemplate)


def _read(body: bytes, kind: Any, status: int = 400) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise Wrong(status, str(error)) from error


class Rule(NamedTuple):
    """How a chat API is told to continue: by a field of its last message, or of the request.

    `field` is None where a trailing message is enough; `must`: a trailing message needs it.
    `thinks` says whether a request leaves thinking on, `apart` whether it cannot continue then.
    """

    kind: type[Any]
    thinks: Callable[[Any], bool]
    field: str | None = None
    of_request: bool = False
    must: bool = False
    apart: bool = False
    status: int = 400

    def __call__(self, body: bytes) -> Wish:
        """What a request asks for. Raises `Wrong`."""
        asked = _read(body, self.kind, self.status)
        *earlier, last = asked.messages
        begun = last.role == "assistant"
        holder = asked if self.of_request else last
        goes_on = begun if self.field is None else getattr(holder, self.field)
        marked = self.field is not None and not self.of_request
        if marked and any(getattr(turn, self.field or "") for turn in earlier):
            raise Wrong(400, f"{self.field} is for the last message")
        if (goes_on and not begun) or (self.must and begun and not goes_on):
            raise Wrong(400, f"Expected another last role for serving but got {last.role}")
        if goes_on and getattr(asked, "add_generation_prompt", False):
            raise Wrong(400, "Cannot set both `continue_final_message` and the other to True.")
        thinks = self.thinks(asked)
        if goes_on and thinks and self.apart:
            raise Wrong(400, "partial mode is not supported when thinking is enabled")
        messages = [Message(turn.role, turn.content) for turn in asked.messages]
        answer = messages.pop().content if goes_on else ""
        return Wish(messages, answer, asked.max_tokens, not thinks, asked.temperature)


def _by_template(asked: _Engine) -> bool:
    return asked.chat_template_kwargs.enable_thinking


def _by_type(asked: _DeepSeek | _Moonshot) -> bool:
    return asked.thinking.type == "enabled"


def _by_effort(asked: _Mistral | _Trailing) -> bool:
    return asked.reasoning_effort != "none"


def _by_switch(asked: _Qwen) -> bool:
    return asked.enable_thinking


vllm = Rule(_Vllm, _by_template, "continue_final_message", of_request=True)
sglang = Rule(_Engine, _by_template, "continue_final_message", of_request=True)
deepseek = Rule(_DeepSeek, _by_type, "prefix", must=True)
mistral = Rule(_Mistral, _by_effort, "prefix", must=True, status=422)
qwen = Rule(_Qwen, _by_switch, "partial", apart=True)
moonshot = Rule(_Moonshot, _by_type, "partial", apart=True)
lm_studio = Rule(_LmStudio, _by_effort)
edgewise = Rule(_Edgewise, _by_effort)
trailing = Rule(_Trailing, _by_effort)


def ollama(body: bytes) -> Wish:
    asked: _Ollama = _read(body, _Ollama)
    if asked.stream:
        raise Wrong(400, "this script does not stream")
    messages = [Message(turn.role, turn.content) for turn in asked.messages]
    answer = messages.pop().content if messages[-1].role == "assistant" else ""
    options = asked.options
    return Wish(
        messages,
        answer,
        options.num_predict,
        quiet=not asked.think,
        temperature=options.temperature,
    )


def completions(body: bytes) -> Wish:
    asked: _Prompted = _read(body, _Prompted)
    return _of_text(asked.prompt, asked.max_tokens, asked.temperature)


def llama_server(body: bytes) -> Wish:
    asked: _Completed = _read(body, _Completed)
    return _of_text(asked.prompt, asked.n_predict, asked.temperature)


def _of_text(prompt: str, n: int, temperature: float | None) -> Wish:
    """What a prompt in the form of `TEMPLATE` asks for."""
    pieces = re.split(r"<\|(system|user|assistant)\|>", prompt)[1:]
    turns = [(role, text) for role, text in zip(pieces[::2], pieces[1::2], strict=True)]
    if not turns or turns[-1][0] != "assistant" or CLOSE in turns[-1][1]:
        raise Wrong(400, "the prompt does not open the assistant's turn")
    messages = [
        msgspec.convert({"role": role, "content": text.removesuffix(CLOSE)}, Message)
        for role, text in turns[:-1]
    ]
    answer = turns[-1][1].removeprefix(UNTHOUGHT)
    quiet = not answer.rstrip().endswith(THINK)
    return Wish(messages, answer, n, quiet=quiet, temperature=temperature)


def templated(body: bytes, opens: str) -> dict[str, str]:
    """What llama-server's `/apply-template` says; `opens` stands where an answer begins."""
    asked: _Templated = _read(body, _Templated)
    text = "".join(f"<|{turn.role}|>{turn.content}{CLOSE}" for turn in asked.messages)
    return {"prompt": f"{text}<|assistant|>{opens}"}
