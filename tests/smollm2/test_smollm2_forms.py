"""A real model answers in JSON, of its own making and with a cloud that likes other words."""

import json
from contextlib import closing
from pathlib import Path

import jsonschema
import pytest

from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.grammar.response_format import ResponseFormat, grammar_of
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Message, prompt_of
from edgewise.routers.uncertainty import Entropy

pytest.importorskip("llguidance")

QUESTION = "Which animal lives in the sea? Answer in JSON with its name and its number of legs."
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "legs": {"type": "integer", "minimum": 0, "maximum": 10},
    },
    "required": ["name", "legs"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("speculate", [None, 8])
def test_a_real_model_answers_in_json(smollm2_path: Path, speculate: int | None) -> None:
    """Alone, and with itself as the cloud, which is not told of the form."""
    model = LlamaModel(smollm2_path, context=192, threads=1, gpu_layers=0, slots=2)
    # It closes the model, too.
    with closing(LocalCloud(model)) as cloud:
        decoder = Decoder(
            model,
            router=Entropy(),
            policy=Policy(threshold=0.1, speculate=speculate or 0),
            cloud=None if speculate is None else cloud,
        )
        prompt = prompt_of(model.tokenizer, [Message("user", QUESTION)])
        grammar = grammar_of(model.tokenizer, ResponseFormat(schema=SCHEMA))
        answer = decoder.generate(prompt, grammar=grammar, max_tokens=80)
    assert answer.finish_reason == "stop"
    found = json.loads(answer.text)
    jsonschema.validate(found, SCHEMA)
    assert found["name"].strip()
    reasons = {token.reason for token in answer.tokens}
    assert "forced" in reasons
    assert speculate is None or answer.usage.cloud_calls
