"""What console, metrics and health page may see of the controller: a facade.

The controller has these attributes; `run_controller` hands it to `admin`, which changes nothing
through it but by `forget_shapes`, `drain`, `undrain`, `reconnect` and `commanded`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..config.schema import Config
from ..ipc.messages import Counters
from ..topology.snapshot import Snapshot

Row = Mapping[str, Any]


class ControllerView(Protocol):
    """The facade. All that isn't awaited answers at once from memory."""

    @property
    def config(self) -> Config: ...

    @property
    def snapshot(self) -> Snapshot | None:
        """The last one published; None before the first."""
        ...

    @property
    def counters(self) -> Mapping[int, Counters]:
        """The latest Counters of each connected worker by its number; one that leaves is removed."""
        ...

    def nodes(self) -> Sequence[Row]:
        """One row a configured node: `name`, `host`, `port`, `role`, `health`, `address` (in use, or
        empty), `lag_bytes`, `lag_seconds`, `weight` (share of its reads by its lag, in percent), `since` (Unix
        seconds of the last change of health), `cause` (why it has this health), `probes` and `probe_failures`
        (totals), `server_version`, `drain` (`draining`, `drained` or empty), `drain_until` (Unix seconds: what is open
        there is ended then; 0 where it isn't drained). A key that is not known may be missing or None."""
        ...

    def shapes(self) -> Sequence[Row]:
        """Reads that a standby has refused, the oldest first: `database`, `shape`, `sqlstate`, `since` (Unix
        seconds), `text` (without its constants)."""
        ...

    async def shapes_seen(self) -> Sequence[Row]:
        """Shapes of statements that clients have sent, the most frequent first: `database` (as clients name it),
        `shape`, `count`, `tables` (names), `cls`, `consistency` ("" where it isn't a read), `user` (who sent it last),
        `since` (Unix seconds), `text` (without its constants)."""
        ...

    def shapes_measured(self) -> Sequence[Row]:
        """Shapes of reads that take long, or have run on columnar nodes: `database`, `shape`, `class` (what was
        learned; "" where the structure decides), `replica_runs`, `replica_seconds`, `columnar_runs`, `columnar_seconds`
        (means), `cost` (the planner's, or None), `text` (without its constants)."""
        ...

    async def history(self, since: float, node: str, kind: str, limit: int) -> Sequence[Row]:
        """The last `limit` events, the oldest first, not before `since` (Unix seconds), of one node or kind if that
        isn't empty (without a kind all but `probe`): `at` (Unix seconds), `kind`, `node`, `before`, `after`, `cause`,
        `seen`, `who`."""
        ...

    def commanded(self, command: str, who: str) -> None:
        """A user of the console has changed something by a command."""
        ...

    def forget_shapes(self, shape: str) -> int:
        """Forget one of those that were refused or measured, or all for ""; how many there were."""
        ...

    def drain(self, node: str, seconds: float | None) -> None:
        """Let a node take no new work; what is open there may go on for so long, None for `group.drain_timeout`.
        Raises 55000 where nobody else could take its writes."""
        ...

    def undrain(self, node: str) -> None:
        """Let it take new work again, once a probe has passed. Raises 55000 where it isn't drained."""
        ...

    def reconnect(self, node: str) -> None:
        """Let no server of a node that there is now be used again, and look at the node at once."""
        ...

    async def report(self, kind: str) -> Sequence[Row]:
        """Rows of all workers, those that came in time, each with its `worker` (number). Times are Unix seconds.
        Keys in brackets may be missing or None.

        `pools`: as in `ipc.messages.Counters.pools`.
        `shapes` is not for here: `shapes_seen` is.
        `clients`: `id`, `user`, `database`, `state` (`active`, `waiting`, `idle`), [`addr`, `port`, `local_addr`,
        `local_port`, `connect_time`, `request_time`, `wait_us`, `tls`, `application_name`, `node` and `link` (the
        server's id) while it has a server, `pin` (why it keeps it)].
        `servers`: `id`, `node`, `user`, `database`, `state` (`active`, `idle`, `login` ...), [`addr`, `port`,
        `local_addr`, `local_port`, `connect_time`, `request_time`, `close_needed`, `link` (the client's id),
        `remote_pid`, `tls`, `application_name`].
        `services`: `service`, `preferred` and `node` (the node in use; both empty where each client has its own),
        `sessions` (a mapping of nodes to the clients on them), [`since` (when one of them went to another node)].
        """
        ...
