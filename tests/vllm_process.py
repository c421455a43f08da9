"""A real vLLM on the CPU as a process of its own on 127.0.0.1, from a Python that has it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.server_process import free_port, server_process

START_SECONDS = 300


@contextmanager
def vllm(
    python: Path, model: Path, *, port: int | None = None, flags: Sequence[str] = ()
) -> Iterator[str]:
    """Serve `model` (a folder in the hub's format); yields the URL."""
    port = port or free_port()
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--block-size", "32"]
    command += ["--max-model-len", "512", "--max-num-seqs", "8", "--served-model-name", "pocket"]
    command += ["--dtype", "float32", "--enable-prompt-tokens-details", *flags]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    url, log = f"http://127.0.0.1:{port}", model / "vllm.log"
    with server_process(
        command, f"{url}/health", log=log, seconds=START_SECONDS, variables=settings
    ):
        yield url
