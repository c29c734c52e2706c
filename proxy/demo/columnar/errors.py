"""DuckDB's errors as PostgreSQL's: SQLSTATE and, where drivers or people match on it, the text.

Pure. Called by `engine` only.
"""

from __future__ import annotations

import re

import duckdb

from ...errors import TridentError


class StatementError(TridentError):
    """A statement failed; the connection goes on."""


_BY_TEXT: tuple[tuple[str, str, str], ...] = (
    # (pattern in DuckDB's message, SQLSTATE, our message; \1 is the first group)
    (r'Table with name "?([^\s"]+)"? does not exist', "42P01", r'relation "\1" does not exist'),
    (r'schema named "?(\w+)"? not found|Schema with name "?(\w+)"? does not exist', "3F000", ""),
    (r"(?:Scalar|Aggregate|Table)? ?(?:Macro )?Function with name (\S+) does not exist", "42883", ""),
    (r"Type with name (\S+) does not exist", "42704", r'type "\1" does not exist'),
    (r'Referenced column "(.+?)" (?:was )?not found', "42703", r'column "\1" does not exist'),
    (r'does not have a column named "(.+?)"', "42703", r'column "\1" does not exist'),
    (r'Referenced table "(.+?)" not found', "42P01", r'missing FROM-clause entry for table "\1"'),
    (r"Cannot extract field", "42703", ""),
    (r'Ambiguous reference to column name "(.+?)"', "42702", r'column reference "\1" is ambiguous'),
    (r"No function matches|Could not choose a best candidate", "42883", ""),
    (r"must appear in the GROUP BY clause", "42803", ""),
    (r"aggregate.*(?:WHERE|nested)", "42803", ""),
    (r"Division by zero", "22012", "division by zero"),
    (r"Values were not provided for", "08P01", "bind message supplies too few parameters"),
    (r"More than one row returned by a subquery", "21000", "more than one row returned by a subquery"),
    (r"LIMIT/OFFSET cannot be negative", "2201W", "LIMIT must not be negative"),
    (r"out of range for the destination type|out of range", "22003", ""),
    (r"invalid (?:date|timestamp|time) field|(?:date|timestamp) field value out of range", "22007", ""),
    (r"Current transaction is aborted", "25P02", ""),
)
_BY_TYPE: tuple[tuple[type[Exception], str], ...] = (
    (duckdb.ParserException, "42601"),
    (duckdb.InterruptException, "57014"),
    (duckdb.ConversionException, "22P02"),
    (duckdb.OutOfRangeException, "22003"),
    (duckdb.OutOfMemoryException, "53200"),
    (duckdb.NotImplementedException, "0A000"),
    (duckdb.PermissionException, "42501"),
    (duckdb.CatalogException, "42704"),
    (duckdb.BinderException, "42804"),
    (duckdb.TransactionException, "40001"),
    (duckdb.InvalidInputException, "22023"),
    (duckdb.IOException, "58030"),
)


def from_engine(error: Exception) -> StatementError:
    """The client's error for one of DuckDB's."""
    if isinstance(error, duckdb.InterruptException):
        return StatementError("canceling statement due to user request", sqlstate="57014")
    said = str(error).split("\n", 1)[0]
    said = re.sub(r"^[\w ]*Error: ", "", said)
    if not isinstance(error, duckdb.ParserException):
        for pattern, sqlstate, message in _BY_TEXT:
            found = re.search(pattern, said, re.IGNORECASE)
            if found:
                return StatementError(found.expand(message) if message else said, sqlstate=sqlstate)
    for kind, sqlstate in _BY_TYPE:
        if isinstance(error, kind):
            return StatementError(said, sqlstate=sqlstate)
    return StatementError(said, sqlstate="XX000")
