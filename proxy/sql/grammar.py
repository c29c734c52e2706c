"""PostgreSQL's own grammar: a text becomes trees, and a tree a survey of what it uses. Pure.

Owns the shape of the trees (libpg_query, the grammar of PostgreSQL 17) and is the only importer of
pgparse. It says what is there, not what that means for routing: that is `sql.verdicts`.

A tree is nested dicts and lists as libpg_query prints them: a node is {"FuncCall": {...}}, except where the
field's type is fixed ({"relation": {"relname": ...}}); a false or empty field is absent.
"""

from __future__ import annotations

from typing import Any

import pgparse

from .model import names

Tree = dict[str, Any]

READ_NODES = names(
    """
    A_ArrayExpr A_Expr A_Indices A_Indirection BoolExpr BooleanTest CTECycleClause
    CTESearchClause CaseExpr CaseWhen CoalesceExpr CollateClause ColumnDef CommonTableExpr FuncCall
    GroupingFunc GroupingSet JoinExpr JsonAggConstructor JsonArgument JsonArrayAgg JsonArrayConstructor
    JsonArrayQueryConstructor JsonBehavior JsonFuncExpr JsonIsPredicate JsonKeyValue JsonObjectAgg
    JsonObjectConstructor JsonOutput JsonParseExpr JsonReturning JsonScalarExpr JsonSerializeExpr JsonTable
    JsonTableColumn JsonTablePathSpec JsonValueExpr List MinMaxExpr NamedArgExpr NullTest RangeFunction
    RangeSubselect RangeTableFunc RangeTableFuncCol RangeTableSample RangeVar ResTarget RowExpr SQLValueFunction
    SelectStmt SortBy SubLink TypeCast TypeName WindowDef WithClause XmlExpr XmlSerialize
    """
)
"""What a plain read is made of, besides _LEAVES and column references; a node of any other kind is not
known to be harmless."""

_LEAVES = frozenset({"String", "A_Const", "A_Star", "ParamRef", "Integer", "Float", "Boolean", "BitString"})
"""Harmless, and nothing is below them."""
MODIFYING_NODES = frozenset({"InsertStmt", "UpdateStmt", "DeleteStmt", "MergeStmt"})
_RELATION_FIELDS = frozenset({"RangeVar", "relation", "rel", "view", "sequence", "typevar"})
_OPERATOR_FIELDS = {"A_Expr": "name", "SubLink": "operName", "SortBy": "useOp"}
_BETWEEN = ("<", "<=", ">", ">=")
"""What BETWEEN and NOT BETWEEN mean."""
_RESULTS = frozenset({"result", "defresult", "val", "valuesLists"})
"""Fields of CASE, of SELECT and of VALUES that results come from."""
TEXTS = frozenset({"bpchar", "char", "name", "text", "varchar"})
_JSON_AGGREGATES = frozenset({"JsonArrayAgg", "JsonObjectAgg"})


class Unparsed(Exception):
    """The text has no tree; `reason` is the fixed code that a classification shows for it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def parse(text: str) -> list[tuple[str, Tree]]:
    """Return (node kind, body) of each statement of the text; an empty list for an empty text.

    Raises Unparsed("syntax") for what the grammar refuses and Unparsed("too_deep") for a tree too deep to
    hold. The text must be without NUL (the parser would stop there) and valid Unicode.
    """
    try:
        statements = pgparse.parse(text)
    except pgparse.PGQueryError:
        raise Unparsed("syntax") from None
    except RecursionError:
        raise Unparsed("too_deep") from None
    return [next(iter(statement["stmt"].items())) for statement in statements if statement.get("stmt")]


def shape(text: str) -> str:
    """Return the fingerprint of a text: equal for texts that differ in constants only. "" for what has none."""
    try:
        return pgparse.fingerprint(text)  # type: ignore[no-any-return]
    except (pgparse.PGQueryError, RecursionError, ValueError):
        return ""


def normalized(text: str) -> str:
    """Return a text with parameters for its constants; "" for what the grammar refuses."""
    try:
        return pgparse.normalize(text)  # type: ignore[no-any-return]
    except (pgparse.PGQueryError, RecursionError, ValueError):
        return ""


def parse_plpgsql(definition: str) -> Any:
    """Return the tree of a CREATE FUNCTION ... LANGUAGE plpgsql: nested dicts and lists, SQL within it as text.

    Raises Unparsed for what the grammar refuses.
    """
    try:
        return pgparse.parse_pgsql(definition)
    except pgparse.PGQueryError:
        raise Unparsed("syntax") from None
    except RecursionError:
        raise Unparsed("too_deep") from None


class Survey:
    """What one tree uses, at any depth.

    Attributes:
        nodes: kinds of nodes and names of composite fields.
        calls: (schema or "", function, its FuncCall body).
        relations: (schema or "", name), references to CTEs among them.
        ctes: names that WITH gives; a reference to one may still mean a relation (in its own query).
        columns: last parts of column references; "*" for all columns of something.
        dotted: those of them that have a part in front: `relation.name` calls a function too.
        fields: names selected from a composite value: (expression).name, which calls a function if there
            is no such column (manual, 4.2.6 and 38.4.3).
        operators: names of operators; a qualified one is "schema.name".
        types: names of types in casts, without pg_catalog.
        samplers: TABLESAMPLE methods.
        written: (schema or "", name) of what INSERT, UPDATE, DELETE and MERGE change.
        grouped: there is a GROUP BY, HAVING or JSON aggregate.
        windowed: a function is called OVER a window.
        pointed: a WHERE or ON asks, on its top level, for a column equal to a constant or parameter.
        casts: (type, what is cast) where that is neither a constant nor a parameter.
        labelled: a constant text (or a parameter) stands where a result takes its values from.
        aliases: names given to what is read from.
    """

    __slots__ = (
        "aliases",
        "calls",
        "casts",
        "columns",
        "ctes",
        "dotted",
        "fields",
        "grouped",
        "labelled",
        "nodes",
        "operators",
        "pointed",
        "relations",
        "samplers",
        "types",
        "windowed",
        "written",
    )

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.calls: list[tuple[str, str, Tree]] = []
        self.relations: list[tuple[str, str]] = []
        self.ctes: set[str] = set()
        self.columns: set[str] = set()
        self.dotted: set[str] = set()
        self.fields: set[str] = set()
        self.operators: set[str] = set()
        self.types: set[str] = set()
        self.samplers: set[str] = set()
        self.written: set[tuple[str, str]] = set()
        self.grouped = False
        self.windowed = False
        self.pointed = False
        self.casts: list[tuple[str, Tree]] = []
        self.labelled = False
        self.aliases: set[str] = set()


def survey(tree: Any) -> Survey:
    """Walk a whole tree (without recursion) and say what it uses."""
    seen = Survey()
    stack: list[Any] = [tree]
    while stack:
        value = stack.pop()
        if type(value) is list:
            stack.extend(value)
            continue
        if type(value) is not dict:
            continue
        for key, child in value.items():
            kind = type(child)
            if (kind is not dict and kind is not list) or key in _LEAVES:
                continue
            if key == "ColumnRef":
                last = child["fields"][-1].get("String")
                if not last:
                    seen.columns.add("*")
                    continue
                seen.columns.add(last["sval"])
                if len(child["fields"]) > 1:
                    seen.dotted.add(last["sval"])
                continue
            stack.append(child)
            seen.nodes.add(key)
            if key == "FuncCall":
                seen.calls.append((*_qualified(child["funcname"]), child))
                seen.windowed = seen.windowed or "over" in child
            elif key in _RELATION_FIELDS:
                if kind is dict and "relname" in child:
                    seen.relations.append(relation_of(child))
            elif key in _OPERATOR_FIELDS:
                name = child.get(_OPERATOR_FIELDS[key])
                if name:
                    written = ".".join(part["String"]["sval"] for part in name)
                    seen.operators.update(_BETWEEN if written.endswith(("BETWEEN", "SYMMETRIC")) else (written,))
                elif key == "SubLink" and child.get("subLinkType") == "ANY_SUBLINK":
                    seen.operators.add("=")  # IN
            elif key == "CaseExpr" or key == "JoinExpr":
                if "arg" in child or "usingClause" in child or "isNatural" in child:
                    seen.operators.add("=")
            elif key == "typeName":
                if "names" in child:
                    seen.types.add(_qualified(child["names"])[1])
            elif key == "TypeCast":
                if not _is_given(child["arg"]):
                    seen.casts.append((_qualified(child["typeName"]["names"])[1], child["arg"]))
            elif key == "alias":
                seen.aliases.add(child["aliasname"])
            elif key in _RESULTS:
                seen.labelled = seen.labelled or _is_label(child)
            elif key == "indirection":
                seen.fields.update(part["String"]["sval"] for part in child if "String" in part)
            elif key == "CommonTableExpr":
                seen.ctes.add(child["ctename"])
            elif key in MODIFYING_NODES:
                seen.written.add(relation_of(child["relation"]))
            elif key == "RangeTableSample":
                seen.samplers.add(_qualified(child["method"])[1])
            elif key == "groupClause" or key == "havingClause" or key in _JSON_AGGREGATES:
                seen.grouped = True
            elif key == "whereClause" or key == "quals":
                seen.pointed = seen.pointed or _is_pointed(child)
    return seen


def relation_of(name: Tree) -> tuple[str, str]:
    """Return (schema or "", name) of a RangeVar."""
    return (name.get("schemaname", ""), name["relname"])


def _qualified(names: list[Tree]) -> tuple[str, str]:
    """Return (schema or "", name) of a dotted name."""
    parts = [part["String"]["sval"] for part in names if "String" in part]
    return (parts[-2] if len(parts) > 1 else "", parts[-1])


def _is_pointed(condition: Tree) -> bool:
    """Whether a condition can hold only where some column equals a constant or parameter."""
    stack = [condition]
    while stack:
        node = stack.pop()
        conjunction = node.get("BoolExpr")
        if conjunction and conjunction.get("boolop") == "AND_EXPR":
            stack.extend(conjunction["args"])
            continue
        expression = node.get("A_Expr")
        if not expression or expression.get("name") != [{"String": {"sval": "="}}]:
            continue
        left, right = expression.get("lexpr", {}), expression.get("rexpr", {})
        if "ColumnRef" not in left:
            left, right = right, left
        if "ColumnRef" in left and _is_given(right):
            return True
    return False


def _is_label(node: Any) -> bool:
    """Whether an expression, or any in lists of them, is a constant text or a parameter, or a cast of one to text."""
    if type(node) is list:
        return any(_is_label(item) for item in node)
    while "TypeCast" in node:
        if _qualified(node["TypeCast"]["typeName"]["names"])[1] not in TEXTS:
            return False
        node = node["TypeCast"]["arg"]
    if "List" in node:
        return _is_label(node["List"].get("items", []))
    return "ParamRef" in node or "sval" in node.get("A_Const", {})


def _is_given(node: Tree) -> bool:
    """Whether an expression is a constant or parameter, a cast of one, or a list of them."""
    while "TypeCast" in node:
        node = node["TypeCast"]["arg"]
    if "List" in node:
        return all(_is_given(item) for item in node["List"].get("items", ()))
    return "ParamRef" in node or "A_ArrayExpr" in node or ("A_Const" in node and "boolval" not in node["A_Const"])


def mentions_temp(tree: Any) -> bool:
    """Whether a tree names a temporary relation: by its persistence, or in schema pg_temp."""
    stack: list[Any] = [tree]
    while stack:
        value = stack.pop()
        if type(value) is list:
            stack.extend(value)
        elif type(value) is dict:
            for key, child in value.items():
                if type(child) is not str:
                    stack.append(child)
                elif key == "relpersistence":
                    if child == "t":
                        return True
                elif key in ("schemaname", "sval") and child.startswith("pg_temp"):
                    return True
    return False


def constant(node: Tree) -> str | bool | None:
    """Return the value of a string or boolean constant; None for anything else."""
    value = node.get("A_Const", {})
    if "sval" in value:
        return str(value["sval"].get("sval", ""))
    if "boolval" in value:
        return bool(value["boolval"].get("boolval", False))
    return None
