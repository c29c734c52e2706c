"""The demo's sample data and its clients: a few statements of each class, the same all the time.

The texts are fixed so that nodes can be asked how often they ran each (`evidence`). Called by `fleet`, `run`
and `check`.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import psycopg

PRODUCTS = 500
CATEGORIES = ("books", "coffee", "garden", "music", "outdoor", "toys")

SCHEMA = """
CREATE TABLE product (
    id integer PRIMARY KEY, name text NOT NULL, category text NOT NULL, price numeric(10,2) NOT NULL,
    stock integer NOT NULL);
CREATE TABLE sale (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, product_id integer NOT NULL, quantity integer NOT NULL,
    price numeric(10,2) NOT NULL, sold_at timestamptz NOT NULL DEFAULT now());
"""


def fill(sales: int) -> str:
    """SQL that fills the tables, `sale` with this many rows."""
    categories = ",".join(CATEGORIES)
    return f"""
INSERT INTO product
SELECT i, 'product ' || i, ('{{{categories}}}'::text[])[1 + i % {len(CATEGORIES)}], (i % 97) + 0.99, 1000000
FROM generate_series(1, {PRODUCTS}) i;
INSERT INTO sale (product_id, quantity, price, sold_at)
SELECT 1 + i * 7919 % {PRODUCTS}, 1 + i % 5, (i % 97) + 0.99, now() - i * interval '1 minute'
FROM generate_series(1, {sales}::bigint) i;
"""


WRITES = (
    "INSERT INTO sale (product_id, quantity, price) VALUES (%s, %s, %s)",
    "UPDATE product SET stock = stock - 1 WHERE id = %s",
)
READS = (
    "SELECT name, category, price FROM product WHERE id = %s",
    "SELECT id, quantity, price, sold_at FROM sale WHERE id = %s",
)
ANALYTICS = (
    "SELECT p.category, count(*) AS sales, sum(s.quantity) AS pieces, sum(s.price) AS revenue "
    "FROM sale s JOIN product p ON p.id = s.product_id GROUP BY p.category ORDER BY p.category",
    "SELECT product_id, count(*) AS sales, max(price) AS highest FROM sale GROUP BY product_id ORDER BY sales DESC, "
    "product_id LIMIT 10",
)
CLASSES = {"write": WRITES, "read": READS, "analytic": ANALYTICS}
_PAUSES = {"write": 2.0, "read": 0.01, "analytic": 0.5}
"""Seconds between a client's statements. Reads of a data base stay on the primary for a moment after each write."""
_KEPT = 200


def values(kind: str, at: int, rng: random.Random) -> tuple[Any, ...]:
    """Parameters for statement number `at` of a class."""
    product = rng.randint(1, PRODUCTS)
    if kind == "write":
        return (product, rng.randint(1, 5), rng.randint(1, 90)) if at == 0 else (product,)
    return (product,) if kind == "read" else ()


@dataclass(slots=True)
class Client:
    """One connection that sends statements of one class until it is stopped; lost connections are made anew."""

    dsn: str
    kind: str
    done: int = 0
    errors: int = 0
    last_error: str = ""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """What its last statements took."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self.kind, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()

    def median(self) -> float:
        """Seconds; 0 before the first statement."""
        taken = sorted(self.seconds)
        return taken[len(taken) // 2] if taken else 0.0

    def _run(self) -> None:
        rng = random.Random(self.kind)
        while not self._stop.is_set():
            try:
                with psycopg.connect(self.dsn, autocommit=True, connect_timeout=5) as connection:
                    self._talk(connection, rng)
            except psycopg.Error as error:
                self.errors += 1
                self.last_error = str(error).strip()
                self._stop.wait(1.0)

    def _talk(self, connection: psycopg.Connection[Any], rng: random.Random) -> None:
        statements = CLASSES[self.kind]
        while not self._stop.wait(_PAUSES[self.kind] * rng.uniform(0.5, 1.5)):
            at = self.done % len(statements)
            began = time.perf_counter()
            connection.execute(statements[at], values(self.kind, at, rng))
            self.seconds.append(time.perf_counter() - began)
            self.done += 1
