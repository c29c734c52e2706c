"""The command `pgtrident demo`: brings the fleet up, shows where statements go, takes it down at Ctrl-C.

Owns arguments and the screen. Called by `proxy.demo.main`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from . import traffic
from .check import Check
from .evidence import Counts, Evidence
from .fleet import Fleet
from .postgres import PostgresError
from .processes import ProcessFailed
from .traffic import Client

_CLIENTS = {"write": 1, "read": 4, "analytic": 1}
_HOME_AND_CLEAR = "\x1b[H\x1b[J"


def main(argv: Sequence[str] | None = None) -> int:
    """0 when all went well, 1 when the check failed or something did not start."""
    parser = argparse.ArgumentParser(prog="pgtrident demo", description="An embedded fleet with the proxy in front.")
    parser.add_argument("--check", action="store_true", help="check for some seconds that each class arrives, and exit")
    parser.add_argument(
        "--break",
        dest="fault",
        choices=["all-to-primary"],
        help="build in a fault that the check must find: the proxy routes nothing to copies",
    )
    parser.add_argument("--sales", type=int, default=0, help="rows of the large table (200000; 20000 with --check)")
    options = parser.parse_args(argv)
    sales = options.sales or (20_000 if options.check else 200_000)
    for number in (signal.SIGINT, signal.SIGTERM):
        # The same way down as Ctrl-C, also where a shell without job control has SIGINT ignored in the background.
        signal.signal(number, signal.default_int_handler)
    print("starting a primary, two replicas, two columnar nodes and the proxy ...", flush=True)
    try:
        with Fleet(sales=sales, read_split=options.fault != "all-to-primary") as fleet:
            if options.check:
                passed = Check(fleet, lambda line: print(line, flush=True)).run()
                print("passed" if passed else "failed")
                return 0 if passed else 1
            _show(fleet)
    except (PostgresError, ProcessFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped")
    return 0


def _show(fleet: Fleet) -> None:
    """The live table, until KeyboardInterrupt."""
    clients = [Client(fleet.dsn, kind) for kind, number in _CLIENTS.items() for _ in range(number)]
    evidence = Evidence(fleet)
    for client in clients:
        client.start()
    live = sys.stdout.isatty()
    before, read_at = evidence.read(), time.monotonic()
    try:
        while True:
            time.sleep(1.0 if live else 5.0)
            now, counts = time.monotonic(), evidence.read()
            table = _table(fleet, before, counts, now - read_at)
            print((_HOME_AND_CLEAR if live else "") + "\n".join([*table, "", *_clients(clients)]), flush=True)
            before, read_at = counts, now
    finally:
        for client in clients:
            client.stop()
        evidence.close()


def _table(fleet: Fleet, before: dict[str, Counts], after: dict[str, Counts], seconds: float) -> list[str]:
    lines = [
        f"connect to  {fleet.dsn}",
        "",
        "statements a second as the nodes count them (in all)",
        f"{'node':<12}{'role':<10}{'port':>6}" + "".join(f"{kind:>20}" for kind in traffic.CLASSES),
    ]
    for role, name, port in fleet.nodes:
        cells = []
        for kind in traffic.CLASSES:
            total = after[name].get(kind, 0)
            rate = (total - before[name].get(kind, 0)) / seconds
            cells.append(f"{f'{rate:.1f} ({total})' if total else '-':>20}")
        lines.append(f"{name:<12}{role:<10}{port:>6}" + "".join(cells))
    return lines


def _clients(clients: Sequence[Client]) -> list[str]:
    lines = []
    for kind in traffic.CLASSES:
        those = [client for client in clients if client.kind == kind]
        median = max(client.median() for client in those) * 1000
        errors = sum(client.errors for client in those)
        lines.append(f"{len(those)} {kind} client(s): median {median:.1f} ms, {errors} errors")
        lines += [f"  last error: {client.last_error}" for client in those if client.last_error][:1]
    return [*lines, "", "Ctrl-C takes all down."]
