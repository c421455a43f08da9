"""The real llama-server (from the xllamacpp wheel) as a process of its own on 127.0.0.1."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.deep import require_deep
from tests.server_process import free_port, server_process

RECOMMENDED = {"cache_ram_mib": 0, "kv_unified": False, "slot_prompt_similarity": 0.0}
"""The flags that docs/clouds.md asks for, under the names of `xllamacpp.CommonParams`."""

_SERVE = """
import json, sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.n_ctx, params.n_parallel, params.n_threads_http = 1024, 2, 64  # as docs/clouds.md says
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[4])
for name, value in json.loads(sys.argv[3]).items():
    setattr(params, name, value)
server = xllamacpp.Server(params)
sys.stdin.read()
"""


@contextmanager
def llama_server(
    model: Path,
    *,
    key: str | None = None,
    port: int | None = None,
    flags: Mapping[str, float] | None = None,
    threads: int = 1,
) -> Iterator[str]:
    """Serve `model`; yields the URL. The process ends with the block.

    `flags` are fields of `xllamacpp.CommonParams`; 1,024 tokens and two slots without any.
    """
    require_deep("llama-server")
    port = port or free_port()
    set_to = json.dumps({"api_keys": [key] if key else [], **(flags or {})})
    command = [sys.executable, "-c", _SERVE, str(model), str(port), set_to, str(threads)]
    url = f"http://127.0.0.1:{port}"
    with server_process(command, f"{url}/health", log=Path(os.devnull)):
        yield url
