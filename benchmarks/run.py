"""Runs the benchmark: `python -m benchmarks.run [--quick] [--only simple,16] [--systems direct,pgbouncer]`.

Owns order and repetition. Systems are started once and then take turns inside each load, so that a machine
that gets slower in the course of a run slows all of them. Writes benchmarks/RESULTS.md after a whole run.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import affinity, cost, shares
from .fleet import Fleet
from .loads import Load, Measure, loads
from .report import Row, goals, middle, page, study_table, table
from .study import Study, studied
from .systems import System, candidates

RESULTS = Path(__file__).with_name("RESULTS.md")


def main(argv: Sequence[str]) -> int:
    """Exit status: 0, or 1 when a system could not be measured at all."""
    options = parse(argv)
    began = time.monotonic()
    rows = [load for load in loads(options.seconds, options.copy_mb, options.idle) if options.only <= load.pick]
    # A study has systems of its own.
    asked = [study for study in studies(options.seconds) if options.only <= study.pick and not options.systems]
    if not rows and not asked:
        print("nothing fits --only")
        return 1
    print("starting the cluster", flush=True)
    with contextlib.closing(Fleet(options.scale)) as fleet:
        systems = list(candidates(fleet))
        versions = ", ".join(dict.fromkeys(system.version() for system in systems if system.usual))
        with contextlib.ExitStack() as stack:
            serving, broken = started(systems, options.systems, stack) if rows else ([], [])
            done = [measured(load, serving, options.repeats) for load in rows]
        found = []
        for study in asked:
            found.append((study, studied(study, fleet, options.repeats)))
            print(study_table(found[-1]), flush=True)
    print(goals(done, found))
    facts = {
        "command": shlex.join(["python", "-m", "benchmarks.run", *argv]),
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "machine": machine(),
        "versions": f"{versions}, Python {platform.python_version()}",
        "settings": f"{options.repeats} repeats of {options.seconds:g} s, pgbench scale {options.scale}",
        "took": f"{(time.monotonic() - began) / 60:.0f} min",
    }
    if options.output:
        options.output.write_text(page(done, found, facts))
        print(f"written: {options.output}")
    return 1 if broken else 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="pgtrident beside other proxies")
    parser.add_argument("--quick", action="store_true", help="one short repeat, small sizes, writes no page")
    parser.add_argument("--only", type=words, default=[], help="loads and studies with all these words, e.g. simple,16")
    parser.add_argument("--systems", type=words, default=[], help="only these, e.g. direct,pgbouncer,pgtrident")
    parser.add_argument("--seconds", type=float, help="of each run (5)")
    parser.add_argument("--repeats", type=int, help="of each load (3)")
    parser.add_argument("--scale", type=int, help="of pgbench's tables (20)")
    parser.add_argument("--copy-mb", type=int, help="size of a COPY (1000)")
    parser.add_argument("--idle", type=int, help="number of idle clients (10000)")
    parser.add_argument("--output", type=Path, help=f"page to write (benchmarks/{RESULTS.name} after a whole run)")
    options = parser.parse_args(argv)
    usual = (2.0, 1, 5, 100, 1000) if options.quick else (5.0, 3, 20, 1000, 10_000)
    for name, value in zip(("seconds", "repeats", "scale", "copy_mb", "idle"), usual, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.only = frozenset(options.only)
    if not (options.output or options.quick or options.only or options.systems):
        options.output = RESULTS
    return options


def studies(seconds: float) -> list[Study]:
    """All of them, in the page's order."""
    return [*shares.studies(seconds), *affinity.studies(seconds), *cost.studies(seconds)]


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def started(
    systems: Iterable[System], wanted: Sequence[str], stack: contextlib.ExitStack
) -> tuple[list[System], list[str]]:
    """Those that serve, to be stopped by `stack`, and the names of those that don't."""
    serving: list[System] = []
    broken: list[str] = []
    for system in systems:
        if not (system.name in wanted if wanted else system.usual):
            continue
        stack.callback(system.stop)
        try:
            system.start()
        except RuntimeError as error:
            print(f"{system.name}: {error}")
            broken.append(system.name)
        else:
            serving.append(system)
    return serving, broken


def measured(load: Load, systems: Sequence[System], repeats: int) -> Row:
    """One load on all systems in turn, as often as asked for."""
    runs: dict[str, list[Measure]] = {system.name: [] for system in systems}
    for _ in range(1 if load.once else repeats):
        for system in systems:
            runs[system.name].append(one(load, system))
    row = Row(load, {name: middle(measures) for name, measures in runs.items()})
    print(table(row), flush=True)
    return row


def one(load: Load, system: System) -> Measure:
    if load.clients > system.max_clients:
        return Measure(failed=f"not run: made for {system.max_clients} clients here, a process each")
    if load.once:
        system.restart()
    try:
        return load.run(system)
    finally:
        if load.once:
            system.restart()


def machine() -> str:
    """Processor, how many, memory, kernel."""
    model = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cpus = len(os.sched_getaffinity(0))
    return f"{model}, {cpus} processors, {memory:.0f} GB, Linux {platform.release()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
