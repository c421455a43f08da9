"""What users meet, from the outside: commands and servers as processes, real files and sockets."""

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from edgewise.addresses import bundled
from edgewise.testing.link import Link, Quality
from tests.gateway.processes import until
from tests.llama_server_process import llama_server
from tests.server.serving import serving

pytestmark = pytest.mark.deep


def test_a_plug_that_is_pulled_in_mid_answer() -> None:
    """The answer is whole, says where the cloud was missed, and later ones have it back."""
    from openai import OpenAI

    with llama_server(bundled("cloud")) as engine:
        link = Link("127.0.0.1", int(engine.rpartition(":")[2]), Quality(round_trip=0.01))
        flags = ("--cloud", link.url, "--router", "constant:1", "--threads", "1")
        with serving(*flags, "--threshold", "0.5", "--speculate", "0") as url:
            client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            tokens = told(client, pulled=link.refuse)
            written = [token["source"] for token in tokens]
            assert set(written[:4]) == {"cloud"}
            assert written[-1] == "edge"
            missed = {token["reason"] for token in tokens if token["source"] == "edge"}
            assert missed <= {"unavailable", "timeout", "circuit_open"}
            assert httpx2.get(f"{url}/health", trust_env=False).json()["cloud_paused"]
            assert {token["source"] for token in told(client)} == {"edge"}
            link.restore()
            until(lambda: "cloud" in {token["source"] for token in told(client)}, "the cloud")
        link.close()


def told(client: Any, *, pulled: Callable[[], None] | None = None) -> list[dict[str, Any]]:
    """An answer's tokens, by who wrote them; the plug is `pulled` behind the fourth."""
    tokens: list[dict[str, Any]] = []
    stream = client.chat.completions.create(
        model="edgewise",
        messages=[{"role": "user", "content": "Tell me about copper."}],
        max_tokens=24,
        stream=True,
        extra_body={"edgewise": {"provenance": True}},
    )
    ends = 0
    for chunk in stream:
        ends += bool(chunk.choices and chunk.choices[0].finish_reason)
        more: Any = getattr(chunk, "edgewise", None) or {}
        if token := more.get("token"):
            tokens.append(token)
            if pulled is not None and len(tokens) == 4:
                pulled()
    assert ends == 1
    return tokens
