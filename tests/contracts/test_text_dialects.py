"""What every API that takes text guarantees: scripted in each dialect, and real servers by text."""

import os
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from edgewise.addresses import bundled
from edgewise.cloud import registry
from edgewise.edge.base import Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines.http import HttpEngine
from edgewise.engines.text import TextContinuation, TextEngine, TextRequest
from edgewise.errors import CloudRejected
from edgewise.prompts import Message, prompt_ids
from edgewise.sampling import Sampling
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests import llama_cpp_server_process
from tests.background import Background
from tests.doubles.scripted_text import ScriptedText, numbers
from tests.doubles.text_forms import with_template
from tests.llama_server_process import llama_server
from tests.vllm_process import vllm

GREEDY = Sampling()
COUNTING = [Message("system", "Be brief."), Message("user", "Count in words from one to ten.")]
LONGEST = 64
"""Tokens within which every answer here ends."""

_T = TypeVar("_T")


@dataclass
class Api:
    """An API, messages, and the answer to them that greedy decoding gives."""

    name: str
    engine: TextEngine
    background: Background
    messages: list[Message]
    answer: str
    scripted: ScriptedText | None = None
    echoes: bool = False

    def do(self, work: Awaitable[_T]) -> _T:
        async def done() -> _T:
            return await work

        found: _T = self.background.do(done())
        return found

    def go_on(self, answer: str, n: int, sampling: Sampling = GREEDY) -> TextContinuation:
        return self.do(self.engine.complete(TextRequest(self.messages, answer, n, sampling)))

    def rest(self, answer: str, n: int) -> str:
        """What it adds behind `answer`."""
        text = self.go_on(answer, n).text
        return text.removeprefix(answer) if self.echoes else text


LLAMA_SERVER = {
    "llama-server-text at llama-server": "llama-server-text",
    "chat at llama-server": "chat",
    "completions at llama-server": "completions",
}
VLLM = {"vllm-text at vLLM": "vllm-text", "completions at vLLM": "completions"}
REAL = [*LLAMA_SERVER, *(VLLM if "VLLM_PYTHON" in os.environ else ())]  # see `make test-vllm`


@pytest.fixture(scope="module")
def background() -> Iterator[Background]:
    running = Background()
    yield running

    async def nothing() -> None: ...

    running.close(nothing())


@pytest.fixture(scope="module")
def own() -> Iterator[LlamaModel]:
    """The bundled cloud model, whose tokenizer and template are the real servers'."""
    with LlamaModel(bundled("cloud"), threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Real servers by name, started when they are needed first."""
    with ExitStack() as stack:
        running: dict[str, str] = {}

        def started(name: str) -> str:
            if name not in running:
                running[name] = stack.enter_context(_server(name, request))
            return running[name]

        yield started


def _server(name: str, request: pytest.FixtureRequest) -> AbstractContextManager[str]:
    if name == "llama-server":
        return llama_server(bundled("cloud"))
    if name == "llama_cpp.server":
        return llama_cpp_server_process.llama_cpp_server(bundled("cloud"))
    return vllm(Path(os.environ["VLLM_PYTHON"]), request.getfixturevalue("vllm_model"))


def opened(dialect: str, url: str, tokenizer: Tokenizer) -> TextEngine:
    options = {"tokenizer": tokenizer} if dialect == "completions" else {}
    engine: TextEngine = registry.opened(dialect, url, **options)
    return engine


SCRIPTED = ["llama-server-text", "ollama", "deepseek", "vllm-text", "completions"]
"""One of each form of request and reply; `servers/test_text_requests.py` has what each is sent."""


@pytest.fixture(params=[*SCRIPTED, *[pytest.param(name, marks=pytest.mark.deep) for name in REAL]])
def api(
    request: pytest.FixtureRequest, background: Background, own: LlamaModel, servers: Any
) -> Iterator[Api]:
    name: str = request.param
    if name in SCRIPTED:
        server = ScriptedText(name)
        engine = opened(name, server.url, with_template())
        made = Api(name, engine, background, COUNTING, numbers(COUNTING, ""), server)
        yield made
        made.do(engine.close())
        server.close()
        return
    url = servers(name.rpartition(" at ")[2])
    engine = opened((LLAMA_SERVER | VLLM)[name], url, own.tokenizer)
    messages = [Message("user", pocketqa().questions[0].prompt)]
    by_ids = registry.engine_by_ids("vllm" if name in VLLM else "llama-server", url)
    written = background.do(answered(by_ids, own.tokenizer, messages))
    echoes = name == "chat at llama-server"
    made = Api(name, engine, background, messages, written, echoes=echoes)
    yield made
    made.do(engine.close())


async def answered(engine: HttpEngine, tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    """The whole answer, in the ids of the model's own vocabulary."""
    try:
        ids = prompt_ids(tokenizer, messages)
        completion = await engine.complete(ids, LONGEST, GREEDY)
        ids = [token for token in completion.ids if token not in tokenizer.eos_ids]
        return b"".join(tokenizer.piece(token) for token in ids).decode()
    finally:
        await engine.close()


def boundaries(answer: str) -> list[str]:
    """Its beginnings of whole words."""
    words = answer.split(" ")
    return [" ".join(words[:count]) for count in range(1, len(words))]


def test_an_answer_is_that_by_ids(api: Api) -> None:
    """From its beginning, and behind any word; what ends it is told; no model thinks."""
    assert api.do(api.engine.describe()).model
    gone = api.go_on("", LONGEST)
    assert gone.text == api.answer
    assert gone.ended
    for begun in boundaries(api.answer):
        assert begun + api.rest(begun, LONGEST) == api.answer
    gone = api.go_on(api.answer, 8)
    assert gone.ended
    assert not (gone.text.removeprefix(api.answer) if api.echoes else gone.text)
    if api.scripted is not None and api.name != "completions":
        api.scripted.thinks = True
        assert api.go_on("one two three", 2).text == " four five"


def test_it_writes_no_more_tokens_than_asked(api: Api) -> None:
    begun = boundaries(api.answer)[0]
    gone = api.go_on(begun, 2)
    assert not gone.ended
    assert gone.written == 2
    rest = gone.text.removeprefix(begun) if api.echoes else gone.text
    assert rest
    assert (begun + rest) != api.answer
    assert api.answer.startswith(begun + rest)
    sampling = Sampling(temperature=1.5, seed=7)
    assert api.go_on(begun, 4, sampling).text == api.go_on(begun, 4, sampling).text
    # Once it was closed it works again.
    api.do(api.engine.close())
    api.do(api.engine.close())
    assert api.rest(begun, 1)


def test_the_meter_counts_what_was_sent_before(api: Api) -> None:
    begun = boundaries(api.answer)[-1]
    api.go_on(begun, 1)
    again = api.go_on(begun, 1)
    assert again.prompt is not None
    assert again.prompt > 0
    if again.cached is None:
        assert api.name == "ollama"
    else:
        assert 0 < again.cached <= again.prompt


def test_a_prompt_beyond_the_context_is_rejected(api: Api) -> None:
    if api.scripted is not None:
        pytest.skip("a script has no context")
    long = [Message("user", api.messages[0].content * 30)]
    with pytest.raises(CloudRejected, match="context"):
        api.do(api.engine.complete(TextRequest(long, "", 1)))


@pytest.mark.deep
@pytest.mark.skipif(not llama_cpp_server_process.HERE, reason="needs llama-cpp-python[server]")
def test_a_second_real_server_begins_anew_by_chat_and_goes_on_by_completions(
    background: Background, servers: Any, own: LlamaModel
) -> None:
    """llama_cpp.server takes a last message for an answer that was given.

    Its greedy words are not those by ids: what was said is penalised there.
    """
    messages = [Message("user", pocketqa().questions[0].prompt)]
    by_chat = opened("chat", servers("llama_cpp.server"), own.tokenizer)
    by_prompt = opened("completions", servers("llama_cpp.server"), own.tokenizer)
    whole = background.do(by_chat.complete(TextRequest(messages, "", LONGEST)))
    begun = boundaries(whole.text)[1]
    anew = background.do(by_chat.complete(TextRequest(messages, begun, 8))).text
    assert anew.startswith(begun)
    assert whole.text.startswith(anew)
    begun = boundaries(whole.text)[-1]
    rest = background.do(by_prompt.complete(TextRequest(messages, begun, LONGEST)))
    assert begun + rest.text == whole.text
    assert whole.ended
    assert rest.ended
    for engine in (by_chat, by_prompt):
        background.do(engine.close())
