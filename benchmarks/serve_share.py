"""The cloud share over a server's life: `python -m benchmarks.serve_share`.

Short answers (10 to 20 tokens, most too short to earn a token of their own) by `edgewise serve`
with the bundled pair, asked by several clients at once. Prints Markdown: what was asked for, and
what came of it over all answers, used and wasted tokens counted.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor

import httpx2

from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.pocketqa import PocketQa
from tests.server.serving import serving

HEAD = ("router", "asked", "answers", "output tokens", "cloud, used", "wasted", "realised")


def usage(url: str, model: str, question: Question, tokens: int) -> tuple[int, int, int]:
    """Output tokens of one answer, the cloud's among them, and those it wrote in vain."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question.prompt}],
        "max_tokens": tokens,
    }
    reply = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    found = reply.raise_for_status().json()["usage"]
    own = found["edgewise"]
    return found["completion_tokens"], own["cloud_tokens"], own["wasted_tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--shares", type=float, nargs="+", default=(0.02, 0.05, 0.1))
    parser.add_argument("--routers", nargs="+", default=("bundled", "entropy", "constant:1"))
    options = parser.parse_args()
    questions = PocketQa().open("test").questions[: options.answers]
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
    for router in options.routers:
        with (
            serving("--threads", "1", "--router", router) as url,
            ThreadPoolExecutor(options.clients) as pool,
        ):
            for share in options.shares:

                def asked(
                    pair: tuple[int, Question], at: str = url, model: str = f"edgewise@{share:g}"
                ) -> tuple[int, int, int]:
                    return usage(at, model, pair[1], 10 + pair[0] % 11)

                counts = zip(*pool.map(asked, enumerate(questions)), strict=True)
                output, cloud, wasted = (sum(column) for column in counts)
                cells = (router, f"{share:.0%}", len(questions), output, cloud, wasted)
                realised = f"{(cloud + wasted) / output:.2%}"
                print("| " + " | ".join(map(str, (*cells, realised))) + " |", flush=True)


if __name__ == "__main__":
    main()
