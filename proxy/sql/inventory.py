"""A database's own functions, views, policies, operators and what else runs code, weighed into a `Catalogue`. Pure.

Owns the queries that read them from a node, and the rules by which one is harmless: what it is made of is looked at
as a statement is (`verdicts`), and what that uses in turn has to be harmless too. Volatility marks are promises that
PostgreSQL doesn't check (manual, 38.7: a STABLE function may call nextval()), so for SQL and PL/pgSQL the body
decides and the mark is not asked; for other languages the mark is all there is, and it is believed of extensions
whose functions are known for keeping it.

By the same looks it finds what is watched: names by which code is run that may leave something behind in the session.

Called by the controller's reader of catalogues and by `pgtrident classify --dsn`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from . import lexical
from .catalogue import HARMLESS, Catalogue, is_timed, is_watched, reason_in, worst
from .grammar import Unparsed, parse, parse_plpgsql
from .model import Class, Effect, Uses, names
from .verdicts import is_unsafe, judge, weigh

Row = list[str | None]
Rows = Mapping[str, list[Row]]

MAX_ROWS = 100_000
"""Of one query; a database that has more gets no catalogue."""
MAX_BODY = 64 * 1024
"""Characters of a definition; a longer one is not looked at and needs the primary."""

PREPARE = ("SET search_path = ''", "SET lock_timeout = '50ms'")
"""Sent first, so that what the node prints is written with its schemas; and so that no DDL is ended by a deadlock with
it (printing a definition locks what is named there): this gives up long before deadlock_timeout."""

_USERS = 16384
"""FirstNormalObjectId (access/transam.h): what has a smaller oid came with the database cluster."""

QUERIES = {
    "relations": f"""\
SELECT n.nspname, c.relname, c.relkind, c.relpersistence,
 CASE WHEN c.relkind = 'v' AND c.oid >= {_USERS} THEN pg_catalog.left(pg_catalog.pg_get_viewdef(c.oid), {MAX_BODY}) END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND n.nspname !~ '^pg_(toast|temp_)'""",
    "parents": """\
WITH RECURSIVE up(ancestor, kind) AS (
 SELECT i.inhparent, CASE c.relkind WHEN 'f' THEN 'f' ELSE 'u' END
 FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
 WHERE c.relkind = 'f' OR c.relpersistence = 'u'
 UNION SELECT i.inhparent, up.kind FROM pg_catalog.pg_inherits i JOIN up ON up.ancestor = i.inhrelid)
SELECT n.nspname, c.relname, up.kind
FROM up JOIN pg_catalog.pg_class c ON c.oid = up.ancestor JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace""",
    "policies": """\
SELECT n.nspname, c.relname, pg_catalog.pg_get_expr(p.polqual, p.polrelid)
FROM pg_catalog.pg_policy p JOIN pg_catalog.pg_class c ON c.oid = p.polrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relrowsecurity AND p.polcmd IN ('*', 'r') AND p.polqual IS NOT NULL""",
    "isolation": """\
SELECT 'server' FROM pg_catalog.pg_settings
WHERE name = 'default_transaction_isolation' AND reset_val <> 'read committed'
UNION ALL SELECT 'role' FROM pg_catalog.pg_db_role_setting, pg_catalog.unnest(setconfig) AS s
WHERE s ILIKE 'default_transaction_isolation=%' AND s NOT ILIKE '%=read committed'""",
    "triggers": f"""\
SELECT n.nspname, c.relname, pn.nspname, p.proname,
 CASE WHEN t.tgqual IS NOT NULL THEN pg_catalog.left(pg_catalog.pg_get_triggerdef(t.oid), {MAX_BODY}) END
FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid JOIN pg_catalog.pg_namespace pn ON pn.oid = p.pronamespace
WHERE t.tgenabled <> 'D' AND (NOT t.tgisinternal OR t.tgfoid >= {_USERS})""",
    "rules": f"""\
SELECT n.nspname, c.relname, pg_catalog.left(pg_catalog.pg_get_ruledef(r.oid), {MAX_BODY})
FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE r.oid >= {_USERS} AND r.rulename <> '_RETURN' AND r.ev_enabled <> 'D'""",
    "cascades": """\
SELECT n.nspname, c.relname, tn.nspname, t.relname
FROM (SELECT inhparent, inhrelid FROM pg_catalog.pg_inherits
 UNION SELECT confrelid, conrelid FROM pg_catalog.pg_constraint
 WHERE contype = 'f' AND (confupdtype IN ('c', 'n', 'd') OR confdeltype IN ('c', 'n', 'd'))) AS e(here, there)
JOIN pg_catalog.pg_class c ON c.oid = e.here JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class t ON t.oid = e.there JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
WHERE c.relkind IN ('r', 'p', 'f')""",
    "expressions": f"""\
SELECT e.schema, e.name, pg_catalog.left(e.expression, {MAX_BODY}) FROM (
 SELECT n.nspname, c.relname, x.expression
 FROM (SELECT adrelid, pg_catalog.pg_get_expr(adbin, adrelid) FROM pg_catalog.pg_attrdef
  UNION ALL SELECT conrelid, pg_catalog.pg_get_expr(conbin, conrelid)
  FROM pg_catalog.pg_constraint WHERE contype = 'c' AND conrelid <> 0
  UNION ALL SELECT polrelid, pg_catalog.pg_get_expr(polqual, polrelid) FROM pg_catalog.pg_policy
  UNION ALL SELECT polrelid, pg_catalog.pg_get_expr(polwithcheck, polrelid) FROM pg_catalog.pg_policy
 ) AS x(relation, expression)
 JOIN pg_catalog.pg_class c ON c.oid = x.relation JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 UNION ALL SELECT NULL, NULL, pg_catalog.pg_get_expr(typdefaultbin, 0) FROM pg_catalog.pg_type
 WHERE oid >= {_USERS} AND typdefaultbin IS NOT NULL) AS e(schema, name, expression)
WHERE e.expression ~ '[[:alnum:]_"][(]' AND e.expression !~ '^nextval[(]''[^'']*''::regclass[)]$'""",
    "functions": f"""\
SELECT n.nspname, p.proname, p.prokind, p.provolatile, l.lanname, e.extname,
 pg_catalog.left(CASE l.lanname WHEN 'plpgsql' THEN pg_catalog.pg_get_functiondef(p.oid)
  WHEN 'sql' THEN coalesce(pg_catalog.pg_get_function_sqlbody(p.oid), p.prosrc)
  WHEN 'internal' THEN p.prosrc END, {MAX_BODY}),
 pg_catalog.pg_get_expr(p.proargdefaults, 0),
 p.pronargs - p.pronargdefaults <= 1 AND p.pronargs >= 1,
 (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(fn.nspname, f.proname, f.provolatile))
  FROM pg_catalog.pg_aggregate a, pg_catalog.pg_proc f JOIN pg_catalog.pg_namespace fn ON fn.oid = f.pronamespace
  WHERE a.aggfnoid = p.oid AND f.oid IN (a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn, a.aggdeserialfn,
   a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn)),
 pg_catalog.array_to_string(p.proconfig, E'\\n')
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
LEFT JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid
 AND d.deptype = 'e' AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass
LEFT JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
WHERE p.oid >= {_USERS} AND p.prokind <> 'p' AND n.nspname !~ '^pg_temp_'""",
    "operators": f"""\
SELECT n.nspname, o.oprname, pn.nspname, p.proname, p.provolatile
FROM pg_catalog.pg_operator o JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
JOIN pg_catalog.pg_operator i ON i.oid IN (o.oid, o.oprnegate, o.oprcom)
JOIN pg_catalog.pg_proc p ON p.oid = i.oprcode JOIN pg_catalog.pg_namespace pn ON pn.oid = p.pronamespace
WHERE o.oid >= {_USERS} OR o.oprnegate >= {_USERS} OR o.oprcom >= {_USERS}""",
    "collations": f"""\
WITH own AS (SELECT coalesce(pg_catalog.to_jsonb(d) ->> 'datlocprovider', 'c') AS provider, d.datcollate AS locale
 FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()),
 known AS (SELECT c.oid, NOT c.collisdeterministic AS alike,
  CASE c.collprovider WHEN 'd' THEN own.provider ELSE c.collprovider::text END AS provider,
  CASE c.collprovider WHEN 'd' THEN own.locale ELSE c.collcollate END AS locale
  FROM pg_catalog.pg_collation c, own),
 other AS (SELECT oid, alike FROM known
  WHERE provider <> 'b' AND (provider <> 'c' OR pg_catalog.lower(locale) NOT IN ('c', 'posix', 'c.utf8', 'c.utf-8')))
SELECT a.attname, pg_catalog.bool_or(coalesce(other.alike, t.typtype <> 'e'))::text
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid LEFT JOIN other ON other.oid = a.attcollation
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attrelid >= {_USERS} AND a.attnum > 0
 AND (other.oid IS NOT NULL OR t.oid >= {_USERS} AND (t.typtype <> 'd' OR t.typbasetype >= {_USERS}))
GROUP BY a.attname
UNION ALL SELECT '', 'false' FROM other WHERE oid = 100""",
    "domains": f"""\
SELECT pg_catalog.pg_get_expr(c.conbin, 0) FROM pg_catalog.pg_constraint c WHERE c.contypid >= {_USERS}""",
    "implied": f"""\
SELECT pn.nspname, p.proname, p.provolatile
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace pn ON pn.oid = p.pronamespace
WHERE p.oid >= {_USERS} AND p.oid IN (
 SELECT c.castfunc FROM pg_catalog.pg_cast c
 UNION ALL SELECT a.amproc FROM pg_catalog.pg_amproc a
 UNION ALL SELECT o.oprcode FROM pg_catalog.pg_amop a JOIN pg_catalog.pg_operator o ON o.oid = a.amopopr
 UNION ALL SELECT pg_catalog.unnest(ARRAY[r.rngcanonical, r.rngsubdiff]::oid[]) FROM pg_catalog.pg_range r
 UNION ALL SELECT d.refobjid FROM pg_catalog.pg_depend d
  WHERE d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.deptype = 'n' AND (
   d.classid IN ('pg_catalog.pg_class'::pg_catalog.regclass, 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass)
   OR d.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass AND d.objid IN (
    SELECT c.oid FROM pg_catalog.pg_constraint c JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.conrelid))
 UNION ALL SELECT pg_catalog.unnest(ARRAY[o.oprcode, n.oprcode, c.oprcode]::oid[])
 FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_operator o ON o.oid = d.refobjid
 LEFT JOIN pg_catalog.pg_operator n ON n.oid = o.oprnegate LEFT JOIN pg_catalog.pg_operator c ON c.oid = o.oprcom
 WHERE d.refclassid = 'pg_catalog.pg_operator'::pg_catalog.regclass AND d.deptype = 'n'
  AND d.classid IN ('pg_catalog.pg_class'::pg_catalog.regclass, 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass)
 UNION ALL SELECT t.functions FROM (
  SELECT pg_catalog.unnest(ARRAY[typinput, typoutput, typreceive, typsend, typmodin, typmodout]::oid[]) AS functions
  FROM pg_catalog.pg_type WHERE oid >= {_USERS}) t
  WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_depend e WHERE e.objid = t.functions AND e.deptype = 'e'
   AND e.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass))""",
}
"""What is asked of a node, one result each; `catalogue_of` takes the rows, every value as text. Manual, chapter 53."""


MARK = f"""\
SELECT {
    ", ".join(
        f"(SELECT pg_catalog.concat_ws('.', pg_catalog.count(*), pg_catalog.sum(pg_catalog.hashtextextended("
        f"pg_catalog.concat_ws(' ', {key}, t.xmin), 0))) FROM pg_catalog.{table} t WHERE {condition})"
        for table, key, condition in (
            ("pg_proc", "t.oid", f"t.oid >= {_USERS}"),
            ("pg_class", "t.oid", "t.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')"),
            (
                "pg_attribute",
                "t.attrelid, t.attnum",
                f"t.attrelid >= {_USERS} AND (t.attcollation <> 0 OR t.atttypid >= {_USERS})",
            ),
            ("pg_collation", "t.oid", f"t.oid >= {_USERS}"),
            ("pg_namespace", "t.oid", "true"),
            ("pg_rewrite", "t.oid", f"t.oid >= {_USERS}"),
            ("pg_policy", "t.oid", "true"),
            ("pg_inherits", "t.inhrelid", "true"),
            ("pg_trigger", "t.oid", f"NOT t.tgisinternal OR t.tgfoid >= {_USERS}"),
            ("pg_attrdef", "t.oid", "true"),
            ("pg_operator", "t.oid", f"t.oid >= {_USERS} OR t.oprnegate >= {_USERS} OR t.oprcom >= {_USERS}"),
            ("pg_cast", "t.oid", f"t.oid >= {_USERS}"),
            ("pg_amop", "t.oid", f"t.oid >= {_USERS}"),
            ("pg_amproc", "t.oid", f"t.oid >= {_USERS}"),
            ("pg_type", "t.oid", f"t.oid >= {_USERS}"),
            ("pg_constraint", "t.oid", "true"),
            ("pg_index", "t.indexrelid", f"t.indexrelid >= {_USERS}"),
            ("pg_statistic_ext", "t.oid", "true"),
            ("pg_range", "t.rngtypid", f"t.rngtypid >= {_USERS}"),
            ("pg_extension", "t.oid", "true"),
            ("pg_db_role_setting", "t.setdatabase, t.setrole", "true"),
        )
    )
}"""
"""One row that changes whenever an answer to QUERIES may: every version of every row has a mark of its own (xmin).
With 10,000 relations it takes some 10 ms."""


def catalogue_of(rows: Rows) -> Catalogue:
    """Return the catalogue of a database from the rows of QUERIES. Takes 50-500 us for each function and view."""
    things: list[_Thing] = [
        *_relations(rows["relations"], rows["parents"], rows["policies"]),
        *_functions(rows["functions"], {row[1] or "" for row in rows["relations"]}),
        *_operators(rows["operators"]),
        *_written(rows),
    ]
    catalogue = Catalogue(version=_mark(rows))
    hidden = [_Code(uses=[_of_function(row)]) for row in rows["implied"]]
    hidden += [_expression(condition) for (condition,) in rows["domains"]]
    _find_reasons(catalogue, things)
    reasons = [one.reason for one in hidden]
    reasons += [reason_in(catalogue, uses) for one in hidden for uses in one.uses]
    _find_watched(catalogue, things)
    hidden += [_expression(text) for _, name, text in rows["expressions"] if name is None]
    is_hidden = any(one.watched or any(is_watched(catalogue, uses) for uses in one.uses) for one in hidden)
    watched = msgspec.structs.replace(catalogue.watched, hidden=is_hidden)
    collated = {name or "": alike == "true" for name, alike in rows["collations"]}
    if collated:
        collated["*"] = any(collated.values())
    _find_timed(catalogue, things)
    return msgspec.structs.replace(
        catalogue, collated=collated, hidden=worst(reasons), watched=watched, isolated=bool(rows["isolation"])
    )


class _Code:
    """What some code is: why it needs the primary by itself, whether it may touch the session by itself (or can't be
    read), and what it uses in turn."""

    __slots__ = ("reason", "timed", "uses", "watched")

    def __init__(
        self, reason: str = HARMLESS, uses: Iterable[Uses] = (), watched: bool = False, timed: bool = False
    ) -> None:
        self.reason = reason
        self.uses = list(uses)
        self.watched = watched
        self.timed = timed
        """Whether it may tell when its transaction began, or which one it is."""

    def add(self, more: _Code) -> None:
        """It does that too."""
        self.reason = worst([self.reason, more.reason])
        self.uses += more.uses
        self.watched = self.watched or more.watched
        self.timed = self.timed or more.timed


class _Thing:
    """Something with a name, and the code that it stands for. Of kind "written" is what runs when a relation is
    changed: that decides nothing but whether it is watched."""

    __slots__ = ("code", "is_field", "kind", "name", "schema")

    def __init__(self, kind: str, schema: str | None, name: str | None, code: _Code) -> None:
        self.kind = kind
        self.schema = schema or ""
        self.name = name or ""
        self.code = code
        self.is_field = False


def _find_reasons(catalogue: Catalogue, things: list[_Thing]) -> None:
    """Say why names need the primary."""
    tables = {
        "function": catalogue.functions,
        "relation": catalogue.relations,
        "operator": catalogue.operators,
    }

    def note(thing: _Thing) -> bool:
        # One name may stand for several things in a schema (overloads): the worst of them counts.
        reason = thing.code.reason
        schemas = tables[thing.kind].setdefault(thing.name, {})
        schemas[thing.schema] = worst([schemas.get(thing.schema, HARMLESS), reason])
        if thing.is_field and reason:
            catalogue.fields[thing.name] = worst([catalogue.fields.get(thing.name, HARMLESS), reason])
        return bool(reason)

    def weigh(thing: _Thing) -> bool:
        thing.code.reason = next((r for uses in thing.code.uses if (r := reason_in(catalogue, uses))), HARMLESS)
        return bool(thing.code.reason) and note(thing)

    _spread([thing for thing in things if thing.kind in tables and not note(thing)], weigh)


def _find_watched(catalogue: Catalogue, things: list[_Thing]) -> None:
    """Say by which names code is run that may touch the session."""
    watched = catalogue.watched
    tables = {
        "function": watched.functions,
        "relation": watched.read,
        "written": watched.written,
        "operator": watched.operators,
    }

    def weigh(thing: _Thing) -> bool:
        if not (thing.code.watched or any(is_watched(catalogue, uses) for uses in thing.code.uses)):
            return False
        schemas = tables[thing.kind].setdefault(thing.name, [])
        if thing.schema not in schemas:
            schemas.append(thing.schema)
        if thing.is_field:
            watched.fields.add(thing.name)
        return True

    _spread(things, weigh)


def _find_timed(catalogue: Catalogue, things: list[_Thing]) -> None:
    """Say by which names the beginning of the transaction may be told."""

    def weigh(thing: _Thing) -> bool:
        if not (thing.code.timed or any(is_timed(catalogue, uses) for uses in thing.code.uses)):
            return False
        catalogue.timed.add(thing.name)
        return True

    _spread([thing for thing in things if thing.kind != "written"], weigh)


def _spread(things: list[_Thing], weigh: Callable[[_Thing], bool]) -> None:
    """What uses something that is found out uses that too, until nothing changes."""
    while things:
        left = [thing for thing in things if not weigh(thing)]
        if len(left) == len(things):
            return
        things = [thing for thing in left if thing.code.uses]


def _mark(rows: Rows) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for name in QUERIES:
        for row in sorted(rows[name], key=repr):
            digest.update(repr(row).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


# --- relations ---------------------------------------------------------------------------------------

_KINDS = {"S": "sequence", "f": "foreign_table"}
"""A sequence is logged ahead, so a standby shows a value that was not reached yet; what a foreign table reads is
found from the node that reads it."""
_PARENTS = {"u": "unlogged", "f": "foreign_table"}


def _relations(relations: list[Row], parents: list[Row], policies: list[Row]) -> Iterator[_Thing]:
    for schema, name, kind, persistence, definition in relations:
        code = _statements(definition) if definition is not None else _Code()
        if definition is not None:
            # It may be changed like a table; then what it is made of is.
            yield _Thing("written", schema, name, _Code(uses=[Uses(written=uses.relations) for uses in code.uses]))
        reason = "unlogged" if persistence == "u" else _KINDS.get(kind or "", HARMLESS)
        code.reason = reason or code.reason
        code.timed = definition is not None and _tells_time(definition)
        yield _Thing("relation", schema, name, code)
    for schema, name, kind in parents:
        yield _Thing("relation", schema, name, _Code(_PARENTS[kind or "u"]))
    for schema, name, condition in policies:
        code = _expression(condition)
        code.timed = _tells_time(condition or "")
        yield _Thing("relation", schema, name, code)


def _written(rows: Rows) -> Iterator[_Thing]:
    """What runs when a relation is changed."""
    for schema, name, *function, definition in rows["triggers"]:
        code = _Code(uses=[_of_trigger(*function)])
        if definition is not None:
            code.add(_within(definition))
        yield _Thing("written", schema, name, code)
    for schema, name, definition in rows["rules"]:
        yield _Thing("written", schema, name, _within(definition or ""))
    for schema, name, *there in rows["cascades"]:
        yield _Thing("written", schema, name, _Code(uses=[Uses(written=frozenset({(there[0] or "", there[1] or "")}))]))
    for schema, name, expression in rows["expressions"]:
        if name is not None:
            yield _Thing("written", schema, name, _expression(expression))


def _of_trigger(schema: str | None, name: str | None) -> Uses:
    """The use of a trigger's function. PostgreSQL's own leave nothing behind."""
    return Uses() if schema == "pg_catalog" else Uses(functions=frozenset({(schema or "", name or "")}))


# --- functions ---------------------------------------------------------------------------------------

_KEPT = names(
    """
    btree_gin btree_gist citext cube dict_int dict_xsyn earthdistance fuzzystrmatch h3 hstore intarray ip4r isn ltree
    pg_trgm pgcrypto postgis postgis_raster seg unaccent uuid-ossp vector
    """
)
"""Extensions whose functions that are marked immutable or stable read nothing but their arguments and tables."""
_VALUES = names(
    """
    gen_random_bytes gen_random_uuid gen_salt pgp_pub_encrypt pgp_pub_encrypt_bytea pgp_sym_encrypt
    pgp_sym_encrypt_bytea uuid_generate_v1 uuid_generate_v1mc uuid_generate_v4
    """
)
"""Of these extensions: volatile, but their only effect is another value."""


_CONSTRUCTORS = names(
    "range_constructor2 range_constructor3 multirange_constructor0 multirange_constructor1 multirange_constructor2"
)
"""Made by CREATE TYPE ... AS RANGE."""
_SETTINGS = ("standard_conforming_strings=", "transaction_")
"""Settings of a function by which its body is read otherwise than here, or can't run on a standby."""


_TEMPORARY = ("search_path=pg_temp", 'search_path="pg_temp')
"""Settings of a function by which all that it creates is temporary."""
_TRIGGERS = names("autoinc insert_username lo_manage moddatetime")
"""Functions of extensions that triggers run, and that leave nothing behind in the session."""


def _functions(functions: list[Row], relations: Collection[str]) -> Iterator[_Thing]:
    for schema, name, kind, volatile, language, extension, body, defaults, is_field, parts, settings in functions:
        code = _Code()
        if kind == "a":
            code.uses = [_of_function(part) for part in json.loads(parts or "[]")]
        elif language == "plpgsql" and body is not None:
            code = _plpgsql(body, relations)
        elif language == "sql" and body is not None:
            code = _sql_body(body)
        elif language == "internal" and body in _CONSTRUCTORS:
            pass
        elif not _is_kept(name or "", volatile or "v", language or "", extension):
            code.reason = "volatile_function" if volatile == "v" else "unknown_function"
            code.watched = extension is None or (volatile == "v" and name not in _TRIGGERS)
        lines = settings.split("\n") if settings else []
        if any(line.startswith(_SETTINGS) for line in lines):
            code = _Code("unknown_function", watched=True)
        if any(line.startswith(_TEMPORARY) for line in lines):
            code.watched = True
        code.add(_expression(defaults))
        readable = language in ("sql", "plpgsql") and body is not None
        code.timed = _tells_time(f"{body} {defaults}") if readable else volatile != "i"
        thing = _Thing("function", schema, name, code)
        thing.is_field = is_field == "t"
        yield thing


def _is_kept(name: str, volatile: str, language: str, extension: str | None) -> bool:
    """Whether a function in a language that can't be read is harmless."""
    if language not in ("c", "internal") or extension is None:
        return False
    return volatile == "i" or (extension in _KEPT and (volatile == "s" or name in _VALUES))


def _of_function(function: Row) -> Uses:
    """The use of one function, given as (schema, name, volatility). An implementation that PostgreSQL has itself, for
    an operator say, is in no list of what statements call; it is harmless if it is immutable."""
    schema, name, volatile = function
    if schema == "pg_catalog" and volatile == "i" and not is_unsafe(name or ""):
        return Uses()
    return Uses(functions=frozenset({(schema or "", name or "")}))


def _operators(operators: list[Row]) -> Iterator[_Thing]:
    for schema, name, *function in operators:
        yield _Thing("operator", schema, name, _Code(uses=[_of_function(function)]))


# --- what code does ----------------------------------------------------------------------------------


_TIMED = re.compile(
    r"\b(?:now|today|tomorrow|yesterday|current_(?:date|time|timestamp)|localtime(?:stamp)?|transaction_timestamp|timenow|age"
    r"|current_setting|txid_\w+|pg_current_\w+)\b|\\",
    re.IGNORECASE,
)


def _tells_time(text: str) -> bool:
    """Whether some code's text may tell when its transaction began, or which one it is."""
    return _TIMED.search(text) is not None


_TOUCHES = ~(Effect.SEQUENCE | Effect.LOCAL | Effect.OWN_NAMES)
"""Effects of which something is left behind, or may be."""


def _statements(text: str) -> _Code:
    """What the statements of a text do."""
    if len(text) >= MAX_BODY or lexical.trouble(text) or lexical.too_many_parts(text.encode("utf-8", "surrogatepass")):
        return _Code("too_complex", watched=True)
    try:
        verdicts = [judge(node, body, "") for node, body in parse(text)]
    except Unparsed:
        return _Code("unknown_function", watched=True)
    reasons = [verdict.reason for verdict in verdicts if verdict.cls not in (Class.READ, Class.ANALYTIC)]
    uses = [used for verdict in verdicts if (used := verdict.used()) is not None]
    return _Code(worst(reasons), uses, any(verdict.effects & _TOUCHES for verdict in verdicts))


def _within(definition: str) -> _Code:
    """What a definition of a rule or trigger runs."""
    try:
        verdict = weigh([body for _, body in parse(definition)])
    except Unparsed:
        return _Code(watched=True)
    used = verdict.used()
    return _Code(uses=[used] if used is not None else [], watched=bool(verdict.effects & _TOUCHES))


def _expression(text: str | None) -> _Code:
    """The same for an expression, or several with commas between."""
    return _statements(f"SELECT {text}") if text else _Code()


def _sql_body(body: str) -> _Code:
    """The body of an SQL function: a string, or as PostgreSQL prints RETURN and BEGIN ATOMIC (manual, CREATE
    FUNCTION)."""
    bare = body.strip()
    if bare.upper().startswith("RETURN "):
        return _expression(bare[len("RETURN ") :])
    if bare.upper().startswith("BEGIN ATOMIC"):
        return _statements(bare[len("BEGIN ATOMIC") :].rstrip(";").rstrip().removesuffix("END"))
    return _statements(body)


_PLPGSQL_HARMLESS = names(
    """
    PLpgSQL_assign PLpgSQL_case_when PLpgSQL_condition PLpgSQL_diag_item PLpgSQL_exception PLpgSQL_exception_block
    PLpgSQL_expr PLpgSQL_function PLpgSQL_if_elsif PLpgSQL_raise_option PLpgSQL_rec PLpgSQL_recfield PLpgSQL_row
    PLpgSQL_stmt_assert PLpgSQL_stmt_assign PLpgSQL_stmt_block PLpgSQL_stmt_case PLpgSQL_stmt_execsql PLpgSQL_stmt_exit
    PLpgSQL_stmt_foreach_a PLpgSQL_stmt_fori PLpgSQL_stmt_forc PLpgSQL_stmt_fors PLpgSQL_stmt_getdiag PLpgSQL_stmt_if
    PLpgSQL_stmt_loop PLpgSQL_stmt_perform PLpgSQL_stmt_raise PLpgSQL_stmt_return PLpgSQL_stmt_return_next
    PLpgSQL_stmt_return_query PLpgSQL_stmt_while PLpgSQL_type PLpgSQL_var
    """
)
"""Nodes that do nothing themselves: what they run is in the SQL that they hold. Not among them: EXECUTE of a string,
CALL, COMMIT, and OPEN, whose cursor outlives the call."""
_PLPGSQL_CURSORS = names("PLpgSQL_stmt_close PLpgSQL_stmt_fetch PLpgSQL_stmt_open")
"""Of the others these leave nothing in the session: such a cursor ends with the transaction."""
_STATEMENT, _EXPRESSION = 0, 2
"""PLpgSQL_expr.parseMode; the others are assignments (parser/parser.h, RawParseMode)."""


def _plpgsql(definition: str, relations: Collection[str]) -> _Code:
    if len(definition) >= MAX_BODY:
        return _Code("too_complex", watched=True)
    if _gives_records_values(definition):
        return _Code("unknown_function", watched=True)
    try:
        tree = parse_plpgsql(definition)
    except Unparsed:
        # It knows no table, and so no field of a variable that is a row of one.
        try:
            tree = parse_plpgsql(_with_records(definition, relations))
        except Unparsed:
            return _Code("unknown_function", watched=True)
    code = _Code()
    stack: list[Any] = [tree]
    while stack:
        value = stack.pop()
        if type(value) is list:
            stack.extend(value)
        elif type(value) is dict:
            for key, child in value.items():
                if key == "PLpgSQL_expr":
                    code.add(_plpgsql_sql(child["query"], child.get("parseMode", _STATEMENT)))
                    continue
                if (key.startswith("PLpgSQL_") and key not in _PLPGSQL_HARMLESS) or key == "dynquery":
                    code.add(_Code("runs_sql", watched=key not in _PLPGSQL_CURSORS))
                stack.append(child)
    return code


_BODY = re.compile(r"\sAS (\$[^$]*\$)(.*)\1\s*$", re.DOTALL)


def _gives_records_values(definition: str) -> bool:
    """Whether a variable of type record is given a value where it is declared: the tree leaves that out."""
    body = _BODY.search(definition)
    if body is None:
        return True
    text = body[2]
    before = ""
    for _, start, end in lexical.tokens(text):
        word = text[start:end].lower()
        if before == "record" and word in (":", "=", "default"):
            return True
        if not (before == "record" and word in ("not", "null")):
            before = word
    return False


def _with_records(definition: str, relations: Collection[str]) -> str:
    """The same with variables of type record instead of a table's row, where they are given no value at once."""
    body = _BODY.search(definition)
    if body is None:
        return definition
    text = body[2]
    out: list[str] = []
    done = 0
    words: list[tuple[int, int]] = []
    declares = False
    for _, start, end in lexical.tokens(text):
        word = text[start:end].lower()
        if word in ("declare", "begin"):
            declares, words = word == "declare", []
        elif word != ";":
            words.append((start, end))
        elif declares and len(words) > 1:
            (first, _), (_, last) = words[1], words[-1]
            name = text[first:last].lower().removesuffix("%rowtype").rpartition(".")[2].strip('"')
            if name in relations:
                out += text[done:first], "record"
                done = last
            words = []
        else:
            words = []
    out.append(text[done:])
    return definition[: body.start(2)] + "".join(out) + definition[body.end(2) :]


def _plpgsql_sql(query: str, mode: int) -> _Code:
    if mode == _STATEMENT:
        return _statements(query)
    if mode == _EXPRESSION:
        return _expression(query)
    # target := expression, or target = expression; the target may have subscripts that are expressions too.
    depth = 0
    for _, start, end in lexical.tokens(query):
        mark = query[start:end]
        depth += (mark in "([") - (mark in ")]") if len(mark) == 1 else 0
        if depth == 0 and mark in (":", "=", ":="):
            code = _expression(query[end:].removeprefix("="))
            code.add(_expression(query[:start]))
            return code
    return _Code("unknown_function", watched=True)
