"""Which hosts a cloud may be at, and the key that it is sent."""

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import yarl

from edgewise.errors import UsageError
from edgewise.settings import Settings, spelled

_PORTS = {"http": 80, "https": 443}


class Host(NamedTuple):
    """A name or an address in lower case; a `port` of None stands for any."""

    name: str
    port: int | None = None

    def __str__(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"


def hosts_of(listed: str | None, setting: str = "cloud_hosts") -> tuple[Host, ...] | None:
    """Hosts separated by commas, each with a port or without; None where nothing is set.

    Raises `UsageError` for what is not a host, and for an empty list.
    """
    if listed is None:
        return None
    named = spelled(setting)
    hosts = tuple(_host(part.strip(), named) for part in listed.split(",") if part.strip())
    if not hosts:
        raise UsageError(f"{named} names no host", hint="name one, or leave it out")
    return hosts


def require_allowed(url: str, hosts: Sequence[Host] | None) -> None:
    """Raises `UsageError` for a cloud elsewhere; nothing is connected to."""
    if hosts is not None and not is_at(url, hosts):
        raise UsageError(
            f"The cloud {url!r} is at none of the hosts that are allowed "
            f"({', '.join(map(str, hosts))}), so nothing is sent there",
            hint="name another cloud, or add its host",
            setting="cloud_hosts",
        )


def is_at(url: str, hosts: Sequence[Host]) -> bool:
    """Whether a URL leads to one of the hosts, for whoever reads it."""
    try:
        # As it is read here, and as what connects reads it: they must agree.
        parts, connected = urlsplit(url), yarl.URL(url)
        host = Host(_plain(parts.hostname), parts.port or _PORTS.get(parts.scheme))
        agree = host == (_plain(connected.raw_host), connected.port)
    except ValueError:
        return False
    return agree and (host in hosts or Host(host.name) in hosts)


def _host(given: str, setting: str) -> Host:
    try:
        port = urlsplit(f"//{given}").port
        name = _plain(yarl.URL(f"http://{given}").raw_host)
    except ValueError:
        name, port = "", None
    if not name or any(char in "/@?#\\*%" or char.isspace() for char in given):
        raise UsageError(
            f"{setting} names {given!r}, which is not a host",
            hint="give names such as host.example or 10.0.0.2:8080, separated by commas",
        )
    return Host(name, port)


def _plain(name: str | None) -> str:
    """As hosts are compared."""
    return (name or "").lower().rstrip(".")


def cloud_key(settings: Settings) -> str | None:
    """The key that the settings give. Raises `UsageError` if it cannot be a bearer token."""
    key = settings.cloud_key
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(
            "The cloud's key has blanks, line breaks or characters that no key has",
            hint="copy it again",
            setting="cloud_key",
        )
    return key
