"""What SHOW STATS and /metrics count, against work whose size is known."""

from __future__ import annotations

import re
import urllib.request

import pytest

from ..support.rawpg import B, D, E, P, Q, S, Wire, copy_data
from .conftest import Serve, Service, eventually

SELECT_1 = len(Q("SELECT 1"))


def stats(service: Service) -> dict[str, int]:
    """The database's line of SHOW STATS."""
    rows = [row for row in service.console("SHOW STATS") if row["database"] == service.database]
    return {name: int(value or 0) for name, value in rows[0].items() if name != "database"} if rows else {}


def metrics(service: Service, pattern: str) -> dict[str, float]:
    """Samples of /metrics whose name and labels match, as workers reported within the last second."""
    with urllib.request.urlopen(f"http://127.0.0.1:{service.proxy.admin_port}/metrics") as page:
        text = page.read().decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines if re.search(pattern, name)}


def change(service: Service, client: Wire, *work: bytes, ready: int = 1) -> dict[str, int]:
    """What SHOW STATS counts for some messages."""
    before = stats(service)
    client.send(*work)
    for _ in range(ready):
        client.until()
    after = stats(service)
    return {name.removeprefix("total_"): after[name] - before[name] for name in after if name.startswith("total_")}


def test_stats_of_a_database(serve: Serve) -> None:
    service = serve(own=True)
    client = service.client()
    client.query("SELECT 1")
    made = change(service, client, Q("SELECT 1"))
    assert (made["query_count"], made["xact_count"], made["received"]) == (1, 1, SELECT_1)
    answer = sum(len(reply.body) + 5 for reply in client.send(Q("SELECT 1")).until())
    assert made["sent"] == answer

    # A batch is one query; what a transaction waits for its client is part of its time, not of the queries'.
    made = change(service, client, P("", "SELECT 1"), B(), D("P"), E(), B(), E(), S)
    assert (made["query_count"], made["xact_count"]) == (1, 1)
    made = change(service, client, Q("BEGIN"), Q("SELECT pg_sleep(0.05)"), ready=2)
    assert (made["query_count"], made["xact_count"]) == (2, 0)
    assert made["query_time"] >= 50_000
    made = change(service, client, Q("COMMIT"))
    assert (made["query_count"], made["xact_count"]) == (1, 1)
    assert made["xact_time"] > made["query_time"]
    assert made["xact_time"] >= 50_000

    # A parameter too long to be held, and copy data.
    made = change(service, client, P("", "SELECT length($1)"), B("", "", [b"x" * 300_000]), E(), S)
    assert made["received"] > 300_000
    client.run("CREATE TABLE ct(a text)")
    before = stats(service)["total_received"]
    client.ask(Q("COPY ct FROM STDIN"), until="G")
    client.ask(copy_data(b"y" * 200_000 + b"\n"), b"c\0\0\0\4")
    assert stats(service)["total_received"] - before > 200_000
    before = stats(service)["total_sent"]
    client.query("COPY ct TO STDOUT")
    assert stats(service)["total_sent"] - before > 200_000

    # Of queries sent at once each has its own time, not the time of those before it too.
    made = change(service, client, *[Q("SELECT pg_sleep(0.05)")] * 3, ready=3)
    assert (made["query_count"], made["xact_count"]) == (3, 3)
    assert 150_000 <= made["query_time"] < 300_000
    assert 150_000 <= made["xact_time"] < 300_000


@pytest.mark.parametrize("setting", ["", "SET work_mem = '7MB'"])
def test_what_waiting_clients_sent(serve: Serve, setting: str) -> None:
    """Also where the server that comes free has to be brought in line first."""
    service = serve(own=True)
    holder, client = service.client(pool=1), service.client(pool=1)
    client.query(setting)
    holder.run("BEGIN")
    before = stats(service)["total_received"]
    client.send(Q("SELECT 1"))
    assert eventually(lambda: service.shown(client)["state"] == "waiting")
    holder.query("COMMIT")
    client.until()
    assert stats(service)["total_received"] - before == SELECT_1 + len(Q("COMMIT"))


def test_pauses(serve: Serve) -> None:
    """A client that does not read makes the proxy stop reading from its server."""
    service = serve(own=True)
    client = service.client()
    client.send(Q("SELECT repeat('x', 10000) FROM generate_series(1, 5000)"))
    assert eventually(lambda: metrics(service, "pauses_total")["pgtrident_pauses_total"] >= 1)
    client.close()


def test_units_by_class_and_named_statements(serve: Serve) -> None:
    service = serve(own=True)
    client = service.client()
    client.run("CREATE TABLE t(a int)")
    client.ask(P("n", "SELECT 2"), S)
    for _ in range(3):
        client.ask(B("", "n"), E(), S)
    client.query("SELECT 1")
    client.query("INSERT INTO t VALUES (1)")
    client.query("SELECT pg_backend_pid()")
    wanted = {"write": 2, "read": 5 + 1, "session": 1, "analytic": 0}  # one read was made to see it serve
    wanted_samples = {f'pgtrident_units_total{{class="{name}"}}': count for name, count in wanted.items()}
    assert eventually(lambda: metrics(service, "units_total") == wanted_samples), metrics(service, "units_total")

    # Its server is taken: on the other one the statement has to be parsed again.
    other = service.client()
    other.run("BEGIN")
    client.ask(B("", "n"), E(), S)

    def prepared() -> dict[str, float]:
        samples = metrics(service, rf'pool_prepared_total.*"{service.database}"')
        return {re.findall('result="(.*?)"', name)[0]: count for name, count in samples.items()}

    assert eventually(lambda: prepared() == {"hit": 3, "miss": 1}), prepared()
