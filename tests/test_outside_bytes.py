"""Whatever bytes come from outside, only our own errors come out.

Valid bytes with a few edits, and arbitrary ones, for every reader of a frame, a reply, a request or
a file. More of each: `pytest tests/test_outside_bytes.py --hypothesis-profile=faults`. Model files
are tried by `benchmarks.faults`, since each costs a process.
"""

import asyncio
import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast, get_args

import huggingface_hub
import msgspec
import pyarrow
import pyarrow.parquet
import pytest
from huggingface_hub.hf_api import ModelInfo
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from edgewise.addresses import bundled, checkpoint, resolve
from edgewise.cloud.registry import engine_by_ids
from edgewise.edge.base import Step
from edgewise.engines.base import Engine
from edgewise.errors import CloudError, CloudProtocolError, EdgewiseError, UsageError
from edgewise.keys.keys import read_keys
from edgewise.routers.card import CONFIG, WEIGHTS, read_card
from edgewise.routers.named import identity_of, router_of
from edgewise.sampling import Sampling
from edgewise.settings import load
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from edgewise.wire import protocol
from edgewise_lab.evaluation import store
from edgewise_lab.evaluation.tasks import commonsenseqa, gsm8k, humaneval, records
from edgewise_lab.evaluation.tasks.base import TRAINED_ON, Grading, trained_digests
from edgewise_lab.evaluation.tasks.named import open_task
from edgewise_lab.training.collect import COLUMNS, Columns, Sample, collect_features
from edgewise_lab.training.labels.base import Labelled
from tests.doubles.engine_dialects import DIALECTS, Dialect, Writing
from tests.outside_bytes import bytes_like, json_like, lines_like
from tests.server.in_process import ASK, CHAT, app

VOCABULARY = 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outside")


# Frames.

FROM_DEVICE = [
    protocol.Open(1, "0" * 16, "s"),
    protocol.Prefetch(0, [1, 2, 3], 7),
    protocol.Ask(1, 3, [4], 9, n=4, deadline=100, top=5, sampling=(0.7, 40, 0.9, 0.05, 3)),
    protocol.Cancel(1),
    protocol.Close(),
]
FROM_GATEWAY = [
    protocol.Opened(1, "s", 3, 7, "vllm", "model"),
    protocol.Reply(1, (4, 5), (-0.5, None), top=(((4, -0.5), (6, -1.5)), ()), cached=3, computed=1),
    protocol.NeedFull(1),
    protocol.Failed(1, "timeout", "too late", retry_after=100, request_id="r"),
]


@given(bytes_like(*map(protocol.encode, FROM_DEVICE)))
def test_frames_from_a_device(data: bytes) -> None:
    with suppress(CloudProtocolError, UsageError):
        frame = protocol.from_device(data)
        if isinstance(frame, protocol.Ask):
            protocol.unpacked(frame.sampling)
        if isinstance(frame, protocol.Ask | protocol.Prefetch):
            ledger = protocol.Ledger()
            ledger.put(frame.position, frame.ids)
            assert 0 <= ledger.checksum < 1 << 61


@given(bytes_like(*map(protocol.encode, FROM_GATEWAY)))
def test_frames_from_a_gateway(data: bytes) -> None:
    with suppress(CloudProtocolError):
        protocol.from_gateway(data)


# Engines.

WRITING = Writing(
    ids=[4, 5], logprobs=[-0.5, -1.5], top=[[(4, -0.5)], [(5, -1.5)]], cached=3, took=0.1
)
MODELS: Any = {"data": [{"id": "m", "owned_by": "vllm"}]}
TOKENS: Any = {"tokens": [1, 2, 3]}


VALID: dict[Dialect, Any] = {name: dialect.reply(WRITING) for name, dialect in DIALECTS.items()}
VALID["vllm"] |= MODELS
"""A reply that is as it should be, with what the engine says of its models."""


def answering(dialect: Dialect, reply: bytes) -> Engine:
    """An engine of this dialect whose every reply this is."""

    async def send(*_: object, **__: object) -> bytes:
        return reply

    engine: Any = engine_by_ids(dialect, "http://127.0.0.1:9")
    engine.send = send
    return cast(Engine, engine)


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
def test_an_engines_replies(dialect: Dialect, data: st.DataObject) -> None:
    engine = answering(dialect, data.draw(json_like(VALID[dialect])))
    with suppress(CloudError):
        completion = asyncio.run(engine.complete([1, 2, 3, 4], 2, Sampling()))
        completion.validate(asked=2, prompt=4, size=VOCABULARY)
        assert len(completion.ids) <= 2
        assert all(0 <= token < VOCABULARY for token in completion.ids)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_valid_replies_are_read_whole(dialect: Dialect) -> None:
    """So that what is changed in them is looked at."""
    engine = answering(dialect, json.dumps(VALID[dialect]).encode())
    completion = asyncio.run(engine.complete([1, 2, 3, 4], 2, Sampling()))
    completion.validate(asked=2, prompt=4, size=VOCABULARY)
    assert completion.ids == (4, 5)
    assert [top[0].id for top in completion.top] == [4, 5]
    assert completion.cached == 3


def test_an_id_of_five_thousand_digits() -> None:
    """More than Python turns into a number."""
    reply = json.dumps(VALID["vllm"]).replace("token_id:4", "token_id:" + "9" * 5000)
    with pytest.raises(CloudProtocolError):
        asyncio.run(answering("vllm", reply.encode()).complete([1, 2, 3, 4], 2, Sampling()))


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
def test_what_an_engine_says_of_itself(dialect: Dialect, data: st.DataObject) -> None:
    engine = answering(dialect, data.draw(json_like(MODELS, TOKENS)))
    for ask in (engine.describe, lambda: engine.tokenize("a"), engine.probe):
        with suppress(CloudError):
            asyncio.run(ask())  # type: ignore[arg-type]


# Files of a gateway, of settings, of questions.

Reader = Callable[[Path], object]


def reading(path: Path, data: bytes, read: Reader) -> None:
    path.write_bytes(data)
    told = ""
    try:
        read(path)
    except UsageError as error:
        told = str(error)
    assert "\n" not in told


LIMITS = {"consults_per_second": 50.0, "tokens_per_day": 0, "sessions": 16}
KEY: Any = {"name": "laptop", "sha256": "0" * 64, "created": "2026-01-01", **LIMITS}
TOML = b"""edge = "bundled"
cloud-share = 0.05
max-tokens = 64
gpu-layers = "auto"
[more]
at = 2026-01-01T00:00:00Z
"""
CHOICES = {"answer": "(4|four)", "choices": ["(4|four)", "5"]}
QUESTION: Any = {"id": "1", "family": "sums", "prompt": "2 + 2?", **CHOICES}
CONVERSATION: Any = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}
PLACES = [{"label": "A", "text": "here"}, {"label": "B", "text": "there"}]
WHERE = {"stem": "Where?", "choices": PLACES}
COMMONSENSE: Any = {"id": "1", "question": WHERE, "answerKey": "A"}
PROBLEM: Any = {"question": "2 + 2?", "answer": "2 + 2 is <<2+2=4>>4\n#### 4"}
FUNCTION = {
    "task_id": "1",
    "prompt": "def f():",
    "canonical_solution": " return 1",
    "test": "def check(f): pass",
    "entry_point": "f",
}
SAMPLE, SHARD = Sample("1", (1, 2), (3, 4), True), "answer-00000.safetensors"
LABELLED: Any = {"question": "1", "values": [0.0, 1.0], "router": "entropy"}


def of_task(name: str) -> Reader:
    """Reads a task's published file."""
    return lambda path: open_task(name, data=path)


FILES: dict[str, tuple[st.SearchStrategy[bytes], Reader]] = {
    "keys.json": (json_like({"format": 1, "keys": [KEY]}), read_keys),
    "edgewise.toml": (
        bytes_like(TOML, TOML.partition(b"[")[0]),
        lambda path: load({}, environment={}, folder=path.parent),
    ),
    **{
        f"{check}.jsonl": (
            lines_like(QUESTION, CONVERSATION),
            lambda path, check=check: open_task(str(path), check=check),
        )
        for check in get_args(Grading)
    },
    "packed.jsonl.gz": (
        bytes_like(gzip.compress(json.dumps(QUESTION).encode())),
        lambda path: open_task(str(path)),
    ),
    "commonsenseqa.jsonl": (lines_like(COMMONSENSE), of_task("commonsenseqa")),
    "humaneval.jsonl": (lines_like(FUNCTION), of_task("humaneval")),
    "gsm8k.jsonl": (lines_like(PROBLEM), of_task("gsm8k")),
    # What an evaluation or a training left.
    "samples.jsonl": (lines_like(msgspec.to_builtins(SAMPLE)), lambda x: store.read(x, Sample)),
    "labels.jsonl": (lines_like(LABELLED), lambda path: store.read(path, Labelled)),
}


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_a_file(folder: Path, name: str, data: st.DataObject) -> None:
    like, read = FILES[name]
    reading(folder / name, data.draw(like), read)


def parquet() -> bytes:
    """A published file of each task in one, so that either reads some of it."""
    rows = {
        "id": ["1"],
        "question": ["Where?"],
        "choices": [{"label": ["A", "B"], "text": ["here", "there"]}],
        "answerKey": ["A"],
        "answer": ["2 + 2 is 4\n#### 4"],
        **{name: [value] for name, value in FUNCTION.items()},
    }
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(rows), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.deep
@given(bytes_like(parquet()))
def test_a_hub_datasets_file(folder: Path, data: bytes) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(records.Repository, "file", lambda *_: folder / "rows.parquet")
        for kind in (gsm8k.Gsm8k, commonsenseqa.CommonsenseQa, humaneval.HumanEval):
            reading(folder / "rows.parquet", data, lambda _, kind=kind: kind().open("test"))


@given(data=st.data())
def test_columns_of_a_training(shard: bytes, folder: Path, data: st.DataObject) -> None:
    def read(path: Path) -> None:
        assert whole(collect_features([SAMPLE], "answer", ScriptedEdge(noise()), path.parent))

    place = folder / "columns"
    place.mkdir(exist_ok=True)
    reading(place / SHARD, data.draw(bytes_like(shard)), read)


def whole(found: Columns) -> bool:
    rows = len(found.written)
    columns = (found.sample, found.proposed, *found.inputs.values())
    return set(found.inputs) == set(COLUMNS) and all(len(column) == rows for column in columns)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("shard")
    collect_features([SAMPLE], "answer", ScriptedEdge(noise()), place)
    return (place / SHARD).read_bytes()


# A router's folder.

HELD = {name: (bundled("router") / name).read_bytes() for name in (CONFIG, WEIGHTS, TRAINED_ON)}


@pytest.fixture(scope="module")
def step() -> Step:
    """Of a model with the bundled edge's hidden size."""
    from edgewise.edge.base import Needs
    from edgewise.edge.llamacpp import LlamaModel

    with LlamaModel(bundled("edge")) as model:
        every = Needs.ENTROPY | Needs.TOP | Needs.LOGITS | Needs.HIDDEN
        session = model.session(every, top=64)
        session.open([1, 2, 3])
        return session.step()


@pytest.mark.parametrize("changed", [CONFIG, WEIGHTS])
@given(data=st.data())
def test_a_routers_folder(folder: Path, step: Step, changed: str, data: st.DataObject) -> None:
    place = folder / "router"
    place.mkdir(exist_ok=True)
    like = json_like(json.loads(HELD[CONFIG])) if changed == CONFIG else bytes_like(HELD[WEIGHTS])
    for name, held in HELD.items():
        (place / name).write_bytes(held)

    def read(path: Path) -> None:
        card = read_card(path.parent)
        trained_digests(path.parent)
        card.threshold(0.05)
        card.probability_at(0.5)
        if card.kind == "mlp":
            identity_of(card, path.parent)
            router = router_of(card, path.parent)
            if card.hidden_size == json.loads(HELD[CONFIG])["hidden_size"]:
                assert 0 <= router.score(step) <= 1

    reading(place / changed, data.draw(like), read)


# Requests, and a hub.


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with app() as found:
        yield found


SAMPLED = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 1}
OWN = {"edgewise": {"provenance": True, "pending": False}}
MORE = {"max_tokens": 2, "stop": ["x"], "logprobs": 2, "n": 1, "user": "u", "stream": False}
FULL: Any = {**ASK, **SAMPLED, **MORE, **OWN}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "sky: "}]},
    {"role": "assistant", "content": "blue", "tool_calls": []},
    *CHAT["messages"],
]
CHAT_MORE = {"logprobs": True, "top_logprobs": 2, "response_format": {"type": "text"}}
FULL_CHAT: Any = {**SAMPLED, **MORE, **OWN, **CHAT_MORE, "messages": MESSAGES}
BODIES = {
    "text": ("completions", FULL),
    "ids": ("completions", FULL | {"prompt": [1, 2, 3]}),
    "stream": ("completions", FULL | {"stream": True}),
    "chat": ("chat/completions", FULL_CHAT),
}


@pytest.mark.parametrize("form", BODIES)
@given(data=st.data())
def test_requests(client: TestClient, form: str, data: st.DataObject) -> None:
    path, body = BODIES[form]
    headers = {"Content-Type": "application/json"}
    response = client.post(f"/v1/{path}", content=data.draw(json_like(body)), headers=headers)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["message"]
        assert "\n" not in error["message"]
    assert "internal_error" not in response.text


SIBLINGS = [{"rfilename": "zoo-Q4_K_M.gguf", "size": 5}, {"rfilename": "../zoo-Q8_0.gguf"}]
KNOWN = {"id": "own/zoo", "sha": "0" * 40, "private": False, "tags": ["gguf"]}
LISTING: Any = {**KNOWN, "siblings": SIBLINGS, "lastModified": "2026-01-01T00:00:00.000Z"}


@contextmanager
def hub_that_says(said: Callable[[], ModelInfo]) -> Iterator[None]:
    def asked(*_: object, **__: object) -> None:
        raise OSError("nothing is downloaded")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: said())
        patched.setattr(huggingface_hub, "get_hf_file_metadata", asked)
        patched.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        yield


@given(json_like(LISTING))
def test_a_hubs_listing(data: bytes) -> None:
    with hub_that_says(lambda: ModelInfo(**json.loads(data))):
        for address in ("own/zoo", "own/zoo:Q8_0"):
            with pytest.raises(EdgewiseError) as caught:
                resolve(address, "edge")
            assert "\n" not in str(caught.value)


@given(st.text(max_size=60) | st.from_regex(r"(hf://)?[\w.-]+/[\w.-]+(@[\w./-]+)?[:/]?[\w./\\-]*"))
def test_names_that_may_be_on_a_hub(name: str) -> None:
    def nobody() -> ModelInfo:
        raise OSError("nobody answers")

    with hub_that_says(nobody):
        for find in (lambda: resolve(name, "edge"), lambda: checkpoint(name)):
            with suppress(EdgewiseError):
                find()
