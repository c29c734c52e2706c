"""Names of nodes to addresses, without ever blocking the loop or losing an address to a failed lookup.

The system's resolver runs in threads of its own, one lookup a name at a time; a lookup that hangs keeps
its thread, and the next one waits for it rather than taking another. Must not decide whether a node is
well. Called by `controlplane.controller`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ..log import get_logger
from ..topology.snapshot import Address

MAX_THREADS = 8
MAX_ADDRESSES = 16
"""Addresses kept of one name."""

Lookup = Callable[[str, int], list[Address]]

_log = get_logger("resolve")


def system_lookup(host: str, port: int) -> list[Address]:
    """The system's answer, in its order (RFC 6724); raises OSError. Blocks."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(Address(str(entry[4][0]), port) for entry in found))[:MAX_ADDRESSES]


def literal(host: str, port: int) -> Address | None:
    """The address of a host that needs no lookup: an IP literal, or the directory of a Unix socket."""
    if host.startswith("/"):
        return Address(f"{host.rstrip('/')}/.s.PGSQL.{port}")
    try:
        return Address(str(ipaddress.ip_address(host)), port)
    except ValueError:
        return None


class Resolver:
    """Lookups of all nodes."""

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="resolve")
        self._known: dict[tuple[str, int], tuple[Address, ...]] = {}
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def resolve(self, host: str, port: int, seconds: float) -> tuple[Address, ...]:
        """The addresses now known, after at most `seconds`; those of the last good lookup if this one
        fails or hangs, and empty only if none ever succeeded."""
        if address := literal(host, port):
            return (address,)
        key = (host, port)
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._refresh(key), name=f"resolve {host}")
        await asyncio.wait([task], timeout=seconds)
        return self._known.get(key, ())

    async def _refresh(self, key: tuple[str, int]) -> None:
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, self._lookup, *key)
        except OSError as error:
            _log.warning("lookup_failed", host=key[0], error=str(error), kept=len(self._known.get(key, ())))
        else:
            if found:
                self._known[key] = tuple(found)
        finally:
            del self._running[key]

    def stop(self) -> None:
        """Start no more lookups; one that hangs is left to its thread."""
        for task in self._running.values():
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
