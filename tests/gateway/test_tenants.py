"""Two keys on one engine: neither learns what the other asks, by the meter or by what is reused."""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from benchmarks.meter_attack import by_meter, straight, through_gateway
from edgewise.addresses import bundled
from edgewise.cloud.base import ConsultRequest
from edgewise.completion import Completion
from edgewise.edge.base import Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines.base import NOBODY, Client
from edgewise.errors import CloudUnavailable
from edgewise.gateway.local import SLOTS, LocalEngine
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from tests.gateway.doubles import PlainEngine
from tests.gateway.running import Running, device, gateway
from tests.llama_server_process import RECOMMENDED, llama_server

Add = Callable[..., str]

FLAGS: dict[str, Mapping[str, float]] = {
    "none": {},
    "one slot": {"n_parallel": 1},
    "one cache for all slots": {"kv_unified": True},
    "a cache in RAM": {"slot_prompt_similarity": 0.0},
    "by similarity": {"cache_ram_mib": 0},
    "recommended": RECOMMENDED,
}


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    model = LlamaModel(bundled("edge"), threads=1)
    yield model.tokenizer
    model.close()


@pytest.mark.deep
@pytest.mark.parametrize(("flags", "aside"), [({}, False), (RECOMMENDED, True)])
def test_the_attack_reads_secrets_where_nothing_keeps_sessions_apart(
    tokenizer: Tokenizer, flags: Mapping[str, float], aside: bool
) -> None:
    """Without this the test below proves nothing. Flags alone do not stop it."""
    with (
        llama_server(bundled("cloud"), flags=flags) as url,
        straight(url, tokenizer) as (victim, attacker),
    ):
        found = by_meter(victim, attacker, asks=60, aside=aside)
    assert found.tokens >= 4
    assert found.right >= found.tokens - 1


@pytest.mark.deep
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_the_meter_tells_nothing_of_others(
    tokenizer: Tokenizer, flags: Mapping[str, float]
) -> None:
    with (
        llama_server(bundled("cloud"), flags=flags) as url,
        through_gateway(url, tokenizer) as (victim, attacker),
    ):
        for aside in (False, True):
            assert by_meter(victim, attacker, asks=32, aside=aside).right == 0
        seen = attacker(range(10, 40))
    assert seen[:3] == (None, None, None)


def ask(running: Running, secret: str | None = None) -> Completion:
    """One consult of two ids."""
    with device(running, secret) as cloud:
        return cloud.open(Prompt(())).ask(ConsultRequest([1, 2], 1, 30)).result()


class Noting(PlainEngine):
    """Keeps the clients of prefills as well; its meter is whole."""

    def __init__(self, *, salt: bool = False, name: str = "plain") -> None:
        super().__init__(name, self.metered)
        self._has_salt = salt

    def metered(self, ids: Sequence[int], n: int) -> Completion:
        meter = {"cached": 1, "computed": len(ids) - 1, "engine_seconds": 0.5}
        return Completion(ids=(97,), logprobs=(None,), **meter)

    async def has_salt(self, ids: Sequence[int]) -> bool:
        return self._has_salt

    async def prefill(self, ids: Sequence[int], client: Client = NOBODY) -> None:
        self.clients.append(client)


METER, NOTHING = (1, 1, 0.5), (None, None, None)


@pytest.mark.parametrize(
    ("salts", "with_keys", "told"),
    [
        ((False,), True, NOTHING),
        ((True, False), True, NOTHING),
        ((True, None), True, NOTHING),
        ((True,), True, METER),
        ((False,), False, METER),
    ],
)
def test_the_meter_is_told_where_caches_are_apart_or_all_are_one(
    keys: Path, add: Add, salts: Sequence[bool | None], with_keys: bool, told: tuple[object, ...]
) -> None:
    """None is an engine that has not been seen."""
    secrets = [add("laptop"), add("phone")]
    engines = [Noting(salt=bool(salt), name=str(number)) for number, salt in enumerate(salts)]
    for engine, salt in zip(engines, salts, strict=True):
        engine.down = CloudUnavailable("not ready") if salt is None else None
    with gateway(engines, keys=keys if with_keys else None) as running:
        completions = [ask(running, secret if with_keys else None) for secret in secrets]
        counted = running.metrics()
    for completion in completions:
        assert (completion.cached, completion.computed, completion.engine_seconds) == told
    # The operator sees the sums all the same.
    assert re.search(r'prompt_tokens_total\{cache="hit"\} 2\.0', counted)
    assert re.search(r'prompt_tokens_total\{cache="miss"\} 2\.0', counted)


def test_an_engine_is_told_whose_consult_and_whose_push_it_is(keys: Path, add: Add) -> None:
    """And who serves keys whose engine has no salt is warned."""
    secrets, engine = [add("laptop"), add("phone")], Noting()
    with capture_logs() as logs, gateway([engine, Noting(salt=True, name="b")], keys=keys):
        pass
    warned = [entry for entry in logs if entry["event"] == "caches are shared"]
    assert [entry["engine"] for entry in warned] == ["plain"]
    assert "no salt" in warned[0]["why"]
    with gateway([engine], keys=keys) as running:
        for secret in secrets:
            with device(running, secret) as cloud:
                session = cloud.open(Prompt(()))
                session.prefetch(list(range(40)))
                session.ask(ConsultRequest(list(range(41)), 1, 30)).result()
    assert {client.tenant for client in engine.clients} == {"laptop", "phone"}
    assert len({client.session for client in engine.clients}) == 2
    assert len({client.salt for client in engine.clients}) == 2


@pytest.mark.parametrize("name", ["", "anybody"])
def test_without_keys_there_is_one_tenant(keys: Path, add: Add, name: str) -> None:
    """A key that is named as nobody's is a tenant as well."""
    engine, secret = Noting(), add(name) if name else None
    with gateway([engine], keys=keys if name else None) as running:
        assert ask(running, secret).cached == (None if name else 1)
    assert [client.tenant for client in engine.clients] == [name]


@pytest.mark.deep
def test_a_key_still_reuses_its_own_by_flags(tokenizer: Tokenizer, keys: Path, add: Add) -> None:
    """Told by the gateway's sums: the devices are not."""
    secrets = [add("laptop"), add("phone")]
    prompts = [list(range(10, 60)), list(range(200, 250))]
    with (
        llama_server(bundled("cloud"), flags=RECOMMENDED) as url,
        gateway([url], keys=keys) as running,
        device(running, secrets[0], tokenizer=tokenizer) as one,
        device(running, secrets[1], tokenizer=tokenizer) as other,
    ):
        sessions = [cloud.open(Prompt(())) for cloud in (one, other)]
        for _ in range(3):
            for session, prompt in zip(sessions, prompts, strict=True):
                session.ask(ConsultRequest(prompt, 1, 30)).result()
        counted = running.metrics()
    assert 'prompt_tokens_total{cache="hit"} 196.0' in counted


@pytest.mark.anyio
async def test_a_bundled_slot_forgets_what_another_tenant_left() -> None:
    prompt, engine = list(range(10, 50)), LocalEngine()

    async def cached(session: str, tenant: str) -> int | None:
        client = Client(session, tenant=tenant)
        return (await engine.complete(prompt, 1, Sampling(), client)).cached

    try:
        for number in range(SLOTS):
            assert await cached(f"a{number}", "a") == 0
        assert await cached("b0", "b") == 0
        assert await cached("b0", "b") == len(prompt)
        # Within a tenant a slot may be handed on as it is.
        assert await cached("a9", "a") == len(prompt)
        # Side by side: what is asked first is answered, whoever takes its slot.
        asked = [cached(f"s{n}", f"tenant {n}") for n in range(3 * SLOTS)]
        assert await asyncio.gather(*asked) == [0] * len(asked)
        # What was verified, too, or only prefilled.
        client = Client("v", tenant="v")
        assert (await engine.verify(prompt, 4, Sampling(), client)).cached == 0
        for number in range(SLOTS):
            await engine.prefill(prompt, Client(f"c{number}", tenant="c"))
        assert await cached("d", "d") == 0
    finally:
        await engine.close()
