"""A real vLLM on the CPU as a process of its own on 127.0.0.1, from a Python that has it."""

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.llama_server_process import free_port

START_SECONDS = 300


@contextmanager
def vllm(python: Path, model: Path, *, flags: Sequence[str] = ()) -> Iterator[str]:
    """Serve `model` (a folder in the hub's format); yields the URL."""
    port = free_port()
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--block-size", "32"]
    command += ["--max-model-len", "512", "--max-num-seqs", "8", "--served-model-name", "pocket"]
    command += ["--dtype", "float32", "--enable-prompt-tokens-details", *flags]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    log = model / "vllm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=os.environ | settings, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, process, log)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"vLLM did not start:\n{log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(url + "/health"):
                return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"vLLM did not start in {START_SECONDS} s:\n{log.read_text()[-3000:]}")
