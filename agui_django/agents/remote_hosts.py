"""Where a remote agent may be: names for its address, networks for its connections.

Law: the address that is judged is the one that is connected to, so a name that answers differently the second time
gains nothing. What is not public is refused, unless its network was named.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import urlsplit

import httpcore
import httpx

Address = IPv4Address | IPv6Address

#: IPv6 prefixes whose last 32 bits are an IPv4 address that a gateway connects to.
_NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_LOOPBACK: Final = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))


class HostRefused(Exception):
    """The remote agent's address is not one that its registration allows."""


class Hosts:
    """What `RemoteAgent` was told about hosts.

    Args:
        allowed: host names (``*.example.com`` for those below), addresses, and networks (``10.0.0.0/8``);
            ``localhost`` is the name and the loopback networks.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in allowed:
            try:
                self._networks.append(ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                if not entry or "/" in entry or ":" in entry:
                    raise ValueError(f"hosts: {entry!r} is no host name, address or network.") from None
                self._names.add(entry.lower().rstrip("."))
                if entry.lower() == "localhost":
                    self._networks += _LOOPBACK

    def allow_name(self, url: str) -> None:
        """The name in this address is allowed, too."""
        self._names.add(_host_of(url))

    def check_url(self, url: str) -> None:
        """Refuse an address whose host is not named.

        Raises:
            HostRefused: it is not, or it is no HTTP address.
        """
        host = _host_of(url)
        below = (f"*.{host.split('.', n)[n]}" for n in range(1, host.count(".") + 1))
        if host in self._names or any(name in self._names for name in below):
            return
        try:
            if self._named(ip_address(host)):
                return
        except ValueError:
            pass
        raise HostRefused(f"The host {host[:100]!r} is not among the remote agent's hosts.")

    def permits(self, address: str) -> bool:
        """Whether a connection to this address may be made."""
        ip = ip_address(address)
        return self._named(ip) or all(each.is_global and not each.is_multicast for each in (ip, *_inside(ip)))

    def _named(self, ip: Address) -> bool:
        mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
        return any(each in network for network in self._networks for each in (ip, mapped) if each is not None)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to what `Hosts` permits: the name is resolved here, and the address that was judged is connected to."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the first permitted address of the host that takes one."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout("The host name was not resolved in time.") from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        permitted = [address for address in addresses if self._hosts.permits(address)]
        if not permitted:
            raise HostRefused(f"{host[:100]!r} is at no address that may be connected to ({', '.join(addresses)}).")
        failure: Exception | None = None
        for address in permitted:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure or httpcore.ConnectError("There is no address to connect to.")

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        """Not for remote agents."""
        raise HostRefused("Unix sockets are not connected to.")

    async def sleep(self, seconds: float) -> None:
        """As httpcore's own."""
        await asyncio.sleep(seconds)


class GuardedTransport(httpx.AsyncHTTPTransport):
    """httpx's transport over a `GuardedBackend`; no proxy, no HTTP/2, nothing from the environment."""

    def __init__(self, hosts: Hosts, limits: httpx.Limits, verify: Any) -> None:
        super().__init__(verify=verify, limits=limits, trust_env=False)
        self._hosts = hosts
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(verify=verify, trust_env=False),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=GuardedBackend(hosts),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One request; what answered must be where it may be."""
        response = await super().handle_async_request(request)
        stream = response.extensions.get("network_stream")
        address = stream.get_extra_info("server_addr") if stream is not None else None
        if not address or not self._hosts.permits(str(address[0])):
            await response.aclose()
            raise HostRefused("The answer came from an address that may not be connected to.")
        return response


def _host_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise HostRefused("A remote agent's address begins with http:// or https:// and names a host.")
    return parts.hostname.rstrip(".")


def _inside(ip: Address) -> list[IPv4Address]:
    """The IPv4 addresses that an IPv6 address stands for."""
    if isinstance(ip, IPv4Address):
        return []
    found = [each for each in (ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())) if each is not None]
    if any(ip in network for network in _NAT64):
        found.append(IPv4Address(int(ip) & 0xFFFFFFFF))
    return found
