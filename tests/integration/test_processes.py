"""The processes: started, killed, reloaded, stopped; workers with a stub for a data plane, real nodes."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.config.schema import Config, Listen
from proxy.supervisor import Supervisor

from ..support.fleet import Fleet
from ..support.stub_proxy import StubProxy


def settings(fleet: Fleet, **more: Any) -> dict[str, Any]:
    nodes = {"primary": fleet.primary, "replica1": fleet.replicas[0], "replica2": fleet.replicas[1]}
    return {
        "workers": 2,
        "listen": {"port": 0},
        "admin": {"port": 0},
        "server": {"tls": "disable"},
        "health": {"user": "postgres", "interval": 1.0, "timeout": 0.8},
        "nodes": {name: {"host": "127.0.0.1", "port": server.port} for name, server in nodes.items()},
        "databases": {"*": {}},
        "users": {"someone": {"password": "secret"}},
        **more,
    }


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def poll(done: Callable[[], Awaitable[bool]]) -> None:
    """For what nobody announces."""
    async with asyncio.timeout(15):
        while not await done():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_roles_are_found_and_published(fleet: Fleet, tmp_path: Path) -> None:
    async with StubProxy(settings(fleet), tmp_path) as proxy:
        await proxy.event("published", primary="primary", replicas=["replica1", "replica2"])
        answers = [await proxy.ask() for _ in range(20)]
        assert {a["worker"] for a in answers} == {0, 1}
        assert {a["primary"] for a in answers} == {"primary"}
        assert answers[-1]["replicas"] == ["replica1", "replica2"]
        assert answers[-1]["epoch"] == 1
        status, _ = await proxy.get("/readyz")
        assert status == 200
    assert proxy.process.returncode == 0


async def test_a_node_that_is_away_at_start_stops_nobody(fleet: Fleet, tmp_path: Path) -> None:
    wanted = settings(fleet, workers=1)
    # Port 9 is closed; 192.0.2.1 (RFC 5737) never answers.
    wanted["nodes"] |= {"gone": {"host": "127.0.0.1", "port": 9}, "silent": {"host": "192.0.2.1"}}
    async with StubProxy(wanted, tmp_path) as proxy:
        assert (await proxy.ask())["primary"] == "primary"
        await proxy.event("health_changed", node="gone", after="down", cause="refused")


async def test_a_killed_worker_is_replaced_and_no_connection_lost(fleet: Fleet, tmp_path: Path) -> None:
    async with StubProxy(settings(fleet, workers=1), tmp_path) as proxy:
        old = (await proxy.ask())["pid"]
        seen = len(proxy.lines)
        os.kill(old, signal.SIGKILL)
        # These connect while nobody accepts: they wait in the backlog of the socket that stayed open.
        answers = await asyncio.gather(*(proxy.ask() for _ in range(10)))
        assert {a["pid"] for a in answers} == {proxy.pid("worker 0")} != {old}
        await proxy.event("child_ended", since=seen, child="worker 0", code=-signal.SIGKILL)


async def test_workers_serve_while_the_controller_is_away(fleet: Fleet, tmp_path: Path) -> None:
    async with StubProxy(settings(fleet, workers=1), tmp_path) as proxy:
        await proxy.event("published", replicas=["replica1", "replica2"])
        before = await proxy.ask()
        port = proxy.admin_port
        seen = len(proxy.lines)
        os.kill(proxy.pid("controller"), signal.SIGKILL)
        await proxy.event("child_ended", since=seen, child="controller")
        during = await proxy.ask()
        assert (during["pid"], during["primary"]) == (before["pid"], "primary")
        # The new controller goes on from what the last one published: no step back, no new epoch.
        await proxy.event("worker_joined", since=seen, again=True)
        after = await proxy.ask()
        assert after["version"] >= before["version"]
        assert (after["pid"], after["primary"], after["epoch"]) == (before["pid"], "primary", before["epoch"])
        assert after["replicas"] == ["replica1", "replica2"]
        assert not [line for line in proxy.lines[seen:] if line["event"] == "published" and not line["replicas"]]
        await proxy.event("admin_listening", since=seen)
        assert proxy.admin_port == port
        status, _ = await proxy.get("/healthz")
        assert status == 200


async def test_freshness_passes_a_write(fleet: Fleet, tmp_path: Path) -> None:
    async with StubProxy(settings(fleet, workers=1), tmp_path) as proxy:
        await proxy.event("published", replicas=["replica1", "replica2"])
        fleet.primary.query("SELECT pg_logical_emit_message(true, 'test', 'x')")
        asked = (await proxy.ask())["now_ns"]

        async def passed() -> bool:
            return bool((await proxy.ask())["fresh_ns"] >= asked)

        await poll(passed)


async def test_reload(fleet: Fleet, tmp_path: Path) -> None:
    wanted = settings(fleet, workers=1)
    async with StubProxy(wanted, tmp_path) as proxy:
        proxy.write_config({**wanted, "pool": {"pool_size": 7}, "listen": {"port": 0, "backlog": 99}})
        proxy.process.send_signal(signal.SIGHUP)
        await proxy.event("restart_needed", setting="listen.backlog")
        await proxy.event("reloaded")

        async def arrived() -> bool:
            return bool((await proxy.ask())["pool_size"] == 7)

        await poll(arrived)
        # A file that can't be used changes nothing.
        proxy.write_config({**wanted, "pool": {"pool_size": 0}})
        proxy.process.send_signal(signal.SIGHUP)
        await proxy.event("reload_failed")
        # Nor does a new controller fall back to the configuration of the start.
        seen = len(proxy.lines)
        os.kill(proxy.pid("controller"), signal.SIGKILL)
        await proxy.event("worker_joined", since=seen)
        assert (await proxy.ask())["pool_size"] == 7


async def test_children_end_with_a_killed_supervisor(fleet: Fleet, tmp_path: Path) -> None:
    async with StubProxy(settings(fleet), tmp_path) as proxy:
        children = [proxy.pid(child) for child in ("controller", "worker 0", "worker 1")]
        assert all(map(alive, children))
        proxy.process.kill()

        async def gone() -> bool:
            return not any(map(alive, children))

        await poll(gone)


async def test_stop_leaves_nothing_behind(fleet: Fleet, tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    # The path of a Unix socket may have 107 bytes, and tmp_path alone can be longer.
    sockets = Path(tempfile.mkdtemp(prefix="pgtrident-", dir="/tmp"))
    wanted = settings(fleet, runtime_dir=str(runtime), listen={"port": 0, "unix_socket_dir": str(sockets)})
    async with StubProxy(wanted, tmp_path) as proxy:
        children = [proxy.pid(child) for child in ("controller", "worker 0", "worker 1")]
        assert (runtime.stat().st_mode & 0o777) == 0o700
        assert os.listdir(sockets) == [f".s.PGSQL.{proxy.port}"]
        assert (runtime / "published").exists()
    assert proxy.process.returncode == 0
    assert not os.listdir(sockets)
    os.rmdir(sockets)
    assert not any(map(alive, children))


async def test_a_taken_port_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    async with StubProxy(settings(fleet, workers=1), tmp_path) as proxy:
        second = Supervisor(Config(listen=Listen(port=proxy.port), nodes={}), "", [])
        with pytest.raises(OSError, match=r"can't listen on 127\.0\.0\.1"):
            await second.run()
        assert (await proxy.ask())["primary"] == "primary"
