"""What each API that takes text wants of a request, by its documents: for a scripted one.

A request with a field that its documents do not have is declined, also where the real API would
overlook it. No paid API was ever asked.
"""

import re
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


def _wish(asked: _Chat, *, goes_on: bool, quiet: bool) -> Wish:
    """`goes_on` where the last message, the assistant's, is to be gone on with."""
    messages = [Message(turn.role, turn.content) for turn in asked.messages]
    answer = messages.pop().content if goes_on else ""
    return Wish(messages, answer, asked.max_tokens, quiet=quiet, temperature=asked.temperature)


def _is_begun(asked: _Chat) -> bool:
    return bool(asked.messages[-1].role == "assistant")


def vllm(body: bytes) -> Wish:
    asked: _Vllm = _read(body, _Vllm)
    if asked.continue_final_message and asked.add_generation_prompt:
        raise Wrong(
            400, "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        )
    return _engine(asked)


def sglang(body: bytes) -> Wish:
    return _engine(_read(body, _Engine))


def _engine(asked: _Engine) -> Wish:
    if asked.continue_final_message and not _is_begun(asked):
        raise Wrong(400, "continue_final_message needs a last message of the assistant's")
    quiet = not asked.chat_template_kwargs.enable_thinking
    return _wish(asked, goes_on=asked.continue_final_message, quiet=quiet)


def _prefixed(asked: _DeepSeek | _Mistral, *, quiet: bool) -> Wish:
    for turn in asked.messages[:-1]:
        if turn.prefix:
            raise Wrong(400, "prefix is for the last message")
    last = asked.messages[-1]
    if last.prefix != (last.role == "assistant"):
        raise Wrong(
            400,
            "Expected last role User or Tool (or Assistant with prefix True) for serving but got "
            f"{last.role}",
        )
    return _wish(asked, goes_on=last.prefix, quiet=quiet)


def deepseek(body: bytes) -> Wish:
    asked: _DeepSeek = _read(body, _DeepSeek)
    return _prefixed(asked, quiet=asked.thinking.type == "disabled")


def mistral(body: bytes) -> Wish:
    asked: _Mistral = _read(body, _Mistral, 422)
    return _prefixed(asked, quiet=asked.reasoning_effort == "none")


def _partial(asked: _Qwen | _Moonshot, *, quiet: bool) -> Wish:
    last = asked.messages[-1]
    if last.partial and last.role != "assistant":
        raise Wrong(400, "partial is for an assistant message")
    if last.partial and not quiet:
        raise Wrong(400, "partial mode is not supported when thinking is enabled")
    return _wish(asked, goes_on=last.partial, quiet=quiet)


def qwen(body: bytes) -> Wish:
    asked: _Qwen = _read(body, _Qwen)
    return _partial(asked, quiet=not asked.enable_thinking)


def moonshot(body: bytes) -> Wish:
    asked: _Moonshot = _read(body, _Moonshot)
    return _partial(asked, quiet=asked.thinking.type == "disabled")


def lm_studio(body: bytes) -> Wish:
    return _trailed(_read(body, _LmStudio))


def edgewise(body: bytes) -> Wish:
    return _trailed(_read(body, _Edgewise))


def trailing(body: bytes) -> Wish:
    return _trailed(_read(body, _Trailing))


def _trailed(asked: _Trailing) -> Wish:
    return _wish(asked, goes_on=_is_begun(asked), quiet=asked.reasoning_effort == "none")


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
