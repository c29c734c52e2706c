"""What the classifier says of a statement. Context-free and immutable; cached by text.

Names that depend on the database, the search_path or the catalogue get their meaning in
`routing.bind`, not here.
"""

from __future__ import annotations

from enum import IntFlag, StrEnum


def names(text: str) -> frozenset[str]:
    """Return the words of a text: how the long lists of names in this package are written."""
    return frozenset(text.split())


class Class(StrEnum):
    """What a statement needs."""

    WRITE = "write"
    READ = "read"
    ANALYTIC = "analytic"
    SESSION = "session"
    """Bound to the server session (SET, LISTEN, temp tables, advisory locks, cursors ...)."""


class Effect(IntFlag):
    """What a statement may do to the server session. Any of them makes the unit a barrier:
    nothing of the same client is sent behind it until its outcome is known."""

    NONE = 0
    SET = 1
    """Sets or resets named settings; their lower-case names are in `Classification.settings`."""
    SET_ANY = 2
    """May change settings whose names can't be told (RESET ALL, DISCARD ALL, set_config($1, ..)).
    Code that can't be seen has UNKNOWN_CODE instead."""
    ROLE = 4
    """SET ROLE, SET SESSION AUTHORIZATION and their RESETs."""
    TEMP = 8
    """Creates or drops temporary objects (or may: DROP TABLE of any name, DISCARD TEMP)."""
    LISTEN = 16
    """LISTEN or UNLISTEN."""
    HOLD = 32
    """DECLARE ... WITH HOLD, or CLOSE."""
    ADVISORY = 64
    """Takes or frees a session-level advisory lock."""
    PREPARE = 128
    """PREPARE, DEALLOCATE of one name."""
    DISCARD = 256
    """DISCARD ALL or DEALLOCATE ALL: prepared statements of the client are gone when it succeeds."""
    SEQUENCE = 512
    """Reads currval() or lastval(): needs the server that ran the client's own nextval()."""
    UNKNOWN_CODE = 1024
    """Runs code that can't be seen (user's function, DO, CALL, view unknown): may do anything of the
    above in silence. Checked after the fact, not pinned for."""
    LOAD = 2048
    """LOAD, or anything else that ties the client to the server for good."""
    LOCAL = 4096
    """Changes until the end of the transaction what a Parse finds (SET LOCAL search_path ...). Nothing is left."""
    OWN_NAMES = 8192
    """Lists prepared statements: they must be the client's own, under the client's own names."""


_NOT_PARSED = names(
    """
    application_name backend_flush_after bytea_output client_connection_check_interval client_min_messages
    cpu_index_tuple_cost cpu_operator_cost cpu_tuple_cost cursor_tuple_fraction effective_cache_size
    effective_io_concurrency extra_float_digits hash_mem_multiplier lock_timeout maintenance_work_mem
    plan_cache_mode random_page_cost seq_page_cost statement_timeout synchronous_commit temp_buffers
    temp_file_limit transaction_deferrable transaction_isolation transaction_read_only transaction_timeout
    wal_compression work_mem
    """
)
_NOT_PARSED_EITHER = (
    "debug_", "default_transaction_", "enable_", "geqo", "idle_", "jit", "log_", "max_parallel_", "parallel_", "track_"
)  # fmt: skip


def is_parsed_by(setting: str) -> bool:
    """Whether a setting may decide what a Parse makes of a text: which tables it finds, which constants its
    literals are. Most others only matter while it runs; of those the usual ones are known."""
    return not ("." in setting or setting in _NOT_PARSED or setting.startswith(_NOT_PARSED_EITHER))


EXPLAIN_ROUTE = "explain_route"
"""Reason of EXPLAIN (ROUTE), which the proxy answers itself."""
DDL = frozenset(("ddl", "select_into"))
"""Reasons of what may change the meaning of names (and of some that don't: COMMENT, VACUUM ...)."""


class Uses:
    """The names in a statement whose meaning the database decides; PostgreSQL's own functions are among them,
    since a database may have functions of the same name.

    Attributes:
        functions, relations, operators: (schema or "", name).
        fields: last parts of dotted names: `relation.name` calls a function if there is no such column.
        ctes: names that WITH gives; a relation of such a name may be that, and be nothing of the database.
        written: those of the relations that are changed, by which triggers and the like are run.
        columns: of a read the columns that it names; "*" for any, "" for a text of its own.
        orders: whether it compares or sorts them, or does what else depends on their collation.
    """

    __slots__ = ("columns", "ctes", "fields", "functions", "operators", "orders", "relations", "written")

    def __init__(
        self,
        functions: frozenset[tuple[str, str]] = frozenset(),
        relations: frozenset[tuple[str, str]] = frozenset(),
        operators: frozenset[tuple[str, str]] = frozenset(),
        fields: frozenset[str] = frozenset(),
        ctes: frozenset[str] = frozenset(),
        columns: frozenset[str] = frozenset(),
        orders: bool = False,
        written: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        self.functions = functions
        self.relations = relations
        self.operators = operators
        self.fields = fields
        self.ctes = ctes
        self.columns = columns
        self.orders = orders
        self.written = written


def joined(several: list[Uses]) -> Uses | None:
    """All that several statements use; None if there is nothing."""
    if not several:
        return None
    return Uses(
        functions=frozenset().union(*(uses.functions for uses in several)),
        relations=frozenset().union(*(uses.relations for uses in several)),
        operators=frozenset().union(*(uses.operators for uses in several)),
        fields=frozenset().union(*(uses.fields for uses in several)),
        ctes=frozenset().union(*(uses.ctes for uses in several)),
        written=frozenset().union(*(uses.written for uses in several)),
        columns=frozenset().union(*(uses.columns for uses in several)),
        orders=any(uses.orders for uses in several),
    )


class Classification:
    """`classify(sql)` returns one of these; the object for one text is shared, so never change it.

    Attributes:
        cls: the class; for a string of several statements the strongest one.
        reason: a short fixed code ("select", "insert", "for_update", "unknown_function" ...).
        effects: see Effect.
        settings: lower-case names that SET, RESET or set_config touch for longer than a transaction.
        resets: whether any of them is put back to its default (RESET x, SET x TO DEFAULT).
        statements: number of statements in the text; 0 for an empty one.
        kind: the lower-case command words of the first statement ("select", "begin", "deallocate",
            "execute", "prepare", "copy", "discard", "empty", "unknown" ...).
        name: the identifier for PREPARE, EXECUTE (also within EXPLAIN, CREATE TABLE AS), DEALLOCATE, folded
            as PostgreSQL folds it; "" is none, and DEALLOCATE ALL.
        name_span: (start, end) of that identifier in the text as str indices, quotes included; or None.
        ends_transaction: a statement of it is COMMIT, ROLLBACK (not TO), PREPARE TRANSACTION ...
        starts_transaction: a statement of it is BEGIN or START TRANSACTION.
        read_only_transaction: BEGIN ... READ ONLY and isolation level is not serializable.
        isolation: the isolation level that BEGIN names; "" is none.
        timed: whether its answer may tell when its transaction began, or which one it is.
        fragile: uses something that can't run on a columnar node (casts to reg*, catalogs ...).
        retyped: a result column's type may differ on a columnar node (sum, avg, a quotient ...).
        plain: one statement without effects, whose answer can be passed on unread.
        quick: plain, and no DDL: it may go the fast way.
        writes: whether its class is write.
        reads_wishes: whether it may read or set the proxy's own settings (`pgtrident.*`).
        uses: names whose meaning the database decides, or None if there are none.
        text: what was classified, for the one text (of those that share it) that was looked at.
        foldable: whether it holds for all texts with the same digits folded.
        unheard: a read of which the second witness has not spoken, since that would take too long.
        at_best: what it is if all names in `uses` turn out to be harmless; None if it is that already.
    """

    __slots__ = (
        "at_best",
        "cls",
        "effects",
        "ends_transaction",
        "foldable",
        "fragile",
        "isolation",
        "kind",
        "name",
        "name_span",
        "plain",
        "quick",
        "read_only_transaction",
        "reads_wishes",
        "reason",
        "resets",
        "retyped",
        "settings",
        "starts_transaction",
        "statements",
        "text",
        "timed",
        "unheard",
        "uses",
        "writes",
    )

    def __init__(
        self,
        cls: Class,
        reason: str,
        *,
        effects: Effect = Effect.NONE,
        settings: frozenset[str] = frozenset(),
        resets: bool = False,
        statements: int = 1,
        kind: str = "unknown",
        name: str = "",
        name_span: tuple[int, int] | None = None,
        starts_transaction: bool = False,
        ends_transaction: bool = False,
        read_only_transaction: bool = False,
        isolation: str = "",
        timed: bool = False,
        fragile: bool = False,
        retyped: bool = False,
        uses: Uses | None = None,
        at_best: Classification | None = None,
    ) -> None:
        self.cls = cls
        self.reason = reason
        self.effects = effects
        self.settings = settings
        self.resets = resets
        self.statements = statements
        self.kind = kind
        self.name = name
        self.name_span = name_span
        self.starts_transaction = starts_transaction
        self.ends_transaction = ends_transaction
        self.read_only_transaction = read_only_transaction
        self.isolation = isolation
        self.timed = timed
        self.fragile = fragile
        self.retyped = retyped
        self.plain = not effects and statements == 1 and kind not in ("copy", "execute", "prepare", "deallocate")
        self.quick = self.plain and reason not in DDL and kind != "commit prepared"
        self.writes = cls is Class.WRITE
        self.uses = uses
        self.at_best = at_best
        self.text = b""
        self.reads_wishes = False
        self.foldable = False
        self.unheard = False

    def watched(self) -> Classification:
        """The same as a new one that runs code that can't be seen."""
        return self._changed(self.cls, self.reason, self.effects | Effect.UNKNOWN_CODE)

    def learned(self, cls: Class) -> Classification:
        """The same as a new one of a class that experience has taught."""
        return self._changed(cls, "learned", self.effects)

    def collated(self) -> Classification:
        """The same as a new one whose answer depends on a collation, which only PostgreSQL has."""
        found = self._changed(self.cls, self.reason, self.effects)
        found.fragile = True
        return found

    def _changed(self, cls: Class, reason: str, effects: Effect) -> Classification:
        found = Classification(
            cls,
            reason,
            effects=effects,
            settings=self.settings,
            resets=self.resets,
            statements=self.statements,
            kind=self.kind,
            name=self.name,
            name_span=self.name_span,
            starts_transaction=self.starts_transaction,
            ends_transaction=self.ends_transaction,
            read_only_transaction=self.read_only_transaction,
            isolation=self.isolation,
            timed=self.timed,
            fragile=self.fragile,
            retyped=self.retyped,
            uses=self.uses,
        )
        found.text = self.text
        found.reads_wishes = self.reads_wishes
        found.quick = found.quick and self.quick
        return found

    def __repr__(self) -> str:
        return f"Classification({self.cls}, {self.reason}, {self.effects!r})"
