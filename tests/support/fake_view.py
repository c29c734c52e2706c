"""A controller's facade with made-up figures, for tests of console, metrics and health page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.admin.view import Row
from proxy.config.schema import Config, Database, Node, Rule, Service, User
from proxy.ipc.messages import Counters
from proxy.metrics.counters import PoolCounters, WorkerCounters
from proxy.topology.model import Health, Role
from proxy.topology.snapshot import NodeView, Snapshot


def pool_row(node: str = "pg1", database: str = "shop", user: str = "app", **numbers: int) -> dict[str, Any]:
    """A pool as a worker reports it."""
    counters = PoolCounters(**numbers)
    return {"node": node, "database": database, "user": user, "mode": "transaction", **counters.as_dict()}


def worker_report(worker: int, pools: Sequence[dict[str, Any]] = (), **numbers: int) -> Counters:
    return Counters(worker=worker, values={**WorkerCounters().as_dict(), **numbers}, pools=list(pools))


LAG = {"lag_bytes": 64, "lag_seconds": 0.5, "weight": 10}


class FakeView:
    """Two nodes, two workers; every attribute may be replaced."""

    def __init__(self) -> None:
        self.config = Config(
            nodes={"pg1": Node(host="db1"), "pg2": Node(host="db2", port=5433)},
            databases={"shop": Database(password="hunter2")},
            users={"app": User(password="s3cret")},
            rules={"closed": Rule(table=("audit",), reject="closed")},
            services={"billing": Service(nodes=("pg2", "pg1"), selector="1"), "web": Service(nodes=("pg2",))},
        )
        nodes = {
            "pg1": NodeView(name="pg1", host="db1", port=5432, role=Role.PRIMARY, health=Health.ACTIVE),
            "pg2": NodeView(name="pg2", host="db2", port=5433, role=Role.REPLICA, health=Health.DOWN),
        }
        self.snapshot: Snapshot | None = Snapshot(version=7, epoch=3, nodes=nodes, primary="pg1")
        self.counters: dict[int, Counters] = {
            0: worker_report(0, [pool_row(queries=5, transactions=4, max_wait_us=1_500_000)], clients_total=2),
            1: worker_report(1, [pool_row(queries=10, transactions=9, max_wait_us=20)], clients_total=3),
        }
        self.rows: dict[str, list[dict[str, Any]]] = {
            "clients": [
                {
                    "worker": 1,
                    "id": "c17",
                    "user": "app",
                    "database": "shop",
                    "state": "waiting",
                    "connect_time": 1_800_000_000.5,
                    "wait_us": 2_000_003,
                    "application_name": "naïve ☕",
                }
            ],
            "services": [
                {
                    "worker": worker,
                    "service": "billing",
                    "preferred": "pg2",
                    "node": "pg1",
                    "sessions": {"pg1": 2, "pg2": worker},
                    "since": since,
                }
                for worker, since in ((0, None), (1, 1_800_000_000.0))
            ],
            "servers": [
                {"worker": 0, "id": "s4", "node": "pg1", "user": "app", "database": "shop", "state": "idle"},
            ],
        }

        self.known_shapes: list[Row] = [
            {
                "database": "shop",
                "shape": "0af3",
                "sqlstate": "25006",
                "since": 1_800_000_000.0,
                "text": "SELECT f($1)",
            }
        ]
        self.forgotten: list[str] = []
        self.wishes: list[tuple[str, str, float | None]] = []
        self.commands: list[tuple[str, str]] = []
        self.seen_shapes: list[Row] = [
            {
                "database": "shop",
                "shape": "0af3",
                "count": 12,
                "tables": ["cart", "item"],
                "cls": "read",
                "consistency": "session",
                "user": "app",
                "since": 1_800_000_000.0,
                "text": "SELECT * FROM cart, item WHERE id = $1",
            }
        ]

    def shapes(self) -> list[Row]:
        return self.known_shapes

    async def shapes_seen(self) -> list[Row]:
        return self.seen_shapes

    def shapes_measured(self) -> list[Row]:
        return [
            {
                "database": "shop",
                "shape": "0af3",
                "class": "analytic",
                "replica_runs": 4,
                "replica_seconds": 0.25,
                "columnar_runs": 0,
                "columnar_seconds": 0.0,
                "cost": None,
                "text": "SELECT * FROM cart",
            }
        ]

    async def history(self, since: float, node: str, kind: str, limit: int) -> list[Row]:
        return [
            {
                "at": 1_800_000_000.0,
                "kind": "health",
                "node": "pg2",
                "before": "active",
                "after": "suspect",
                "cause": "refused",
                "seen": "pass; refused: connection refused",
                "who": "",
            }
        ]

    def commanded(self, command: str, who: str) -> None:
        self.commands.append((command, who))

    def drain(self, node: str, seconds: float | None) -> None:
        self.wishes.append(("drain", node, seconds))

    def undrain(self, node: str) -> None:
        self.wishes.append(("undrain", node, None))

    def reconnect(self, node: str) -> None:
        self.wishes.append(("reconnect", node, None))

    def forget_shapes(self, shape: str) -> int:
        self.forgotten.append(shape)
        return len(self.known_shapes)

    def nodes(self) -> list[Row]:
        return [
            {
                "name": "pg1",
                "host": "db1",
                "port": 5432,
                "role": Role.PRIMARY,
                "health": Health.ACTIVE,
                "address": "10.0.0.1:5432",
                "lag_bytes": None,
                "since": 1_800_000_000.0,
                "cause": "probe passed",
                "probes": 12,
                "probe_failures": 1,
            },
            {
                "name": "pg2",
                "host": "db2",
                "port": 5433,
                "role": Role.REPLICA,
                "health": Health.DOWN,
                "drain": "draining",
                "drain_until": 1_800_000_060.0,
                **LAG,
            },
        ]

    async def report(self, kind: str) -> Sequence[Row]:
        if kind == "pools":
            return [{**row, "worker": n} for n, latest in self.counters.items() for row in latest.pools]
        return self.rows[kind]
