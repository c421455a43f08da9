"""Whether one key reads another's prompt: `python -m benchmarks.meter_attack`.

The bundled cloud model in a real llama-server. A victim consults again and again, as an answer
does; an attacker with another key asks beside it and looks at what comes back.

- By the meter: six secret tokens after a beginning that the attacker knows, 16 candidates each.
  A guess of which more was cached than the attacker itself has asked is a token of the victim's.
  "Aside" asks something else before each guess, which moves it on to the slot that was used least
  recently: the victim's.
- By time: 16 documents of 300 tokens, of which the victim has one; the fastest is taken.

Each is made through a gateway with two keys, and straight at the server, where nothing keeps keys
apart: that is the baseline, and shows that the attack works. Prints Markdown; ends with code 1
where the gateway lets a token be read by the meter, or under the recommended flags so many
documents by time that chance does as well less than one time in 1,000.
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.shared import show, spread
from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.engine import LlamaServer
from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.base import Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.keys.keys import add_key
from edgewise.listening.logs import log_lines
from edgewise.prompts import Prompt
from tests.gateway.running import gateway
from tests.llama_server_process import RECOMMENDED, llama_server

BEGINNING, SECRET, CANDIDATES = 48, 6, 16
DOCUMENT = 300
IDS = (10, 1000)
CHANCE = 0.001

FLAGS: Mapping[str, Mapping[str, float]] = {
    "none": {},
    "--cache-ram 0 --no-kv-unified": {"cache_ram_mib": 0, "kv_unified": False},
    "and --slot-prompt-similarity 0": RECOMMENDED,
}


HEAD = ("server's flags", "asked", "by", "guesses", "sought", "found", "right, ms", "wrong, ms")


class Seen(NamedTuple):
    """What a key is told of one of its consults, and how long it took."""

    cached: int | None
    computed: int | None
    engine_seconds: float | None
    seconds: float


Ask = Callable[[Sequence[int]], Seen]
"""One consult of one key, about one token."""


class Recovered(NamedTuple):
    """`right` of `tokens` (or documents) were read in `asks` consults."""

    asks: int
    tokens: int
    right: int


class Timed(NamedTuple):
    """An attack by time, and the seconds that right and wrong guesses took."""

    recovered: Recovered
    hits: list[float]
    misses: list[float]


def asking(cloud: CloudModel, tokenizer: Tokenizer) -> Ask:
    """Consults in a session of its own."""
    cloud.check_vocabulary(tokenizer)
    session = cloud.open(Prompt(()))

    def ask(ids: Sequence[int]) -> Seen:
        begun = time.perf_counter()
        completion = session.ask(ConsultRequest(ids, 1, 60)).result()
        seconds = time.perf_counter() - begun
        return Seen(completion.cached, completion.computed, completion.engine_seconds, seconds)

    return ask


def by_meter(
    victim: Ask, attacker: Ask, *, asks: int, seed: int = 0, aside: bool = False
) -> Recovered:
    """One secret after the other, token by token, until `asks` guesses are made.

    With `aside` the attacker asks something else before each.
    """
    rng = random.Random(seed)
    made = tokens = right = 0
    while made < asks:
        known, secret = _some(rng, BEGINNING), _some(rng, SECRET)
        prompt = [*known, *secret]
        for token in secret:
            tokens += 1
            guesses = _with_decoys(rng, token)
            while guesses and made < asks:
                victim([*prompt, *_some(rng, 2)])
                if aside:
                    attacker(_some(rng, 4))
                guess, made = guesses.pop(), made + 1
                if _reached(attacker([*known, guess, *_some(rng, 1)]), len(known) + 2) > len(known):
                    right += guess == token
                    known.append(guess)
                    break
            if known[-1] != token:
                break
    return Recovered(made, tokens, right)


def by_time(victim: Ask, attacker: Ask, *, asks: int, seed: int = 0) -> Timed:
    """One document after the other, until `asks` are used up."""
    rng = random.Random(seed)
    hits: list[float] = []
    misses: list[float] = []
    right = 0
    for _ in range(asks // CANDIDATES):
        documents = [_some(rng, DOCUMENT) for _ in range(CANDIDATES)]
        its = rng.randrange(CANDIDATES)
        took: list[float] = []
        for number, document in enumerate(documents):
            victim([*documents[its], *_some(rng, 2)])
            took.append(attacker([*document, *_some(rng, 1)]).seconds)
            (hits if number == its else misses).append(took[-1])
        right += took[its] == min(took)
    return Timed(Recovered(CANDIDATES * len(hits), len(hits), right), hits, misses)


def luck(found: Recovered) -> float:
    """How likely at least as many would be right for one who guesses blindly (binomial)."""
    p, n = 1 / CANDIDATES, found.tokens
    return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(found.right, n + 1))


def _reached(seen: Seen, total: int) -> int:
    """How many of `total` prompt tokens were cached, by whatever the reply tells; 0: nothing."""
    if seen.cached is not None:
        return seen.cached
    return 0 if seen.computed is None else total - seen.computed


def _some(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(*IDS) for _ in range(count)]


def _with_decoys(rng: random.Random, token: int) -> list[int]:
    decoys = [other for other in rng.sample(range(*IDS), CANDIDATES) if other != token]
    guesses = [token, *decoys[: CANDIDATES - 1]]
    rng.shuffle(guesses)
    return guesses


@contextmanager
def straight(url: str, tokenizer: Tokenizer) -> Generator[list[Ask]]:
    """Victim and attacker at the server itself, where nothing keeps them apart."""
    with closing(LlamaServer(url)) as one, closing(LlamaServer(url)) as other:
        yield [asking(cloud, tokenizer) for cloud in (one, other)]


@contextmanager
def through_gateway(url: str, tokenizer: Tokenizer) -> Generator[list[Ask]]:
    """Victim and attacker with a key each at one gateway in front of the server."""
    limits = {"consults_per_second": 0, "tokens_per_day": 0, "sessions": 0}
    with TemporaryDirectory() as folder, ExitStack() as stack:
        keys = Path(folder) / "keys.json"
        secrets = [add_key(keys, name, **limits) for name in ("victim", "attacker")]
        running = stack.enter_context(gateway([url], keys=keys))
        clouds = [GatewayCloud(running.url, key=secret) for secret in secrets]
        for cloud in clouds:
            stack.callback(cloud.close)
        yield [asking(cloud, tokenizer) for cloud in clouds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--asks", type=int, default=200, help="guesses in each attack")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.asks < 2 * CANDIDATES:
        parser.error(f"--asks must be at least {2 * CANDIDATES}")
    leaks: list[bool] = []
    with log_lines("json", "info"), LlamaModel(bundled("edge"), threads=1) as edge:
        show(HEAD, attacked(options.asks, options.seed, edge.tokenizer, leaks))
    sys.exit(any(leaks))


def attacked(asks: int, seed: int, tokenizer: Tokenizer, leaks: list[bool]) -> Generator[list[str]]:
    """Every attack under every set of flags; `leaks` says of each whether it found something."""
    for flags, set_to in FLAGS.items():
        for how, made in (("straight", straight), ("with keys", through_gateway)):
            with (
                llama_server(bundled("cloud"), flags=set_to) as url,
                made(url, tokenizer) as (victim, attacker),
            ):
                metered = {
                    by: by_meter(victim, attacker, asks=asks, seed=seed, aside=aside)
                    for by, aside in (("meter", False), ("meter, aside", True))
                }
                timed = by_time(victim, attacker, asks=asks, seed=seed)
            for by, found in metered.items():
                yield [flags, how, by, *map(str, found), "", ""]
            shown = [spread(taken, 1, 1000) for taken in (timed.hits, timed.misses)]
            yield [flags, how, "time", *map(str, timed.recovered), *shown]
            if made is through_gateway:
                leaks += [found.right > 0 for found in metered.values()]
                leaks.append(set_to is RECOMMENDED and luck(timed.recovered) < CHANCE)


if __name__ == "__main__":
    main()
