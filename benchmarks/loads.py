"""The loads: each runs once against one system and says what it saw.

Owns the programs that make load (pgbench, psql) and the many-client loads in this process. `run` decides
how often and in which order.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import uvloop

from .client import Connection, LoginFailed, any_certificate, connect
from .fleet import DATABASE, USER
from .pgbench import Failed, pgbench, quantile, reason
from .procs import Meter
from .systems import System

LINE = "x" * 99
OPENING = 200  # logins under way at once while idle clients are opened


@dataclass(frozen=True)
class Measure:
    """What one run of one load against one system gave. Zero is not measured; `failed` says why there is nothing."""

    rate: float = 0.0
    """Per second: transactions, connects, or megabytes."""
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    cpu_us: float = 0.0
    """CPU of the proxy for one transaction or connect; for copies, for one megabyte."""
    memory_mb: float = 0.0
    """Of all processes of the proxy, at the end of the load and before clients leave."""
    failed: str = ""


@dataclass(frozen=True)
class Load:
    """A row of the table. `pick` is what `--only` names it by."""

    title: str
    pick: frozenset[str]
    unit: str
    clients: int
    run: Callable[[System], Measure]
    once: bool = False
    """Run once on a freshly started system: memory is the result."""


def loads(seconds: float, copy_mb: int, idle: int) -> list[Load]:
    """All rows, in the table's order."""
    rows = []
    for mode in ("simple", "extended", "prepared"):
        for clients in (1, 16, 64):
            title = f"select by key, {mode}, {clients} client{'s' if clients > 1 else ''}"
            run = partial(transactions, script=["-S"], mode=mode, clients=clients, seconds=seconds)
            rows.append(Load(title, frozenset({"select", mode, str(clients)}), "tps", clients, run))
    run = partial(transactions, script=[], mode="simple", clients=16, seconds=seconds)
    rows.append(Load("TPC-B-like, simple, 16 clients", frozenset({"tpcb", "16"}), "tps", 16, run))
    for way, copy in (("out", copy_out), ("in", copy_in)):
        title = f"COPY {copy_mb / 1000:g} GB {way}"
        rows.append(Load(title, frozenset({"copy", way}), "MB/s", 1, partial(copy, megabytes=copy_mb)))
    for kind, tls in (("SCRAM", False), ("SCRAM and TLS", True)):
        picks = frozenset({"connect", "tls" if tls else "plain"})
        run = partial(connects, seconds=seconds, tls=tls)
        rows.append(Load(f"500 connects a second, {kind}", picks, "connects/s", 100, run))
    for kind, tls in (("plain", False), ("TLS", True)):
        picks = frozenset({"idle", kind.lower()})
        run = partial(idlers, count=idle, tls=tls)
        rows.append(Load(f"{idle:,} idle clients, {kind}", picks, "logins/s", idle, run, once=True))
    return rows


def transactions(system: System, script: list[str], mode: str, clients: int, seconds: float) -> Measure:
    """One run of pgbench."""
    meter = Meter(system.pid)
    try:
        bench = pgbench(system.fleet, system.port, [*script, "-M", mode], clients, seconds)
    except Failed as failed:
        return Measure(failed=f"failed: {failed}")
    latencies = bench.all_latencies
    return Measure(
        rate=bench.rate,
        p50_ms=quantile(latencies, 0.5),
        p99_ms=quantile(latencies, 0.99),
        cpu_us=meter.per(sum(bench.counts)),
        memory_mb=meter.memory(),
    )


def copy_out(system: System, megabytes: int) -> Measure:
    """Rows of 100 bytes out of the server; the first run leaves them in a file for `copy_in`."""
    source = f"(SELECT '{LINE}' FROM generate_series(1, {megabytes * 10_000}))"
    kept = system.fleet.directory / "lines"
    return _copy(system, f"\\copy {source} TO '{kept if not kept.exists() else '/dev/null'}'", megabytes)


def copy_in(system: System, megabytes: int) -> Measure:
    """The same rows into a table that is not logged, so that the client's side is what is measured."""
    kept = system.fleet.directory / "lines"
    if not kept.exists():
        kept.write_bytes((LINE + "\n").encode() * (megabytes * 10_000))
    system.fleet.primary.query("TRUNCATE copied", dbname=DATABASE)
    return _copy(system, f"\\copy copied FROM '{kept}'", megabytes)


def _copy(system: System, command: str, megabytes: int) -> Measure:
    fleet = system.fleet
    meter = Meter(system.pid)
    began = time.monotonic()
    done = subprocess.run(
        [fleet.psql, "-X", "-q", "-c", command],
        env=fleet.environment(system.port),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    took = time.monotonic() - began
    if done.returncode:
        return Measure(failed=f"failed: {reason(done.stderr)}")
    return Measure(rate=megabytes / took, cpu_us=meter.per(megabytes), memory_mb=meter.memory())


def connects(system: System, seconds: float, tls: bool, per_second: int = 500) -> Measure:
    """Clients come at a fixed pace whether or not earlier ones are done; each logs in, asks once, leaves."""

    async def main() -> tuple[list[float], list[str], float]:
        context = any_certificate() if tls else None
        took: list[float] = []
        failures: list[str] = []

        async def one() -> None:
            began = time.monotonic()
            try:
                async with asyncio.timeout(30):
                    client = await _connect(system, context)
                    await client.query("SELECT 1")
                    client.close()
            except (OSError, LoginFailed, asyncio.IncompleteReadError) as error:
                failures.append(str(error) or type(error).__name__)
            else:
                took.append((time.monotonic() - began) * 1000)

        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(round(seconds * per_second)):
                await asyncio.sleep(max(0.0, began + number / per_second - time.monotonic()))
                group.create_task(one())
        return took, failures, time.monotonic() - began

    meter = Meter(system.pid)
    took, failures, elapsed = uvloop.run(main())
    if failures:
        return Measure(failed=f"{len(failures)} of {len(failures) + len(took)} failed: {failures[0][:80]}")
    took.sort()
    return Measure(
        rate=len(took) / elapsed,
        p50_ms=quantile(took, 0.5),
        p99_ms=quantile(took, 0.99),
        cpu_us=meter.per(len(took)),
        memory_mb=meter.memory(),
    )


def idlers(system: System, count: int, tls: bool) -> Measure:
    """Many clients log in and stay; the memory is the result."""

    async def main() -> tuple[float, float]:
        context = any_certificate() if tls else None
        gate = asyncio.Semaphore(OPENING)

        async def one() -> Connection:
            async with gate, asyncio.timeout(60):
                return await _connect(system, context)

        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one()) for _ in range(count)]
        elapsed = time.monotonic() - began
        memory = meter.memory()
        for task in tasks:
            task.result().close()
        return elapsed, memory

    meter = Meter(system.pid)
    try:
        elapsed, memory = uvloop.run(main())
    except* (OSError, LoginFailed, asyncio.IncompleteReadError) as group:
        failure = group.exceptions[0]
        reason = str(failure) or type(failure).__name__
    else:
        return Measure(rate=count / elapsed, cpu_us=meter.per(count), memory_mb=memory)
    return Measure(failed=f"failed: {reason[:120]}")


async def _connect(system: System, tls: ssl.SSLContext | None) -> Connection:
    return await connect(system.port, USER, system.fleet.password, DATABASE, tls)
