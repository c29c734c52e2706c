"""One run of pgbench, and what it says.

Owns its command line, its output and its logs. Called by loads and studies.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .fleet import DATABASE, Fleet

MARGIN = 60.0  # seconds that it may take beyond its own time


class Failed(Exception):
    """There is nothing to measure; the message says why."""


@dataclass(frozen=True)
class Bench:
    """What one run gave; `counts` and `latencies` (ms, in order) are by script."""

    rate: float
    counts: list[int]
    latencies: list[list[float]]
    said: str
    """Standard error."""

    @property
    def all_latencies(self) -> list[float]:
        return sorted(latency for script in self.latencies for latency in script)


def pgbench(
    fleet: Fleet,
    port: int,
    arguments: Sequence[str],
    clients: int,
    seconds: float,
    *,
    sampled: float = 0.1,
    name: str = "pgbench",
    options: str = "",
) -> Bench:
    """Run it. Latencies come from a share of its transactions, so that its log costs little; runs at the same time need
    a `name` each. `options` are startup options of its sessions. Raises Failed."""
    prefix = fleet.directory / f"{name}-transactions"
    command = [
        *(fleet.pgbench, "-n", *arguments, "-c", str(clients), "-j", str(min(clients, 2))),
        *("-T", f"{max(1, round(seconds))}", "-l", "--log-prefix", str(prefix), "--sampling-rate", str(sampled)),
        DATABASE,
    ]
    environment = {**fleet.environment(port), "PGAPPNAME": name, "PGOPTIONS": options}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds + MARGIN, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"did not end in {seconds + MARGIN:g} s") from None
    finally:
        latencies = _latencies(prefix)
    total = re.search(r"number of transactions actually processed: (\d+)", done.stdout)
    rate = re.search(r"^tps = ([\d.]+)", done.stdout, re.M)
    if done.returncode or not total or not rate or not int(total[1]):
        raise Failed(reason(done.stderr or f"exit status {done.returncode}: {done.stdout}"))
    counts = [int(count) for count in re.findall(r"^ - (\d+) transactions \(", done.stdout, re.M)] or [int(total[1])]
    return Bench(float(rate[1]), counts, [sorted(latencies[n]) for n in range(len(counts))], done.stderr)


def quantile(ordered: list[float], share: float) -> float:
    """Of values in order; 0 without any."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def reason(stderr: str) -> str:
    """The first error that a program printed, without its own name."""
    lines = [line for line in stderr.splitlines() if "error" in line.lower()] or stderr.splitlines() or ["no output"]
    return re.sub(r"^pgbench: error: |^psql: error: |client \d+ ", "", lines[0])[:120]


def _latencies(prefix: Path) -> dict[int, list[float]]:
    """Milliseconds by script, from pgbench's logs (client, number, us, script ...), which are removed."""
    found: dict[int, list[float]] = defaultdict(list)
    for path in prefix.parent.glob(f"{prefix.name}.*"):
        for line in path.read_text().splitlines():
            fields = line.split(maxsplit=4)
            found[int(fields[3])].append(int(fields[2]) / 1000)
        path.unlink()
    return found
