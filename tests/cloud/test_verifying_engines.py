"""Engines verify ids that an edge wrote: a real llama-server; vLLM and SGLang by scripts.

SGLang cannot be run here: its replies have the form of its source (0.5.23). Those of vLLM have that
of a real one (0.32), which `make test-vllm` runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgewise.addresses import bundled
from edgewise.cloud.connect import open_engine
from edgewise.cloud.engine import EngineCloud
from edgewise.completion import LEAST, Completion, Verified
from edgewise.edge.base import Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines.base import NOBODY, Client
from edgewise.errors import CloudProtocolError, CloudRejected, CloudUnavailable
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.doubles.engine_dialects import DIALECTS, Dialect
from tests.doubles.scripted_engine import Edited, Misdeed, ScriptedEngine, said
from tests.llama_server_process import llama_server
from tests.smollm2_file import smollm2_or_skip

NAMES: tuple[Dialect, ...] = ("llama-server", "vllm", "sglang")
PREFIX = [1, 2, 3]
GREEDY = Sampling()


@pytest.fixture(params=NAMES)
def server(request: pytest.FixtureRequest) -> Iterator[ScriptedEngine]:
    """It would always write 97, then 98, ..., which has e^-5, e^-6, ... of the probability."""
    with closing(ScriptedEngine(dialect=request.param, script=lambda ids: 97)) as made:
        yield made


@pytest.fixture
def cloud(server: ScriptedEngine) -> Iterator[EngineCloud]:
    made = open_engine(server.url, engine=server.speaks)
    assert isinstance(made, EngineCloud)
    yield made
    made.close()


def verify(
    cloud: EngineCloud,
    ids: Sequence[int],
    count: int,
    *,
    sampling: Sampling = GREEDY,
    client: Client = NOBODY,
) -> Completion:
    found = cloud.submit(cloud.engine.verify(ids, count, sampling, client), 60).result()
    assert (found.ids, found.logprobs) == ((), ())
    found.validate(asked=0, prompt=len(ids), verify=count)
    return found


def test_a_block_is_verified_in_one_request(server: ScriptedEngine, cloud: EngineCloud) -> None:
    cloud.check_vocabulary(ByteTokenizer())
    assert cloud.engine.verifies
    before = server.asked
    found = verify(cloud, [*PREFIX, 97, 5, 98, 97], 4, client=Client("s", "pepper"))
    assert server.asked == before + 1
    listed = LEAST if server.speaks != "vllm" else -0.1 - 3 - 19
    told = [(-0.1, 97), (listed, 97), (-4.1, 97), (-0.1, 97)]
    assert [(one.logprob, one.id) for one in found.verified] == told
    assert {one.best for one in found.verified} == {-0.1}
    body = server.requests[-1].body
    if server.speaks == "llama-server":
        assert body["prompt"] == PREFIX
        assert (found.prompt, found.cached, found.computed) == (3, 2, 1)
        return
    assert body["cache_salt"] == "pepper"
    assert body["temperature"] == 0
    if server.speaks == "vllm":
        ids = [*PREFIX, 97, 5, 98]
        assert body["prompt"] == [ids[:end] for end in (3, 4, 5, 6)]
        assert (found.prompt, found.cached, found.computed) == (3 + 4 + 5 + 6, None, None)
    else:
        assert (body["input_ids"], body["logprob_start_len"]) == ([*PREFIX, 97, 5, 98, 97], 2)
        assert (found.prompt, found.cached, found.computed) == (7, 2, 5)


def test_one_id_is_a_block_and_a_temperature_changes_nothing(
    server: ScriptedEngine, cloud: EngineCloud
) -> None:
    drawn = Sampling(temperature=1.5, seed=3)
    assert verify(cloud, [*PREFIX, 98], 1, sampling=drawn).verified == (Verified(-4.1, 97, -0.1),)


def edited(how: str) -> Edited:
    """A reply with one thing wrong, whatever its dialect."""

    def change(data: bytes) -> bytes:
        reply = msgspec.json.decode(data)
        meta = reply.get("meta_info", {})
        rows = reply.get("completion_probabilities") or reply.get("choices")
        if how == "short":
            if rows:
                rows.pop()
            else:
                meta["input_token_logprobs"].pop()
        elif how == "no rows":
            reply |= {"completion_probabilities": [], "choices": []}
            meta |= {"input_token_logprobs": [], "input_top_logprobs": []}
        elif how == "no candidates":
            meta["input_top_logprobs"] = [None] * 4
            for row in rows or []:
                row.get("logprobs", {})["top_logprobs"] = [None]
                row["top_logprobs"] = []
        elif how == "few candidates":
            meta["input_top_logprobs"] = [[] for _ in range(4)]
            for row in rows or []:
                row.get("logprobs", {})["top_logprobs"] = [{"token_id:97": -0.1}]
                row["top_logprobs"] = []
        elif how == "no logprob":
            meta["input_token_logprobs"] = [[None, one, None] for one in (3, 97, 5, 98)]
            for row in rows or []:
                row["logprob"] = None
                row["logprobs"] = None if "index" in row else {}
        elif how == "other ids":
            meta["input_token_logprobs"] = [[-1.0, 7, None]] * 4
            for row in rows or []:
                row["id"], row["index"] = 7, 0
        return msgspec.json.encode(reply)

    return Edited(change)


WRONG = ["short", "no rows", "no candidates", "few candidates", "no logprob", "other ids"]


@pytest.mark.parametrize("how", WRONG)
def test_what_is_not_told_of_every_id_is_refused(
    server: ScriptedEngine, cloud: EngineCloud, how: str
) -> None:
    server.fault = lambda number: edited(how)
    with pytest.raises(CloudProtocolError):
        verify(cloud, [*PREFIX, 97, 5, 98], 3)


def test_a_busy_engine_is_not_asked_for_each(server: ScriptedEngine, cloud: EngineCloud) -> None:
    server.fault = lambda number: "busy"
    with pytest.raises(CloudUnavailable):
        verify(cloud, [*PREFIX, 97, 5, 98], 3)
    assert server.asked <= 2
    server.fault = lambda number: "reset"
    with pytest.raises(CloudUnavailable):
        verify(cloud, [*PREFIX, 97, 5, 98], 3)
    assert server.asked <= 4


@pytest.mark.parametrize("fault", [edited("no candidates"), "declined", "error"])
def test_a_llama_server_that_writes_no_block_is_asked_for_each_id(fault: Misdeed) -> None:
    """It drafted most of it; it is an old one; an end token is inside."""
    with closing(ScriptedEngine(script=lambda ids: 97)) as server:
        server.fault = lambda number: None if number else fault
        cloud = open_engine(server.url)
        assert isinstance(cloud, EngineCloud)
        with closing(cloud):
            found = verify(cloud, [*PREFIX, 97, 5, 98], 3)
        assert [one.logprob for one in found.verified] == [-0.1, LEAST, -4.1]
        assert {one.id for one in found.verified} == {97}
        assert (found.prompt, found.cached, found.computed) == (12, 9, 3)
        assert server.asked == 4


TEXT = list("a\N{GRINNING FACE}b\N{CJK UNIFIED IDEOGRAPH-6F22}".encode())


@pytest.mark.parametrize("count", [1, 2, 3, 5, len(TEXT)])
def test_tokens_inside_a_character_are_verified(count: int) -> None:
    """A llama-server reports nothing of a token that it wrote there."""
    with closing(ScriptedEngine(script=lambda ids: TEXT[len(ids) - len(PREFIX)])) as server:
        cloud = open_engine(server.url)
        assert isinstance(cloud, EngineCloud)
        with closing(cloud):
            for end in range(count, len(TEXT) + 1):
                found = verify(cloud, [*PREFIX, *TEXT[:end]], count).verified
                assert [one.id for one in found] == TEXT[end - count : end]
                assert {(one.logprob, one.best) for one in found} == {(-0.1, -0.1)}


def test_an_unlikely_token_inside_a_character_is_rejected() -> None:
    """It has at most the probability of the last that is listed."""
    with closing(ScriptedEngine(script=lambda ids: 97)) as server:
        cloud = open_engine(server.url)
        assert isinstance(cloud, EngineCloud)
        with closing(cloud):
            found = verify(cloud, [*PREFIX, 97, TEXT[1], 98], 3).verified
    assert [one.id for one in found] == [97, 97, 97]
    assert [one.logprob for one in found] == [-0.1, -0.1 - 3 - 99, -4.1]


def test_the_last_id_of_a_vocabulary_has_another_name_at_sglang() -> None:
    size = ByteTokenizer().size
    with closing(ScriptedEngine(dialect="sglang", script=lambda ids: size - 1)) as server:

        def renamed(data: bytes) -> bytes:
            reply = msgspec.json.decode(data)
            for row in reply["meta_info"]["input_token_logprobs"]:
                row[1] = 0 if row[1] == size - 1 else row[1]
            return msgspec.json.encode(reply)

        server.fault = lambda number: Edited(renamed)
        cloud = open_engine(server.url, engine="sglang")
        assert isinstance(cloud, EngineCloud)
        with closing(cloud):
            found = verify(cloud, [*PREFIX, 5, size - 1], 2).verified
    assert [one.id for one in found] == [size - 1, size - 1]
    assert found[1].ratio == 1


def test_no_probability_is_a_logprob_that_travels() -> None:
    """llama-server sends the least number there is."""
    row = {"id": 5, "logprob": -3.4e38, "top_logprobs": [{"id": 97, "logprob": 0.0}]}
    reply = {"tokens": [5], "completion_probabilities": [row]}
    with closing(ScriptedEngine()) as server:
        server.replies[DIALECTS["llama-server"].path] = said(reply)
        cloud = open_engine(server.url)
        assert isinstance(cloud, EngineCloud)
        with closing(cloud):
            assert verify(cloud, [*PREFIX, 5], 1).verified == (Verified(LEAST, 97, 0.0),)


class Real:
    """A llama-server, and its model in this process."""

    def __init__(self, cloud: EngineCloud, model: LlamaModel) -> None:
        self.cloud, self.model, self.ends = cloud, model, sorted(model.tokenizer.eos_ids)

    def told(self, ids: Sequence[int], count: int) -> list[tuple[float, int, float]]:
        """What the model in this process says of each."""
        session, told = self.model.session(Needs.LOGITS), []
        session.open(ids[:-count])
        for token in ids[-count:]:
            step = session.step()
            best = int(step.top(1)[0][0])
            told.append((float(step.logprob(token)), best, float(step.logprob(best))))
            session.extend([token])
        session.close()
        return told

    def agrees(self, ids: Sequence[int], count: int) -> Completion:
        found = verify(self.cloud, ids, count)
        expected = self.told(ids, count)
        assert [one.id for one in found.verified] == [best for _, best, _ in expected]
        for one, (logprob, _, best) in zip(found.verified, expected, strict=True):
            np.testing.assert_allclose((one.logprob, one.best), (logprob, best), atol=1e-2)
        return found


@pytest.fixture(scope="module", params=["bundled", "smollm2"])
def real(request: pytest.FixtureRequest) -> Iterator[Real]:
    path: Path = bundled("cloud") if request.param == "bundled" else smollm2_or_skip()
    with LlamaModel(path, threads=1, gpu_layers=0) as model, llama_server(path) as url:
        cloud = open_engine(url)
        assert isinstance(cloud, EngineCloud)
        with closing(cloud):
            yield Real(cloud, model)


@pytest.mark.deep
class TestLlamaServer:
    @pytest.fixture
    def prompt(self, real: Real) -> list[int]:
        return real.model.tokenizer.encode_prompt("Tell me about copper.")

    @pytest.fixture
    def block(self, real: Real) -> list[int]:
        return real.model.tokenizer.encode("Copper is a blue metal 12 % #")

    def test_it_agrees_with_the_model_in_this_process(
        self, real: Real, prompt: list[int], block: list[int]
    ) -> None:
        """Also where it rejects what is in the middle; and nothing is computed twice."""
        found = real.agrees([*prompt, *block], len(block))
        assert any(one.id != token for one, token in zip(found.verified, block, strict=True))
        again = verify(real.cloud, [*prompt, *block], len(block))
        assert again.verified == found.verified
        assert again.computed == 1
        for tenant in ("one", "other"):
            kept = verify(real.cloud, [*prompt, *block], len(block), client=Client(tenant=tenant))
            assert kept.verified == found.verified

    def test_an_end_token_at_the_end_is_told_exactly(
        self, real: Real, prompt: list[int], block: list[int]
    ) -> None:
        for end in real.ends:
            real.agrees([*prompt, *block, end], len(block) + 1)
            real.agrees([*prompt, end], 1)

    def test_an_end_token_inside_is_verified_too(
        self, real: Real, prompt: list[int], block: list[int]
    ) -> None:
        ids = [*prompt, block[0], real.ends[0], *block[1:3], real.ends[-1]]
        real.agrees(ids, 5)

    def test_control_tokens_are_verified(
        self, real: Real, prompt: list[int], block: list[int]
    ) -> None:
        for token in [*real.model.tokenizer.special][:4]:
            real.agrees([*prompt, block[0], token, block[1]], 3)

    def test_tokens_inside_a_character_are_verified(self, real: Real, prompt: list[int]) -> None:
        """Less than the listed have is not told exactly."""
        ids = real.model.tokenizer.encode(
            "It is \N{GRINNING FACE} or \N{HEAVY BLACK HEART}, and 12"
        )
        for count in (len(ids), *range(1, 6)):
            found = verify(real.cloud, [*prompt, *ids], count)
            expected = real.told([*prompt, *ids], count)
            for one, (logprob, best_id, best) in zip(found.verified, expected, strict=True):
                assert one.id == best_id
                assert one.best == pytest.approx(best, abs=1e-2)
                assert logprob - 1e-2 <= one.logprob <= max(logprob, -np.log(100)) + 1e-2
            ids.pop()

    def test_an_id_that_it_does_not_have_is_refused_and_the_server_goes_on(
        self, real: Real, prompt: list[int], block: list[int]
    ) -> None:
        size = real.model.tokenizer.size
        for wrong in (size, 1 << 30, 1 << 40):
            for ids in ([*block[:2], wrong], [block[0], wrong, block[1]], [wrong]):
                with pytest.raises((CloudRejected, CloudProtocolError)):
                    verify(real.cloud, [*prompt, *ids], len(ids))
        real.agrees([*prompt, *block], len(block))
