"""Routes in words: what a reason code means, and why a copy may or may not serve a read. Pure.

Owns those words and nothing else: it decides nothing, and what it says of a copy is what `consistency` and `router`
decide by. Called by `dataplane.explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..topology.snapshot import Copy, NodeView
from .consistency import ANY, Token
from .router import Router

REASONS: Mapping[str, str] = {
    "write": "it writes, or isn't known to be only a read",
    "session": "it is bound to the server session",
    "read": "a read: any replica that holds what it has to see",
    "trial": "a read: one of few on a replica that comes back and has to show that it can serve",
    "analytic": "analytics: any columnar node that holds what it has to see",
    "analytic_to_replica": "analytics, and no columnar node can take it now",
    "analytic_to_primary": "analytics, and neither a columnar node nor a replica can take it now",
    "read_split_off": "reads of this client are not split (routing.read_split, or its pool mode)",
    "catalogue_unread": "what names mean in the database isn't known as of now",
    "strong": "consistency is strong",
    "joined": "the texts of a batch want different places",
    "hint": "a hint in the statement says so",
    "setting": "a setting of the session says so",
    "rule": "a rule of the configuration says so",
    "no_replica": "a read, and no replica is in service",
    "lagging": "a read, and all replicas are too far behind",
    "after_write": "a read, and no replica is known to hold what it has to see",
    "stale": "old data rather than the primary, as a rule says",
    "no_primary": "no primary is in service: the replica that is furthest",
    "transaction": "the open transaction stays on its node",
    "pinned": "the session is tied to its server",
    "rejected": "a rule of the configuration refuses it",
    "unavailable": "no node can take it now",
}
"""By reason code: those of `router` and `policy`, and of what is not routed."""

WAITS: Mapping[str, str] = {
    "token_unknown": "until the session's token is known, which the statement may show",
    "catching_up": "for a copy to hold what it has to see",
    "spreading": "until other replicas hold what the session saw",
    "fallback_share": "since too many reads are on the primary already (routing.fallback_share)",
}
"""By reason of a hold."""


class Candidate:
    """A node, and why it may not serve a statement; "" if it may."""

    __slots__ = ("copy", "load", "trouble", "view", "weight")

    def __init__(self, view: NodeView, copy: Copy | None, weight: int, load: int, trouble: str) -> None:
        self.view = view
        self.copy = copy
        self.weight = weight
        self.load = load
        self.trouble = trouble

    def __str__(self) -> str:
        words = [str(self.view.role), str(self.view.health)]
        copy = self.copy
        if copy is not None:
            words.append(f"lag {copy.lag_ms} ms, {copy.lag_bytes} bytes" if copy.lag_ms >= 0 else "lag unknown")
            words.append(f"weight {self.weight}")
        words.append(f"load {self.load}")
        return f"{', '.join(words)}: {self.trouble or 'may serve it'}"


def candidates(
    router: Router,
    token: Token,
    load: Callable[[str], int],
    now_ns: int,
    *,
    primary_only: str,
    not_columnar: Mapping[str, str],
) -> list[Candidate]:
    """All nodes, as a statement sees them that has to see `token`.

    `primary_only`: why no copy is asked at all, "" if they are. `not_columnar`: why columnar nodes aren't, by
    name.
    """
    found = []
    for name, view in router.snapshot.nodes.items():
        copy: Copy | None = None
        weight = 0
        if name == router.snapshot.primary or name in router.snapshot.writers:
            trouble = ""
        elif name in router.snapshot.replicas or name in router.snapshot.columnar:
            copies = router.replicas if name in router.snapshot.replicas else router.columnar
            copy = copies.states.get(name) or Copy()
            weight = copies.weights.get(name, 0)
            trouble = primary_only
            trouble = trouble or not_columnar.get(name, "")
            if not trouble:
                trouble = _trouble(router, token, name, copy, now_ns)
            if not trouble and not weight:
                trouble = "its weight is 0: only where no other can"
        else:
            trouble = f"{view.drain.state}, takes no new work" if view.drain is not None else "takes no new work"
        found.append(Candidate(view, copy, weight, load(name), trouble))
    return found


def _trouble(router: Router, token: Token, name: str, copy: Copy, now_ns: int) -> str:
    if not copy.fresh_ns and not copy.lsn:
        return "how far it is isn't known"
    if copy.weight <= 0:
        return "too far behind"
    return missing(token, name, router.tags.get(name, 0), copy, now_ns)


def missing(token: Token, node: str, tag: int, copy: Copy, now_ns: int) -> str:
    """What a copy isn't known to hold of what has to be seen; "" if it holds all (`Token.held_by`)."""
    if token.held_by(node, tag, copy):
        return ""
    if copy.fresh_ns <= token.wrote_ns:
        return f"not known to hold what was written {_ago(token.wrote_ns, now_ns)}"
    if copy.lsn < token.lsn:
        return f"has not reached the token's position {position(token.lsn)}"
    if copy.fresh_ns <= token.seen_ns and (node != token.seen_node or copy.since_ns >= token.seen_ns):
        where = token.seen_node or "the primary"
        return f"not known to hold what the session saw {_ago(token.seen_ns, now_ns)} on {where}"
    return "not known to hold what others with this key have seen"


def seen(token: Token, now_ns: int) -> str:
    """A token in words."""
    if token is ANY:
        return "nothing in particular"
    parts = []
    if token.wrote_ns:
        parts.append(f"all that was written up to {_ago(token.wrote_ns, now_ns)}")
    if token.seen_ns:
        parts.append(f"what was seen {_ago(token.seen_ns, now_ns)} on {token.seen_node or 'the primary'}")
    if token.lsn:
        parts.append(f"position {position(token.lsn)}")
    if token.others:
        parts.append("what others with its key have seen")
    return ", ".join(parts) or "nothing yet"


def position(lsn: int) -> str:
    """A position in the WAL as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _ago(moment_ns: int, now_ns: int) -> str:
    return "now" if now_ns <= moment_ns else f"{(now_ns - moment_ns) / 1e6:.0f} ms ago"
