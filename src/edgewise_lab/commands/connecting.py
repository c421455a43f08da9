"""The two ends that a benchmark measures: the cloud's URL, and how slow the edge is made."""

from collections.abc import Generator
from contextlib import closing, contextmanager

from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.cloud.hosts import hosts_of, require_allowed
from edgewise.cloud.named import AUTO
from edgewise.edge.base import EdgeModel
from edgewise.errors import UsageError
from edgewise.parts import cloud_address, open_cloud, open_edge
from edgewise.settings import Settings
from edgewise_lab.bench.pace import HALF_BILLION, UNPACED, Pace, measured


def without_cloud(chosen: Settings) -> Settings:
    of_urls = {"cloud_tokenizer": None, "cloud_model": None, "cloud_key_env": None}
    return replace(chosen, cloud="none", cloud_engine=AUTO, **of_urls)


def pace_named(name: str | None, chosen: Settings) -> Pace:
    """As asked; the bundled edge model is slowed down to a 0.5B where nothing was."""
    name = name or ("0.5b" if chosen.edge == "bundled" else "none")
    if name == "0.5b":
        return HALF_BILLION
    if name == "none":
        return UNPACED
    with closing(open_edge(Settings(edge=name, ctx=512, threads=chosen.threads))) as model:
        return measured(model)


@contextmanager
def served(chosen: Settings) -> Generator[str]:
    """The URL of the cloud model; the bundled one gets a gateway of its own."""
    address = cloud_address(chosen)
    if address == "bundled":
        from edgewise.gateway.process import gateway_process

        with gateway_process(address) as url:
            yield url
    elif address.startswith("http"):
        require_allowed(address, hosts_of(chosen.cloud_hosts))
        yield address
    else:
        raise UsageError(
            f"A link needs a cloud at its other end, and {address!r} is none; give --cloud "
            "http://host:port, or bundled."
        )


def connected_cloud(settings: Settings, edge: EdgeModel) -> CloudModel:
    """The cloud model that the settings name, its vocabulary proven."""
    cloud = open_cloud(settings, edge)
    assert cloud is not None
    return cloud
