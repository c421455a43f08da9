"""Which hosts a cloud may be at, and the key that it is sent."""

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import yarl

from edgewise.errors import UsageError
from edgewise.settings import Settings

_PORTS = {"http": 80, "https": 443}


class Host(NamedTuple):
    """A name or an address in lower case; a `port` of None stands for any."""

    name: str
    port: int | None


def hosts_of(listed: str | None) -> tuple[Host, ...] | None:
    """Hosts separated by commas, each with a port or without; None for any host.

    Raises `UsageError` for what is none, and where there are none.
    """
    if listed is None:
        return None
    found = tuple(_host(one.strip()) for one in listed.split(",") if one.strip())
    if not found:
        raise UsageError("cloud-hosts names no host", hint="name one, or leave it out")
    return found


def require_allowed(url: str, hosts: Sequence[Host] | None) -> None:
    """Raises `UsageError` for a cloud elsewhere; nothing is connected to."""
    if hosts is None:
        return
    try:
        # As it is read here, and as what connects reads it: they must agree.
        parts, connected = urlsplit(url), yarl.URL(url)
        port = parts.port or _PORTS.get(parts.scheme)
        read = {(_plain(parts.hostname), port), (_plain(connected.raw_host), connected.port)}
    except ValueError:
        read = set[tuple[str, int | None]]()
    allowed = len(read) == 1 and any(
        name == host.name and host.port in (None, port) for host in hosts for name, port in read
    )
    if not allowed:
        known = ", ".join(_shown(host) for host in hosts)
        raise UsageError(
            f"The cloud {url!r} is at none of the hosts that are allowed ({known}), so nothing is "
            "sent there",
            hint="name another cloud, or add its host",
            setting="cloud_hosts",
        )


def _host(one: str) -> Host:
    try:
        parts = urlsplit(f"//{one}")
        name, port = _plain(yarl.URL(f"http://{one}").raw_host), parts.port
    except ValueError:
        name, port = "", None
    if not name or _is_more(one):
        raise UsageError(
            f"cloud-hosts names {one!r}, which is no host",
            hint="give names such as host.example or 10.0.0.2:8080, separated by commas",
        )
    return Host(name, port)


def _is_more(one: str) -> bool:
    """Whether there is more than a host and a port."""
    return any(c in one for c in "/@?#\\*%") or any(c.isspace() for c in one)


def _plain(name: str | None) -> str:
    """As hosts are compared."""
    return (name or "").lower().rstrip(".")


def _shown(host: Host) -> str:
    name = f"[{host.name}]" if ":" in host.name else host.name
    return name if host.port is None else f"{name}:{host.port}"


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
