"""Whole answers by models that go back to marks: speculating changes none of them."""

from collections.abc import Sequence

import numpy as np
import pytest

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import Floats
from edgewise.edge.llamacpp import LlamaModel
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Message, Prompt
from edgewise.routers.constant import Random
from edgewise.testing.scripted_cloud import ScriptedCloud
from tests.doubles.around import late
from tests.hybrid_models import HybridPaths

TEXT = "Be brief. What is it that one sees at night? It is"


def written(answer: Answer) -> list[object]:
    return [(token.id, token.source, token.reason) for token in answer.tokens]


@pytest.mark.parametrize("kind", ["qwen35", "granitehybrid", "lfm2", "rwkv7"])
def test_the_answer_is_that_of_the_waiting_loop(kind: str, hybrid_paths: HybridPaths) -> None:
    with LlamaModel(hybrid_paths[kind], threads=1, context=128) as edge:
        size = edge.tokenizer.size

        def other(ids: Sequence[int]) -> Floats:
            logits = np.zeros(size, np.float32)
            logits[97 + (7 * ids[-1] + len(ids)) % 26] = 1
            return logits

        def answer(text: str, cloud: CloudModel, *, speculate: int) -> Answer:
            policy = Policy(threshold=0.6, cloud_share=0.4, deadline=60, speculate=speculate)
            decoder = Decoder(edge, router=Random(1), policy=policy, cloud=cloud)
            return decoder.generate(edge.tokenizer.encode_prompt(text), max_tokens=48)

        changing = 0
        for length in (20, 30, 40, len(TEXT)):
            waiting = answer(TEXT[:length], ScriptedCloud(other), speculate=0)
            ahead = answer(
                TEXT[:length], late(ScriptedCloud(other), [0, 9, 3, 16, 1]), speculate=16
            )
            assert written(ahead) == written(waiting)
            changing += ahead.usage.correction_tokens
        assert changing > 3


def test_the_next_turn_of_a_conversation_goes_on_from_the_last_user_message(
    hybrid_paths: HybridPaths,
) -> None:
    """A template may write the turn before it otherwise than it was answered."""
    with LlamaModel(hybrid_paths["qwen35"], threads=1, context=256, keep_prefixes=True) as edge:
        decoder = Decoder(edge, router=Random(1), policy=Policy(cloud_share=0.0))

        def cached(asked: str, behind: str) -> int:
            text = f"Be brief and kind.\n\n{asked}{behind}"
            prompt = Prompt(tuple(edge.tokenizer.encode(text)), (Message("user", asked),))
            return decoder.generate(prompt, max_tokens=40).usage.cached_tokens

        assert cached("What is it that one sees?", "<hidden thoughts>") == 0
        before = len(edge.tokenizer.encode("Be brief and kind.\n\n"))
        assert cached("What is it that one hears?", "<hidden thoughts>") == before
        assert cached("What is it that one hears?", "<other thoughts>") == before
