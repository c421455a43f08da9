"""What every API that takes text guarantees: scripted in each dialect, and real servers by text."""

import os
import subprocess
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from edgewise.addresses import bundled
from edgewise.edge.base import Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines.http import HttpEngine
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.engines.text import GoneOn, TextEngine
from edgewise.engines.text_dialects import TEXT_DIALECTS, CompletionsText
from edgewise.engines.vllm import VllmEngine
from edgewise.errors import CloudRejected
from edgewise.evaluation.tasks.pocketqa import pocketqa
from edgewise.prompts import Message, prompt_ids
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from edgewise.testing.scripted_text import ScriptedText, numbers
from edgewise.testing.text_wishes import TEMPLATE
from tests.background import Background
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

    def go_on(self, answer: str, n: int, sampling: Sampling = GREEDY) -> GoneOn:
        return self.do(self.engine.go_on(self.messages, answer, n, sampling))

    def rest(self, answer: str, n: int) -> str:
        """What it adds behind `answer`."""
        text = self.go_on(answer, n).text
        return text.removeprefix(answer) if self.echoes else text


LLAMA_SERVER = {
    "llama-server-text at llama-server": "llama-server-text",
    "chat at llama-server": "chat",
    "completions at llama-server": "completions",
}
VLLM = {
    "vllm-text at vLLM": "vllm-text",
    "completions at vLLM": "completions",
}
SERVERS = [*TEXT_DIALECTS, *LLAMA_SERVER]
if "VLLM_PYTHON" in os.environ:  # see `make test-vllm`
    SERVERS += VLLM


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
def vllm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled cloud model as vLLM loads it."""
    folder = tmp_path_factory.mktemp("vllm-text")
    command = [os.environ["VLLM_PYTHON"], str(Path(__file__).parents[1] / "vllm_model.py")]
    subprocess.run([*command, str(bundled("cloud")), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Real servers by name, started when they are needed first."""
    with ExitStack() as stack:
        running: dict[str, str] = {}

        def started(name: str) -> str:
            if name not in running and name == "llama-server":
                running[name] = stack.enter_context(llama_server(bundled("cloud")))
            elif name not in running:
                model = request.getfixturevalue("vllm_model")
                server = vllm(Path(os.environ["VLLM_PYTHON"]), model)
                running[name] = stack.enter_context(server)
            return running[name]

        yield started


def templated() -> ByteTokenizer:
    """The tokenizer that goes with a scripted API by completions."""
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def opened(dialect: str, url: str, tokenizer: Tokenizer) -> TextEngine:
    if dialect == "completions":
        return CompletionsText(url, tokenizer=tokenizer)
    return TEXT_DIALECTS[dialect](url)


@pytest.fixture(params=SERVERS)
def api(
    request: pytest.FixtureRequest, background: Background, own: LlamaModel, servers: Any
) -> Iterator[Api]:
    name: str = request.param
    if name in TEXT_DIALECTS:
        server = ScriptedText(name)
        engine = opened(name, server.url, templated())
        made = Api(name, engine, background, COUNTING, numbers(COUNTING, ""), server)
        yield made
        made.do(engine.close())
        server.close()
        return
    dialect = (LLAMA_SERVER | VLLM)[name]
    url = servers("llama-server" if name in LLAMA_SERVER else "vLLM")
    engine = opened(dialect, url, own.tokenizer)
    messages = [Message("user", pocketqa().questions[0].prompt)]
    by_ids = LlamaServerEngine(url) if name in LLAMA_SERVER else VllmEngine(url)
    written = background.do(answered(by_ids, own.tokenizer, messages))
    echoes = name == "chat at llama-server"
    made = Api(name, engine, background, messages, written, echoes=echoes)
    yield made
    made.do(engine.close())


async def answered(engine: HttpEngine, tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    """The whole answer, in the ids of the model's own vocabulary."""
    try:
        ids = prompt_ids(tokenizer, messages)
        verdict = await engine.complete(ids, LONGEST, GREEDY)
        ids = [token for token in verdict.ids if token not in tokenizer.eos_ids]
        return b"".join(tokenizer.piece(token) for token in ids).decode()
    finally:
        await engine.close()


def seams(answer: str) -> list[str]:
    """Its beginnings of whole words."""
    words = answer.split(" ")
    return [" ".join(words[:count]) for count in range(1, len(words))]


def test_it_says_which_model_it_serves(api: Api) -> None:
    assert api.do(api.engine.describe()).model


def test_an_answer_begins_as_by_ids(api: Api) -> None:
    gone = api.go_on("", LONGEST)
    assert gone.text == api.answer
    assert gone.ended


def test_behind_any_word_it_goes_on_with_the_words_that_ids_bring(api: Api) -> None:
    for begun in seams(api.answer):
        assert begun + api.rest(begun, LONGEST) == api.answer


def test_it_writes_no_more_tokens_than_asked(api: Api) -> None:
    begun = seams(api.answer)[0]
    gone = api.go_on(begun, 2)
    assert not gone.ended
    assert gone.written == 2
    rest = gone.text.removeprefix(begun) if api.echoes else gone.text
    assert rest
    assert (begun + rest) != api.answer
    assert api.answer.startswith(begun + rest)


def test_what_ends_the_answer_is_told(api: Api) -> None:
    gone = api.go_on(api.answer, 8)
    assert gone.ended
    assert not (gone.text.removeprefix(api.answer) if api.echoes else gone.text)


def test_the_meter_counts_what_was_sent_before(api: Api) -> None:
    begun = seams(api.answer)[-1]
    api.go_on(begun, 1)
    again = api.go_on(begun, 1)
    assert again.prompt is not None
    assert again.prompt > 0
    if again.cached is None:
        assert api.name == "ollama"
    else:
        assert 0 < again.cached <= again.prompt


def test_a_seed_repeats_a_draw(api: Api) -> None:
    sampling = Sampling(temperature=1.5, seed=7)
    begun = seams(api.answer)[0]
    assert api.go_on(begun, 4, sampling).text == api.go_on(begun, 4, sampling).text


def test_it_works_again_once_it_was_closed(api: Api) -> None:
    begun = seams(api.answer)[0]
    api.do(api.engine.close())
    api.do(api.engine.close())
    assert api.rest(begun, 1)


def test_a_prompt_beyond_the_context_is_rejected(api: Api) -> None:
    if api.scripted is not None:
        pytest.skip("a script has no context")
    long = [Message("user", api.messages[0].content * 30)]
    with pytest.raises(CloudRejected, match="context"):
        api.do(api.engine.go_on(long, "", 1, GREEDY))
