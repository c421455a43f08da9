"""Engines to load: a llama-server and a vLLM on the CPU, as processes of their own."""

import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from benchmarks.random_qwen import Shape, build
from edgewise.addresses import bundled
from edgewise.cloud.registry import engine_by_ids
from edgewise.engines.base import Engine
from edgewise.errors import CloudProtocolError, CloudUnavailable
from tests.llama_server_process import RECOMMENDED, llama_server
from tests.smollm2_file import INSTALL, smollm2_file
from tests.vllm_process import vllm

RANDOM = Shape(hidden=768, layers=12, heads=12, kv_heads=2, ffn=2304, vocabulary=32_768, eos=32_767)
"""105 million parameters."""

BLOCK = 32
"""Tokens of a block of vLLM's KV cache, as the tests start it."""

_MODEL_SCRIPT = Path(__file__).parents[2] / "tests" / "vllm_model.py"
_METERS = {
    "llama-server": ("llamacpp:prompt_tokens_total", "", "llamacpp:tokens_predicted_total"),
    "vllm": (
        "vllm:prompt_tokens_total",
        "vllm:prefix_cache_hits_total",
        "vllm:generation_tokens_total",
    ),
}


class Meter(NamedTuple):
    """Ids of prompts that were computed, and tokens written, since the engine started."""

    computed: float
    written: float


class Room(NamedTuple):
    """What an engine may hold: sessions' KV caches (slots), of `tokens` each.

    `cache_ram`: MiB of a llama-server's prompts outside of slots; it chooses slots itself then.
    """

    slots: int
    tokens: int
    cache_ram: int = 0


class Served(NamedTuple):
    """An engine's process: which kind, and where."""

    kind: str
    url: str

    def engine(self) -> Engine:
        """A client of it."""
        return engine_by_ids(self.kind, self.url)

    async def stream(
        self, http: aiohttp.ClientSession, prompt: list[int], tokens: int
    ) -> AsyncIterator[int]:
        """How many tokens of an answer came, each time that some came."""
        llama = self.kind == "llama-server"
        body: dict[str, Any] = {"prompt": prompt, "stream": True, "ignore_eos": True}
        body |= {"temperature": 0.0, "n_predict" if llama else "max_tokens": tokens}
        body |= {"return_tokens": True} if llama else {"return_token_ids": True}
        body |= {} if llama else {"model": "pocket"}
        path = "/completion" if llama else "/v1/completions"
        try:
            async with http.post(self.url + path, json=body) as response:
                if response.status != 200:
                    raise CloudProtocolError(f"{self.url!r} answered HTTP {response.status}.")
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        yield _tokens(json.loads(line[6:]))
        except aiohttp.ClientError as error:
            raise CloudUnavailable(str(error)) from error

    async def meter(self, http: aiohttp.ClientSession) -> Meter:
        """By the engine's own metrics."""
        async with http.get(self.url + "/metrics") as response:
            text = await response.text()
        prompt, hits, written = (_value(text, name) for name in _METERS[self.kind])
        return Meter(prompt - hits, written)


def _tokens(told: dict[str, Any]) -> int:
    choice = told["choices"][0] if told.get("choices") else told
    return len(choice.get("tokens") or choice.get("token_ids") or ())


def _value(text: str, name: str) -> float:
    """The sum of a metric's lines; 0 without a name."""
    if not name:
        return 0.0
    found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def model_file(name: str, folder: Path) -> Path:
    """The GGUF of a model's name, written to `folder` where it is random; else a path."""
    if name == "bundled":
        return bundled("cloud")
    if name == "smollm2":
        return smollm2_file() or _ends(f"The weights of SmolLM2 are missing: {INSTALL}")
    if name == "random":
        path = folder / "random-105m.gguf"
        return path if path.exists() else build(path, shape=RANDOM)
    return Path(name) if Path(name).is_file() else _ends(f"There is no model {name!r}.")


def _ends(told: str) -> Path:
    raise SystemExit(told)


@contextmanager
def served(
    kind: str, model: str, room: Room, folder: Path, *, flags: Sequence[str] = ()
) -> Iterator[Served]:
    """An engine over a model, of which `folder` keeps what is made of it.

    `flags` are further ones of vLLM's. Raises `RuntimeError` where the engine does not start.
    """
    if kind == "vllm":
        with _vllm(model, folder, room, flags) as url:
            yield Served(kind, url)
        return
    set_to = {**RECOMMENDED, "cache_ram_mib": room.cache_ram, "endpoint_metrics": True}
    set_to |= {"n_parallel": room.slots, "n_ctx": room.slots * room.tokens}
    # A server that chooses slots itself goes by how much of a prompt a slot holds.
    set_to |= {"slot_prompt_similarity": 0.5} if room.cache_ram else {}
    with llama_server(model_file(model, folder), flags=set_to) as url:
        yield Served(kind, url)


@contextmanager
def _vllm(model: str, folder: Path, room: Room, flags: Sequence[str]) -> Iterator[str]:
    if model not in ("bundled", "random"):
        _ends("vLLM is loaded with 'bundled' or 'random'.")
    python = Path(os.environ["VLLM_PYTHON"])
    place = folder / f"vllm-{model}"
    if not place.exists():
        command = [str(python), str(_MODEL_SCRIPT), str(bundled("cloud")), str(place)]
        subprocess.run(command, check=True, capture_output=True)
        if model == "random":
            _widen(place / "config.json")
    blocks = room.slots * -(-room.tokens // BLOCK)
    told = ["--dtype", "bfloat16", "--max-num-seqs", "256"]
    told += ["--num-gpu-blocks-override", str(blocks)]
    told += ["--load-format", "dummy"] if model == "random" else []
    with vllm(python, place, flags=[*told, *flags]) as url:
        yield url


def _widen(path: Path) -> None:
    """The shape of the random model, for weights that vLLM draws itself."""
    config = json.loads(path.read_text())
    config |= {"hidden_size": RANDOM.hidden, "num_hidden_layers": RANDOM.layers}
    config |= {"num_attention_heads": RANDOM.heads, "num_key_value_heads": RANDOM.kv_heads}
    config |= {"intermediate_size": RANDOM.ffn, "vocab_size": RANDOM.vocabulary}
    config.pop("layer_types", None)
    config.pop("head_dim", None)
    path.write_text(json.dumps(config))


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """For streams and meters: as many connections as are asked for, each for one request.

    A server may close a kept one in the moment in which it is used again, which fails a stream.
    """
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        yield http
