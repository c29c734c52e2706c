"""Applications that open a transaction for each request, as drivers and ORMs do by default: their reads are on
replicas, and whatever they do has the results that PostgreSQL itself gives."""

from __future__ import annotations

import asyncio
import random
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from .conftest import Serve, Service, eventually

ROUTING = {"read_split": True, "transactions": "optimistic", "catalogue_interval": 0.5}
REQUESTS = 50
CLIENTS = 20


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "item"
    id: Mapped[int] = mapped_column(primary_key=True)
    label: Mapped[str]
    qty: Mapped[int]


@pytest.fixture
def service(serve: Serve) -> Service:
    service = serve({"routing": ROUTING})
    client = service.client(pool=20)
    ready = "/* ready */ SELECT count(*) FROM item"
    assert eventually(lambda: client.query(ready) and service.reached(ready) - {"primary"}, 10)
    return service


def place(service: Service) -> dict[str, Any]:
    host, port = service.proxy.address
    return {"host": host, "port": port, "user": "pool20", "dbname": service.database}


def url(service: Service, driver: str) -> str:
    host, port = service.proxy.address
    return f"postgresql+{driver}://pool20@{host}:{port}/{service.database}"


def routes(service: Service) -> tuple[int, int]:
    """How many units have gone to replicas, and to the primary, so far."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{service.proxy.admin_port}/metrics", timeout=10).read().decode()
    counts = [0, 0]
    for line in page.splitlines():
        if line.startswith("pgtrident_routes_total{"):
            counts["primary" in line.partition("reason")[0]] += int(float(line.split()[-1]))
    return counts[0], counts[1]


def settled(service: Service) -> tuple[int, int]:
    """The same, once all that has run is counted: workers tell once a second, in one go."""
    client = service.client(pool=20)
    before = sum(routes(service))
    client.query("SELECT count(*) FROM item")
    assert eventually(lambda: sum(routes(service)) > before)
    return routes(service)


# --- how much is on replicas


def by_psycopg(service: Service) -> Iterator[None]:
    with psycopg.connect(**place(service)) as connection:
        while True:
            rows = connection.execute("SELECT id FROM item WHERE qty > %s ORDER BY id", (3,)).fetchall()
            assert len(rows) == 17
            assert connection.execute("SELECT count(*) FROM item").fetchall() == [(20,)]
            connection.commit()
            yield


def by_psycopg2(service: Service) -> Iterator[None]:
    connection = psycopg2.connect(**place(service))
    try:
        while True:
            with connection, connection.cursor() as cursor:
                cursor.execute("SELECT id FROM item WHERE qty > %s ORDER BY id", (3,))
                assert len(cursor.fetchall()) == 17
                cursor.execute("SELECT count(*) FROM item")
                assert cursor.fetchall() == [(20,)]
            yield
    finally:
        connection.close()


def by_orm(driver: str) -> Callable[[Service], Iterator[None]]:
    def run(service: Service) -> Iterator[None]:
        engine = sa.create_engine(url(service, driver), pool_size=1)
        try:
            while True:
                with Session(engine) as session:
                    assert len(session.scalars(sa.select(Item).where(Item.qty > 3)).all()) == 17
                    assert session.get(Item, 5) is not None
                yield
        finally:
            engine.dispose()

    return run


def by_async_orm(service: Service) -> Iterator[None]:
    async def request() -> None:
        async with AsyncSession(engine) as session:
            assert len((await session.scalars(sa.select(Item).where(Item.qty > 3))).all()) == 17
            assert await session.get(Item, 5) is not None

    with asyncio.Runner() as runner:
        engine = create_async_engine(url(service, "asyncpg"), pool_size=1)
        try:
            while True:
                runner.run(request())
                yield
        finally:
            runner.run(engine.dispose())


APPLICATIONS = {
    "psycopg": by_psycopg,
    "psycopg2": by_psycopg2,
    "sqlalchemy, psycopg": by_orm("psycopg"),
    "sqlalchemy, psycopg2": by_orm("psycopg2"),
    "sqlalchemy, asyncpg": by_async_orm,
}


@pytest.mark.parametrize("application", APPLICATIONS)
def test_requests_that_read_are_on_replicas(service: Service, application: str) -> None:
    requests = APPLICATIONS[application](service)
    for _ in range(5):
        next(requests)  # it has asked what it asks of each new connection
    before = last = settled(service)
    for _ in range(REQUESTS):
        next(requests)

    def all_counted() -> bool:
        nonlocal last
        last = routes(service)
        return last[0] + last[1] - before[0] - before[1] >= 2 * REQUESTS

    assert eventually(all_counted, 10)
    requests.close()  # type: ignore[attr-defined]
    on_replicas, on_primary = last[0] - before[0], last[1] - before[1]
    print(f"{application}: {on_replicas} units on replicas, {on_primary} on the primary")
    assert on_replicas >= 0.9 * (on_replicas + on_primary), (on_replicas, on_primary)


# --- that it is right


def random_statement(rng: random.Random) -> tuple[str, tuple[Any, ...]]:
    """Most of them read."""
    one = rng.randint(1, 25)
    kinds: list[tuple[int, str, tuple[Any, ...]]] = [
        (8, "SELECT id, label, qty FROM item WHERE id = %s", (one,)),
        (5, "SELECT count(*), sum(qty) FROM item WHERE id < %s", (one,)),
        (
            3,
            "SELECT i.id, count(t.item_id) FROM item i LEFT JOIN trail t ON t.item_id = i.id GROUP BY 1 ORDER BY 1",
            (),
        ),
        (2, "SELECT item_label(%s)", (one,)),
        (3, "UPDATE item SET qty = qty + 1 WHERE id = %s RETURNING qty", (one,)),
        (2, "INSERT INTO trail(item_id) VALUES (%s) RETURNING item_id", (one,)),
        (1, "DELETE FROM trail WHERE item_id = %s", (one,)),
        (2, "INSERT INTO item VALUES (%s, 'new', 0) ON CONFLICT (id) DO NOTHING", (one,)),
        (2, "SELECT qty FROM item WHERE id = %s FOR UPDATE", (one,)),
        (1, "SELECT add_trail(%s)", (one,)),
        (1, "SELECT count(*) FROM scratch", ()),
        (1, "SAVEPOINT a", ()),
        (1, "ROLLBACK TO SAVEPOINT a", ()),
        (1, "RELEASE SAVEPOINT a", ()),
        (1, "SET LOCAL work_mem = '2MB'", ()),
        (1, "SHOW work_mem", ()),
        (1, "SHOW transaction_isolation", ()),
        (1, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", ()),
        (1, "SET search_path = tenant_a, public", ()),
        (1, "RESET search_path", ()),
        (1, "SELECT count(*) FROM w", ()),
        (1, "SELECT now() = transaction_timestamp(), current_date = now()::date", ()),
        (1, "SELECT 1 / (qty - qty) FROM item WHERE id = %s", (one,)),
        (1, "INSERT INTO item VALUES (%s, 'twice')", (one,)),
        (1, "SELECT nothing FROM item", ()),
        (1, "CREATE TEMP TABLE IF NOT EXISTS mine ON COMMIT DROP AS SELECT 1 AS a", ()),
        (1, "SELECT count(*) FROM mine", ()),
        (1, "DECLARE c CURSOR FOR SELECT id FROM item ORDER BY id", ()),
        (1, "FETCH 3 FROM c", ()),
        (1, "COMMIT AND CHAIN", ()),
        (1, "ROLLBACK AND CHAIN", ()),
    ]
    _, sql, parameters = rng.choices(kinds, [kind[0] for kind in kinds])[0]
    return sql, parameters


def answer(connection: psycopg.Connection[Any], sql: str, parameters: tuple[Any, ...], prepare: bool) -> str:
    """Rows or SQLSTATE, and what state the transaction is in."""
    try:
        cursor = connection.execute(sql, parameters, prepare=prepare)
        told = f"{cursor.statusmessage} {cursor.fetchall() if cursor.description else ''}"
    except psycopg.Error as error:
        told = str(error.sqlstate)
    return f"{sql} {parameters}: {told} {connection.info.transaction_status.name}"


def run_request(rng: random.Random, connection: psycopg.Connection[Any]) -> list[str]:
    told = []
    for _ in range(rng.randint(1, 7)):
        sql, parameters = random_statement(rng)
        told.append(answer(connection, sql, parameters, rng.random() < 0.3))
    end = rng.choices(["COMMIT", "ROLLBACK"], [3, 1])[0]
    (connection.commit if end == "COMMIT" else connection.rollback)()
    return [*told, f"{end}: {connection.info.transaction_status.name}"]


def compare(service: Service, twin: str, seed: int, requests: int) -> None:
    direct_place = {"host": "127.0.0.1", "port": service.fleet.primary.port, "user": "pool20", "dbname": twin}
    with psycopg.connect(**place(service)) as proxied, psycopg.connect(**direct_place) as direct:
        for number in range(requests):
            got = run_request(random.Random(f"{seed} {number}"), proxied)
            want = run_request(random.Random(f"{seed} {number}"), direct)
            assert got == want, (seed, number)


@pytest.fixture
def twin(service: Service) -> Iterator[str]:
    """Another database with the same content."""
    name = service.fleet.take_database()
    yield name
    service.fleet.give_back_database(name)


@pytest.mark.parametrize("seed", range(3))
def test_any_requests_have_the_results_of_a_direct_connection(service: Service, twin: str, seed: int) -> None:
    compare(service, twin, seed, 100)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_requests_have_the_results_of_a_direct_connection(service: Service, twin: str, seed: int) -> None:
    compare(service, twin, seed, 500)


# --- who reads and then writes


def by_version(connection: psycopg.Connection[Any]) -> bool:
    """Optimistic locking, as ORMs do it."""
    row = connection.execute("SELECT value, version FROM counter WHERE id = 1").fetchone()
    assert row is not None
    changed = connection.execute(
        "UPDATE counter SET value = %s, version = version + 1 WHERE id = 1 AND version = %s", (row[0] + 1, row[1])
    )
    return changed.rowcount == 1


def by_expression(connection: psycopg.Connection[Any]) -> bool:
    connection.execute("SELECT value FROM counter WHERE id = 1").fetchone()
    return connection.execute("UPDATE counter SET value = value + 1 WHERE id = 1").rowcount == 1


def by_lock(connection: psycopg.Connection[Any]) -> bool:
    connection.execute("SELECT count(*) FROM counter").fetchone()
    row = connection.execute("SELECT value FROM counter WHERE id = 1 FOR UPDATE").fetchone()
    assert row is not None
    return connection.execute("UPDATE counter SET value = %s WHERE id = 1", (row[0] + 1,)).rowcount == 1


TURN = threading.Lock()


def by_turn(connection: psycopg.Connection[Any]) -> bool:
    """What the one before has committed has to be read: nothing else saves it from being overwritten."""
    with TURN:
        row = connection.execute("SELECT value FROM counter WHERE id = 1").fetchone()
        assert row is not None
        connection.execute("UPDATE counter SET value = %s WHERE id = 1", (row[0] + 1,))
        connection.commit()
    return True


WAYS = (by_version, by_expression, by_lock, by_turn)


def twenty_clients(service: Service, change: Callable[[psycopg.Connection[Any]], bool], times: int) -> None:
    """Each reads and writes so many times; what nobody else may have lost is the sum of all."""
    service.admin.run(
        "CREATE TABLE counter(id int PRIMARY KEY, value int, version int)", "INSERT INTO counter VALUES (1, 0, 0)"
    )
    service.fleet.caught_up()
    failures: list[BaseException] = []

    def client() -> None:
        try:
            with psycopg.connect(**place(service)) as connection:
                done = 0
                while done < times:
                    changed = change(connection)
                    (connection.commit if changed else connection.rollback)()
                    done += changed
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    value = service.admin.value("SELECT value FROM counter")
    print(f"{change.__name__}: {CLIENTS} clients, {times} changes each, {value} in the end")
    assert value == str(CLIENTS * times)


@pytest.fixture
def late(service: Service) -> Iterator[None]:
    """Replicas replay commits some time after they have come, so that what they hold is often old."""

    def delay(how: str) -> None:
        for replica in service.fleet.replicas:
            replica.query(f"ALTER SYSTEM {how}")
            replica.reload()

    delay("SET recovery_min_apply_delay = '30ms'")
    yield
    delay("RESET recovery_min_apply_delay")


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("change", WAYS)
def test_twenty_clients_that_read_and_write(service: Service, change: Callable[[Any], bool]) -> None:
    twenty_clients(service, change, 5)


@pytest.mark.full
@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("change", WAYS)
def test_twenty_clients_that_read_and_write_for_long(service: Service, change: Callable[[Any], bool]) -> None:
    twenty_clients(service, change, 100)
