"""Does the proxy's memory stay flat? `python -m benchmarks.soak [--minutes 10]`.

Runs all kinds of pgbench load and comings and goings of clients in turn, and looks at the memory of all
the proxy's processes after each. Exit status 1 when it went on growing.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from statistics import median

from .fleet import Fleet
from .loads import connects, transactions
from .systems import Pgtrident

ALLOWED_GROWTH = 1.05
"""Of the last third over the second; the first is warming up: caches fill to their bounds."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args(argv).minutes
    seen: list[float] = []
    with contextlib.closing(Fleet(scale=5)) as fleet:
        system = Pgtrident(fleet, replicas=2)
        system.start()
        try:
            end = time.monotonic() + minutes * 60
            while time.monotonic() < end:
                measures = [transactions(system, ["-S"], mode, 32, 4.0) for mode in ("simple", "extended", "prepared")]
                measures.append(transactions(system, [], "simple", 16, 4.0))
                measures.append(connects(system, 2.0, tls=True, per_second=100))
                for failed in (measure.failed for measure in measures if measure.failed):
                    print(failed)
                    return 1
                seen.append(measures[-1].memory_mb)
                print(f"{minutes * 60 - (end - time.monotonic()):5.0f} s  {seen[-1]:6.1f} MB", flush=True)
        finally:
            system.stop()
    third = max(1, len(seen) // 3)
    before, after = median(seen[third : 2 * third] or seen), median(seen[-third:])
    print(f"middle third {before:.1f} MB, last third {after:.1f} MB")
    return 0 if after <= before * ALLOWED_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
