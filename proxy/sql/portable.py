"""What a columnar node understands of PostgreSQL's SQL, by name; no more is sent there.

Owns two questions about a read: may it fail there (fragile), and may a result column have another type
there than on the primary, so that a client would decode it wrongly (retyped). Both are answered on the
safe side, from DuckDB as the usual columnar node. Called by `verdicts`.
"""

from __future__ import annotations

from .grammar import Survey
from .model import names

FUNCTIONS = names(
    """
    abs acos array_agg ascii asin atan atan2 avg bit_and bit_length bit_or bool_and bool_or btrim ceil ceiling
    char_length character_length chr coalesce concat concat_ws corr cos count covar_pop covar_samp cume_dist
    date_part date_trunc degrees dense_rank exp extract first_value floor generate_series greatest initcap lag
    last_value lead least left length like_escape ln log log10 lower lpad ltrim max md5 min mod nth_value ntile
    nullif now octet_length overlay percent_rank percentile_cont percentile_disc pi position power radians rank
    regexp_replace regr_count repeat replace reverse right round row_number rpad rtrim sign sin split_part sqrt
    stddev stddev_pop stddev_samp string_agg strpos substr substring sum tan translate trim trunc unnest upper
    var_pop var_samp variance
    """
)
"""Functions that exist there by the same name and meaning."""

TYPES = names(
    """
    bool bpchar date decimal float4 float8 int2 int4 int8 interval numeric text time timestamp timestamptz uuid
    varchar
    """
)

OPERATORS = names("= <> != < <= > >= + - * / % || ~~ !~~ ~~* !~~* BETWEEN") | {
    "NOT BETWEEN",
    "NOT BETWEEN SYMMETRIC",
    "BETWEEN SYMMETRIC",
}

_FOREIGN_NODES = frozenset({"RangeTableFunc", "XmlExpr", "XmlSerialize", "RangeTableSample", "CTECycleClause"})
_SAME_TYPE = names(
    """
    abs bool_and bool_or btrim char_length coalesce concat count dense_rank first_value greatest initcap lag
    last_value lead least left length like_escape lower lpad ltrim max md5 min nth_value nullif rank repeat
    replace reverse right row_number rpad rtrim split_part string_agg substr substring trim upper
    """
)
"""Functions whose result has the same type there, or the type of an argument."""


def is_fragile(seen: Survey) -> bool:
    """Whether a read uses a function, type, operator, relation or form that a columnar node may lack."""
    return (
        any(name not in FUNCTIONS for _, name, _ in seen.calls)
        or not seen.types <= TYPES
        or not seen.operators <= OPERATORS
        or not seen.nodes.isdisjoint(_FOREIGN_NODES)
        or any(node.startswith("Json") for node in seen.nodes)
        or any(
            schema in ("pg_catalog", "information_schema") or name.startswith("pg_") for schema, name in seen.relations
        )
    )


def is_retyped(seen: Survey) -> bool:
    """Whether the type of a result column may differ: an unknown function, or arithmetic, anywhere.

    Sums and averages of numbers, quotients and parts of dates have other types in DuckDB.
    """
    return any(name not in _SAME_TYPE for _, name, _ in seen.calls) or not seen.operators.isdisjoint("/%")
