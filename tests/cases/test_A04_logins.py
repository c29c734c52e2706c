"""A04: new clients can log in while any node is up, whether their database and user were seen before or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.demo.postgres import Cluster, Server

from ..support.proxy import Proxy
from ..support.rawpg import Wire, show


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Server, Server]]:
    with Cluster() as cluster:
        primary = cluster.create("primary", settings={"synchronous_commit": "on"})
        primary.query("CREATE ROLE stranger LOGIN")
        replica = cluster.replica("replica", primary)
        replica.wait_for_lsn(primary.lsn())
        yield primary, replica


@pytest.mark.parametrize("split", [False, True])
def test_logins_without_a_primary(nodes: tuple[Server, Server], tmp_path: Path, split: bool) -> None:
    primary = nodes[0]
    settings = {
        "listen": {"host": "127.0.0.1", "port": 0},
        "admin": {"port": 0},
        "server": {"tls": "disable"},
        "auth": {"hba": ["host all all all trust"]},
        "routing": {"read_split": split, "hold_timeout": 1.0},
        "health": {"user": "postgres", "interval": 0.5, "timeout": 0.45},
        "nodes": {name: {"host": "127.0.0.1", "port": s.port} for name, s in zip(("p", "r"), nodes, strict=True)},
        "databases": {"*": {}},
    }

    def log_in(user: str) -> Wire:
        wire = Wire(proxy.address)
        replies = wire.login({"user": user, "database": "postgres"}, timeout=20)
        assert replies.endswith("ZI"), show(wire.log)
        return wire

    with Proxy(settings, tmp_path) as proxy:
        proxy.wait_for("published", 20, primary="p", replicas=["r"])
        told = [reply.body for reply in log_in("postgres").log if reply.kind == "S"]
        seen = len(proxy.lines)
        primary.stop("immediate")
        try:
            proxy.wait_for("published", 20, after=seen, primary="")
            known, new = log_in("postgres"), log_in("stranger")
            assert [reply.body for reply in known.log if reply.kind == "S"] == told
            assert b"in_hot_standby\0off\0" in [reply.body for reply in new.log if reply.kind == "S"]
            for wire in (known, new):
                assert wire.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"
                assert wire.query("CREATE TABLE x()") == "E[57P03] ZI"
        finally:
            primary.start()
