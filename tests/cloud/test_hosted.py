"""Hosted APIs that take and return ids, as their documents say they are; none was tried itself."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest

from edgewise.cloud.base import CloudModel
from edgewise.cloud.connect import connect
from edgewise.cloud.engine import Cerebras, EngineCloud, Fireworks
from edgewise.completion import Completion
from edgewise.engines.base import Client
from edgewise.errors import (
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudUnavailable,
    VocabularyMismatch,
)
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.cloud.dialects import said, serving
from tests.cloud.recording import recording
from tests.doubles.engine_dialects import HOSTED, Dialect
from tests.doubles.scripted_engine import Edited, ScriptedEngine, reply_to

IDS = list(b"sky: ")
NAMES = [f"accounts/a/models/m-{number}" for number in range(400)]
MADE: dict[str, Callable[..., EngineCloud]] = {"fireworks": Fireworks, "cerebras": Cerebras}


@pytest.fixture(params=HOSTED)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return request.param


@pytest.fixture
def engine(dialect: Dialect) -> Iterator[ScriptedEngine]:
    made = ScriptedEngine(dialect=dialect)
    yield made
    made.close()


def consult(cloud: CloudModel, n: int = 1, sampling: Sampling | None = None) -> Completion:
    session = cloud.open(Prompt(tuple(IDS)))
    try:
        return session.ask(IDS, n, sampling or Sampling(), 30).result()
    finally:
        session.close()


def test_it_is_found_by_what_it_says_of_its_models(
    dialect: Dialect, engine: ScriptedEngine
) -> None:
    """With the key, at the address that the documents give, `/v1` and all."""
    engine.key = "sk-1"
    with closing(connect(f"{engine.url}/v1", key="sk-1")) as cloud:
        assert isinstance(cloud, MADE[dialect])  # type: ignore[arg-type]
        assert "same ids" in cloud.check(ByteTokenizer())
        completion = consult(cloud, 3)
        assert completion.ids[0] == reply_to(IDS)
        assert (completion.cached, completion.computed) == (len(IDS) - 1, 1)
        able = cloud.abilities
        assert able is not None
        assert (able.model, able.meter, able.tokenizer) == ("scripted", True, True)
        assert able.top == (1 if dialect == "fireworks" else 0)
    assert engine.strays.total() == 0


@pytest.mark.parametrize("beginning", [[], [256], [256, 255]])
def test_what_it_puts_before_a_text_is_no_part_of_it(
    dialect: Dialect, engine: ScriptedEngine, beginning: list[int]
) -> None:
    engine.beginning = beginning
    with closing(MADE[dialect](engine.url)) as cloud:
        assert "same ids" in cloud.check(ByteTokenizer())


def test_another_vocabulary_is_refused(dialect: Dialect, engine: ScriptedEngine) -> None:
    engine.mark = 1
    with closing(MADE[dialect](engine.url)) as cloud, pytest.raises(VocabularyMismatch):
        cloud.check(ByteTokenizer())


def test_a_catalogue_wants_a_name(dialect: Dialect, engine: ScriptedEngine) -> None:
    engine.others = NAMES
    with closing(MADE[dialect](engine.url)) as cloud:
        with pytest.raises(
            CloudRejected, match="serves 401 models, so one must be named; name"
        ) as (refused):
            cloud.check(ByteTokenizer())
        assert refused.value.setting == "cloud_model"
        assert len(str(refused.value)) < 500
    assert engine.asked == engine.reads == 0
    with closing(MADE[dialect](engine.url, model=NAMES[333])) as cloud:
        cloud.check(ByteTokenizer())
        assert cloud.abilities.model == NAMES[333]
        assert consult(cloud).ids


def test_a_wrong_name_is_one_sentence(dialect: Dialect, engine: ScriptedEngine) -> None:
    engine.others = NAMES
    with (
        closing(MADE[dialect](engine.url, model="accounts/a/models/m-1O")) as cloud,
        pytest.raises(CloudRejected, match="serves no model 'accounts/a/models/m-1O'; it "),
    ):
        cloud.check(ByteTokenizer())


def test_a_model_that_is_not_listed_is_asked(dialect: Dialect, engine: ScriptedEngine) -> None:
    """What an account deployed for itself may be missing from a list of what all may use."""
    engine.model = "accounts/me/deployments/mine"
    listed = msgspec.json.encode({"data": [{"id": name, "owned_by": "x"} for name in NAMES]})
    engine.aside = lambda path: Edited(lambda _: listed) if path.endswith("/v1/models") else None
    with closing(MADE[dialect](engine.url, model=engine.model)) as cloud:
        cloud.check(ByteTokenizer())
        asked = engine.asked
        assert cloud.submit(cloud.engine.describe(), 30).result().model == engine.model
        assert engine.asked == asked


@pytest.mark.parametrize("key", [None, "sk-2"])
def test_a_wrong_key_is_one_sentence(
    dialect: Dialect, engine: ScriptedEngine, key: str | None
) -> None:
    engine.key = "sk-1"
    with (
        closing(MADE[dialect](engine.url, key=key)) as cloud,
        pytest.raises(CloudRefused, match="refused the key; set EDGEWISE_CLOUD_KEY"),
    ):
        cloud.check(ByteTokenizer())


def test_looks_are_rare_and_pushes_none(
    dialect: Dialect, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are billed."""
    with closing(MADE[dialect](engine.url)) as cloud:
        cloud.check(ByteTokenizer())
        asked, read = engine.asked, engine.reads
        for _ in range(3):
            assert cloud.submit(cloud.engine.unchanged(), 30).result()
        assert engine.reads == read
        monkeypatch.setattr("edgewise.engines.hosted.LOOK_SECONDS", 0.0)
        engine.mark = 1
        assert not cloud.submit(cloud.engine.unchanged(), 30).result()
        read = engine.reads
        cloud.submit(cloud.engine.prefill(IDS, Client(session="s")), 30).result()
        assert (engine.asked, engine.reads) == (asked, read)


def test_a_consult_says_which_session_it_is_of() -> None:
    with closing(ScriptedEngine(dialect="fireworks")) as engine:
        bodies: list[dict[str, Any]] = []
        routes = {
            ("GET", "/v1/models"): said({"data": [{"id": "m", "owned_by": "fireworks"}]}),
            ("POST", "/v1/completions"): lambda body: (
                bodies.append(body),  # type: ignore[func-returns-value]
                (200, {"choices": [{"token_ids": [97], "finish_reason": "length"}]}),
            )[1],
        }
        with serving(routes) as server:
            for made in MADE.values():
                with closing(made(server.url, model="m")) as cloud:
                    client = Client(session="one answer")
                    work = cloud.engine.complete(IDS, 2, Sampling(), client)
                    cloud.submit(work, 5.0).exception()
        assert [body["prompt_cache_key"] for body in bodies] == ["one answer"] * 2
        assert [body["prompt"] for body in bodies] == [IDS] * 2
        assert [body["max_tokens"] for body in bodies] == [2] * 2
        assert bodies[0]["return_token_ids"] is True
        assert bodies[1]["return_raw_tokens"] is True
        assert all("echo" not in body and "stream" not in body for body in bodies)
        assert engine.asked == 0


def test_fireworks_keeps_caches_apart_by_a_salt() -> None:
    with (
        closing(ScriptedEngine(dialect="fireworks")) as engine,
        recording(engine.url) as recorder,
        closing(Fireworks(recorder.url)) as cloud,
    ):
        cloud.check(ByteTokenizer())
        assert cloud.abilities.salt
        recorder.forget()
        work = cloud.engine.complete(IDS, 1, Sampling(), Client(session="a", salt="pepper"))
        assert cloud.submit(work, 30).result().ids
        (body,) = [msgspec.json.decode(message) for message in recorder.messages]
        assert body["prompt_cache_isolation_key"] == "pepper"


def without_usage(body: bytes) -> bytes:
    found = msgspec.json.decode(body)
    del found["usage"]
    return msgspec.json.encode(found)


def test_a_missing_meter_is_no_fault(dialect: Dialect, engine: ScriptedEngine) -> None:
    with closing(MADE[dialect](engine.url)) as cloud:
        cloud.check(ByteTokenizer())
        engine.fault = lambda number: Edited(without_usage)
        completion = consult(cloud)
        assert completion.ids == (reply_to(IDS),)
        assert (completion.cached, completion.computed) == (None, None)


def test_a_text_whose_ids_are_not_told_proves_nothing(
    dialect: Dialect, engine: ScriptedEngine
) -> None:
    """Some models or plans may echo nothing: then the vocabulary stays unproven, in a sentence."""

    def silent(body: bytes) -> bytes:
        found = msgspec.json.decode(body)
        for choice in found["choices"]:
            choice.pop("prompt_token_ids", None)
            choice["tokens"] = choice.get("tokens", [])[-1:]
        return msgspec.json.encode(found)

    engine.aside = lambda path: Edited(silent) if path.endswith("completions") else None
    with (
        closing(MADE[dialect](engine.url)) as cloud,
        pytest.raises(VocabularyMismatch, match="does not say how it tokenises"),
    ):
        cloud.check(ByteTokenizer())


def test_who_reads_other_ids_than_it_was_sent_is_not_believed() -> None:
    with (
        closing(ScriptedEngine(dialect="fireworks")) as engine,
        closing(Fireworks(engine.url)) as cloud,
    ):
        cloud.check(ByteTokenizer())

        def cut(body: bytes) -> bytes:
            found = msgspec.json.decode(body)
            found["choices"][0]["prompt_token_ids"][:1] = []
            return msgspec.json.encode(found)

        engine.fault = lambda number: Edited(cut)
        with pytest.raises(CloudProtocolError, match="read other token ids than it was sent"):
            consult(cloud)


def test_ids_come_from_log_probs_where_they_are_told_there_alone() -> None:
    with (
        closing(ScriptedEngine(dialect="fireworks")) as engine,
        closing(Fireworks(engine.url)) as cloud,
    ):
        cloud.check(ByteTokenizer())

        def moved(body: bytes) -> bytes:
            found = msgspec.json.decode(body)
            del found["choices"][0]["token_ids"]
            return msgspec.json.encode(found)

        engine.fault = lambda number: Edited(moved)
        assert consult(cloud).ids == (reply_to(IDS),)


@pytest.mark.parametrize("unknown", [{"top_k": 5}, {"min_p": 0.1}])
def test_cerebras_draws_as_asked_or_not_at_all(unknown: dict[str, Any]) -> None:
    with (
        closing(ScriptedEngine(dialect="cerebras")) as engine,
        closing(Cerebras(engine.url)) as cloud,
    ):
        cloud.check(ByteTokenizer())
        with pytest.raises(CloudRejected, match="draws without top-k and min-p"):
            consult(cloud, sampling=Sampling(temperature=0.5, **unknown))
        assert consult(cloud, sampling=Sampling(temperature=0.5, top_p=0.9)).ids


def test_a_busy_api_is_not_looked_at_more_often(dialect: Dialect, engine: ScriptedEngine) -> None:
    """A failed consult makes an engine be looked at; one that bills is spared that as well."""
    with closing(MADE[dialect](engine.url)) as cloud:
        cloud.check(ByteTokenizer())
        read = engine.reads
        engine.fault = lambda number: Edited(status=429)
        for _ in range(3):
            with pytest.raises(CloudUnavailable, match="429"):
                consult(cloud)
        assert engine.reads == read
