"""What one statement's tree means: its class, why, and what it may do to the session. Pure.

Owns every rule from a statement kind, function or relation to a class and effects; `grammar` only tells
what is there, and `builtins` holds the functions. The rule of the file: a statement is a read only if all
that it is made of is known to be harmless; whatever else it is goes to the primary.

Reasons are fixed codes: they are printed by console, log and metrics. What is bound to one session, or is
only answered rightly by the primary, is of class session; what changes anything is of class write.

Called by `classify`.
"""

from __future__ import annotations

from collections.abc import Callable

from . import builtins, portable
from .grammar import MODIFYING_NODES, READ_NODES, Survey, Tree, constant, mentions_temp, relation_of, survey
from .model import Class, Effect, Uses, is_parsed_by, names

RANK = {Class.READ: 0, Class.ANALYTIC: 1, Class.SESSION: 2, Class.WRITE: 3}
"""Strength: of several classes the highest counts."""


_NOTHING: frozenset[str] = frozenset()


class Verdict:
    """What one statement means; the attributes are those of Classification, as if every name that only the
    database knows were harmless.

    Attributes:
        doubt: the reason why that can't be told without the database, or "".
        seen: what its queries use.
    """

    __slots__ = (
        "cls",
        "doubt",
        "effects",
        "ends",
        "fragile",
        "isolation",
        "kind",
        "name",
        "read_only",
        "reason",
        "resets",
        "retyped",
        "seen",
        "settings",
        "starts",
        "timed",
    )

    def __init__(
        self, kind: str, cls: Class = Class.WRITE, reason: str = "", effects: Effect = Effect.NONE, name: str = ""
    ) -> None:
        self.kind = kind
        self.cls = cls
        self.reason = reason or kind
        self.effects = effects
        self.name = name
        self.settings: set[str] = set()
        self.resets = False
        self.starts = False
        self.ends = False
        self.read_only = False
        self.isolation = ""
        self.timed = False
        self.fragile = False
        self.retyped = False
        self.doubt = ""
        self.seen: list[Survey] = []

    def at_least(self, cls: Class, reason: str) -> None:
        """Raise the class; the reason is that of the strongest, the first among equals."""
        if RANK[cls] > RANK[self.cls]:
            self.cls = cls
            self.reason = reason

    def doubted(self, reason: str) -> None:
        """Something is used that only the database knows; the first such reason counts."""
        self.doubt = self.doubt or reason

    def used(self) -> Uses | None:
        """The names in it whose meaning the database decides; None if there are none."""
        reads = self.cls is Class.READ or self.cls is Class.ANALYTIC
        operators = [name.rpartition(".") for seen in self.seen for name in seen.operators]
        uses = Uses(
            functions=frozenset((schema, name) for seen in self.seen for schema, name, _ in seen.calls),
            relations=frozenset(relation for seen in self.seen for relation in seen.relations),
            operators=frozenset((schema, name) for schema, _, name in operators),
            fields=frozenset(name for seen in self.seen for name in seen.fields | seen.dotted),
            ctes=frozenset(name for seen in self.seen for name in seen.ctes),
            columns=frozenset(name for seen in self.seen for name in portable.columns(seen)) if reads else _NOTHING,
            orders=reads and any(portable.orders(seen) for seen in self.seen),
            written=frozenset(relation for seen in self.seen for relation in seen.written),
        )
        return uses if uses.functions or uses.relations or uses.operators or uses.fields else None


def judge(node: str, body: Tree, first_word: str) -> Verdict:
    """Return the verdict on one statement; `first_word` names a kind that isn't listed here."""
    rule = _RULES.get(node)
    if rule is not None:
        return rule(body)
    # DDL and whatever else: to the primary. Triggers, rules and event triggers that it may fire
    # are not looked for.
    effects = Effect.TEMP if mentions_temp(body) else Effect.NONE
    return Verdict(first_word, Class.SESSION if effects else Class.WRITE, "temp" if effects else "ddl", effects)


# --- statements that read, write and call ------------------------------------------------------------


def _select(body: Tree) -> Verdict:
    """SELECT, VALUES, TABLE, set operations, WITH in front of any of them."""
    seen = survey(body)
    verdict = Verdict("select", Class.READ)
    if seen.nodes & MODIFYING_NODES:
        verdict.at_least(Class.WRITE, "modifying_cte")
    if "intoClause" in seen.nodes:
        if mentions_temp(body.get("intoClause")):
            verdict.at_least(Class.SESSION, "temp")
            verdict.effects |= Effect.TEMP
        else:
            verdict.at_least(Class.WRITE, "select_into")
    if "LockingClause" in seen.nodes:
        verdict.at_least(Class.WRITE, "for_update")
    _weigh_uses(verdict, seen)
    if verdict.cls is Class.READ:
        if _is_analytic(seen):
            verdict.cls, verdict.reason = Class.ANALYTIC, "aggregate"
        verdict.timed = "SQLValueFunction" in seen.nodes or any(name in builtins.TIMED for _, name, _ in seen.calls)
        verdict.fragile = portable.is_fragile(seen)
        verdict.retyped = portable.is_retyped(seen)
    return verdict


def _dml(kind: str) -> Callable[[Tree], Verdict]:
    def rule(body: Tree) -> Verdict:
        verdict = Verdict(kind)
        _weigh_uses(verdict, _survey_of_write(body))
        if body.get("relation", {}).get("relname") == "pg_settings":
            verdict.effects |= Effect.SET_ANY  # its rule runs set_config()
        return verdict

    return rule


def _survey_of_write(body: Tree) -> Survey:
    seen = survey(body)
    seen.written.add(relation_of(body["relation"]))
    return seen


def _create_table_as(body: Tree) -> Verdict:
    into = body["into"]
    verdict = Verdict("create", reason="ddl")
    if mentions_temp(into):
        lasts = into.get("onCommit") != "ONCOMMIT_DROP"
        verdict = Verdict("create", Class.SESSION, "temp", Effect.TEMP if lasts else Effect.LOCAL)
    _weigh_uses(verdict, survey(body))
    if "ExecuteStmt" in body["query"]:
        verdict.effects |= Effect.UNKNOWN_CODE
        verdict.name = body["query"]["ExecuteStmt"]["name"]
    return verdict


def _copy(body: Tree) -> Verdict:
    if body.get("is_from"):
        verdict = Verdict("copy", reason="copy_from")
        _weigh_uses(verdict, _survey_of_write(body))
        return verdict
    query = body.get("query", {})
    if "SelectStmt" in query:
        verdict = _select(query["SelectStmt"])
        if verdict.cls is Class.ANALYTIC:
            verdict.cls = Class.READ
    else:
        verdict = Verdict("copy", Class.WRITE if query else Class.READ)
        _weigh_uses(verdict, survey(query or {"relation": body["relation"]}))
    verdict.kind = "copy"
    if verdict.cls is Class.READ:
        verdict.reason = "copy_to"
    if "filename" in body:
        verdict.at_least(Class.WRITE, "copy_file")
    return verdict


def _explain(body: Tree) -> Verdict:
    """EXPLAIN plans, and with ANALYZE runs, the inner statement."""
    node, inner = next(iter(body["query"].items()))
    verdict = judge(node, inner, "explain")
    verdict.kind = "explain"
    if verdict.cls is Class.ANALYTIC:
        verdict.cls = Class.READ
    if verdict.cls is Class.READ:
        verdict.reason = "explain"
    if not _analyzes(body.get("options", ())):
        # Planning may run functions that are marked immutable or stable, and no others.
        verdict.effects &= Effect.UNKNOWN_CODE
        verdict.settings.clear()
        verdict.resets = False
    return verdict


def _analyzes(options: list[Tree]) -> bool:
    """Whether the options of EXPLAIN switch ANALYZE on; the last one counts."""
    on = False
    for option in options:
        element = option["DefElem"]
        if element["defname"] != "analyze":
            continue
        argument = element.get("arg")
        if argument is None:
            on = True
        elif "String" in argument:
            on = argument["String"].get("sval", "").lower() not in ("off", "false")
        else:
            on = argument.get("Integer") != {}
    return on


def _call(body: Tree) -> Verdict:
    return Verdict("call", effects=Effect.UNKNOWN_CODE)


def _do(body: Tree) -> Verdict:
    return Verdict("do", effects=Effect.UNKNOWN_CODE)


def _alter_table(body: Tree) -> Verdict:
    """A new default or a USING expression is run for each row."""
    verdict = Verdict("alter", reason="ddl")
    _weigh_uses(verdict, survey(body))
    return verdict


def _truncate(body: Tree) -> Verdict:
    """It fires triggers, unlike most DDL."""
    verdict = Verdict("truncate", reason="ddl")
    seen = survey(body)
    seen.written.update(seen.relations)
    verdict.seen.append(seen)
    return verdict


def weigh(tree: object) -> Verdict:
    """Return what running all expressions and statements within a tree means for the session."""
    verdict = Verdict("rule")
    _weigh_uses(verdict, survey(tree))
    return verdict


# --- what a query uses -------------------------------------------------------------------------------


def _weigh_uses(verdict: Verdict, seen: Survey) -> None:
    """Add what the functions, relations, operators and nodes of a query mean."""
    verdict.seen.append(seen)
    for schema, name, call in seen.calls:
        _weigh_call(verdict, schema, name, call)
    for name in seen.fields | seen.dotted:
        # (expression).name and relation.name may call a function of one argument.
        if name not in builtins.SAFE and is_unsafe(name) and name not in _WITHOUT_ARGUMENTS:
            _weigh_call(verdict, "", name, {})
    for schema, name in seen.relations:
        if schema.startswith("pg_temp"):
            verdict.at_least(Class.SESSION, "temp")
        elif (name.startswith(_NODE_RELATION_PREFIXES) and name not in _SHARED_STATISTICS) or name in _NODE_RELATIONS:
            verdict.at_least(Class.SESSION, "node_state")
            if name == "pg_prepared_statements":
                verdict.effects |= Effect.OWN_NAMES
        elif name.endswith("_seq"):
            verdict.at_least(Class.SESSION, "sequence")
    if seen.columns & _SEQUENCE_COLUMNS:
        # Sequences are logged ahead, so a standby shows a value that was not reached yet.
        verdict.at_least(Class.SESSION, "sequence")
    if seen.samplers - _SAMPLERS:
        verdict.at_least(Class.WRITE, "unknown_function")
        verdict.effects |= Effect.UNKNOWN_CODE
    if any(not is_own_operator(name) for name in seen.operators):
        verdict.doubted("unknown_operator")
    if verdict.cls is Class.READ and any(node[0].isupper() and node not in READ_NODES for node in seen.nodes):
        verdict.at_least(Class.WRITE, "unknown_node")


_WITHOUT_ARGUMENTS = frozenset({"version"})
"""Functions that can't be called so, by a name that columns have."""
_NODE_RELATION_PREFIXES = ("pg_stat", "pg_replication_", "pg_backend_", "pg_shmem_", "pg_buffercache")
_SHARED_STATISTICS = names(
    "pg_stats pg_stats_ext pg_stats_ext_exprs pg_statistic pg_statistic_ext pg_statistic_ext_data"
)
_NODE_RELATIONS = names(
    """
    pg_aios pg_available_extension_versions pg_available_extensions pg_config pg_cursors pg_file_settings
    pg_hba_file_rules pg_ident_file_mappings pg_locks pg_prepared_statements pg_prepared_xacts pg_sequences
    pg_settings pg_timezone_abbrevs pg_timezone_names pg_wait_events
    """
)
"""System views that speak of one node, one session or one node's files; pg_sequences tells of values that
were logged ahead. The names count in any schema: extensions put theirs anywhere."""
_SEQUENCE_COLUMNS = frozenset({"last_value", "is_called", "log_cnt"})
_SAMPLERS = frozenset({"system", "bernoulli"})


def is_own_operator(name: str) -> bool:
    """Whether PostgreSQL itself has an operator of this name, which may be written with its schema."""
    return name.removeprefix("pg_catalog.") in builtins.OPERATORS


def is_unsafe(name: str) -> bool:
    return name in _UNSAFE or name.startswith(builtins.UNSAFE_PREFIXES)


def _weigh_call(verdict: Verdict, schema: str, name: str, call: Tree) -> None:
    if schema and schema != "pg_catalog":
        verdict.doubted("unknown_function")
    elif name in builtins.SAFE:
        pass
    elif name == "set_config":
        verdict.at_least(Class.SESSION, "set_config")
        _weigh_set_config(verdict, call.get("args", []))
    elif name == "setseed":
        verdict.at_least(Class.SESSION, "session_state")
        verdict.effects |= Effect.SET
        verdict.settings.add("seed")
    elif is_unsafe(name):
        cls, reason, effects = _UNSAFE.get(name, (Class.SESSION, "node_state", Effect.NONE))
        verdict.at_least(cls, reason)
        verdict.effects |= effects
    elif schema:
        verdict.at_least(Class.WRITE, "unknown_function")
    else:
        verdict.doubted("unknown_function")


_UNSAFE: dict[str, tuple[Class, str, Effect]] = {
    name: (cls, reason, effects)
    for group, cls, reason, effects in (
        (builtins.SEQUENCE_WRITES, Class.WRITE, "sequence", Effect.NONE),
        (builtins.SEQUENCE_READS, Class.SESSION, "sequence", Effect.SEQUENCE),
        (builtins.ADVISORY_LOCKS, Class.SESSION, "advisory_lock", Effect.ADVISORY),
        (builtins.ADVISORY_XACT_LOCKS, Class.SESSION, "advisory_lock", Effect.NONE),
        (builtins.TRANSACTION_IDS, Class.WRITE, "transaction_id", Effect.NONE),
        (builtins.LARGE_OBJECTS, Class.WRITE, "large_object", Effect.NONE),
        (builtins.RUNS_SQL, Class.WRITE, "runs_sql", Effect.UNKNOWN_CODE),
        (builtins.SESSION_STATE, Class.SESSION, "session_state", Effect.NONE),
        (builtins.PREPARED_STATEMENTS, Class.SESSION, "session_state", Effect.OWN_NAMES),
        (builtins.ACTS, Class.WRITE, "acts", Effect.NONE),
        (builtins.TIES, Class.WRITE, "acts", Effect.LOAD),
        (builtins.NODE_STATE, Class.SESSION, "node_state", Effect.NONE),
    )
    for name in group
}


def _is_analytic(seen: Survey) -> bool:
    """Whether a read is a report: it aggregates over whole tables, or groups what it joined.

    Where a column is asked to equal a constant or parameter (a key, mostly), one join is still taken for a
    point read. min and max alone are answered from an index.
    """
    aggregates = {name for _, name, _ in seen.calls} & builtins.AGGREGATES
    if not (aggregates or seen.grouped or seen.windowed):
        return False
    tables = [relation for relation in seen.relations if relation[0] or relation[1] not in seen.ctes]
    if not tables or any(schema in _CATALOGS or name.startswith("pg_") for schema, name in tables):
        return False
    if seen.pointed:
        return len(tables) > 2 or (len(tables) > 1 and seen.grouped)
    return len(tables) > 1 or seen.grouped or seen.windowed or not aggregates <= {"min", "max"}


_CATALOGS = frozenset({"pg_catalog", "information_schema"})


# --- settings ----------------------------------------------------------------------------------------


def _set(body: Tree) -> Verdict:
    """SET, RESET and their special forms (manual, SET: which of them outlive the transaction)."""
    kind, name = body["kind"], body.get("name", "")
    verdict = Verdict("reset" if kind.startswith("VAR_RESET") else "set", Class.SESSION, "set")
    if body.get("is_local"):
        verdict.effects = Effect.LOCAL if is_parsed_by(name.lower()) else Effect.NONE
        return verdict
    if kind == "VAR_RESET_ALL":
        verdict.effects = Effect.SET_ANY
        verdict.resets = True
    elif name == "SESSION CHARACTERISTICS":
        verdict.effects = Effect.SET
        verdict.settings = {"default_" + option["DefElem"]["defname"] for option in body["args"]}
    elif kind != "VAR_SET_MULTI":
        _weigh_setting(verdict, name, " ".join(str(constant(argument)) for argument in body.get("args", ())))
        verdict.resets = kind in ("VAR_RESET", "VAR_SET_DEFAULT") and bool(verdict.settings)
    return verdict


def _weigh_setting(verdict: Verdict, name: str, value: str) -> None:
    """Add what setting one parameter for the session means."""
    name = name.lower()
    if name in ("role", "session_authorization"):
        verdict.effects |= Effect.ROLE
    elif name not in _TRANSACTION_SETTINGS:
        verdict.effects |= Effect.SET
        verdict.settings.add(name)
        if name == "search_path" and "pg_temp" in value:
            # CREATE TABLE may make temporary tables from here on without saying so.
            verdict.effects |= Effect.TEMP


def _weigh_set_config(verdict: Verdict, arguments: list[Tree]) -> None:
    """set_config(name, value, is_local); arguments that aren't constants may mean anything."""
    name = value = is_local = None
    if len(arguments) == 3:
        name, value, is_local = (constant(argument) for argument in arguments)
    if is_local is True:
        if not isinstance(name, str) or is_parsed_by(name.lower()):
            verdict.effects |= Effect.LOCAL
    elif isinstance(name, str):
        _weigh_setting(verdict, name, value if isinstance(value, str) else "")
    else:
        verdict.effects |= Effect.SET_ANY


_TRANSACTION_SETTINGS = frozenset({"transaction_isolation", "transaction_read_only", "transaction_deferrable"})


# --- the session's other state -----------------------------------------------------------------------


def _create_table(body: Tree) -> Verdict:
    if not mentions_temp(body["relation"]):
        return Verdict("create", reason="ddl")
    lasts = body.get("oncommit") != "ONCOMMIT_DROP"
    return Verdict("create", Class.SESSION, "temp", Effect.TEMP if lasts else Effect.LOCAL)


def _drop(body: Tree) -> Verdict:
    """An unqualified name may be a temporary relation's."""
    if all(mentions_temp(item) for item in body["objects"]):
        return Verdict("drop", Class.SESSION, "temp", Effect.TEMP)
    verdict = Verdict("drop", reason="ddl")
    if mentions_temp(body) or (
        body["removeType"] in ("OBJECT_TABLE", "OBJECT_VIEW", "OBJECT_SEQUENCE")
        and any(len(item.get("List", {}).get("items", ())) == 1 for item in body["objects"])
    ):
        verdict.effects = Effect.TEMP
    return verdict


def _declare(body: Tree) -> Verdict:
    node, query = next(iter(body["query"].items()))
    verdict = Verdict("declare", Class.SESSION, "cursor")
    inner = judge(node, query, "declare")
    if inner.cls is Class.WRITE:
        verdict.at_least(Class.WRITE, inner.reason)
    verdict.effects = inner.effects | (Effect.HOLD if body.get("options", 0) & _CURSOR_HOLD else Effect.NONE)
    verdict.settings = inner.settings
    verdict.doubt, verdict.seen = inner.doubt, inner.seen
    return verdict


_CURSOR_HOLD = 0x20
"""CURSOR_OPT_HOLD of the grammar."""


def _fetch(body: Tree) -> Verdict:
    return Verdict("move" if body.get("ismove") else "fetch", Class.SESSION, "cursor")


def _close(body: Tree) -> Verdict:
    return Verdict("close", Class.SESSION, "cursor", Effect.HOLD)


def _prepare(body: Tree) -> Verdict:
    """The inner statement isn't run, so it counts at EXECUTE."""
    return Verdict("prepare", Class.SESSION, "prepared", Effect.PREPARE, body["name"])


def _execute(body: Tree) -> Verdict:
    return Verdict("execute", Class.SESSION, "prepared", Effect.UNKNOWN_CODE, body["name"])


def _deallocate(body: Tree) -> Verdict:
    name = body.get("name", "")
    return Verdict("deallocate", Class.SESSION, "prepared", Effect.PREPARE if name else Effect.DISCARD, name)


def _discard(body: Tree) -> Verdict:
    target = body.get("target", "DISCARD_ALL")
    verdict = Verdict("discard", Class.SESSION, "discard", _DISCARDS[target])
    verdict.resets = target == "DISCARD_ALL"
    return verdict


_DISCARDS = {
    "DISCARD_ALL": Effect.SET_ANY
    | Effect.ROLE
    | Effect.TEMP
    | Effect.LISTEN
    | Effect.HOLD
    | Effect.ADVISORY
    | Effect.DISCARD
    | Effect.SEQUENCE,
    "DISCARD_PLANS": Effect.NONE,
    "DISCARD_SEQUENCES": Effect.SEQUENCE,
    "DISCARD_TEMP": Effect.TEMP,
}


def _listen(kind: str) -> Callable[[Tree], Verdict]:
    return lambda body: Verdict(kind, Class.SESSION, "listen", Effect.LISTEN)


def _show(body: Tree) -> Verdict:
    return Verdict("show", Class.SESSION, "show")


def _load(body: Tree) -> Verdict:
    return Verdict("load", Class.SESSION, "load", Effect.LOAD)


def _set_constraints(body: Tree) -> Verdict:
    return Verdict("set", Class.SESSION, "set")


def _plain(kind: str) -> Callable[[Tree], Verdict]:
    return lambda body: Verdict(kind)


# --- transactions ------------------------------------------------------------------------------------


def _transaction(body: Tree) -> Verdict:
    command = body["kind"]
    verdict = Verdict(_TRANSACTION_KINDS[command], reason="transaction")
    if command in ("TRANS_STMT_BEGIN", "TRANS_STMT_START"):
        verdict.starts = True
        options = {option["DefElem"]["defname"]: option["DefElem"]["arg"] for option in body.get("options", ())}
        read_only = options.get("transaction_read_only", {}).get("A_Const", {}).get("ival", {}).get("ival", 0)
        isolation = constant(options.get("transaction_isolation", {}))
        verdict.read_only = bool(read_only) and isolation != "serializable"
        verdict.isolation = str(isolation or "")
    elif command in ("TRANS_STMT_COMMIT", "TRANS_STMT_ROLLBACK", "TRANS_STMT_PREPARE"):
        verdict.ends = True
        verdict.starts = bool(body.get("chain"))
    return verdict


_TRANSACTION_KINDS = {
    "TRANS_STMT_BEGIN": "begin",
    "TRANS_STMT_START": "start transaction",
    "TRANS_STMT_COMMIT": "commit",
    "TRANS_STMT_ROLLBACK": "rollback",
    "TRANS_STMT_SAVEPOINT": "savepoint",
    "TRANS_STMT_RELEASE": "release",
    "TRANS_STMT_ROLLBACK_TO": "rollback to",
    "TRANS_STMT_PREPARE": "prepare transaction",
    "TRANS_STMT_COMMIT_PREPARED": "commit prepared",
    "TRANS_STMT_ROLLBACK_PREPARED": "rollback prepared",
}


_RULES: dict[str, Callable[[Tree], Verdict]] = {
    "SelectStmt": _select,
    "InsertStmt": _dml("insert"),
    "UpdateStmt": _dml("update"),
    "DeleteStmt": _dml("delete"),
    "MergeStmt": _dml("merge"),
    "CreateTableAsStmt": _create_table_as,
    "CopyStmt": _copy,
    "TruncateStmt": _truncate,
    "ExplainStmt": _explain,
    "CallStmt": _call,
    "DoStmt": _do,
    "AlterTableStmt": _alter_table,
    "VariableSetStmt": _set,
    "VariableShowStmt": _show,
    "ConstraintsSetStmt": _set_constraints,
    "CreateStmt": _create_table,
    "DropStmt": _drop,
    "DeclareCursorStmt": _declare,
    "FetchStmt": _fetch,
    "ClosePortalStmt": _close,
    "PrepareStmt": _prepare,
    "ExecuteStmt": _execute,
    "DeallocateStmt": _deallocate,
    "DiscardStmt": _discard,
    "ListenStmt": _listen("listen"),
    "UnlistenStmt": _listen("unlisten"),
    "NotifyStmt": _plain("notify"),
    "LockStmt": _plain("lock"),
    "LoadStmt": _load,
    "TransactionStmt": _transaction,
}
