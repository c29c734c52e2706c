"""`python -m proxy.demo.columnar`: one columnar node as a process. Says on standard output, in one line of
JSON, where it listens; ends at SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from pathlib import Path

import psycopg

from .copies import Copies
from .engine import Engine
from .follow import Follower
from .server import Server


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proxy.demo.columnar", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--data", type=Path, help="file of the data base; none keeps it in memory")
    parser.add_argument("--source", default="", help="libpq connection string of the primary to follow")
    parser.add_argument("--publication", default="pgtrident", help="what to follow; it must exist")
    parser.add_argument("--slot", default="columnar", help="replication slot, made when it is missing")
    parser.add_argument("--users", type=Path, help='JSON file {"user": "password or SCRAM secret"}; none trusts all')
    parser.add_argument("--statement-log", type=Path, help="a line of JSON for each statement")
    parser.add_argument("--memory-limit", default="1GB")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    stop = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # before any thread, so that only sigwait gets them

    engine = Engine(args.data, memory_limit=args.memory_limit, threads=args.threads)
    server = Server(
        engine,
        users=json.loads(args.users.read_text()) if args.users else {},
        statement_log=args.statement_log,
        host=args.host,
        port=args.port,
    )
    follower: Follower | None = None
    if args.source:
        follower = Follower(Copies(engine), args.source, args.publication, args.slot)
        server.is_ready = follower.ready.is_set
        server.server_version = _source_version(args.source) or server.server_version
        follower.start()
    server.start()
    print(json.dumps({"event": "listening", "host": server.host, "port": server.port}), flush=True)
    signal.sigwait(stop)
    server.stop()
    if follower:
        follower.stop()
    engine.close()
    return 0


def _source_version(source: str) -> str:
    """The source's server_version, which clients of the copy are told too; empty when it can't be asked now."""
    try:
        with psycopg.connect(source, connect_timeout=5) as connection:
            return (connection.info.parameter_status("server_version") or "").split(" ")[0]
    except psycopg.OperationalError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
