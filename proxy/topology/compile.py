"""Node states compiled into the flat tables of a snapshot.

Owns which health lets a node take new work, and that one that is drained takes none; must not decide healths or
roles. Pure. Called by `controlplane.controller`, whose verdicts it writes down.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from .model import Health, Role
from .snapshot import NodeView, Snapshot


def compile_snapshot(
    nodes: Sequence[NodeView],
    *,
    primary: str,
    unfit: Collection[str],
    version: int,
    epoch: int,
    writers: Collection[str] = (),
) -> Snapshot:
    """`primary` may be empty; `unfit` names nodes that get no new work whatever their health. `writers` may take
    writes beside the primary while they are active, which the primary itself needn't be.

    Copies take new work only when active, and when recovering what their share allows: a suspect one, and one that is
    drained, keeps what it has and gets nothing new.
    """

    in_service = (Health.ACTIVE, Health.RECOVERING)
    fit = [n for n in nodes if n.health in in_service and n.addresses and n.name not in unfit and n.drain is None]
    active = [n.name for n in fit if n.health is Health.ACTIVE]

    def serving(role: Role) -> tuple[str, ...]:
        return tuple(n.name for n in fit if n.role is role)

    return Snapshot(
        version=version,
        epoch=epoch,
        nodes={n.name: n for n in nodes},
        primary=primary,
        writers=tuple(n.name for n in nodes if n.name == primary or (n.name in active and n.name in writers)),
        replicas=serving(Role.REPLICA),
        columnar=serving(Role.COLUMNAR),
        has_columnar=any(n.role is Role.COLUMNAR for n in nodes),
    )


def content(snapshot: Snapshot) -> Snapshot:
    """The snapshot without its version: two with equal content need not both be published."""
    return msgspec.structs.replace(snapshot, version=0)
