"""Medians, ratios and the page benchmarks/RESULTS.md.

Owns the form of the table. Pure: measures in, text out. Called by `run`.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from .loads import Load, Measure
from .study import FAILED, Figures, Study

Told = tuple[Study, Mapping[str, Figures]]
"""A study with its rows."""
BASE = "pgbouncer"
OURS = "pgtrident"
HEAD = ("system", "rate", "x PgBouncer", "p50 ms", "p99 ms", "proxy's CPU us", "x PgBouncer", "memory MB")


@dataclass(frozen=True)
class Row:
    """A load with the median measure of each system."""

    load: Load
    measures: Mapping[str, Measure]


def middle(runs: Sequence[Measure]) -> Measure:
    """The median of each figure; a load that failed once has failed."""
    for run in runs:
        if run.failed:
            return run
    return Measure(
        rate=median(run.rate for run in runs),
        p50_ms=median(run.p50_ms for run in runs),
        p99_ms=median(run.p99_ms for run in runs),
        cpu_us=median(run.cpu_us for run in runs),
        memory_mb=median(run.memory_mb for run in runs),
    )


def table(row: Row) -> str:
    """One load as a Markdown table."""
    base = row.measures.get(BASE, Measure())
    lines = [_line((*HEAD[:1], row.load.unit, *HEAD[2:])), _line("---" for _ in HEAD)]
    for name, measure in row.measures.items():
        if measure.failed:
            lines.append(_line((name, _plain(measure.failed), *[""] * (len(HEAD) - 2))))
            continue
        lines.append(
            _line(
                (
                    name,
                    _number(measure.rate),
                    _ratio(measure.rate, base.rate),
                    _number(measure.p50_ms),
                    _number(measure.p99_ms),
                    _number(measure.cpu_us),
                    _ratio(measure.cpu_us, base.cpu_us),
                    _number(measure.memory_mb),
                )
            )
        )
    return f"### {row.load.title}\n\n" + "\n".join(lines) + "\n"


def study_table(told: Told) -> str:
    """One study as a Markdown table."""
    study, rows = told
    columns = list(dict.fromkeys(column for figures in rows.values() for column in figures if column != FAILED))
    lines = [_line(("", *columns)), _line("---" for _ in range(len(columns) + 1))]
    for name, figures in rows.items():
        cells = [_cell(figures[column]) if column in figures else "" for column in columns]
        if FAILED in figures:
            cells[:1] = [_plain(str(figures[FAILED]))]
        lines.append(_line((name, *cells)))
    about = "\n\n".join(textwrap.fill(paragraph, 118) for paragraph in study.about.split("\n\n"))
    return f"### {study.title}\n\n{about}\n\n" + "\n".join(lines) + "\n"


def goals(rows: Sequence[Row], studies: Sequence[Told] = ()) -> str:
    """What this release is to reach, and what it did, as far as the loads were run."""
    found = {row.load.pick: row.measures for row in rows}

    def seen(system: str, *pick: str) -> Measure:
        measure = found.get(frozenset(pick), {}).get(system, Measure())
        return measure if not measure.failed else Measure()

    lines = []

    def goal(what: str, value: float, base: float, wanted: str, limit: float, *, at_most: bool = False) -> None:
        if not value or not base:
            return
        share = value / base
        met = share <= limit if at_most else share >= limit
        lines.append(_line((what, wanted, _number(share), "yes" if met else "**no**")))

    for mode, times in (("simple", 2), ("extended", 3)):
        for clients in ("16", "64"):
            load = ("select", mode, clients)
            ours, bouncer, pool = (seen(name, *load) for name in (OURS, BASE, "pgpool"))
            title = f"{mode}, {clients} clients"
            goal(f"{title}: tps to PgBouncer's", ours.rate, bouncer.rate, "at least 0.85", 0.85)
            goal(f"{title}: CPU to PgBouncer's", ours.cpu_us, bouncer.cpu_us, "at most 1.3", 1.3, at_most=True)
            goal(f"{title}: tps to Pgpool-II's", ours.rate, pool.rate, f"at least {times}", times)
    for clients in ("16", "64"):
        ours, bouncer = seen(OURS, "select", "prepared", clients), seen(BASE, "select", "simple", clients)
        goal(f"prepared, {clients} clients: tps to PgBouncer's simple", ours.rate, bouncer.rate, "more than 1", 1.0)
    for way in ("out", "in"):
        ours, direct = seen(OURS, "copy", way), seen("direct", "copy", way)
        goal(f"COPY {way}: speed to a direct one", ours.rate, direct.rate, "at least 0.9", 0.9)
    for kind, megabytes in (("plain", 150), ("tls", 400)):
        memory = seen(OURS, "idle", kind).memory_mb
        goal(f"idle clients, {kind}: MB", memory, 1.0, f"under {megabytes}", megabytes, at_most=True)
    for study, figures in studies:
        with contextlib.suppress(KeyError):
            for each in study.goals(figures):
                wanted = f"at {'most' if each.at_most else 'least'} {each.limit:g}"
                goal(each.what, each.value, 1.0, wanted, each.limit, at_most=each.at_most)
    if not lines:
        return ""
    head = [_line(("what", "wanted", "seen", "reached")), _line(["---"] * 4)]
    return "## Goals of this release\n\n" + "\n".join(head + lines) + "\n"


def page(rows: Sequence[Row], studies: Sequence[Told], facts: Mapping[str, str]) -> str:
    """The whole page."""
    head = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    body = "\n".join(table(row) for row in rows)
    more = "\n".join(study_table(told) for told in studies)
    return f"""# Benchmark

{head}

Each load runs against every system in turn, and again for each repeat; the figures are medians. All systems log
clients in by SCRAM with the same stored secret, hold at most 20 servers, and share the machine's processors with
the clients and with PostgreSQL, all over loopback. PgBouncer pools by transaction; Pgpool-II has the primary alone
and no balancing, which is its cheapest way. `pgtrident` sends all to the primary, `pgtrident-replicas` sends plain
reads to two replicas; `-pure` is the same from source without compiled modules. The proxy's CPU is the user and
system time of all its processes for one transaction or connect (for COPY: one megabyte; for idle clients: one
login). Memory is the proportional set size of all its processes at the end of the load.

{goals(rows, studies)}
## Loads

{body}
## Studies

{more}"""


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(value: float | str) -> str:
    """Of a study, where zero was measured."""
    return value if isinstance(value, str) else _number(value) or "0"


def _number(value: float) -> str:
    """Three digits that matter; nothing for what was not measured."""
    if not value:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.2f}" if value and base else ""


def _plain(text: str) -> str:
    """Safe inside a table."""
    return " ".join(text.replace("|", "/").split())
