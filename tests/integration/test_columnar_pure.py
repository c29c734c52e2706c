"""The parts of the columnar node that need no server: texts, types, settings, names, the replication stream."""

from __future__ import annotations

import struct
from datetime import UTC
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from proxy.demo.columnar import pgoutput, text, types
from proxy.demo.columnar.errors import StatementError
from proxy.demo.columnar.pgoutput import UNCHANGED
from proxy.demo.columnar.settings import Settings
from proxy.errors import ProtocolViolation


@pytest.mark.parametrize(
    ("sql", "pieces"),
    [
        ("", []),
        (" ; -- nothing\n;", []),
        ("select 1; select 2;", ["select 1", "select 2"]),
        ("select ';'; select $$;$$, $a$;$$;$a$", ["select ';'", "select $$;$$, $a$;$$;$a$"]),
        ("select \";\", E'\\';' /* ; */; x", ["select \";\", E'\\';' /* ; */", "x"]),
    ],
)
def test_split(sql: str, pieces: list[str]) -> None:
    assert text.split(sql) == pieces


def test_words_pass_over_comments_and_brackets() -> None:
    assert text.words("/* hint */ (select distinct x from t") == ["SELECT", "DISTINCT", "X", "FROM"]
    assert text.words("insert\n into t values (1)") == ["INSERT", "INTO", "T", "VALUES"]


def test_placeholders_are_cast_outside_of_strings_only() -> None:
    sql = "select $2, '$1', \"$1\" from t where a = $1 and pg_catalog.lower(b) = pg_catalog.x"
    assert text.params(sql) == 2
    assert text.for_engine(sql, ["INTEGER", ""]) == (
        "select $2, '$1', \"$1\" from t where a = CAST($1 AS INTEGER) and lower(b) = pg_catalog.x"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0.0, "0"), (-0.0, "-0"), (1.0, "1"), (0.1, "0.1"), (1e-4, "0.0001"), (1e-5, "1e-05"), (1.5e300, "1.5e+300")),
        *((123456789012345.0, "123456789012345"), (1e15, "1e+15"), (1234567890123456.0, "1.234567890123456e+15")),
        *((float("nan"), "NaN"), (float("-inf"), "-Infinity")),
    ],
)
def test_float8_prints_as_postgresql(value: float, shown: str) -> None:
    assert types.float8_text(value) == shown


def test_float4_prints_its_own_shortest_digits() -> None:
    third = struct.unpack("f", struct.pack("f", 1 / 3))[0]
    assert types.float4_text(third) == "0.33333334"
    assert types.float4_text(1e6) == "1e+06"


@pytest.mark.parametrize("number", ["0", "1", "-1", "0.0001", "-12345.6789", "10000", "99999999", "1.10", "0.00"])
def test_numeric_binary_goes_both_ways(number: str) -> None:
    raw = types.numeric_binary(Decimal(number))
    assert types.param_value(raw, types.NUMERIC, True) == number


def test_moments_follow_the_zone_and_know_infinity() -> None:
    assert types.timestamptz_text(0, UTC) == "1970-01-01 00:00:00+00"
    assert types.timestamptz_text(500_000, ZoneInfo("Asia/Kolkata")) == "1970-01-01 05:30:00.5+05:30"
    assert types.timestamp_text((1 << 63) - 1) == "infinity"
    assert types.date_text(-((1 << 31) - 1)) == "-infinity"
    with pytest.raises(types.BadValue):
        types.date_text(10_000_000)


def test_what_cannot_be_held_exactly_is_left_out() -> None:
    assert types.column_type(types.NUMERIC, -1) is None
    assert types.column_type(types.NUMERIC, (12 << 16 | 2) + 4) == "DECIMAL(12,2)"
    assert types.column_type(types.NUMERIC, (50 << 16 | 2) + 4) is None
    assert types.column_type(3802, -1) is None  # jsonb
    assert types.column_type(16_500, -1) is None  # an enum: its order is its own


def test_array_parameters() -> None:
    assert types.param_value(b'{1,NULL,"a,\\"b"}', 1009, False) == ["1", None, 'a,"b']
    raw = struct.pack("!iiIii", 1, 0, types.INT4, 2, 1) + struct.pack("!iiii", 4, 7, 4, -8)
    assert types.param_value(raw, 1007, True) == ["7", "-8"]
    with pytest.raises(types.BadValue):
        types.param_value(b"1,2", 1007, False)


def test_settings_undo_what_a_transaction_undoes() -> None:
    settings = Settings({"server_version": "15.0"}, {"application_name": "me"})
    assert ("application_name", "me") in settings.news()
    assert settings.news() == []
    settings.begin()
    settings.set("my.own", "1")
    settings.set("application_name", "inside", local=True)
    settings.end(committed=True)
    assert settings.show("my.own") == "1"
    assert settings.show("Application_Name") == "me"
    settings.begin()
    settings.set("my.own", "2")
    settings.end(committed=False)
    assert settings.show("my.own") == "1"
    settings.reset("all")
    with pytest.raises(StatementError) as error:
        settings.show("my.own")
    assert error.value.sqlstate == "42704"


@pytest.mark.parametrize(("name", "value"), [("DateStyle", "German"), ("client_encoding", "LATIN1")])
def test_settings_that_this_node_cannot_honour_are_refused(name: str, value: str) -> None:
    with pytest.raises(StatementError) as error:
        Settings({}, {}).set(name, value)
    assert error.value.sqlstate == "0A000"


def test_replication_messages() -> None:
    row = struct.pack("!H", 3) + b"n" + b"u" + b"t" + struct.pack("!i", 2) + b"ab"
    update = b"U" + struct.pack("!I", 7) + b"K" + struct.pack("!H", 1) + b"t" + struct.pack("!i", 1) + b"1" + b"N" + row
    assert pgoutput.decode(update) == pgoutput.Update(7, ("1",), (None, UNCHANGED, "ab"))
    assert pgoutput.decode(b"C\0" + struct.pack("!QQq", 1, 2, 3)) == pgoutput.Commit(2)
    assert pgoutput.decode(b"T" + struct.pack("!IBII", 2, 0, 7, 8)) == pgoutput.Truncate((7, 8))
    assert pgoutput.decode(b"O" + bytes(9)) is None
    assert pgoutput.lsn_text(pgoutput.lsn_number("A/1F")) == "A/1F"
    for cut in range(1, len(update)):
        with pytest.raises(ProtocolViolation):
            pgoutput.decode(update[:cut])
