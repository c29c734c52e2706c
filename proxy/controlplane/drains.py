"""Nodes that are emptied before somebody works on them, or before they go: what may be drained, and when it is.

Owns those rules; that a drained node takes no new work is `topology.compile`'s, what workers do is `dataplane.pools`'.
Must not look at healths, which go on as they are. Pure. Called by `controlplane.controller`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import TridentError
from ..ipc.messages import Counters
from ..topology.model import Role
from ..topology.snapshot import Drain, NodeView, Snapshot

COMMAND = "command"
REMOVED = "removed"
PROMOTED = "promoted"

_WORDS = {COMMAND: "by command", REMOVED: "it is no longer in the configuration"}


def check_drain(node: NodeView, snapshot: Snapshot | None) -> None:
    """Raises 55000 for a node whose writes nobody else could take, and for one that is leaving anyhow."""
    _check_stays(node)
    writers = snapshot.writers if snapshot is not None else ()
    if node.role is Role.PRIMARY and not any(name != node.name for name in writers):
        raise TridentError(
            f'node "{node.name}" can\'t be drained: it is the primary, and no other node takes writes',
            sqlstate="55000",
            hint="Promote a replica first.",
        )


def check_undrain(node: NodeView) -> None:
    """Raises 55000 for a node that isn't drained, or can't come back."""
    _check_stays(node)
    if node.drain is None:
        raise TridentError(f'node "{node.name}" is not being drained', sqlstate="55000")


def _check_stays(node: NodeView) -> None:
    if node.drain is not None and node.drain.cause == REMOVED:
        raise TridentError(
            f'node "{node.name}" is no longer in the configuration',
            sqlstate="55000",
            hint="Add it to the configuration and reload.",
        )


def may_lead(node: NodeView, *, multi_writer: bool) -> bool:
    """Whether a node has a say in who takes writes. Of several writers a drained one has none; where there is one
    primary, a drained replica that is promoted is the primary all the same."""
    drain = node.drain
    return drain is None or (drain.cause != REMOVED and not (multi_writer and node.role is Role.PRIMARY))


def is_empty(node: str, version: int, workers: int, counters: Mapping[int, Counters]) -> bool:
    """Whether all workers have said, by the snapshot of this version, that they have nothing on a node."""
    return len(counters) >= workers and all(
        latest.snapshot == version and not latest.servers.get(node) for latest in counters.values()
    )


def in_words(drain: Drain) -> str:
    return f"{drain.state} ({_WORDS[drain.cause]})"
