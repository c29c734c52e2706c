"""Messages between the controller and a worker, over one Unix stream socket per worker.

Frames are a 4-byte big-endian length and a msgpack body (tagged union). Sans-I/O: `channel` moves
the bytes. The controller publishes facts and grants; workers send counters, suspicions and wishes,
never decisions.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..config.schema import Config
from ..sql.catalogue import Catalogue
from ..topology.model import Role
from ..topology.snapshot import Freshness, Snapshot


class Hello(msgspec.Struct, tag="hello"):
    """Worker to controller: first frame."""

    worker: int
    pid: int
    permits: dict[str, int] | None = None
    """What a worker that comes back to a restarted controller holds by key, where that differs from its
    first share; None from a worker that has just started."""


class Setup(msgspec.Struct, tag="setup"):
    """Controller to worker: everything to begin with. `instance` is 1..255 (cancel keys carry it)."""

    config: Config
    snapshot: Snapshot
    instance: int
    workers: int
    board: str
    """Path of the shared memory file of the board."""
    console: str
    """Path of the console's Unix socket."""
    datagrams: list[str]
    """Path of each worker's datagram socket, by worker number."""
    permits: dict[str, int] = {}
    """What this worker may hold by key; for a key that isn't here, `pool.permits.first_share`."""


class Publish(msgspec.Struct, tag="publish"):
    snapshot: Snapshot


class Fresh(msgspec.Struct, tag="fresh"):
    freshness: Freshness


class Reconfigure(msgspec.Struct, tag="reconfigure"):
    config: Config


class Counters(msgspec.Struct, tag="counters"):
    """Worker to controller, once a second: totals since the worker started."""

    worker: int
    values: dict[str, int]
    """Plain counters and gauges by name (metrics.catalog)."""
    pools: list[dict[str, Any]]
    """One row a pool: node, database, user, mode and the numbers of SHOW POOLS and SHOW STATS."""
    snapshot: int = 0
    """Version of the one that it obeys."""
    servers: dict[str, int] = {}
    """How many it has or is opening, by node; none where a node isn't named."""


class Suspicion(msgspec.Struct, tag="suspicion"):
    """Worker to controller: something seen on a node that the health machine should look at."""

    node: str
    what: str
    """`refused`, `reset`, `timeout`, `read_only` (25006 from the primary) ..."""


class NeedFreshness(msgspec.Struct, tag="need_freshness"):
    """Worker to controller: reads are to go to copies that hold all that was committed before `moment_ns`
    (boot_ns). Positions are read fast until `Fresh` has passed that moment."""

    moment_ns: int
    urgent: bool = False
    """Whether a client waits for it."""


class Ask(msgspec.Struct, tag="ask"):
    """Worker to controller: this worker is starved of permits of a pool or a node.

    Repeated at most every 100 ms while it is; a wish is forgotten after a second.
    """

    worker: int
    key: str
    """`{node}/{database}/{user}`, `node:{name}` or `total`."""
    count: int
    """How many more it could use; 0 only tells a limit that a reload has changed."""
    limit: int
    """The key's limit over all workers, by the config that both have."""


class Grant(msgspec.Struct, tag="grant"):
    """Controller to worker: it may hold this many servers under `key` from now on (absolute).

    When that is fewer than it holds: idle ones are closed at once, others when they are released, and
    each one closed is told by `GiveBack`.
    """

    key: str
    permits: int


class GiveBack(msgspec.Struct, tag="give_back"):
    """Worker to controller: permits no longer held. Sent after every Grant, and whenever one more server
    beyond the grant is closed (its socket, that is)."""

    worker: int
    key: str
    count: int
    """How many it still holds: its grant as it knows it or, while more servers are open, their number. A total,
    so that one lost or sent before a lower grant came does no harm."""


class NeedCatalogue(msgspec.Struct, tag="need_catalogue"):
    """Worker to controller: it has to be known what the names of a database mean."""

    database: str
    """Its name on the nodes."""
    changed_ns: int
    """A catalogue that was read before this moment (boot_ns) is no good: DDL has ended then."""
    version: str = ""
    """Of the catalogue that the worker has."""
    split: bool = True
    """Whether reads of the database are split; else it is only for what touches the session in secret."""


class KnownCatalogue(msgspec.Struct, tag="known_catalogue"):
    """Controller to worker: what the names of a database mean."""

    database: str
    read_ns: int
    """DDL that had ended before this moment (boot_ns) is in it; 0 if it can't be read."""
    catalogue: Catalogue | None = None
    """None if it is the same as the last one that was sent."""


class Learned(msgspec.Struct, tag="learned"):
    """Worker to controller: a standby has refused a read that the primary then answered."""

    database: str
    shape: str
    """Of its text (`sql.grammar.shape`)."""
    sqlstate: str
    text: str
    """Without its constants."""


class KnownShapes(msgspec.Struct, tag="known_shapes"):
    """Controller to worker: all that is known of what standbys refuse in a database."""

    database: str
    refused: dict[str, str]
    """SQLSTATE by shape."""


Side = Literal["replica", "columnar", "planner"]


class Measured(msgspec.Struct, tag="measured"):
    """Worker to controller: runs of a shape, or what the planner expects of it."""

    database: str
    shape: str
    text: str
    """Without its constants."""
    side: Side
    runs: int
    amount: float
    """Seconds over all runs; of the planner its cost."""


class KnownClasses(msgspec.Struct, tag="known_classes"):
    """Controller to worker: all that was learned of a database's reads."""

    database: str
    classes: dict[str, str]
    """`read` or `analytic` by shape."""


class Home(msgspec.Struct, frozen=True):
    """The node that a name of a `spread` service keeps to."""

    service: str
    role: Role
    """Of the nodes that are meant."""
    name: str
    node: str = ""
    """Empty: not known yet."""


class NeedHomes(msgspec.Struct, tag="need_homes"):
    """Worker to controller: names that have no node yet, or one that is no longer theirs."""

    homes: list[Home]


class KnownHomes(msgspec.Struct, tag="known_homes"):
    """Controller to worker: where names keep to; all that are known to a worker that joins, then what is new."""

    homes: list[Home]


class ReportRequest(msgspec.Struct, tag="report_request"):
    """Controller to worker: rows for a console command (`clients`, `servers`, `pools`, `services`, `stats`), or
    `shapes`: what has been counted since the last time."""

    id: int
    kind: str


class Report(msgspec.Struct, tag="report"):
    id: int
    worker: int
    rows: list[dict[str, Any]]


class Drain(msgspec.Struct, tag="drain"):
    """Controller to worker: stop taking clients, let transactions end within `seconds`, then exit."""

    seconds: float


Message = (
    Hello
    | Setup
    | Publish
    | Fresh
    | Reconfigure
    | Counters
    | Suspicion
    | NeedFreshness
    | NeedCatalogue
    | KnownCatalogue
    | Learned
    | KnownShapes
    | Measured
    | KnownClasses
    | NeedHomes
    | KnownHomes
    | Ask
    | Grant
    | GiveBack
    | ReportRequest
    | Report
    | Drain
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)

MAX_FRAME = 64 * 1024 * 1024


def encode(message: Message) -> bytes:
    """One frame."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body


def decode(body: bytes) -> Message:
    """The body of one frame; raises msgspec.ValidationError on garbage."""
    return _decoder.decode(body)
