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
from playwright.sync_api import Browser, ConsoleMessage, expect

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


def asked(served: Encrypted, **environment: str) -> "subprocess.CompletedProcess[str]":
    """OpenAI's own client, in a process of its own."""
    command = [sys.executable, "-c", ASK, served.url]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=120
    )


def test_openais_client_is_told_whom_to_trust(served: Encrypted) -> None:
    done = asked(served, SSL_CERT_FILE=str(served.authority))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_without_that_it_says_nothing_to_anybody(served: Encrypted) -> None:
    done = asked(served)
    assert done.returncode != 0
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr


def test_nothing_is_served_in_the_clear(served: Encrypted) -> None:
    with pytest.raises(httpx2.TransportError):
        httpx2.get(served.url.replace("https", "http") + "/health", timeout=60, trust_env=False)


def test_the_page_works_by_tls(served: Encrypted, browser: Browser) -> None:
    """It asks for nothing in the clear, which a browser would refuse it, and tell."""
    problems: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # The page asks before it has the key.
        if message.type == "error" and "401" not in message.text:
            problems.append(message.text)

    page = browser.new_page(ignore_https_errors=True)
    page.on("console", note)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(served.url)
    expect(page.locator("#status")).to_contain_text("with")
    page.get_by_label("Message").fill("Tell me about copper.")
    page.keyboard.press("Enter")
    page.get_by_label("API key").fill("sk-own")
    page.get_by_label("Message").fill("Tell me about copper.")
    page.keyboard.press("Enter")
    expect(page.locator(".answer").last).to_contain_text("opper")
    page.close()
    assert problems == []
