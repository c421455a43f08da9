"""Speed over a llama-server's own stream: `python -m benchmarks.served_edge URL --cloud MODEL`.

Rounds in which the server's own stream (no candidates) and pairs at shares of 0 and 5% take turns
on one prompt, which the server has read before. Prints medians of the rounds' ratios of tokens a
second, with the lowest and the highest. URL is of a running llama-server, whose model is the edge.
"""

import argparse
import time
from contextlib import ExitStack

import httpx2
import msgspec

from benchmarks.shared import spread
from edgewise import Pair
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

SHARES = (0.0, 0.05)


def streamed(url: str, ids: list[int], tokens: int) -> float:
    """Tokens a second of the server's own stream."""
    body = {"prompt": ids, "n_predict": tokens, "temperature": 0, "stream": True}
    begun, written = time.monotonic(), 0
    with httpx2.stream("POST", f"{url}/completion", json=body, trust_env=False) as response:
        for text in response.iter_lines():
            if text.startswith("data: "):
                written = msgspec.json.decode(text[6:]).get("tokens_predicted", written)
    return written / (time.monotonic() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--cloud", default="bundled")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=128)
    chosen = parser.parse_args()
    ratios: dict[float, list[float]] = {share: [] for share in SHARES}
    questions = pocketqa("test").questions[: chosen.rounds]
    with ExitStack() as stack:
        pairs = {
            share: stack.enter_context(Pair(chosen.url, cloud=chosen.cloud, cloud_share=share))
            for share in SHARES
        }
        for number, prompt in enumerate(question.prompt for question in questions):
            ids = list(pairs[0.0].prompt(prompt).ids)
            streamed(chosen.url, ids, 1)
            speeds: dict[float | None, float] = {}
            for share in (None, *SHARES) if number % 2 else (*reversed(SHARES), None):
                if share is None:
                    speeds[None] = streamed(chosen.url, ids, chosen.tokens)
                else:
                    answer = pairs[share].ask(prompt, max_tokens=chosen.tokens)
                    speeds[share] = len(answer.tokens) / answer.timing.total
            for share in SHARES:
                ratios[share].append(speeds[share] / speeds[None])
    for share, found in ratios.items():
        print(f"share {share:.0%}: {spread(found, 3)}")


if __name__ == "__main__":
    main()
