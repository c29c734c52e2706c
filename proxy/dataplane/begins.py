"""A client's transaction whose BEGIN is held back, from its answer to its end or to its first statement on the primary.

Owns what is answered without a server then: the BEGIN, a COMMIT or ROLLBACK before anything has begun, and what comes
after an error. Which units may run on a copy is for `virtual` to say; the state is the client's `virtual`. Called by
`client`, which sends the BEGIN when it comes to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Aborted
from ..sql.model import Class
from ..wire import build, frontend
from ..wire.codes import IDLE, IN_TRANSACTION
from .unit import Kind, Unit
from .virtual import Command, Virtual, end_of, first_command, is_plain_read, is_refused, local_setting, may_hold

if TYPE_CHECKING:
    from .client import Client

_TAGS = {"begin": "BEGIN", "start transaction": "START TRANSACTION"}


def hold_query(client: Client, unit: Unit) -> bool:
    """Whether a Query is a BEGIN that is answered, and nothing begun yet."""
    if not _hold(client, unit, frontend.query_text(unit.raw)):
        return False
    client.names.unnamed = None  # as each Query does
    client.write(build.command_complete(_TAGS[unit.classified[0].kind]) + build.ready(IN_TRANSACTION))
    client.settle_gate()
    return True


def hold_batch(client: Client, unit: Unit) -> bool:
    """The same for a batch that begins with one; the rest of it is a unit by itself then."""
    command = first_command(unit.ops, client.names)
    if command is None or not command.statement.classification.starts_transaction or command.statement.split:
        return False
    begin, rest = Unit(Kind.BATCH), Unit(Kind.BATCH)
    begin.ops, rest.ops = unit.ops[: command.length], unit.ops[command.length :]
    client.batches.judge(begin)
    if not _hold(client, begin, command.statement.sql):
        return False
    begun = _has_run(client, command) + build.command_complete(_TAGS[begin.classified[0].kind])
    if rest.ops:
        client.write(begun)
        client.batches.judge(rest)
        client.begin(rest)
    else:
        client.write(begun + build.ready(IN_TRANSACTION))
        client.settle_gate()
    return True


def may_go_on(client: Client, virtual: Virtual, unit: Unit) -> bool:
    """Whether a unit in a transaction that has not begun is to be sent; else it has been answered, or waits."""
    server = client.server
    if server is not None and (server.owed or client.busy):
        client.park(unit)
        return False
    if (end := end_of(unit)) and _ends(client, virtual, unit, end):
        return False
    if virtual.failed and is_refused(unit):
        if unit.kind is Kind.QUERY or not unit.ops[0].name:
            client.names.unnamed = None
        client.refuse(unit, Aborted())
        return False
    if unit.instead_of is not None:
        return True
    # What is on its way to the primary, where it may have to wait for a server, runs nowhere else any more: the
    # settings of its transaction go with the BEGIN.
    in_order = not virtual.failed and not unit.begins
    if in_order and (local := _local_setting(client, virtual, unit)) is not None:
        client.route(local)
        return False
    binding = client.binding
    unit.begins = not (
        in_order
        and is_plain_read(unit)
        and binding is not None
        and not any(binding.tells_time(found) for found in unit.classified)
    )
    if not unit.begins:
        unit.cls = Class.READ
        unit.floor_ns = virtual.begun_ns
    elif unit.cls is not Class.WRITE:
        unit.cls = Class.SESSION
    return True


def _has_run(client: Client, command: Command) -> bytes:
    """What a batch runs first is answered without a server: the replies up to its tag. What it parses is there from
    now on."""
    if command.parsed:
        client.names.named[command.parsed] = command.statement
    elif command.parsed is not None:
        client.names.unnamed = command.statement
    return command.replies


def _hold(client: Client, unit: Unit, text: bytes) -> bool:
    """Whether nothing is begun yet by this BEGIN. Its answer is the caller's."""
    binding = client.binding
    if binding is None or not binding.split or binding.isolated or client.level == "strong":
        return False
    if client.virtual is not None:
        return False  # PostgreSQL has a warning for that
    if client.server is not None or client.pins or client.audit.touched or unit.effects:
        return False
    policy = unit.policy
    if policy is not None and (policy.reject or policy.consistency == "strong"):
        return False
    isolation = client.state.values.get("default_transaction_isolation", "")
    mode = (policy.transactions if policy is not None else "") or client.settings.transactions
    if not text.isascii() or not may_hold(mode, unit.classified[0], isolation):
        return False
    worker = client.worker
    now = worker.clock.boot_ns()
    worker.consistency.need(now, waits=True)
    client.virtual = Virtual(text.decode(), now, worker.clock.now(), client.state)
    worker.counters.begins_held += 1
    client.units += 1
    return True


def _ends(client: Client, virtual: Virtual, unit: Unit, end: str) -> bool:
    """Whether a transaction that has not begun is ended by this unit."""
    ended = build.command_complete("ROLLBACK" if virtual.failed else end) + build.ready(IDLE)
    if unit.kind is Kind.QUERY:
        client.names.unnamed = None
    else:
        command = first_command(unit.ops, client.names)
        if command is None or command.length != len(unit.ops) or not unit.synced:
            return False
        ended = _has_run(client, command) + ended
    client.units += 1
    client.virtual = None
    client.state = virtual.state
    client.write(ended)
    client.settle_gate()
    return True


def _local_setting(client: Client, virtual: Virtual, unit: Unit) -> Unit | None:
    """What is run on a copy in place of a SET LOCAL in a transaction that has not begun; None if it isn't one."""
    single = unit.single
    if unit.kind is not Kind.QUERY or single is None or single.kind != "set" or unit.policy is not None:
        return None
    sql = local_setting(frontend.query_text(unit.raw).decode("utf-8", "surrogateescape"))
    if not sql:
        return None
    instead = Unit(Kind.QUERY, build.query(sql))
    client.join_text(instead, sql.encode())
    instead.cls = Class.READ
    instead.instead_of = unit
    instead.floor_ns = virtual.begun_ns
    return instead
