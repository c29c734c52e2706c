"""Looking at nodes: one probe of the database, one of the network, and the pace at which a node is looked at.

Owns the queries of a probe and what an error means as an observation; what an observation does to a
node is `health.table`. Called by `controlplane.controller`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..config.schema import Config
from ..errors import NodeFailure, NodeRefused, TridentError
from ..health.pace import JITTER, MIN_GAP
from ..health.table import Seen
from ..health.verify import HIDDEN
from ..topology.snapshot import Address, NodeView
from .link import Dial, NodeLink

FULL_QUERY = f"""\
SELECT r, s.system_identifier,
 CASE WHEN r THEN coalesce((SELECT max(received_tli) FROM pg_catalog.pg_stat_wal_receiver), c.timeline_id)
 ELSE ('x' || substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int END,
 CASE WHEN r THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_insert_lsn() END,
 CASE WHEN r THEN pg_catalog.pg_last_wal_receive_lsn() END,
 CASE WHEN r THEN
  (SELECT coalesce(min(status), '{HIDDEN}') FROM pg_catalog.pg_stat_wal_receiver HAVING count(*) > 0) END
FROM pg_catalog.pg_is_in_recovery() r, pg_catalog.pg_control_system() s, pg_catalog.pg_control_checkpoint() c"""
"""Manual, chapters 9.27.3, 9.27.4 and 9.28. A running primary's timeline is read off its WAL file name: the
control file has the new one only after the first checkpoint that follows a promotion, and a replica's even later. State
and timeline of a WAL receiver are hidden from who may not read all statistics; that there is one isn't."""
WRITE_QUERY = "SELECT pg_catalog.pg_logical_emit_message(false, 'pgtrident', '')"
"""Manual, chapter 9.28.6. It changes nothing, but is written to the WAL."""
SIMPLE_QUERY = "SELECT pg_is_in_recovery()"
"""For nodes that aren't quite PostgreSQL, and for those that keep the control file from us."""


LOGINS_QUERY = """\
SELECT
 (SELECT sum(pg_catalog.hashtextextended(pg_catalog.concat_ws(' ', setdatabase, setrole, setconfig), 0))
  FROM pg_catalog.pg_db_role_setting),
 (SELECT sum(pg_catalog.hashtextextended(pg_catalog.concat_ws(' ', oid, rolname, rolsuper, rolcanlogin,
  rolbypassrls, rolvaliduntil), 0)) FROM pg_catalog.pg_roles),
 pg_catalog.pg_stat_get_tuples_updated('pg_catalog.pg_authid'::pg_catalog.regclass),
 pg_catalog.has_table_privilege('pg_catalog.pg_authid', 'SELECT')"""
"""What everybody may see of what logins depend on. A changed password shows only in the statistics, which a
session may send seconds later (manual, chapter 28.2), and not on a replica; hence `AUTHID_QUERY` for those who may.
With 1,000 roles both take a few milliseconds."""
AUTHID_QUERY = """\
SELECT sum(pg_catalog.hashtextextended(pg_catalog.concat_ws(' ', oid, xmin), 0)) FROM pg_catalog.pg_authid"""
"""Which versions of the roles there are; the passwords are not looked at."""


LOAD_QUERY = """\
SELECT
 count(*) FILTER (WHERE state <> 'idle') * 100.0 / greatest(1, pg_catalog.current_setting('max_connections')::int
  - pg_catalog.current_setting('superuser_reserved_connections')::int),
 count(xact_start) FILTER (WHERE pid <> pg_catalog.pg_backend_pid()),
 count(*) FILTER (WHERE wait_event_type = 'Lock'),
 coalesce(extract(epoch FROM pg_catalog.clock_timestamp() - min(query_start) FILTER (WHERE state = 'active')), 0)
FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'"""
"""Manual, chapter 28.2. Idle sessions are left out, since most are those of pools, this one's too. Who may not read all
statistics sees none but its own sessions."""
FIGURES = ("connections", "transactions", "locks", "oldest")
MACHINE_FIGURES = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one probe found."""

    seen: Seen
    """PASS if the query was answered; the role is not judged here."""
    in_recovery: bool | None = None
    system: str = ""
    timeline: int = 0
    lsn: int = 0
    """A primary's insert position, a replica's replay position; 0 if not known."""
    received: int = 0
    """A replica's receive position; 0 if not known."""
    receiver: str | None = None
    """State of a replica's WAL receiver: `streaming`, HIDDEN or what else PostgreSQL says; None if there is none."""
    version: str = ""
    logins: str = ""
    """Mark of roles and their settings; empty if not known."""
    error: str = ""
    seconds: float = 0.0
    """How long it took."""


def lsn_of(text: bytes | None) -> int:
    """A pg_lsn as a number; 0 for NULL."""
    if not text:
        return 0
    high, _, low = text.partition(b"/")
    return int(high, 16) << 32 | int(low, 16)


def seen_in(error: BaseException) -> Seen:
    """The observation that an error is."""
    if isinstance(error, NodeRefused):
        return _seen_in_state(error.sqlstate)
    if isinstance(error, NodeFailure) and error.__cause__ is not None:
        return seen_in(error.__cause__)
    match error:
        case TimeoutError():
            return Seen.TIMEOUT
        case ConnectionRefusedError() | FileNotFoundError():
            return Seen.REFUSED
        case ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError() | EOFError():
            return Seen.RESET
        case OSError():
            return Seen.UNREACHABLE
    return Seen.FAIL


def _seen_in_state(sqlstate: str) -> Seen:
    """Manual, appendix A."""
    if sqlstate.startswith("28") or sqlstate in ("3D000", "42501"):
        return Seen.NO_LOGIN
    if sqlstate.startswith("53"):
        return Seen.BUSY
    if sqlstate in ("57P01", "57P02", "57P03"):
        return Seen.STARTING
    return Seen.FAIL


async def probe(
    view: NodeView, config: Config, dial: Dial, *, columnar: bool, keep: Callable[[NodeLink], None] = NodeLink.close
) -> Answer:
    """Connect, log in, ask, all within `health.timeout`; then hang up, or `keep` the connection that was good. Never
    raises for what a node does."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    timeout = config.health.timeout
    try:
        if not view.addresses:
            return Answer(Seen.UNREACHABLE, error=f'no address of "{view.host}" is known')
        async with asyncio.timeout(timeout):
            link = NodeLink(view.name, await dial(view, config, timeout))
            try:
                answer = await _ask(link, columnar, config.health.write_test, began)
            except BaseException:
                link.close()
                raise
            keep(link)
            return answer
    except TimeoutError:
        return Answer(Seen.TIMEOUT, error=f"no full answer within {timeout:g} s", seconds=loop.time() - began)
    except (TridentError, OSError) as error:
        return Answer(seen_in(error), error=str(error), seconds=loop.time() - began)
    except (IndexError, ValueError):
        return Answer(Seen.FAIL, error="the answer to the probe has another shape", seconds=loop.time() - began)


async def _ask(link: NodeLink, columnar: bool, writes: bool, began: float) -> Answer:
    row: list[bytes | None] | None = None
    logins = ""
    if not columnar:
        try:
            row = (await link.query(FULL_QUERY))[0]
            logins = await _logins(link)
        except NodeRefused as error:
            # No such function, or no right to call it.
            if error.sqlstate[:2] not in ("42", "0A"):
                raise
    if row is None:
        row = [*(await link.query(SIMPLE_QUERY))[0], None, None, None, None, HIDDEN.encode()]
    in_recovery, system, timeline, lsn, received, receiver = row
    seen, problem = (await _write(link)) if writes and in_recovery == b"f" else (Seen.PASS, "")
    return Answer(
        seen,
        in_recovery=in_recovery in (b"t", b"true"),
        system=(system or b"").decode(),
        timeline=int(timeline or 0),
        lsn=lsn_of(lsn),
        received=lsn_of(received),
        receiver=receiver.decode() if receiver is not None else None,
        version=link.parameters.get("server_version", ""),
        logins=logins,
        error=problem,
        seconds=asyncio.get_running_loop().time() - began,
    )


async def _write(link: NodeLink) -> tuple[Seen, str]:
    """Whether a primary can write."""
    try:
        await link.query(WRITE_QUERY)
        read_only = (await link.query("SHOW transaction_read_only"))[0][0]
    except NodeRefused as error:
        if error.sqlstate.startswith("42"):
            return Seen.PASS, ""  # it has no such function, or keeps it from us
        return Seen.NO_WRITE, str(error)
    return (Seen.NO_WRITE, "default_transaction_read_only is on") if read_only == b"on" else (Seen.PASS, "")


async def _logins(link: NodeLink) -> str:
    *found, updates, may_see_more = (await link.query(LOGINS_QUERY))[0]
    found.append((await link.query(AUTHID_QUERY))[0][0] if may_see_more == b"t" else updates)
    return " ".join((value or b"-").decode() for value in found)


async def weigh(link: NodeLink, query: str, seconds: float) -> dict[str, float]:
    """What a node has to do, within `seconds`: FIGURES, and MACHINE_FIGURES where `query` tells them. Those that can't
    be told are missing. Raises NodeFailure, TimeoutError where the connection is of no use any more."""
    figures: dict[str, float] = {}
    async with asyncio.timeout(seconds):
        for sql, names in ((LOAD_QUERY, FIGURES), (query, MACHINE_FIGURES)):
            with contextlib.suppress(NodeRefused, ValueError, IndexError):
                row = (await link.query(sql))[0] if sql else []
                figures.update((name, float(value)) for name, value in zip(names, row, strict=False) if value)
    return figures


async def knock(view: NodeView, seconds: float) -> Seen:
    """Open a connection and close it, within `seconds`. PostgreSQL logs nothing where nothing was said. Never
    raises for what a node does."""
    if not view.addresses:
        return Seen.UNREACHABLE
    found = Seen.UNREACHABLE
    try:
        async with asyncio.timeout(seconds):
            for address in view.addresses:
                try:
                    await _knock(address)
                    return Seen.PASS
                except OSError as error:
                    found = seen_in(error)
    except TimeoutError:
        return Seen.TIMEOUT
    return found


async def _knock(address: Address) -> None:
    if address.is_unix:
        _, writer = await asyncio.open_unix_connection(address.host)
    else:
        _, writer = await asyncio.open_connection(address.host, address.port)
    writer.close()


class Pace:
    """When one node is probed: at fixed intervals from start to start, and at once on evidence.

    One probe at a time; evidence that comes during a probe causes one more after it.
    """

    def __init__(self, look: Callable[[], Awaitable[None]], interval: Callable[[], float], rng: random.Random) -> None:
        """`look` makes one probe and takes its result; it must not raise for what the node does.
        `interval`, in seconds, is asked each time, so that a reload takes effect."""
        self._look = look
        self._interval = interval
        self._rng = rng
        self._evidence = asyncio.Event()
        self._due = math.inf

    def hurry(self) -> None:
        """Probe now."""
        self._evidence.set()

    def put_off(self) -> None:
        """What would be seen has just been seen: not before another interval."""
        self._due = asyncio.get_running_loop().time() + self._next()

    def _next(self) -> float:
        return self._interval() * self._rng.uniform(1 - JITTER, 1 + JITTER)

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            self._evidence.clear()
            await self._look()
            # Evidence puts nothing off: a failure that follows another one closely isn't counted, and the next one
            # that is would come later by as much.
            after = math.inf if began >= self._due else self._due
            self._due = min(after, began + self._next())
            while not self._evidence.is_set() and loop.time() < self._due:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(self._due):
                        await self._evidence.wait()
            await asyncio.sleep(max(0.0, began + MIN_GAP - loop.time()))
