"""Addresses of clouds: which are allowed, by which proxy they are reached, why they are not.

A proxy of the environment sees encrypted bytes alone.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from edgewise.addresses import without_endpoint
from edgewise.errors import CloudUnavailable, UsageError
from edgewise.servers.http import untrusted, why, without_tls

_EXEMPT = "check the proxy, or add the cloud's host to NO_PROXY"


def checked_address(url: str) -> str:
    """Strips an API's `/v1`, and what a pasted address has after it.

    Raises `UsageError`, also where the environment's proxy for it cannot be used.
    """
    require_keyless(url)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not an http:// or https:// address of a cloud engine.")
    proxy_of(url)
    return parts._replace(path=without_endpoint(parts.path)).geturl()


def require_keyless(url: str, role: str = "cloud") -> None:
    """Raises `UsageError`, which does not show it, for an address with a user or a password."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"Invalid {role} URL ({error})") from error
    if parts.username or parts.password:
        raise UsageError(
            f"The address of the {role} model holds a key",
            hint=f"put the key into EDGEWISE_{role.upper()}_KEY instead",
        )


def unreachable(url: str, error: Exception) -> CloudUnavailable:
    """The error for a connection that could not be made or kept."""
    if untrusted(error):
        return CloudUnavailable(
            f"The certificate of {url!r} is not trusted",
            hint="for a private authority set SSL_CERT_FILE to its certificate",
        )
    name, proxy = proxy_of(url)
    by = f" by the proxy that {name} names" if proxy else ""
    hint = "check the address and that it runs"
    if name:
        hint += f"; {_EXEMPT}" if proxy else f" ({name} is used for https:// alone)"
    if without_tls(error):
        hint = "check the address: a server without TLS is at http://"
    return CloudUnavailable(f"The cloud at {url!r} cannot be reached{by} ({why(error)})", hint=hint)


def proxy_of(url: str) -> tuple[str, str | None]:
    """The variable that names a proxy for `url` ("" if none does), and the proxy if it is used.

    Only `https` goes by it: the proxy sees the host's name and encrypted bytes. Of `http` it would
    read everything. This machine is asked directly, and so are the hosts in NO_PROXY. Raises
    `UsageError` for a proxy that cannot be used: going around it may be what nobody wants.
    """
    parts, known = urlsplit(url), getproxies_environment()
    host, kind = parts.hostname or "", parts.scheme if parts.scheme in known else "all"
    if kind not in known or _is_here(host) or proxy_bypass(parts.netloc):
        return "", None
    name, address = f"{kind.upper()}_PROXY", known[kind]
    if parts.scheme != "https":
        return name, None
    address = address if "://" in address else f"http://{address}"
    try:
        proxy = urlsplit(address)
        usable = proxy.scheme in ("http", "https") and proxy.hostname and proxy.port != 0
    except ValueError:
        usable = False
    if not usable or not address.isprintable() or " " in address:
        raise UsageError(
            f"{name} names a proxy for {url!r} that is none at an http:// address, such as a "
            "SOCKS proxy",
            hint=f"name an HTTP proxy there, or in HTTPS_PROXY; {_EXEMPT}",
        )
    return name, address


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
