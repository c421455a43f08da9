"""Same answers through a gateway as from the engine: `python -m benchmarks.gateway_same`.

The bundled cloud model in a real llama-server writes greedy answers to pocketqa questions in
consults of 1, 2 and 4 tokens, directly and through a gateway, one process for both. Where two
answers differ, the margin (nats) between the two likeliest tokens at the first difference is
shown: engines compute batches of other sizes, which flips near ties. Prints Markdown.
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack

from rich.console import Console
from rich.progress import Progress

from benchmarks.markdown import line
from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel
from edgewise.cloud.engine import LlamaServer
from edgewise.cloud.gateway.cloud import GatewayCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.evaluation.systems import question_ids
from edgewise.evaluation.tasks.pocketqa import pocketqa
from edgewise.events import Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.constant import Constant
from tests.gateway.running import gateway
from tests.llama_server_process import llama_server


def written(
    edge: LlamaModel, cloud: CloudModel, ids: Sequence[int], span: int
) -> tuple[Token, ...]:
    """An answer of which the cloud writes every token."""
    policy = Policy(threshold=0.5, span=span, deadline=60.0, on_cloud_error="raise")
    decoder = Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud)
    return decoder.generate(ids, max_tokens=96).tokens


def margin(left: Sequence[Token], right: Sequence[Token]) -> float | None:
    """Between the two likeliest tokens where the answers part; None where they do not."""
    for one, other in zip(left, right, strict=False):
        if one.id != other.id:
            first, second = one.cloud[:2]
            return first.logprob - second.logprob
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--spans", type=int, nargs="+", default=(1, 2, 4))
    options = parser.parse_args()
    lines = line(["tokens a consult", "answers", "identical", "margins where not, nats"], head=True)
    with ExitStack() as stack:
        edge = LlamaModel(bundled("edge"), threads=1)
        stack.callback(edge.close)
        url = stack.enter_context(llama_server(bundled("cloud")))
        running = stack.enter_context(gateway([url]))
        direct, through = LlamaServer(url), GatewayCloud(running.url)
        for cloud in (direct, through):
            stack.callback(cloud.close)
            cloud.check(edge.tokenizer)
        progress = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        bar = progress.add_task("answers", total=options.questions * len(options.spans))
        for span in options.spans:
            margins: list[float] = []
            for question in pocketqa().questions[: options.questions]:
                ids = question_ids(edge.tokenizer, question)
                pair = [written(edge, cloud, ids, span) for cloud in (direct, through)]
                found = margin(*pair)
                if found is not None:
                    margins.append(found)
                progress.advance(bar)
            same = options.questions - len(margins)
            shown = ", ".join(f"{value:.4f}" for value in sorted(margins))
            lines += line([str(span), str(options.questions), str(same), shown])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
