"""What routing costs: a worker's CPU and the servers' work with `read_split` off and on.

Owns the statements. Off, all goes to the primary; on, reads go to one replica, so that each statement has one server
to run on either way.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping
from functools import partial

from .fleet import Fleet
from .pgbench import pgbench, quantile
from .procs import Meter, running
from .study import Figures, Goal, Run, Study, number
from .systems import ROOT, Pgtrident

WORKER = "proxy.run_worker"
# A number in a name is no constant, so that neither text nor shape has been seen before.
NEW = """\\set aid random(1, :rows)
\\set n random(1, 1000000000)
SELECT abalance FROM pgbench_accounts x:n WHERE x:n.aid = :aid;
"""
UPDATE = "\\set aid random(1, :rows)\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n"
KNOWN = ("select, simple", "select, prepared")
UNKNOWN = "select, never seen"
UPDATES = {"update, 1 client": 1, "update, 16 clients": 16}
READS_ABOUT = """`off` has `read_split` off: all goes to the primary. `on` sends reads to one replica. CPU is the
worker's alone, for one statement; 16 clients. In the first row each text has another number, in the second one text is
prepared and stays the same; both are known to the worker's cache. In the third neither text nor shape was ever seen
before: it is looked at with `read_split` off too, for what it does to the session."""
WRITES_ABOUT = """`off` and `on` as above. Transactions are those that the primary counts, for each update: with those
of probes, and of the samples of its position that follow writes."""
INSIDE = "select, simple"
INSIDE_ABOUT = """The same without sockets: what the worker's own code takes for one statement, in us, as one of two
workers and with all caches warm (`benchmarks/inside.py`). It tells changes of the code from those of the machine, which
the table above can't: there the system calls are ten times as much and vary by more than this."""


def studies(seconds: float) -> list[Study]:
    return [
        Study(
            "what routing costs: reads",
            frozenset({"cost", "reads"}),
            READS_ABOUT,
            partial(_reads, seconds=seconds),
            _reads_goals,
        ),
        Study(
            "what routing costs: the worker's own code",
            frozenset({"cost", "inside"}),
            INSIDE_ABOUT,
            _inside,
            _inside_goals,
        ),
        Study(
            "what routing costs: writes",
            frozenset({"cost", "writes"}),
            WRITES_ABOUT,
            partial(_writes, seconds=seconds),
            _writes_goals,
        ),
    ]


def _reads_goals(rows: Mapping[str, Figures]) -> list[Goal]:
    unknown = number(rows, UNKNOWN, "on: CPU us") - number(rows, KNOWN[0], "off: CPU us")
    return [
        *(Goal(f"{name}: us of CPU for routing", number(rows, name, "more CPU us"), 3, at_most=True) for name in KNOWN),
        Goal(f"{UNKNOWN}: us of CPU for looking at it and routing", unknown, 500, at_most=True),
    ]


def _inside_goals(rows: Mapping[str, Figures]) -> list[Goal]:
    return [
        Goal(f"{INSIDE}: us of the worker's own code for routing", number(rows, INSIDE, "more us"), 3, at_most=True)
    ]


def _writes_goals(rows: Mapping[str, Figures]) -> list[Goal]:
    return [
        Goal(f"{name}: transactions", number(rows, name, "on: transactions"), 1.1, at_most=True) for name in UPDATES
    ]


def _reads(fleet: Fleet, stack: contextlib.ExitStack, seconds: float) -> Mapping[str, Run]:
    systems = _systems(fleet)
    for system in systems.values():
        stack.callback(system.stop)
        system.start()
    asked = {KNOWN[0]: ["-S"], KNOWN[1]: ["-S", "-M", "prepared"], UNKNOWN: _script(fleet, "new", NEW)}

    def run(name: str) -> Mapping[str, Figures]:
        off, on = (_measured(system, asked[name], 16, seconds)[0] for system in systems.values())
        return {name: {**_beside(off, on), "more CPU us": on["CPU us"] - off["CPU us"]}}

    return {name: partial(run, name) for name in asked}


def _inside(fleet: Fleet, _stack: contextlib.ExitStack) -> Mapping[str, Run]:
    program = [str(Pgtrident(fleet, replicas=0).python), "-P", str(ROOT / "benchmarks" / "inside.py")]

    def run() -> Mapping[str, Figures]:
        found = json.loads(subprocess.run(program, capture_output=True, text=True, check=True, timeout=60).stdout)
        return {INSIDE: {"off us": found["off"], "on us": found["on"], "more us": found["on"] - found["off"]}}

    return {INSIDE: run}


def _writes(fleet: Fleet, stack: contextlib.ExitStack, seconds: float) -> Mapping[str, Run]:
    systems = _systems(fleet)
    script = _script(fleet, "update", UPDATE)

    def counted(system: Pgtrident, clients: int) -> dict[str, float]:
        before = _transactions(fleet)
        measured, count = system.meanwhile(lambda: _measured(system, script, clients, seconds))
        return {**measured, "transactions": (_transactions(fleet) - before) / count}

    def run(name: str) -> Mapping[str, Figures]:
        return {name: _beside(*(counted(system, UPDATES[name]) for system in systems.values()))}

    return {name: partial(run, name) for name in UPDATES}


def _beside(off: Mapping[str, float], on: Mapping[str, float]) -> dict[str, float | str]:
    return {f"{way}: {column}": figures[column] for column in off for way, figures in (("off", off), ("on", on))}


def _systems(fleet: Fleet) -> dict[str, Pgtrident]:
    return {way: Pgtrident(fleet, f"pgtrident-{way}", replicas=replicas) for way, replicas in (("off", 0), ("on", 1))}


def _script(fleet: Fleet, name: str, text: str) -> list[str]:
    return ["-D", f"rows={fleet.rows}", "-f", str(fleet.write(f"{name}.sql", text))]


def _measured(system: Pgtrident, arguments: list[str], clients: int, seconds: float) -> tuple[dict[str, float], int]:
    """One run, and how many statements it was."""
    meter = Meter(running(system.pid, WORKER))
    bench = pgbench(system.fleet, system.port, arguments, clients, seconds)
    count = sum(bench.counts)
    return {"tps": bench.rate, "p50 ms": quantile(bench.all_latencies, 0.5), "CPU us": meter.per(count)}, count


def _transactions(fleet: Fleet) -> int:
    return int(fleet.primary.query("SELECT sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database")[0][0])
