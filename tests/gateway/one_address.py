"""Two gateway processes behind one address, by the haproxy and the file that `deploy/` ships."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.base import EdgeModel
from edgewise.keys.keys import add_key
from tests.gateway.processes import (
    ROOT,
    GatewayProcess,
    haproxy,
    lasting_port,
    metric,
    two_gateways,
)

CONFIGURATION = ROOT / "deploy" / "haproxy.cfg"


class Address(NamedTuple):
    """One address, the gateways behind it, a key for both, and HAProxy's own numbers."""

    url: str
    a: GatewayProcess
    b: GatewayProcess
    secret: str
    numbers: str

    def up(self, name: str) -> bool:
        """Whether HAProxy sends new sessions to a gateway."""
        return bool(
            metric(self.numbers, "haproxy_server_status", proxy="gateways", server=name, state="UP")
        )

    def device(self, edge: EdgeModel) -> GatewayCloud:
        """Its cloud, with a session opened."""
        made = GatewayCloud(self.url, key=self.secret)
        made.check(edge.tokenizer)
        return made


@contextmanager
def address(engine: str, folder: Path) -> Iterator[Address]:
    """The shipped configuration over two gateways, with TLS; the process trusts its authority."""
    authority = trustme.CA()
    pem = folder / "edgewise.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(pem))
    keys = folder / "keys.json"
    secret = add_key(keys, "devices", asks_per_second=0, tokens_per_day=0, sessions=0)
    port, numbers = lasting_port(), lasting_port()
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        trusted = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(trusted))
        patch.setenv("SSL_CERT_FILE", str(trusted))
        a, b = stack.enter_context(two_gateways(engine, keys))
        environment = {
            "EDGEWISE_BIND": f"127.0.0.1:{port}",
            "EDGEWISE_PEM": str(pem),
            "EDGEWISE_GATEWAY_A": f"127.0.0.1:{a.port}",
            "EDGEWISE_GATEWAY_B": f"127.0.0.1:{b.port}",
            "EDGEWISE_NUMBERS": f"127.0.0.1:{numbers}",
        }
        shown = f"http://127.0.0.1:{numbers}/metrics"
        stack.enter_context(haproxy(CONFIGURATION, shown, **environment))
        yield Address(f"https://localhost:{port}", a, b, secret, shown)
