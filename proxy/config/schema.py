"""Every setting: its type, default, unit, meaning and whether a reload applies it.

One schema: `load` decodes TOML into these; the reference page, the commented example and the console
are made from them, the text of each setting being the docstring under its field. Durations are
seconds (float); in TOML they may also be written "200ms", "5s", "10min", "1h". Sizes are bytes; in
TOML also "64kB", "16MB". A reload (SIGHUP) applies every setting that isn't marked RESTART; those
that belong to a connection hold for connections made afterwards.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

RESTART = msgspec.Meta(extra={"restart": True})
"""Marks a setting that a reload can't apply."""

Seconds = Annotated[float, msgspec.Meta(ge=0, extra={"unit": "seconds"})]
Bytes = Annotated[int, msgspec.Meta(ge=0, extra={"unit": "bytes"})]
Mode = Annotated[int, msgspec.Meta(ge=0, le=0o777, extra={"unit": "mode"})]
Count = Annotated[int, msgspec.Meta(ge=0)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
ListenPort = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Secret = Annotated[str, msgspec.Meta(extra={"secret": True})]
"""Never shown: not by the console, not in a log, not in the message about a change."""
File = Annotated[str, msgspec.Meta(extra={"path": "file"})]
"""A file that must be readable; a relative path in the configuration file starts at that file's directory."""
Directory = Annotated[str, msgspec.Meta(extra={"path": "directory"})]
Names = Annotated[tuple[str, ...], msgspec.Meta(extra={"single": True})]
"""A list of which one may be written without brackets."""
PoolMode = Literal["session", "transaction", "statement"]
ClientTlsMode = Literal["disable", "allow", "require", "verify-ca", "verify-full"]
Transactions = Literal["primary", "read_only", "optimistic"]
Consistency = Literal["eventual", "session", "key", "global", "strong"]
ServerTlsMode = Literal["disable", "prefer", "require", "verify-ca", "verify-full"]
Selector = Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9][0-9]{0,2}|hash|spread)$", extra={"unit": "selector"})]
AffinityBy = Literal["application_name", "user", "database", "client_addr", "key"]
Reconnect = Literal["notify", "failback", "balance"]


class Section(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Base of all sections: unknown keys are errors."""


class ClientTls(Section, frozen=True):
    """TLS towards clients."""

    mode: ClientTlsMode = "disable"
    """`allow` offers TLS, `require` refuses clear text over TCP, `verify-*` also want a client certificate."""
    cert: File = ""
    """Certificate (chain) in PEM form; needed unless `mode` is `disable`."""
    key: File = ""
    """Private key of `cert`."""
    ca: File = ""
    """Certificates that client certificates are checked against; needed for `verify-*`."""


class Listen(Section, frozen=True):
    """Where clients connect, and how many may."""

    host: Annotated[str, RESTART] = "127.0.0.1"
    """One address, several separated by commas, or "*" for all. Empty is no TCP."""
    port: Annotated[ListenPort, RESTART] = 6432
    """0 takes a free port (for tests)."""
    unix_socket_dir: Annotated[Directory, RESTART] = ""
    """Directory for `.s.PGSQL.<port>`; empty is no Unix socket."""
    unix_socket_mode: Annotated[Mode, RESTART] = 0o777
    """Access rights of the Unix socket."""
    backlog: Annotated[Count, RESTART] = 4096
    """Connections that the system keeps while they wait to be accepted, per listening socket."""
    proxy_protocol: bool = False
    """Accept a PROXY protocol v2 header from `proxy_protocol_trusted`."""
    proxy_protocol_trusted: tuple[str, ...] = ()
    """Addresses or networks (CIDR) of the load balancers that may send that header."""
    max_clients: Count = 20_000
    """Most clients over all workers; one more is refused (53300)."""
    login_timeout: Seconds = 60.0
    """For TLS, startup and authentication together; a client that takes longer is closed."""
    keepalive_idle: Seconds = 60.0
    """Silence on a client's connection before the first TCP keepalive probe; 0 leaves the system's default."""
    keepalive_interval: Seconds = 10.0
    """Between two keepalive probes."""
    keepalive_count: Count = 5
    """Unanswered keepalive probes until the connection counts as dead."""
    user_timeout: Seconds = 0.0
    """TCP_USER_TIMEOUT towards clients; 0 leaves the system's default."""
    tls: ClientTls = ClientTls()


class ServerLink(Section, frozen=True):
    """Connections to nodes."""

    tls: ServerTlsMode = "prefer"
    """As libpq's sslmode: `verify-ca` checks the certificate against `ca`, `verify-full` the host name too."""
    tls_direct: bool = False
    """Start TLS at once (PostgreSQL 17 and later) instead of asking by SSLRequest."""
    channel_binding: Literal["disable", "prefer", "require"] = "prefer"
    """Tie the SCRAM login to the TLS connection; `require` refuses nodes that can't."""
    ca: File = ""
    """Certificates that node certificates are checked against; needed for `verify-*`."""
    cert: File = ""
    """Client certificate shown to nodes."""
    key: File = ""
    """Private key of `cert`."""
    servicefile: File = ""
    """A pg_service.conf file, of which nodes may name a section."""
    connect_timeout: Seconds = 5.0
    """For the whole of connect, TLS and login."""
    keepalive_idle: Seconds = 30.0
    """Silence on a server connection before the first TCP keepalive probe; 0 leaves the system's default."""
    keepalive_interval: Seconds = 5.0
    """Between two keepalive probes."""
    keepalive_count: Count = 3
    """Unanswered keepalive probes until the connection counts as dead."""
    user_timeout: Seconds = 30.0
    """TCP_USER_TIMEOUT towards nodes; 0 leaves the system's default."""


class Node(Section, frozen=True):
    """One PostgreSQL-protocol server. `[nodes.NAME]`; at least one."""

    host: str
    """Name, address or directory of a Unix socket."""
    port: Port = 5432
    """Its port; with a Unix socket the number in the socket's name."""
    role: Literal["auto", "primary", "replica", "columnar"] = "auto"
    """`auto` asks the node; `columnar` must be said. What is said is checked against the node."""
    max_connections: Count = 0
    """Most servers to this node over all workers; 0 is no limit."""
    tls: ServerTlsMode | None = None
    """Instead of `server.tls`."""
    service: str = ""
    """Section of `server.servicefile` that gives host, port and sslmode where they aren't set here."""
    weight: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 100
    """Its share of reads beside other copies; 0 takes them only when no other can."""
    zone: str = ""
    """Where it stands; reads prefer copies of `routing.zone`."""
    lag_out: Seconds | None = None
    """Instead of the limit in `[lag]` beyond which it gets no reads."""
    lag_in: Seconds | None = None
    """Instead of the limit in `[lag]` below which it comes back."""
    dialect: Literal["any", "postgres", "duckdb", "redshift", "clickhouse", "materialize", "risingwave"] = "any"
    """The SQL of a columnar node. `any` gets only what all of them understand alike, as it is written; `postgres` is
    PostgreSQL itself and gets everything; for the others the same as for `any` is transpiled, with casts where a result
    column would have another type."""
    lacks: Names = ()
    """Functions and operators that a columnar node lacks, beyond what its dialect tells."""
    tables: Names = ()
    """Tables that a columnar node has, as `table` or `schema.table`, with `*`; empty is all."""
    protocol: Literal["extended", "simple"] = "extended"
    """`simple` for a columnar node that doesn't speak the extended query protocol: it gets no parameters."""


class PoolSettings(Section, frozen=True):
    """Defaults of every pool (node, database, user)."""

    mode: PoolMode = "transaction"
    """When a server goes back to its pool: as the client leaves, its transaction ends or its statement ends."""
    pool_size: Annotated[int, msgspec.Meta(ge=1)] = 20
    """Servers per node, database and user, over all workers."""
    min_pool_size: Count = 0
    """Servers kept open in a pool that has been used."""
    reserve: Count = 0
    """Extra servers when a client has waited `reserve_timeout`."""
    reserve_timeout: Seconds = 5.0
    """How long a client waits before the pool may use its `reserve`."""
    max_total: Count = 0
    """Most servers in all; 0 is no limit."""
    max_waiting: Count = 10_000
    """Clients waiting per pool; one more is refused at once."""
    checkout_timeout: Seconds = 120.0
    """How long a client waits for a server; 0 is for ever."""
    idle_timeout: Seconds = 600.0
    """An idle server is closed after this; 0 is never."""
    lifetime: Seconds = 3600.0
    """A server is closed after this once it is free (with up to 10 % jitter); 0 is never."""
    query_timeout: Seconds = 0.0
    """A statement is cancelled after this; 0 is never."""
    idle_in_transaction_timeout: Seconds = 0.0
    """A client idle in a transaction is ended after this (25P03); 0 is never."""
    client_idle_timeout: Seconds = 0.0
    """A client idle outside a transaction is ended after this (57P05); 0 is never."""
    drain_timeout: Seconds = 5.0
    """How long a server may take to finish what a vanished client left."""
    max_prepared_statements: Count = 200
    """Named statements kept per server (least recently used go first)."""


class Database(Section, frozen=True):
    """`[databases.NAME]`: how a database that clients name is reached. "*" is the rest."""

    dbname: str = ""
    """Name on the nodes; empty is the same."""
    user: str = ""
    """Log in to nodes as this user; empty is the client's own."""
    password: Secret = ""
    """Password of `user`."""
    password_file: File = ""
    """File that holds the password instead."""
    pool_mode: PoolMode | None = None
    """Instead of `pool.mode`."""
    pool_size: Count = 0
    """0 is the default of `[pool]`."""
    read_split: bool | None = None
    """Instead of `routing.read_split`."""
    consistency: Consistency | None = None
    """Instead of `routing.consistency`."""
    transactions: Transactions | None = None
    """Instead of `routing.transactions`."""


class User(Section, frozen=True):
    """`[users.NAME]`: who may log in. A password may be plain, `md5...` or `SCRAM-SHA-256$...`."""

    password: Secret = ""
    """What the user proves to know; empty is no login by password."""
    password_file: File = ""
    """File that holds the password instead."""
    pool_mode: PoolMode | None = None
    """Instead of `pool.mode` and the database's own."""
    pool_size: Count = 0
    """0 is the size of the database, or of `[pool]`."""
    transactions: Transactions | None = None
    """Instead of `routing.transactions` and the database's own."""
    max_clients: Count = 0
    """Most clients of this user over all workers; 0 is no limit."""


class Rule(Section, frozen=True):
    """`[rules.NAME]`: what is done with statements for which all its conditions hold. A condition is one string or a
    list of which one must hold; `*` in a name stands for anything. The first rule that holds, in the order of the
    file, decides; one without results makes an exception from those behind it. docs/routing.md says more.
    """

    database: Names | None = None
    """Names by which clients connect."""
    user: Names | None = None
    """Names of clients' users."""
    application_name: Names | None = None
    """What clients call themselves."""
    table: Names | None = None
    """One of the tables in the text: as `name` in any schema, or as `schema.name` where the text says so."""
    shape: Names | None = None
    """Fingerprints of statements, as SHOW SHAPES prints them."""
    pattern: Names | None = None
    """Regular expressions (Python), looked for in the first 2 kB of a text without regard to case."""
    route: Literal["primary", "replica", "columnar"] | None = None
    """The kind of node; what is taken for a write stays on the primary (but see `move_writes`)."""
    node: str = ""
    """One node, by its name in `[nodes.NAME]`."""
    consistency: Literal["eventual", "session", "key", "global", "strong"] | None = None
    """Which writes a read must see."""
    consistency_key: str = ""
    """Whose writes, with `consistency` "key", where the client gives no key; up to 256 bytes."""
    priority: Literal["low", "normal", "high"] | None = None
    """Who goes first where statements wait."""
    timeout: Seconds = 0.0
    """A statement is cancelled after this, or earlier if a hint says so; 0 is no limit of its own."""
    transactions: Transactions | None = None
    """Where transactions run whose BEGIN the rule is for, instead of what database and user say."""
    reject: str = ""
    """Refuse the statement with this message."""
    stale: bool = False
    """Rather answer with old data, and count it, than wait or refuse when no node with newer data can take it."""
    move_writes: bool = False
    """Send also what is taken for a write to a replica where the rule, a hint or a setting says so."""
    final: bool = False
    """Hints and settings don't change what this rule says."""
    shadow: bool = False
    """Only count where the rule would have made a difference."""


class AuthQuery(Section, frozen=True):
    """Look users up on the primary."""

    enabled: bool = False
    """Ask the primary for users that neither `[users]` nor the userlist has."""
    user: str = ""
    """Who asks; needs the right to read what `query` reads."""
    password: Secret = ""
    """Password of `user`."""
    password_file: File = ""
    """File that holds the password instead."""
    database: str = ""
    """Where to ask; empty is the database that the client names."""
    query: str = (
        "SELECT rolname, CASE WHEN rolvaliduntil < pg_catalog.now() THEN NULL ELSE rolpassword END "
        "FROM pg_catalog.pg_authid WHERE rolname = $1 AND rolcanlogin"
    )
    """Gives name and password for $1, the user's name; it runs with a fixed search_path."""
    cache: Seconds = 30.0
    """How long an answer is used."""
    negative_cache: Seconds = 5.0
    """How long it is remembered that there is no such user."""
    max_per_second: Count = 50
    """Most look-ups a second; logins over that fail at once."""


class Auth(Section, frozen=True):
    """Who may connect. Rules are tried in order, as in pg_hba.conf."""

    userlist: File = ""
    """A PgBouncer-style file: "user" "password" a line."""
    hba_file: File = ""
    """File of rules in pg_hba.conf form; instead of `hba`."""
    hba: tuple[str, ...] = ()
    """Rules in pg_hba.conf form. Without any, everybody proves a password by scram-sha-256, from everywhere."""
    failure_delay: Seconds = 0.5
    """Wait before a wrong password is answered."""
    failures_per_second: Count = 50
    """Failed logins answered a second; over that clients wait longer."""
    passthrough: bool = True
    """Use the SCRAM keys that a client proves to log in to nodes, so no plain password is needed."""
    passfile: File = ""
    """A .pgpass file for logins to nodes."""
    query: AuthQuery = AuthQuery()


class Group(Section, frozen=True):
    """The nodes together: a primary with its copies, or several primaries on the same data."""

    multi_writer: bool = False
    """Several nodes with `role = "primary"` may take writes, as with shared storage or multi-writer clusters."""
    usual_restart: Seconds = 30.0
    """How long a node is away when it restarts; `pgtrident check` compares with it."""
    drain_timeout: Seconds = 60.0
    """How long open transactions and pinned sessions may go on on a node that is drained (DRAIN NODE), or was taken out
    of the configuration; then they are ended (57P01)."""


class AffinitySettings(Section, frozen=True):
    """Clients that keep to one node, so that its cache stays warm. What follows `method` is for services too."""

    by: AffinityBy | None = None
    """What of a client decides on its node, for those without a service. Not set: any node serves them."""
    method: Literal["hash", "modulo", "ordered"] = "hash"
    """`hash`: a node that is lost moves only its own clients; `modulo`: more even, but a change of nodes moves
    most; `ordered`: all on the first node, the next only while that is away."""
    switch_times: Count = 3
    """A client's node that has become doubtful is waited for this many times `switch_interval`, then the next one
    is taken; one that is down isn't waited for."""
    switch_interval: Seconds = 1.0
    """See `switch_times`."""
    check_interval: Seconds = 60.0
    """Within this after a node is active again its clients are back on it, one by one and between units."""
    reconnect: tuple[Reconnect, ...] = ("failback",)
    """`notify`: after a switch the client gets one error that it may retry; `failback`: clients go back to their
    node when it is active again; `balance`: live sessions are kept even over the nodes (`selector` 0)."""


class Service(Section, frozen=True):
    """`[services.NAME]`: applications with tables of their own, which keep to nodes of their own. A client belongs
    to the service that its startup option `pgtrident.service` names, else to that of its database."""

    nodes: tuple[str, ...] = ()
    """Names of nodes, in order of preference."""
    databases: tuple[str, ...] = ()
    """Databases, as clients name them, that belong to it; empty is the one that is called NAME."""
    selector: Selector = "0"
    """The node of a client: 0 takes turns; N is the Nth of `nodes` for all (counting on from the start), the next
    only while that is away; "hash" goes by the application's name; "spread" too, a new name taking the node that
    has the fewest."""
    by: AffinityBy | None = None
    """What "hash" and "spread" go by, instead of `routing.affinity.by` or the application's name."""
    switch_times: Count | None = None
    """Instead of `routing.affinity.switch_times`."""
    switch_interval: Seconds | None = None
    """Instead of `routing.affinity.switch_interval`."""
    check_interval: Seconds | None = None
    """Instead of `routing.affinity.check_interval`."""
    reconnect: tuple[Reconnect, ...] | None = None
    """Instead of `routing.affinity.reconnect`."""


class Routing(Section, frozen=True):
    """Where statements go."""

    read_split: bool = False
    """Send plain reads to replicas and analytics to columnar nodes."""
    consistency: Consistency = "session"
    """What a read is sure to see: `eventual` nothing in particular, `session` what its own session wrote and saw,
    `key` also what others with the same `pgtrident.consistency_key` did, `global` all that was committed before it
    came, `strong` is read on the primary."""
    analytic_consistency: Literal["own_writes", "eventual", "session", "key", "global", "strong"] = "own_writes"
    """The same for analytic statements, where hint, rule or setting say nothing; `own_writes` is `eventual` but for
    what the session itself wrote: a columnar node without that is waited for (1 s), then a replica answers."""
    transactions: Transactions = "read_only"
    """Where transactions run: all on the `primary`; those begun as READ ONLY (in READ COMMITTED) on replicas; or
    `optimistic`, all (in READ COMMITTED) on replicas until the first statement that is not a plain read, and from there
    on the primary."""
    causal_wait: Seconds = 0.0
    """How long a read waits for a copy that holds what it has to see before it goes to the primary."""
    fallback_share: Annotated[int, msgspec.Meta(ge=0, le=100)] = 100
    """Most reads that may go to the primary because no copy can serve them, in percent of all in a second; the rest
    wait, and are refused after `hold_timeout`. Up to 100 a second and worker always may."""
    balance: Literal["least", "weighted", "round_robin", "latency"] = "least"
    """Which copy gets a read: the one with the fewest servers at work for its weight, by weight alone, in turns, or
    the one that answers fastest."""
    instances: Annotated[int, msgspec.Meta(ge=1)] = 1
    """How many instances of the proxy share this fleet. With more than one, `key` reads ask the primary as `global`
    ones do: what another instance wrote is not known here."""
    zone: str = ""
    """Where this proxy stands: copies of the same zone are preferred. Empty is no preference."""
    analytic_to_primary: bool = False
    """Let the primary take analytic statements when no columnar node and no replica can."""
    analytic_time: Seconds = 0.1
    """A read that takes longer than this on replicas, in the mean, is tried on columnar nodes; the faster side gets it
    from then on."""
    analytic_cost: Count = 2_000
    """By the planner's estimate on a replica, in its units: what looks like analytics is an ordinary read if it costs
    less. 0 doesn't ask the planner."""
    hold_timeout: Seconds = 10.0
    """How long a unit waits when no node can take it: none of its kind is in service, or copies are
    still catching up. Then it is refused."""
    max_held: Count = 10_000
    """Units held at once by a worker; one more is refused."""
    catalogue_interval: Seconds = 10.0
    """How often a database is looked at for functions, views, triggers and the like that have changed without passing
    through here."""
    cache_entries: Annotated[Count, RESTART] = 10_000
    """Most statement texts whose classification a worker keeps."""
    cache_bytes: Annotated[Bytes, RESTART] = 32 * 1024 * 1024
    """Most bytes of statement text in that cache."""
    affinity: AffinitySettings = AffinitySettings()


class HealthSettings(Section, frozen=True):
    """Probes and the health machine."""

    interval: Seconds = 5.0
    """From the start of one probe of a node to the start of the next."""
    timeout: Seconds = 2.0
    """For a whole probe: connect, login, one query."""
    fail_after: Annotated[int, msgspec.Meta(ge=1)] = 3
    """Consecutive failures until `down`."""
    recover_after: Annotated[int, msgspec.Meta(ge=1)] = 2
    """Rounds without a failure in any layer: `suspect` to `active`, `down` to `recovering`."""
    confirm_after: Annotated[int, msgspec.Meta(ge=1)] = 2
    """The same for `recovering` to `active`, which takes a verification too."""
    ramp: Seconds = 10.0
    """How long a recovering copy takes from a tenth of its reads to all of them."""
    network_interval: Seconds = 2.0
    """From one connect that is only tried to the next. One that fails makes a node suspect, and has it probed."""
    primary_restart_grace: Seconds = 3.0
    """A primary that refuses connections is not `down` before so long; what needs it is held meanwhile."""
    flap_window: Seconds = 600.0
    """How long it counts that a node left service: each time takes it twice as many rounds to come back."""
    write_test: bool = False
    """Whether a probe of the primary writes a message to the WAL (`pg_logical_emit_message`): it finds a full disk and
    a primary that was made read-only."""
    user: str = ""
    """Who the probe logs in as; empty is the first user with a plain password."""
    password: Secret = ""
    """Password of `user`."""
    password_file: File = ""
    """File that holds the password instead."""
    database: str = "postgres"
    """Where the probe logs in to."""
    sample_interval: Seconds = 0.1
    """How often the positions of primary and copies are read; while reads wait for them each 20 ms."""


class Lag(Section, frozen=True):
    """How far copies may be behind. One that was beyond its limit comes back in steps of 10 % of its reads."""

    replica_out: Seconds = 0.2
    """A replica that is further behind gets no reads."""
    replica_in: Seconds = 0.1
    """It gets reads again when it is less behind than this."""
    columnar_out: Seconds = 2.0
    """A columnar node that is further behind gets no statements."""
    columnar_in: Seconds = 1.0
    """It gets statements again when it is less behind than this."""
    columnar_alarm: Seconds = 5.0
    """Beyond this a columnar node is to be rebuilt: an error is logged."""


Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class Load(Section, frozen=True):
    """How much nodes should have to do. A copy that is beyond a limit gets no new work, unless no other of its kind is
    active; a primary goes on and is suspect. 0 is no limit."""

    interval: Seconds = 0.0
    """From one reading to the next, on the connection of the last probe; 0 is `health.interval`."""
    connections_out: Percent = 80
    """Sessions that are not idle, in percent of those that users may open (`max_connections`)."""
    connections_in: Percent = 70
    """That limit is kept again when it is less than this; so are the others below."""
    transactions_out: Count = 200
    """Transactions that are open on the primary."""
    transactions_in: Count = 150
    """See `connections_in`."""
    locks_out: Count = 50
    """Sessions that wait for a lock."""
    locks_in: Count = 25
    """See `connections_in`."""
    oldest_out: Seconds = 0.0
    """How long the oldest statement that runs has taken."""
    oldest_in: Seconds = 0.0
    """See `connections_in`."""
    query: str = ""
    """A query whose first two columns are the node's use of CPU and of memory in percent, each of them or NULL."""
    cpu_out: Percent = 75
    """CPU of a copy, where `query` tells it."""
    cpu_in: Percent = 60
    """See `connections_in`."""
    primary_cpu_out: Percent = 85
    """CPU of the primary."""
    primary_cpu_in: Percent = 70
    """See `connections_in`."""
    memory_out: Percent = 90
    """Memory, where `query` tells it."""
    memory_in: Percent = 80
    """See `connections_in`."""
    dwell: Seconds = 10.0
    """For how long a limit has to be passed until that counts."""


class Log(Section, frozen=True):
    """Log lines, on standard error."""

    format: Literal["json", "console"] = "json"
    """`json`: one object a line; `console`: for people."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is written."""
    connections: bool = True
    """One line for each connection event."""


class HistorySettings(Section, frozen=True):
    """What has happened to the fleet, and why: `SHOW HISTORY`, `pgtrident history`."""

    file: Annotated[str, RESTART] = ""
    """An SQLite file; empty is one in `runtime_dir`."""
    keep: Seconds = 7_776_000.0
    """Older events are dropped."""


class Admin(Section, frozen=True):
    """Metrics, health page and console."""

    enabled: Annotated[bool, RESTART] = True
    """Serve HTTP and the console database `pgtrident`."""
    host: Annotated[str, RESTART] = "127.0.0.1"
    """Address of `port`."""
    port: Annotated[ListenPort, RESTART] = 9632
    """HTTP: /metrics, /healthz, /readyz. 0 takes a free port."""
    users: tuple[str, ...] = ()
    """Who may use the console; empty is every user that may log in by password."""


class Config(Section, frozen=True):
    """The whole file."""

    workers: Annotated[int, msgspec.Meta(ge=1, le=256), RESTART] = 1
    """Worker processes; one core each."""
    runtime_dir: Annotated[Directory, RESTART] = ""
    """For internal sockets; empty makes a private temporary directory."""
    listen: Listen = Listen()
    server: ServerLink = ServerLink()
    pool: PoolSettings = PoolSettings()
    auth: Auth = Auth()
    group: Group = Group()
    routing: Routing = Routing()
    health: HealthSettings = HealthSettings()
    lag: Lag = Lag()
    load: Load = Load()
    log: Log = Log()
    history: HistorySettings = HistorySettings()
    admin: Admin = Admin()
    nodes: dict[str, Node] = {}
    databases: dict[str, Database] = {}
    users: dict[str, User] = {}
    services: dict[str, Service] = {}
    rules: dict[str, Rule] = {}
