"""All ids of the engines behind a gateway: compared by devices, through it."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx2
import pytest

from edgewise.cloud import gateway as device_side
from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.connect import connect
from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.base import Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines.base import NOBODY, Client
from edgewise.errors import OtherVocabulary, VocabularyMismatch
from edgewise.gateway import app
from edgewise.gateway import fleet as fleets
from edgewise.prompts import Prompt
from edgewise.testing.scripted_edge import ByteTokenizer
from tests import models
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.doubles import PlainEngine
from tests.gateway.processes import until
from tests.gateway.running import BYTES, Running, device, gateway
from tests.llama_server_process import llama_server
from tests.server_process import free_port

ALL = "has the same ids for 5 strings; all 258 ids stand for the same"


def told(running: Running, tokenizer: Tokenizer = BYTES) -> str:
    with device(running, tokenizer=tokenizer) as cloud:
        return cloud.vocabulary_check


def post(running: Running, body: object, key: str = "") -> httpx2.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx2.post(f"{running.url}/detokenize", json=body, headers=headers, trust_env=False)


@pytest.mark.deep
def test_a_real_engine_behind_it(model_folder: Path) -> None:
    """Two generations of a family, whose fixed strings have the same ids."""
    older, newer = (
        models.write_transformer(model_folder / f"behind{name}.gguf", models.qwen(name))
        for name in ("2.5", "3")
    )
    with (
        llama_server(newer) as url,
        gateway([url]) as running,
        LlamaModel(newer, threads=1, context=32) as model,
        LlamaModel(older, threads=1, context=32) as other,
    ):
        assert "all 277 ids" in told(running, model.tokenizer)
        with pytest.raises(VocabularyMismatch, match=r"(tool_response|think)>"):
            told(running, other.tokenizer)
        # Whoever has the cloud's tokenizer speaks its ids.
        reached = connect(running.url, other.tokenizer, own=model.tokenizer)
        assert reached.boundaries is not None
        assert "all 277 ids" in reached.vocabulary_check
        reached.close()


def test_a_second_device_costs_nothing(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nor do looks at it.
    monkeypatch.setattr(fleets, "HEALTH_SECONDS", 3600.0)
    with gateway([engine.url]) as running:
        assert ALL in told(running)
        asked = engine.detokenized
        assert ALL in told(running)
        assert engine.detokenized == asked
    # As a gateway of before, which has no such path.
    engine.detokenizes = False
    with gateway([engine.url]) as running:
        assert "it does not detokenise" in told(running)


class Late(PlainEngine):
    """Detokenises as a vocabulary does that has the same strings."""

    def __init__(self, name: str, end: str = "<end>") -> None:
        super().__init__(name)
        self.tokenizer = ByteTokenizer(end)

    async def detokenize(self, ids: Sequence[int], client: Client = NOBODY) -> str | None:
        known = self.tokenizer
        pieces = {token: known.piece(token) for token in range(256)}
        pieces |= {token: text.encode() for token, text in known.special.items()}
        return b"".join(pieces.get(token, b"") for token in ids).decode("utf-8", "replace")


class Tidy(Late):
    """As transformers where a tokenizer's config asks for it."""

    async def detokenize(self, ids: Sequence[int], client: Client = NOBODY) -> str | None:
        text = await super().detokenize(ids)
        return text and text.replace(" .", ".").replace(" ,", ",")


@pytest.mark.parametrize("first", [True, False])
def test_engines_of_two_kinds_may_write_the_same_differently(first: bool) -> None:
    engines = [Tidy("one"), Late("two")]
    with gateway(engines if first else engines[::-1]) as running:
        assert post(running, {"tokens": list(b"a .b")}).json()["content"] in ("a .b", "a.b")
        assert ALL in told(running)
    with gateway([engines[0], Late("other", "<other>")]) as running:
        how = told(running)
        assert "plain engine" in how
        assert "different vocabularies" in how


def test_an_engine_that_comes_later_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "HEALTH_SECONDS", 0.2)
    late = Late("two", "<other>")
    late.down = RuntimeError("starting")
    with gateway([Late("one"), late]) as running:
        assert ALL in told(running)
        late.down = None
        looks = late.looks
        until(lambda: late.looks >= looks + 2)
        assert running.gateway.fleet.up == 1
        late.tokenizer = ByteTokenizer()
        until(lambda: running.gateway.fleet.up == 2)


def test_another_gateway_is_found_out(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_side, "FRESH_SECONDS", -1.0)
    port = free_port()
    with gateway([engine.url], port=port) as running:
        cloud = GatewayCloud(running.url)
        cloud.check_vocabulary(BYTES)
        session = cloud.open(Prompt((1,)))
        assert session.ask(ConsultRequest([1], 1, 20)).result().ids
    engine.tokenizer = ByteTokenizer("<other>")
    other = pytest.raises(OtherVocabulary, match="other text")
    with gateway([engine.url], port=port), other:
        session.ask(ConsultRequest([1], 1, 20)).result()
    cloud.close()


def test_an_engine_that_stalls(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "DETOKENIZE_SECONDS", 0.2)
    engine.aside = lambda path: "hang" if path == "/detokenize" else None
    with gateway([engine.url]) as running:
        assert post(running, {"tokens": [72]}).status_code == 503
        how = told(running)
        assert how.startswith("the gateway's llama-server engine")
        assert "not compared" in how


def test_keys_may_ask_so_much(engine: ScriptedEngine, keys: Path, add: Callable[..., str]) -> None:
    secret = add(ids_per_second=30)
    with gateway([engine.url], keys=keys) as running:
        assert post(running, {"tokens": [72]}).status_code == 401
        assert post(running, {"tokens": [72]}, secret).json() == {"content": "H"}
        assert post(running, {"tokens": [72] * 1000}, secret).status_code == 200
        owing = post(running, {"tokens": [72]}, secret)
        assert owing.status_code == 429
        assert int(owing.headers["Retry-After"]) > 0


def test_what_is_no_request(engine: ScriptedEngine) -> None:
    """An id that the model has not, too: llama-server answers with an error, others do worse."""
    engine.size = 258
    none: list[object] = [{}, {"tokens": [1] * (app.MOST_DETOKENIZED + 1)}]
    none += [
        {"tokens": said} for said in ([], ["a"], [-1], [258], [1 << 40], "x", "x" * app.MAX_BODY)
    ]
    with gateway([engine.url]) as running:
        for body in none:
            assert post(running, body).status_code == 400
        assert engine.detokenized == 0
        assert ALL in told(running)


def test_a_device_that_leaves(engine: ScriptedEngine, caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /detokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n{"
    with gateway([engine.url]) as running:
        address = running.url.removeprefix("http://").split(":")
        with socket.create_connection((address[0], int(address[1])), 30) as leaving:
            leaving.sendall(head)
        assert post(running, {"tokens": [72]}).status_code == 200
    # The gateway has ended, and so has what it did for the device.
    assert [one for one in caplog.records if one.exc_info] == []
