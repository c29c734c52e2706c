"""Which node each name of a `spread` service keeps to, over all workers and restarts.

Owns the list and its file in the runtime directory. A worker asks for names that are new (`dataplane.services`), and
all are told. Which name goes where is `routing.affinity`'s to say. Called by `controlplane.controller`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ..config.schema import Config
from ..ipc.messages import Home, KnownHomes
from ..routing.affinity import Affinity, Plans, scope_of
from ..routing.affinity import Homes as Known
from ..topology.model import Role
from ..topology.snapshot import Snapshot
from . import files


class Homes:
    """Of one proxy."""

    def __init__(
        self,
        path: Path,
        snapshot: Callable[[], Snapshot | None],
        config: Callable[[], Config],
        publish: Callable[[KnownHomes], None],
    ) -> None:
        self._path = path
        self._snapshot = snapshot
        self._config = config
        self._publish = publish
        self._known = Known()

    def load(self) -> None:
        """Take what an earlier controller has kept, if it can be read."""
        kept = files.read(self._path, dict[str, dict[str, str]]) or {}
        roles = tuple(f"{role}:" for role in Role)
        self._known = Known({scope: names for scope, names in kept.items() if scope.startswith(roles)})

    def all(self) -> KnownHomes:
        """For a worker that joins."""
        homes = []
        for scope, names in self._known.dump().items():
            role, _, service = scope.partition(":")
            homes += [Home(service, Role(role), name, node) for name, node in names.items()]
        return KnownHomes(homes)

    def need(self, wanted: Sequence[Home]) -> None:
        """A worker has met these names; all workers are told their nodes."""
        snapshot = self._snapshot()
        if snapshot is None:
            return
        affinity = Affinity(Plans(self._config()), snapshot, 0.0)
        homes = []
        changed = False
        for home in wanted:
            scope = scope_of(home.service, home.role)
            before = self._known.get(scope, home.name)
            node = self._known.assign(scope, home.name, affinity.members(home.service, home.role))
            changed = changed or node != before
            if node:
                homes.append(msgspec.structs.replace(home, node=node))
        if changed:
            files.write(self._path, self._known.dump())  # first, so that what a worker goes by outlives this process
        if homes:
            self._publish(KnownHomes(homes))
