"""Which columnar nodes answer an analytic statement as PostgreSQL does, and what they are sent for it.

Clients decode by the types that they were told, so a statement goes to a columnar node only where its parameters and
result columns are described there as they are on the primary. That is found out once per text and session's settings,
by Parse and Describe, while the statement waits. A columnar node often can't infer the types of parameters: it is given
those of the primary. One that takes another dialect gets the statement transpiled, with casts where its own types
differ.

Owns what was found out, per node: bounded, for a time, and forgotten when a node comes into service anew. What may be
asked of a node at all is `routing.columnar`. Called by `routes`, `rerun` and `batch`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from ..errors import NoServer, TridentError
from ..routing.bind import shape_of
from ..routing.columnar import DOUBTFUL, KNOWN, Engine, lesson
from ..session.prepared import Statement
from ..sql.transpile import Column, fixes, transpiled
from ..topology.model import Role
from ..wire import build, parse
from .inquiry import Refused, inquire
from .unit import Kind, Unit

if TYPE_CHECKING:
    from .client import Client
    from .worker import Worker

MAX_KNOWN = 5_000
DEADLINE = 2.0
"""Seconds for all descriptions of a statement; what could not be described in time isn't sent there."""
FIRST_USER_OID = 16384

Text = tuple[str, bytes, bytes]
"""What a statement is: what else decides its meaning (`Client.meaning`), text, parameter types."""
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Form:
    """A statement as a columnar node gets it."""

    sql: bytes
    oids: bytes
    """Parameter types as in Parse."""


@dataclass(frozen=True, slots=True)
class Description:
    """A statement's parameter types, as in Parse, and its result columns."""

    oids: bytes
    columns: tuple[Column, ...]


class Lasting(Generic[Key, Value]):
    """Answers that hold for a time; the one that was not used for longest goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    def get(self, key: Key, now: float) -> tuple[float, Value] | None:
        """(until when it holds, the answer); None if there is none any more."""
        kept = self._kept.get(key)
        if kept is None or kept[0] <= now:
            return None
        self._kept.move_to_end(key)
        return kept

    def put(self, key: Key, value: Value, until: float) -> None:
        while len(self._kept) >= self._most:
            self._kept.popitem(last=False)
        self._kept[key] = (until, value)

    def forget(self, keys: Collection[Key]) -> None:
        for key in keys:
            del self._kept[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._kept)


class Capabilities:
    """Of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._engines: dict[str, Engine] = {}
        self._forms: Lasting[tuple[str, Text], Form | None] = Lasting(MAX_KNOWN)
        self._described: Lasting[Text, Description | None] = Lasting(MAX_KNOWN)
        self._lacking: Lasting[tuple[str, str, str], bool] = Lasting(MAX_KNOWN)
        """By node, database and shape."""
        self._asking: dict[Text, list[Client]] = {}
        self.reconfigured()

    def reconfigured(self) -> None:
        """The configuration says something else of nodes."""
        self._engines = {name: Engine(node) for name, node in self._worker.config.nodes.items()}
        self.came(self._engines)

    def came(self, nodes: Collection[str]) -> None:
        """Nodes have come into service: they may be others than before."""
        self._forms.forget([key for key in self._forms if key[0] in nodes])
        self._lacking.forget([key for key in self._lacking if key[0] in nodes])

    # ---- what routing asks

    def able(self, client: Client, unit: Unit, *, dry: bool = False) -> Collection[str] | None:
        """The columnar nodes that can answer; of those out of service the ones that may be able. None while it is being
        found out, after which the client is released; `dry`: it isn't, and those that aren't known are among them."""
        single = unit.single_text()
        if single is None:
            return ()
        text = (client.meaning(), *single)
        able, unknown = self._known(client, unit, text)
        if not unknown or dry:
            return able + unknown
        waiting = self._asking.get(text)
        if waiting is None:
            self._asking[text] = [client]
            self._worker.spawn(self._find_out(text, client, unknown), "capability")
        else:
            waiting.append(client)
        return None

    def missing(self, client: Client, unit: Unit, node: str) -> str:
        """Why a columnar node isn't asked, as far as that is known; "" if it would be."""
        single = unit.single_text()
        engine = self._engines.get(node)
        if single is None or engine is None:
            return "it is no single statement"
        able, unknown = self._known(client, unit, (client.meaning(), *single))
        if node in able or node in unknown:
            return ""
        return (
            engine.missing(unit.classified[0], unit.kind is Kind.BATCH)
            or "it can't run it, or would answer with other types"
        )

    def _known(self, client: Client, unit: Unit, text: Text) -> tuple[list[str], list[str]]:
        """(nodes that are known to be able or are not in service, nodes in service of which it isn't known)."""
        worker = self._worker
        now = worker.clock.now()
        shape = shape_of(text[1])
        extended = unit.kind is Kind.BATCH
        able: list[str] = []
        unknown: list[str] = []
        for name, view in worker.snapshot.nodes.items():
            engine = self._engines.get(name)
            if view.role is not Role.COLUMNAR or engine is None or engine.missing(unit.classified[0], extended):
                continue
            if self._lacking.get((name, client.settings.dbname, shape), now) is not None:
                continue
            known = self._forms.get((name, text), now)
            if known is None:
                (unknown if name in worker.snapshot.columnar else able).append(name)
            elif known[1] is not None:
                able.append(name)
        return able, unknown

    def form(self, client: Client, node: str, sql: bytes, oids: bytes) -> Form | None:
        """How a statement is sent to a columnar node; None where nothing is known of it: as it is."""
        known = self._forms.get((node, (client.meaning(), sql, oids)), self._worker.clock.now())
        return known[1] if known is not None else None

    def translated(self, client: Client, node: str, statement: Statement) -> Statement:
        """A statement as a columnar node gets it."""
        form = self.form(client, node, statement.sql, statement.oids)
        if form is None or (form.sql == statement.sql and form.oids == statement.oids):
            return statement
        made = self._worker.statements.intern(form.sql, form.oids, statement.context, statement.classification)
        made.origin = statement
        return made

    # ---- what is learned

    def unable(self, client: Client, unit: Unit, node: str, sqlstate: str) -> None:
        """A columnar node has failed at it; what that teaches depends on the error."""
        single = unit.single_text()
        if single is not None:
            self._learn(client, (client.meaning(), *single), node, sqlstate)

    def _learn(self, client: Client, text: Text, node: str, sqlstate: str) -> None:
        now = self._worker.clock.now()
        of_shape, seconds = lesson(sqlstate)
        shape = shape_of(text[1]) if of_shape else ""
        if shape:
            self._lacking.put((node, client.settings.dbname, shape), True, now + seconds)
            self._worker.log.info("columnar_unable", node=node, shape=shape, sqlstate=sqlstate)
        elif seconds:
            self._forms.put((node, text), None, now + seconds)

    async def _find_out(self, text: Text, client: Client, nodes: list[str]) -> None:
        worker = self._worker
        try:
            async with asyncio.timeout(DEADLINE):
                wanted = await self._wanted(client, text)
                for node in nodes:
                    form = await self._formed(client, node, text, wanted) if wanted is not None else None
                    self._forms.put((node, text), form, worker.clock.now() + KNOWN)
        except (TimeoutError, TridentError) as error:
            worker.log.info("analytic_not_described", error=str(error) or "timed out")
        finally:
            now = worker.clock.now()
            for node in nodes:
                if self._forms.get((node, text), now) is None:
                    self._forms.put((node, text), None, now + DOUBTFUL)
            for waiter in self._asking.pop(text, []):
                waiter.released_from_hold()

    async def _wanted(self, client: Client, text: Text) -> Description | None:
        """What PostgreSQL says of a statement; None if it refuses it, or has types that no other node can have."""
        now = self._worker.clock.now()
        known = self._described.get(text, now)
        if known is not None:
            return known[1]
        snapshot = self._worker.snapshot
        node = next(iter(snapshot.replicas), snapshot.primary)
        if not node:
            raise NoServer("no node in service can describe it")
        wanted: Description | None = None
        try:
            wanted = await self._describe(client, node, Form(text[1], text[2]))
        except Refused:
            pass
        if wanted is not None and any(column.oid >= FIRST_USER_OID for column in wanted.columns):
            wanted = None
        self._described.put(text, wanted, now + KNOWN)
        return wanted

    async def _formed(self, client: Client, node: str, text: Text, wanted: Description) -> Form | None:
        """How a node gets a statement so that it answers as wanted; None if it can't."""
        engine = self._engines.get(node)
        if engine is None:
            return None
        sql: bytes | None = text[1]
        if engine.transpiles:
            sql = transpiled(text[1], engine.dialect)
        if sql is None:
            return None
        form = Form(sql, wanted.oids)
        try:
            given = await self._describe(client, node, form, simple=engine.simple)
            if given != wanted and engine.transpiles:
                needed = fixes(given.columns, wanted.columns)
                sql = transpiled(text[1], engine.dialect, needed) if needed is not None else None
                if sql is None:
                    return None
                form = Form(sql, wanted.oids)
                given = await self._describe(client, node, form, simple=engine.simple)
        except Refused as error:
            self._learn(client, text, node, error.sqlstate)
            return None
        return form if given == wanted else None

    @staticmethod
    async def _describe(client: Client, node: str, form: Form, *, simple: bool = False) -> Description:
        """What a node says of a statement, under the client's settings. Raises Refused where it can't."""
        if simple:
            messages = build.query(b"SELECT * FROM (%s\n) AS described LIMIT 0" % form.sql.rstrip(b"; \r\n\t"))
        else:
            messages = build.parse(b"", form.sql, form.oids) + build.describe(b"S", b"") + build.SYNC
        return _description(await inquire(client, node, messages, extended=not simple))


def _description(answer: bytes) -> Description:
    """What is told by the messages of an answer."""
    oids = b"\0\0"
    columns: tuple[Column, ...] = ()
    for kind, body in parse.messages(answer):
        if kind == 0x74:
            oids = body
        elif kind == 0x54:
            columns = tuple(Column(*column) for column in parse.row_types(body))
    return Description(oids, columns)
