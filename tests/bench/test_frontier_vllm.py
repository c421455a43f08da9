"""The cloud alone, streamed by a real vLLM: the words that it writes at once, by its own meter."""

import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise_lab.bench.frontier.systems import Streamed
from edgewise_lab.evaluation.systems import CloudAlone
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.vllm_process import vllm


@pytest.mark.skipif("VLLM_PYTHON" not in os.environ, reason="see `make test-vllm`")
def test_a_real_vllm_streams_what_it_writes(tmp_path: Path) -> None:
    python = os.environ["VLLM_PYTHON"]
    script = Path(__file__).parents[1] / "vllm_model.py"
    subprocess.run([python, str(script), str(bundled("cloud")), str(tmp_path)], check=True)
    task = pocketqa().first(3)
    with (
        vllm(Path(python), tmp_path) as url,
        LlamaModel(bundled("edge"), threads=1) as edge,
        closing(LocalCloud(LlamaModel(bundled("cloud"), threads=1))) as cloud,
        closing(Streamed(url, edge.tokenizer, task.max_tokens, model="pocket")) as system,
    ):
        for question in task.questions:
            whole = CloudAlone(cloud, edge.tokenizer, task.max_tokens).answer(question)
            found = system.answer(question)
            assert found.outcome.text == whole.text
            assert found.outcome.output_tokens == whole.output_tokens
            assert 0 < found.ttft < found.outcome.seconds
            (request,) = found.requests
            assert request.cached is not None
            assert request.computed is not None
            assert request.cached + request.computed == request.prompt
