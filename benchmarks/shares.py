"""How many reads replicas serve, and how many sessions read what they had overwritten: beside Pgpool-II.

Owns the requests. Each client has a row that only it writes. One request in ten writes it, and the next one, at once,
reads it, as a page does that is shown after saving. All others read rows at random.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial

from .fleet import DATABASE, Fleet
from .pgbench import pgbench, quantile
from .study import Figures, Goal, Run, Study, no_goals, number
from .systems import Pgpool, PgpoolBalancing, Pgtrident, Proxy, binary

OPTIMISTIC = "pgtrident, optimistic"
SHARE = "% of reads on replicas"
PAUSE = 0.1
"""Seconds between the requests of a client where it thinks."""
RANDOM = "\\set aid random(1, :rows)\n"
READ = RANDOM + "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
WRITE = (
    "\\set own :client_id + 1\n"
    "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :own RETURNING abalance AS written \\gset\n"
)
READ_OWN = "SELECT abalance AS seen FROM pgbench_accounts WHERE aid = :own \\gset\n"
# What `debug` gets is printed: a line for each stale read.
COMPARE = "\\if :seen < :written\n\\set stale debug(:written - :seen)\n\\endif\n"
AUTOCOMMIT = (READ, WRITE + READ_OWN + COMPARE)
ORM = (
    f"BEGIN;\n{READ * 3}COMMIT;\n",
    f"BEGIN;\n{READ}{WRITE}COMMIT;\nBEGIN;\n{READ_OWN}COMMIT;\n{COMPARE}",
)
ABOUT = """One request in ten writes its client's own row and reads it in the next {kind}; the others read {reads}.
{pace}.

Shares are counted at the servers: scans of the table that are not an update's. A read is stale if it doesn't see what
its own session wrote. Pgpool-II is set to read from the replicas alone, and named with its
`disable_load_balance_on_write`; pgtrident is named with what differs from `read_split` and the defaults."""


def studies(seconds: float) -> list[Study]:
    """Requests of one statement and of a transaction, without a pause and with one."""
    found = []
    for style, kind, reads, scripts, ours, least in (
        ("autocommit", "statement", "once", AUTOCOMMIT, "pgtrident-replicas", 80),
        ("transactions", "transaction", "three times in a transaction, as an ORM does", ORM, OPTIMISTIC, 90),
    ):
        for pace, clients, rate, words in (
            ("no pause", 16, 0.0, "16 clients ask without a pause"),
            ("pauses of 100 ms", 64, 64 / PAUSE, "64 clients ask every 100 ms; latencies count from that moment"),
        ):
            found.append(
                Study(
                    f"reads on replicas: {style}, {pace}",
                    frozenset({"shares", style, "pauses" if rate else "16"}),
                    ABOUT.format(kind=kind, reads=reads, pace=words),
                    partial(_runs, scripts=scripts, clients=clients, rate=rate, seconds=seconds),
                    partial(_goals, f"{style}, {pace}", ours, least) if rate else no_goals,
                )
            )
    return found


def _goals(what: str, ours: str, least: float, rows: Mapping[str, Figures]) -> list[Goal]:
    return [Goal(f"{what}: % of reads on replicas", number(rows, ours, SHARE), least)]


def _runs(
    fleet: Fleet, stack: contextlib.ExitStack, scripts: tuple[str, str], clients: int, rate: float, seconds: float
) -> Mapping[str, Run]:
    arguments = ["-D", f"rows={fleet.rows}", *(("-R", f"{rate:g}") if rate else ())]
    for name, text, weight in zip(("read", "write"), scripts, (9, 1), strict=True):
        arguments += ["-f", f"{fleet.write(f'{name}.sql', text)}@{weight}"]
    systems: list[Proxy] = []
    if binary(Pgpool.name):
        systems += [PgpoolBalancing(fleet, writes) for writes in ("transaction", "always")]
    systems.append(Pgtrident(fleet, replicas=2))
    if scripts is ORM:
        systems.append(Pgtrident(fleet, OPTIMISTIC, replicas=2, routing='transactions = "optimistic"'))
    else:
        systems.append(Pgtrident(fleet, "pgtrident, eventual", replicas=2, routing='consistency = "eventual"'))
    for system in systems:
        stack.callback(system.stop)
    return {system.name: partial(_run, system, arguments, clients, seconds) for system in systems}


def _run(system: Proxy, arguments: list[str], clients: int, seconds: float) -> Mapping[str, Figures]:
    fleet = system.fleet
    before = _reads(fleet)
    bench = system.meanwhile(lambda: pgbench(fleet, system.port, arguments, clients, seconds))
    primary, *replicas = (now - then for now, then in zip(_reads(fleet), before, strict=True))
    latencies = bench.all_latencies
    figures: Figures = {
        "requests/s": bench.rate,
        "p50 ms": quantile(latencies, 0.5),
        "p99 ms": quantile(latencies, 0.99),
        SHARE: 100 * sum(replicas) / (primary + sum(replicas)),
        "% of own reads stale": 100 * bench.said.count("debug(") / max(1, bench.counts[1]),
    }
    return {system.name: figures}


def _reads(fleet: Fleet) -> list[int]:
    """Each server's, of the table that is read: an update by key is a scan too."""
    counted = "SELECT seq_scan + idx_scan - n_tup_upd FROM pg_stat_user_tables WHERE relname = 'pgbench_accounts'"
    return [int(node.query(counted, dbname=DATABASE)[0][0]) for node in (fleet.primary, *fleet.replicas)]
