"""What becomes of a unit: a route, or a wait for something better."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.errors import NoNode
from proxy.routing.consistency import ANALYTIC_WAIT, BEGIN_WAIT, MOVE_WAIT, OWN_WRITES, VAIN_NS, Token
from proxy.routing.decide import Outcome, Request, Roaming, decide
from proxy.routing.router import Hold, Router
from proxy.sql.model import Class
from proxy.topology.model import Health, Role
from proxy.topology.snapshot import Copy, Freshness, NodeView, Snapshot

NOW = 10_000_000_000
"""boot_ns."""
SECOND = 1_000_000_000


def fleet(held: dict[str, int], *, primary: str = "p", columnar: str = "", gone: str = "", **more: Any) -> Router:
    """A primary and copies that hold what was committed before these moments; `gone` are out of service."""
    names = [name for name in (primary, *held) if name]
    roles = {name: Role.COLUMNAR if name in columnar else Role.REPLICA for name in held} | {primary: Role.PRIMARY}
    views = {
        name: NodeView(name=name, host=name, port=1, role=roles[name], health=Health.ACTIVE) for name in names if name
    }
    snapshot = Snapshot(
        nodes=views,
        primary=primary,
        replicas=tuple(name for name in held if name not in columnar and name not in gone),
        columnar=tuple(name for name in held if name in columnar and name not in gone),
        has_columnar=bool(columnar),
    )
    router = Router(snapshot, analytic_to_primary=more.pop("analytic_to_primary", False), **more)
    copies = {name: Copy(fresh_ns=fresh, since_ns=1, lsn=fresh, weight=100) for name, fresh in held.items()}
    router.refresh(Freshness(copies=copies))
    return router


def request(cls: Class = Class.READ, token: Token | None = None, **more: Any) -> Request:
    asked = Request(cls, lambda node: 0, split=True, waited=more.pop("waited", False), first=more.pop("first", True))
    asked.token = token or Token(wrote_ns=NOW - SECOND)
    asked.level = "session"
    for name, value in more.items():
        setattr(asked, name, value)
    return asked


def said(outcome: Outcome) -> str:
    route = outcome.route
    words = [f"wait {route.reason} {route.seconds:g}" if isinstance(route, Hold) else f"{route.node} {route.reason}"]
    words += ["fell"] * outcome.fell + ["stale"] * outcome.stale
    return " ".join(words)


BEHIND = NOW - 2 * SECOND
FRESH = NOW - 1000


@pytest.mark.parametrize(
    "held, asked, wanted",
    [
        ({"r": FRESH}, {}, "r read"),
        # What was written is not there yet: the primary, at once.
        ({"r": BEHIND}, {}, "p after_write fell"),
        ({"r": BEHIND}, {"causal_wait": 0.3}, "wait catching_up 0.3"),
        ({"r": BEHIND}, {"causal_wait": 0.3, "waited": True}, "p after_write fell"),
        # Old data rather than that, by a rule; not in a transaction that has to begin on the primary else.
        ({"r": BEHIND}, {"stale": True}, "r stale stale"),
        ({"r": BEHIND}, {"stale": True, "begins": True, "waited": True}, "p after_write fell"),
        ({"r": BEHIND}, {"begins": True}, f"wait catching_up {BEGIN_WAIT:g}"),
        # The node that is asked for would serve in a moment; the one that is not in service never does.
        ({"r": BEHIND, "s": FRESH}, {"node": "r", "node_reason": "hint"}, f"wait catching_up {MOVE_WAIT:g}"),
        ({"r": BEHIND, "s": FRESH}, {"node": "r", "node_reason": "hint", "waited": True}, "s read"),
        ({"r": BEHIND, "s": FRESH}, {"node": "t", "node_reason": "hint"}, "s read"),
        ({"r": FRESH}, {"node": "r", "node_reason": "hint"}, "r hint"),
        ({"r": FRESH, "s": FRESH}, {"home": "s", "home_reason": "affinity"}, "s affinity"),
        ({"r": FRESH}, {"strong": "hint"}, "p hint"),
        ({"r": FRESH}, {"known": False}, "p catalogue_unread"),
        ({}, {}, "p no_replica"),
    ],
)
def test_reads(held: dict[str, int], asked: dict[str, Any], wanted: str) -> None:
    causal_wait = asked.get("causal_wait", 0.0)
    more = {name: value for name, value in asked.items() if name != "causal_wait"}
    assert said(decide(fleet(held), request(**more), Roaming(), NOW, causal_wait)) == wanted


def test_a_wait_says_what_it_waits_for() -> None:
    token = Token(wrote_ns=NOW - SECOND, seen_ns=NOW - 5, seen_node="")
    outcome = decide(fleet({"r": BEHIND}), request(token=token), Roaming(), NOW, 0.3)
    assert outcome.need_ns == NOW - 5


def test_a_wait_in_vain_is_remembered() -> None:
    router, roaming = fleet({"r": BEHIND}), Roaming()
    asked = request(token=Token(wrote_ns=NOW - SECOND), begins=True)
    assert said(decide(router, asked, roaming, NOW, 0.0)).startswith("wait")
    asked.waited = True
    assert said(decide(router, asked, roaming, NOW, 0.0)) == "p after_write fell"
    asked.waited = False
    assert said(decide(router, asked, roaming, NOW + VAIN_NS - 1, 0.0)) == "p after_write fell"
    assert said(decide(router, asked, roaming, NOW + VAIN_NS, 0.0)).startswith("wait")


@pytest.mark.parametrize(
    "held, more, asked, wanted",
    [
        ({"c": FRESH, "r": FRESH}, {}, {"columnar": ("c",)}, "c analytic"),
        ({"c": FRESH, "d": FRESH, "r": FRESH}, {}, {"columnar": ("d",)}, "d analytic"),
        ({"c": BEHIND, "r": FRESH}, {}, {"columnar": ("c",)}, f"wait catching_up {ANALYTIC_WAIT:g}"),
        ({"c": BEHIND, "r": FRESH}, {}, {"columnar": ("c",), "waited": True}, "r analytic_to_replica"),
        ({"c": FRESH, "r": FRESH}, {"gone": "c"}, {"columnar": ("c",), "waited": True}, "r analytic_to_replica"),
        ({"c": FRESH}, {"gone": "c"}, {"columnar": ("c",), "waited": True}, "none"),
        ({"c": FRESH}, {"gone": "c", "analytic_to_primary": True}, {"columnar": ("c",)}, "p analytic_to_primary"),
        # One that can't answer isn't waited for.
        ({"c": BEHIND, "d": FRESH, "r": BEHIND}, {}, {"columnar": ("d",)}, "d analytic"),
    ],
)
def test_analytics(held: dict[str, int], more: dict[str, Any], asked: dict[str, Any], wanted: str) -> None:
    router = fleet(held, columnar="cd", **more)
    wish = request(Class.ANALYTIC, Token(wrote_ns=NOW - SECOND), level=OWN_WRITES, **asked)
    if wanted == "none":
        with pytest.raises(NoNode):
            decide(router, wish, Roaming(), NOW, 0.0)
    else:
        assert said(decide(router, wish, Roaming(), NOW, 0.0)) == wanted


def test_a_decision_that_is_not_meant_changes_nothing() -> None:
    roaming = Roaming(1, 2, 3)
    copy = roaming.copy()
    copy.spread_ns = copy.after_ns = copy.vain_ns = 0
    assert (roaming.spread_ns, roaming.after_ns, roaming.vain_ns) == (1, 2, 3)
