"""What a columnar node understands of PostgreSQL's SQL, by name; no more is sent there.

Owns three questions about a read: may it fail or have other values there (fragile), may a result column have another
type there than on the primary, so that a client would decode it wrongly (retyped), and what of it depends on
collations, since a columnar node compares texts by their bytes. All are answered on the safe side, from DuckDB as the
usual columnar node. Called by `verdicts`.
"""

from __future__ import annotations

from .grammar import TEXTS, Survey, Tree
from .model import names

FUNCTIONS = names(
    """
    abs acos array_agg ascii asin atan atan2 avg bit_and bit_length bit_or bool_and bool_or btrim ceil ceiling
    char_length character_length chr coalesce corr cos count covar_pop covar_samp cume_dist
    date_part date_trunc degrees dense_rank exp extract first_value floor generate_series greatest initcap lag
    last_value lead least left length like_escape ln log log10 lower lpad ltrim max md5 min mod nth_value ntile
    nullif now octet_length overlay percent_rank percentile_cont percentile_disc pi position power radians rank
    regexp_replace regr_count repeat replace reverse right round row_number rpad rtrim sign sin split_part sqrt
    stddev stddev_pop stddev_samp string_agg strpos substr substring sum tan translate trim trunc unnest upper
    var_pop var_samp variance
    """
)
"""Functions that exist there by the same name and meaning. Not concat: it has numbers and dates written otherwise."""

TYPES = names(
    """
    bool bpchar date decimal float4 float8 int2 int4 int8 interval numeric text time timestamp timestamptz uuid
    varchar
    """
)

BY_VALUE = names("date_part extract substr substring")
"""Functions that have another result there for some values of their arguments (see `_differs`)."""

OPERATORS = names("= <> != < <= > >= + - * / % ~~ !~~ ~~* !~~* BETWEEN") | {
    "NOT BETWEEN",
    "NOT BETWEEN SYMMETRIC",
    "BETWEEN SYMMETRIC",
}

_FOREIGN_NODES = frozenset(
    {"RangeTableFunc", "XmlExpr", "XmlSerialize", "RangeTableSample", "CTECycleClause", "CollateClause"}
)
_SAME_TYPE = names(
    """
    abs bool_and bool_or btrim char_length coalesce concat count dense_rank first_value greatest initcap lag
    last_value lead least left length like_escape lower lpad ltrim max md5 min nth_value nullif rank repeat
    replace reverse right row_number rpad rtrim split_part string_agg substr substring trim upper
    """
)
"""Functions whose result has the same type there, or the type of an argument."""


def is_fragile(seen: Survey) -> bool:
    """Whether a read uses a function, type, operator, relation or form that a columnar node may lack, or that has
    another result there.

    A cast hides the type of what is cast: an average is a floating-point number there, and rounded otherwise.
    """
    return (
        any(name not in FUNCTIONS or _differs(name, call) for _, name, call in seen.calls)
        or not seen.columns.isdisjoint(seen.aliases.union(name for _, name in seen.relations))  # a whole row
        or any(name in TEXTS or not _keeps_its_value(what) for name, what in seen.casts)
        or not seen.types <= TYPES
        or not seen.operators <= OPERATORS
        or not seen.nodes.isdisjoint(_FOREIGN_NODES)
        or any(node.startswith("Json") for node in seen.nodes)
        or any(
            schema in ("pg_catalog", "information_schema") or name.startswith("pg_") for schema, name in seen.relations
        )
    )


_WHOLE_FIELDS = frozenset(("year", "quarter", "month", "week", "day", "doy", "dow", "isodow", "hour", "minute"))
"""Parts of a moment that are whole numbers everywhere."""


def _differs(name: str, call: Tree) -> bool:
    """Whether a call has another result there, by its arguments: a floating-point number halfway between two whole
    ones is rounded to the even one here and away from zero there (with a number of digits it is no such number);
    a substring's start below 1 lies in front of the text here and counts from its end there; seconds have no fraction
    there."""
    arguments = call.get("args", [])
    if name == "round":
        return len(arguments) < 2
    if name in ("extract", "date_part"):
        field = arguments[0].get("A_Const", {}).get("sval", {}).get("sval", "") if arguments else ""
        return field.lower() not in _WHOLE_FIELDS
    if name in ("substr", "substring"):
        start = arguments[1].get("A_Const", {}).get("ival", {}) if len(arguments) > 1 else {}
        return not start.get("ival", 0) > 0
    return False


def _keeps_its_value(cast: Tree) -> bool:
    """Whether what is cast has the same value there, so that it is rounded alike."""
    if "FuncCall" in cast:
        name = cast["FuncCall"]["funcname"][-1]["String"]["sval"]
        return name in _SAME_TYPE or name == "sum"
    return "ColumnRef" in cast


def columns(seen: Survey) -> set[str]:
    """The columns that a read names; "*" where there may be others, "" where a constant text is among its values."""
    named = seen.columns | seen.fields
    if "colnames" in seen.nodes:
        named.add("*")  # FROM t AS t(a, b)
    if seen.labelled:
        named.add("")
    return named


def orders(seen: Survey) -> bool:
    """Whether a read does anything that depends on a collation, besides telling equal texts apart."""
    return (
        not seen.nodes.isdisjoint(_SORTING_NODES)
        or not seen.operators.isdisjoint(_SORTING_OPERATORS)
        or any(name in _SORTING for _, name, _ in seen.calls)
    )


_SORTING_NODES = frozenset({"MinMaxExpr", "agg_order", "orderClause", "sortClause"})
_SORTING_OPERATORS = names("< > <= >= ~~* !~~*")
_SORTING = names("initcap lower max min percentile_disc upper")


def is_retyped(seen: Survey) -> bool:
    """Whether the type of a result column may differ: an unknown function, or arithmetic, anywhere.

    Sums and averages of numbers, quotients and parts of dates have other types in DuckDB.
    """
    return any(name not in _SAME_TYPE for _, name, _ in seen.calls) or not seen.operators.isdisjoint("/%")
