"""How PostgreSQL would name, and for sum() type, the columns of a statement, read from DuckDB's own tree of it.

Pure: a tree of `json_serialize_sql` in, names out. The rules of names are PostgreSQL's (FigureColname in its
parse_target.c): an alias, else the column, else the function, else the type of a cast, else `?column?`.
Called by `engine`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Tree = Mapping[str, Any]
UNNAMED = "?column?"
_FUNCTIONS = {"count_star": "count", "list_value": "array", "date_part": "date_part"}
_TYPE_NAMES = {
    "integer": "int4",
    "int": "int4",
    "bigint": "int8",
    "smallint": "int2",
    "real": "float4",
    "float": "float4",
    "double": "float8",
    "double precision": "float8",
    "boolean": "bool",
    "decimal": "numeric",
    "timestamp with time zone": "timestamptz",
}


def select_list(tree: Tree) -> Sequence[Tree] | None:
    """The output expressions of the first statement; of a set operation those of its left side."""
    statements: Sequence[Tree] = tree.get("statements") or ()
    node: Tree | None = statements[0].get("node") if statements else None
    while node is not None and "select_list" not in node:
        node = node.get("left") or node.get("child") or (node.get("children") or [None])[0]
    return node["select_list"] if node is not None else None


def names(tree: Tree, sql: str, columns: Sequence[str]) -> list[str]:
    """PostgreSQL's names for the columns that DuckDB calls `columns`."""
    targets = select_list(tree)
    if targets is None:
        return list(columns)
    stars = [i for i, target in enumerate(targets) if target["class"] == "STAR"]
    if len(stars) > 1:
        return list(columns)
    named = [_name(target, sql)[0] or UNNAMED for target in targets]
    if stars:
        at, width = stars[0], len(columns) - (len(targets) - 1)
        named[at : at + 1] = columns[at : at + width]
    return named if len(named) == len(columns) else list(columns)


def _name(expr: Tree, sql: str) -> tuple[str, bool]:
    """A name, and whether it is a strong one (it goes through a cast). Empty is none."""
    if expr.get("alias"):
        return str(expr["alias"]), True
    kind = expr["class"]
    if kind == "COLUMN_REF":
        return str(expr["column_names"][-1]), True
    if kind in ("FUNCTION", "WINDOW"):
        if expr.get("is_operator"):
            return "", False
        name = str(expr["function_name"]).lower()
        at = expr.get("query_location", 0)
        if name == "date_part" and re.match(r"extract\b", sql[at : at + 8], re.IGNORECASE):
            name = "extract"
        return _FUNCTIONS.get(name, name), True
    if kind == "CAST":
        name, strong = _name(expr["child"], sql)
        if strong:
            return name, True
        written = str((expr.get("type_expr") or {}).get("type_name", "")).lower()
        return _TYPE_NAMES.get(written, written) or name, False
    if kind == "CASE":
        name, strong = _name(expr["else_expr"], sql)
        return (name, True) if strong else ("case", False)
    if kind == "OPERATOR" and expr["type"] == "OPERATOR_COALESCE":
        return "coalesce", True
    if kind == "SUBQUERY":
        if expr.get("subquery_type") == "EXISTS":
            return "exists", True
        inner = select_list({"statements": [expr["subquery"]]})
        return _name(inner[0], sql) if expr.get("subquery_type") == "SCALAR" and inner else ("", False)
    return "", False


def summands(tree: Tree, wanted: Sequence[int]) -> dict[str, Any] | None:
    """A tree that selects, without grouping, what the sums in columns `wanted` add up: its column types tell
    sum(int) (int8 in PostgreSQL) from sum(bigint) (numeric), which DuckDB types alike. None if a wanted
    column is no plain sum."""
    statements: Sequence[Tree] = tree.get("statements") or ()
    node = statements[0].get("node") if statements else None
    if node is None or node.get("type") != "SELECT_NODE":
        return None
    targets = node["select_list"]
    if any(target["class"] == "STAR" for target in targets):
        return None
    arguments = []
    for at in wanted:
        target: Tree = targets[at] if at < len(targets) else {}
        summed = target.get("arguments") or target.get("children")
        if target.get("function_name") != "sum" or not summed:
            return None
        arguments.append(summed[0].get("expression", summed[0]))
    plain = {
        **node,
        **{"select_list": arguments, "modifiers": [], "group_expressions": [], "group_sets": []},
        **{"aggregate_handling": "STANDARD_HANDLING", "having": None, "qualify": None},
    }
    return {**tree, "statements": [{**statements[0], "node": plain}]}
