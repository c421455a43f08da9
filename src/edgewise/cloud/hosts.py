"""The hosts that prompts may be sent to, for cloud models and edge servers, and their API keys."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from edgewise.errors import AddressError, UsageError
from edgewise.settings import Settings, spelled

_PORTS = {"http": 80, "https": 443}

_HERE = tuple(map(ip_network, ("127.0.0.0/8", "::1/128")))
_PRIVATE = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "fc00::/7",
    "fe80::/10",
)
# Loopback, private networks (RFC 1918, RFC 4193) and link-local addresses.
_NEAR = (*_HERE, *map(ip_network, _PRIVATE))


class Host(NamedTuple):
    """A host name or IP address in lower case, with a port; None stands for any port."""

    name: str
    port: int | None = None

    def __str__(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"


def hosts_of(
    listed: str | None, setting: Literal["cloud_hosts", "edge_hosts", "trust"] = "cloud_hosts"
) -> tuple[Host, ...] | None:
    """Parse a list of hosts separated by commas, each with or without a port; None gives None.

    Raises `UsageError`, which names `setting`, for a part that is no host and for an empty list.
    """
    if listed is None:
        return None
    name = spelled(setting)
    hosts = tuple(_host(part.strip(), name) for part in listed.split(",") if part.strip())
    if not hosts:
        raise UsageError(f"{name} names no host", hint="name one, or leave it out")
    return hosts


def require_allowed(url: str, hosts: Sequence[Host] | None) -> None:
    """Raise `UsageError` if the cloud model's `url` is not at one of `hosts`. Looks up no address.

    `hosts` are those of the setting `cloud_hosts`; with None every URL is allowed.
    """
    # Before any name is looked up: a lookup tells where a connection would go.
    if hosts is not None and not is_at(url, hosts):
        raise UsageError(
            f"The cloud {url!r} is not at an allowed host ({', '.join(map(str, hosts))}), so "
            "nothing is sent there",
            hint="name another cloud, or add its host",
            setting="cloud_hosts",
        )


def is_at(url: str, hosts: Sequence[Host]) -> bool:
    """Whether `url` leads to one of `hosts`; False if two URL parsers disagree on its host."""
    host = _host_in(url)
    return host is not None and (host in hosts or Host(host.name) in hosts)


def require_near(url: str, hosts: Sequence[Host] | None) -> None:
    """Raise `AddressError` if prompts may not go to the edge model's server at `url`.

    Allowed are this machine, addresses of private networks and `hosts` (setting `edge_hosts`). Any
    name but localhost must be one of `hosts`. A query, fragment or user in `url` is refused.
    """
    host = _host_in(url)
    parts = urlsplit(url) if host is not None else None
    if parts is None or host is None or "@" in parts.netloc or parts.query or parts.fragment:
        raise AddressError(
            "The address of the edge server is not a plain http:// or https:// URL",
            hint="give http://127.0.0.1:PORT, and a key as EDGEWISE_EDGE_KEY",
            setting="edge",
        )
    if not is_at(url, hosts or ()) and not _is_near(host.name):
        raise AddressError(
            f"The edge server {url!r} is not on a private network, so prompts would leave yours",
            hint=f"allow its host ({host.name})",
            setting="edge_hosts",
        )


def is_here(url: str) -> bool:
    """Whether `url` names a loopback address or localhost; False if two parsers of it disagree."""
    host = _host_in(url)
    return host is not None and _is_near(host.name, _HERE)


def _is_near(name: str, networks: Sequence[IPv4Network | IPv6Network] = _NEAR) -> bool:
    try:
        address = ip_address(name)
    except ValueError:
        return name == "localhost"
    return any(address in network for network in networks)


def _host_in(url: str) -> Host | None:
    """The URL's host; None if the URL is invalid, or if the HTTP client reads another host."""
    try:
        parts, connected = urlsplit(url), _connected(url)
        host = Host(_plain(parts.hostname), parts.port or _PORTS.get(parts.scheme))
        # What two parsers read otherwise could pass as one host and lead to another.
        return host if host == connected else None
    except ValueError:
        return None


def _host(given: str, setting: str) -> Host:
    try:
        port = urlsplit(f"//{given}").port
        name = _connected(f"http://{given}").name
    except ValueError:
        # A port that is no number, or a name that no client accepts.
        name, port = "", None
    if not name or any(char in "/@?#\\*%" or char.isspace() for char in given):
        raise UsageError(
            f"{setting} names {given!r}, which is not a host",
            hint="give names such as host.example or 10.0.0.2:8080, separated by commas",
        )
    return Host(name, port)


def _connected(url: str) -> Host:
    """The host that the HTTP client would connect to; raises `ValueError`."""
    import httpx2  # takes a while, and most commands name no host

    try:
        # Of a backslash parsers make a slash, or part of a name.
        seen = httpx2.URL(url if "\\" not in url else "")
    except httpx2.InvalidURL as error:
        raise ValueError(str(error)) from error
    return Host(_plain(seen.raw_host.decode()), seen.port or _PORTS.get(seen.scheme))


def _plain(name: str | None) -> str:
    """Return a host name in lower case without a dot at its end, "" for None."""
    return (name or "").lower().rstrip(".")


def bearer(settings: Settings, setting: Literal["cloud_key", "edge_key"]) -> str | None:
    """Return the field `setting` of `settings`: an API key to send as a bearer token, or None.

    Raises `UsageError` if it has spaces or characters that are not printable ASCII.
    """
    key = settings.cloud_key if setting == "cloud_key" else settings.edge_key
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(
            f"{spelled(setting)} has spaces, line breaks or characters that no key has",
            hint="copy it again",
            setting=setting,
        )
    return key
