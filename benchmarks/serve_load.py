"""Many clients at a small queue: `python -m benchmarks.serve_load`.

Clients on 127.0.0.1 ask the bundled pair again and again for `--seconds`, each for another word,
half of them streaming; some leave in the middle. Every answer must be whole and be that of its own
word (edge-only answers are compared with the one given alone), or a 429 with Retry-After. The
server's memory is read as it goes. Prints Markdown.
"""

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from pathlib import Path
from statistics import median

import aiohttp

from edgewise_lab.tables import line
from tests.server.serving import serving

WORDS = ("copper", "iron", "gold", "silver", "tin", "lead", "zinc", "nickel", "mercury", "sulfur")
MODELS = ("edgewise:edge", "edgewise")


def body(word: str, model: str, *, stream: bool) -> dict[str, object]:
    messages = [{"role": "user", "content": f"Tell me about {word}."}]
    return {"model": model, "messages": messages, "max_tokens": 64, "stream": stream}


async def answer(session: aiohttp.ClientSession, asked: dict[str, object]) -> tuple[str, str]:
    """How it ended, and the text."""
    async with session.post("/v1/chat/completions", json=asked) as response:
        if response.status == 429:
            return ("sent away" if int(response.headers["Retry-After"]) >= 1 else "no patience"), ""
        if response.status != 200:
            return f"HTTP {response.status}", ""
        if not asked["stream"]:
            choice = (await response.json())["choices"][0]
            return choice["finish_reason"], choice["message"]["content"]
        text, reason, done = "", "cut short", False
        async for raw in response.content:
            if raw.startswith(b"data: {"):
                choice = json.loads(raw[6:])["choices"][0]
                text += choice["delta"].get("content", "")
                reason = choice["finish_reason"] or reason
            done = done or raw.startswith(b"data: [DONE]")
        return (reason if done else "cut short"), text


async def client(
    session: aiohttp.ClientSession, number: int, end: float, alone: dict[str, str], seen: Counter
) -> None:
    rng = random.Random(number)
    while time.monotonic() < end:
        word, model = rng.choice(WORDS), rng.choice(MODELS)
        asked = body(word, model, stream=rng.random() < 0.5)
        try:
            leaving = rng.random() < 0.1
            async with asyncio.timeout(0.03 if leaving else 60):
                ended, text = await answer(session, asked)
        except TimeoutError:
            seen["left" if leaving else "hung"] += 1
            continue
        if ended in ("stop", "length"):
            own = text == alone[word] if model == MODELS[0] else word in text or text != ""
            ended = "whole" if own else "another's"
        seen[ended] += 1
        if ended == "sent away":
            await asyncio.sleep(rng.random())


def resident(url: str) -> float:
    """MB of the process that was started for the port of `url`."""
    wanted = f"--port\0{url.rpartition(':')[2]}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        if wanted in (folder / "cmdline").read_bytes() + b"\0":
            status = (folder / "status").read_text()
            return int(status.partition("VmRSS:")[2].split()[0]) / 1024
    raise RuntimeError("the server is gone")


async def load(url: str, options: argparse.Namespace) -> tuple[Counter, list[float]]:
    seen: Counter = Counter()
    memory = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector) as session:
        alone = {w: (await answer(session, body(w, MODELS[0], stream=False)))[1] for w in WORDS}
        end = time.monotonic() + options.seconds
        clients = [client(session, n, end, alone, seen) for n in range(options.clients)]
        working = asyncio.gather(*clients)
        while not working.done():
            memory.append(resident(url))
            await asyncio.sleep(options.seconds / 12)
        await working
    return seen, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--queue", type=int, default=8)
    options = parser.parse_args()
    flags = ("--slots", str(options.slots), "--queue", str(options.queue), "--threads", "1")
    with serving(*flags) as url:
        seen, memory = asyncio.run(load(url, options))
    print("\n".join(line(["outcome", "answers"], head=True)))
    for name, count in seen.most_common():
        print("\n".join(line([name, str(count)])))
    thirds = [memory[len(memory) * i // 3 : len(memory) * (i + 1) // 3] for i in range(3)]
    shown = ", ".join(f"{median(third):.0f}" for third in thirds)
    print(
        f"\n{options.clients} clients, {options.seconds:.0f} s, {options.slots} slots, a queue of"
    )
    print(f"{options.queue}. Resident memory in thirds of the time, MB: {shown}.")


if __name__ == "__main__":
    main()
