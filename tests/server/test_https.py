"""`serve` with a certificate: OpenAI's client and the page speak TLS to it, and nothing else."""

import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest
import trustme

from tests.server.serving import running

ASK = """
import sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="sk-own", max_retries=0)
messages = [{"role": "user", "content": "Tell me about copper."}]
stream = client.chat.completions.create(
    model="edgewise", messages=messages, max_tokens=8, stream=True
)
print("".join(chunk.choices[0].delta.content or "" for chunk in stream))
"""


class Encrypted(NamedTuple):
    """A server, and the file of whoever signed its certificate."""

    url: str
    authority: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, private_key, signed = (folder / name for name in ("c.pem", "k.pem", "ca.pem"))
    issued.private_key_pem.write_to_path(private_key)
    issued.cert_chain_pems[0].write_to_path(certificate)
    authority.cert_pem.write_to_path(signed)
    flags = ("--certificate", str(certificate), "--private-key", str(private_key))
    trusted = ssl.create_default_context(cafile=str(signed))
    with running(*flags, "--threads", "1", "--api-key", "sk-own", trusted=trusted) as server:
        yield Encrypted(server.url, signed)


@pytest.mark.parametrize("trusts", [True, False])
def test_openais_client_asks_whom_it_was_told_to_trust(served: Encrypted, trusts: bool) -> None:
    """In a process of its own; else it says nothing to anybody."""
    command = [sys.executable, "-c", ASK, served.url]
    told = {"SSL_CERT_FILE": str(served.authority)} if trusts else {}
    done = subprocess.run(
        command, env=os.environ | told, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode == 0) == trusts, done.stderr
    assert done.stdout.strip() if trusts else "CERTIFICATE_VERIFY_FAILED" in done.stderr


def test_nothing_is_served_in_the_clear(served: Encrypted) -> None:
    with pytest.raises(httpx2.TransportError):
        httpx2.get(served.url.replace("https", "http") + "/health", timeout=60, trust_env=False)
