"""What a server tells of a step is enough for a router: the entropy of its 100 likeliest ids."""

from pathlib import Path

import numpy as np

from edgewise.edge.base import Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.served.session import TopStep
from edgewise.sampling import Sampling
from edgewise.servers.llama_server import LlamaCppServer

STEPS = 100


def test_entropy_of_the_likeliest_is_near_that_of_all(smollm2_path: Path) -> None:
    """Over steps drawn at temperature 1, where the rest has most of the probability."""
    drawn = Sampling(temperature=1.0)
    with LlamaModel(smollm2_path, context=256, threads=1, gpu_layers=0) as model:
        ids = model.tokenizer.encode_prompt("Tell me a story about a cat and the sea.")
        session = model.session(Needs.LOGITS)
        session.open(ids)
        off: list[float] = []
        for _ in range(STEPS):
            step = session.step()
            likeliest, logits = step.top(LlamaCppServer.top)
            logprobs = np.array([step.logprob(int(token)) for token in likeliest], np.float32)
            told = TopStep(likeliest, logprobs, None, step.size, position=step.position)
            off.append(abs(told.entropy - step.entropy))
            assert told.proposed == step.proposed
            assert len(logits) == LlamaCppServer.top
            session.extend([drawn.choose(step)])
    assert np.mean(off) < 0.1
    assert max(off) < 0.5
