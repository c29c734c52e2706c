"""EXPLAIN (ROUTE): where a statement would go for this session now, and why; answered by the worker itself.

Owns the items of the answer. It asks those who decide (`routes.would_be`, `routing.policy`) and must change nothing:
no counter, turn, token or need, and no node is asked. All that stands behind EXPLAIN (ROUTE) is explained as one unit,
as it would be sent. Called by `client`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import NoNode, TridentError
from ..routing.bind import Binding, readable
from ..routing.consistency import ANY, Token, read_token
from ..routing.explain import REASONS, WAITS, candidates, seen
from ..routing.policy import DEFAULT, NOTHING, Decision, Policy
from ..routing.router import Hold, Route
from ..sql.facts import shape, tables
from ..sql.hints import MARK, Hints
from ..sql.lexical import route_explained
from ..sql.model import Class, Classification, Effect
from ..topology.model import Role
from ..wire import build, frontend
from ..wire.codes import FAILED, IDLE
from .unit import Kind, Unit

if TYPE_CHECKING:
    from .client import Client

COLUMNS = (("item", 25), ("value", 25))
"""Text."""

Rows = list[tuple[str, str]]


class _Asked:
    """What is to be explained: a unit as it would be made of the text, and what was found on the way."""

    def __init__(self, unit: Unit, body: bytes, found: Classification, hints: Hints | None, decision: Decision) -> None:
        self.unit = unit
        self.body = body
        self.found = found
        self.hints = hints
        self.decision = decision
        self.policy: Policy = unit.policy or DEFAULT


def answer(client: Client, unit: Unit) -> bytes:
    """The whole answer to EXPLAIN (ROUTE); TridentError if there is none."""
    if unit.kind is not Kind.QUERY:
        raise TridentError(
            "EXPLAIN (ROUTE) is answered in the simple query protocol only",
            sqlstate="0A000",
            hint="Send it without parameters and not as a prepared statement, as psql and pgtrident explain do.",
        )
    server = client.server
    status = server.status if server is not None else IDLE
    if status == FAILED:
        raise TridentError(
            "current transaction is aborted, commands ignored until end of transaction block", sqlstate="25P02"
        )
    text = route_explained(frontend.query_text(unit.raw)) or b""
    if not text.strip(b"; \t\r\n\f\v"):
        raise TridentError("EXPLAIN (ROUTE) of no statement", sqlstate="42601")
    out = [build.row_description(COLUMNS)]
    out += (build.data_row([item, value.encode("utf-8", "replace")]) for item, value in explained(client, text))
    out += (build.command_complete("EXPLAIN"), build.ready(status))
    return b"".join(out)


def explained(client: Client, text: bytes) -> Rows:
    """(item, value) of a statement that this client would send now. An item may occur more than once."""
    token = client.token
    try:
        asked = _asked(client, text)
        return [*_chosen(client, asked), *_statement(client, asked), *_wishes(client, asked), *_session(client, asked)]
    finally:
        client.token = token


def _asked(client: Client, text: bytes) -> _Asked:
    """As `client.join_text`, but nothing is counted, and of a token in a hint the caller forgets what it did."""
    worker = client.worker
    unit = Unit(Kind.QUERY, build.query(text))
    is_readable = readable(client.shown)
    split = worker.splitter.split(text) if MARK in text and is_readable else None
    body = split.body if split is not None else text
    hints = split.hints if split is not None else None
    found = client.classify(body)
    binding = client.binding
    if binding is not None:
        sure = not client.ddl_open and worker.catalogues.believed(binding, dry=True)
        found = binding.of(found) if sure else binding.unsure(found)
    unit.join(found)
    decision = NOTHING
    if hints is not None or not client.unruled:
        decision = client.policies.decide(body if is_readable else b"", found, hints, client.asked)
        unit.policy = decision.policy
    if hints is not None and hints.after:
        client.token = _with_token(client, hints.after)
    return _Asked(unit, body, found, hints, decision)


def _with_token(client: Client, text: str) -> Token:
    """As `Client._take_token` would have it."""
    token = client.token
    try:
        timeline, lsn = read_token(text)
    except TridentError:
        return token
    if timeline == client.worker.consistency.freshness.timeline:
        return Token(token.wrote_ns, token.seen_ns, token.seen_node, max(token.lsn, lsn), token.others)
    return Token(client.worker.clock.boot_ns(), token.seen_ns, token.seen_node, token.lsn, token.others)


# --- the choice --------------------------------------------------------------------------------------------------


def _chosen(client: Client, asked: _Asked) -> Rows:
    """Node, reason, and what would be waited for."""
    server = client.server
    if asked.policy.reject:
        return [("node", "none"), *_because("rejected"), ("error", asked.policy.reject)]
    if server is not None:
        reason = "transaction" if server.status != IDLE else "pinned"
        return [("node", server.pool.node), *_because(reason), ("wait", "none")]
    waits = []
    try:
        route = client.worker.routes.would_be(client, asked.unit)
        if isinstance(route, Hold) and route.seconds:
            waits.append(f"up to {route.seconds * 1000:.0f} ms {WAITS[route.reason]}")
            asked.unit.waited = True
            route = client.worker.routes.would_be(client, asked.unit)
    except NoNode as error:
        seconds = client.worker.config.routing.hold_timeout
        waits.append(f"up to {seconds:g} s for a node, and then the error")
        rows = [("node", "none"), *_because("unavailable")]
        return [*rows, *(("wait", wait) for wait in waits), ("error", error.message)]
    if not isinstance(route, Route):
        reason = route.reason if route is not None else ""
        return [("node", "none"), *_because("unavailable"), ("wait", WAITS.get(reason, "until more is known"))]
    queue = _queue(client, route.node)
    waits += [queue] if queue else []
    rows = [("node", route.node), *_because(route.reason)]
    return [*rows, *(("wait", wait) for wait in waits or ["none"])]


def _because(reason: str) -> Rows:
    return [("reason", reason), ("because", REASONS.get(reason, ""))]


def _queue(client: Client, node: str) -> str:
    """What it would wait for at a node; "" if a server is idle there, or may be opened."""
    pool = client.worker.pools.all.get((node, client.settings.dbname, client.settings.user))
    if pool is None or (pool.state.idle and not pool.state.waiting) or pool.state.size < pool.state.limit:
        return ""
    return f"for one of {pool.state.size} servers, behind {len(pool.state.waiting)} others"


# --- what it is --------------------------------------------------------------------------------------------------


def _statement(client: Client, asked: _Asked) -> Rows:
    found = asked.found
    rows = [("class", f"{found.cls} ({found.reason})"), ("kind", found.kind)]
    if found.statements != 1:
        rows.append(("statements", str(found.statements)))
    effects = [effect.name.lower() for effect in Effect if effect in found.effects and effect.name]
    if effects:
        rows.append(("effects", ", ".join(effects)))
    if readable(client.shown):
        rows.append(("shape", shape(asked.body) or "none"))
        named = sorted(".".join(part for part in one if part) for one in tables(asked.body))
        if named:
            rows.append(("tables", ", ".join(named)))
    rows.append(("catalogue", _catalogue(client, client.binding)))
    return rows


def _catalogue(client: Client, binding: Binding | None) -> str:
    if binding is None:
        return "not needed: the session keeps its server"
    if not binding.version:
        return "unknown: not read yet, or it can't be read"
    if client.ddl_open:
        return f"not believed: the open transaction has run DDL (version {binding.version})"
    if not client.worker.catalogues.believed(binding, dry=True):
        return f"not believed: it may be older than DDL, and is being read again (version {binding.version})"
    return f"known (version {binding.version})"


def _wishes(client: Client, asked: _Asked) -> Rows:
    """What hint, settings and rule say, and what of it counts."""
    decision, policy = asked.decision, asked.policy
    rows: Rows = []
    for item, hints in (("hint", asked.hints), ("setting", client.asked)):
        if hints is not None and (said := _said(hints)):
            rows.append((item, said))
    if decision.rule:
        rows.append(("rule", decision.rule))
    for shadow in decision.shadows:
        rows.append(("shadow rule", f"{shadow.rule}: {'would differ' if shadow.differs else 'the same'}"))
    rows += (("ignored", one) for one in (*decision.ignored, *(asked.hints.ignored if asked.hints is not None else ())))
    if policy.reason:
        place = policy.node or policy.route
        rows.append(("place", f"{place}, by {policy.reason}" if place else policy.reason))
    if policy.priority != "normal":
        rows.append(("priority", policy.priority))
    if policy.timeout:
        rows.append(("timeout", f"{policy.timeout:g} s"))
    return rows


def _said(hints: Hints) -> str:
    values = (
        ("route", hints.route),
        ("node", hints.node),
        ("consistency", hints.consistency),
        ("key", hints.key),
        ("priority", hints.priority),
        ("timeout", f"{hints.timeout:g}s" if hints.timeout else ""),
        ("after", hints.after),
    )
    return " ".join(f"{name}={value}" for name, value in values if value)


# --- what the session is, and the nodes --------------------------------------------------------------------------


def _session(client: Client, asked: _Asked) -> Rows:
    worker, policy, unit = client.worker, asked.policy, asked.unit
    cls = policy.routed_as(unit.cls)
    reads = cls is Class.READ or cls is Class.ANALYTIC
    not_columnar = _not_columnar(client, unit, cls)
    analytic = not all(not_columnar.values())
    level = policy.consistency or (client.analytic_level if analytic else client.level)
    now_ns = worker.clock.boot_ns()
    token = worker.routes.has_to_see(client, policy, level, unit.mark or now_ns) if reads else ANY
    rows = [("consistency", f"{level} ({_who_says(client, policy)})")]
    if reads:
        rows.append(("has to see", seen(token, now_ns)))
    server = client.server
    if server is not None and server.status != IDLE:
        rows.append(("transaction", f"open on {server.pool.node}"))
    if client.pins:
        rows.append(("pins", ", ".join(sorted(client.pins))))
    only = _primary_only(client, asked, cls, level)
    for one in candidates(worker.router, token, client.load_of, now_ns, primary_only=only, not_columnar=not_columnar):
        rows.append(("candidate", f"{one.view.name}: {one}"))
    return rows


def _who_says(client: Client, policy: Policy) -> str:
    if policy.consistency:
        return "by hint, setting or rule"
    return "by setting" if client.asked is not None and (client.asked.consistency or client.asked.key) else "default"


def _not_columnar(client: Client, unit: Unit, cls: Class) -> dict[str, str]:
    """Why columnar nodes aren't asked, by name; "" if one is, or would be once it is known that it can answer."""
    worker = client.worker
    nodes = [name for name, view in worker.snapshot.nodes.items() if view.role is Role.COLUMNAR]
    if cls is not Class.ANALYTIC:
        return dict.fromkeys(nodes, "only for analytics")
    return {name: worker.capabilities.missing(client, unit, name) for name in nodes}


def _primary_only(client: Client, asked: _Asked, cls: Class, level: str) -> str:
    """Why no copy is asked; "" if they are."""
    if client.server is not None:
        return "not asked: the session keeps its server"
    if asked.policy.reject:
        return "not asked"
    if not client.settings.split:
        return "not asked: reads are not split"
    if cls is Class.WRITE or cls is Class.SESSION:
        return f"not asked: it is {cls}"
    if client.binding is not None and not client.worker.catalogues.believed(client.binding, dry=True):
        return "not asked: the catalogue isn't known"
    if asked.policy.route == "primary" or level == "strong":
        return f"not asked: {asked.policy.reason or 'strong'} wants the primary"
    return ""
