"""Hints in comments and settings: what is understood, and which comments count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.sql import hints
from proxy.sql.classify import Classifier
from proxy.sql.hints import Hints, Splitter, of_settings, split

HINT = b"/* pgtrident: route=replica */"


ASKED = ("route", "node", "consistency", "key", "priority", "timeout", "after", "debug", "ignored")


def asked(found: Hints | None) -> dict[str, object]:
    """What is set."""
    if found is None:
        return {}
    return {name: getattr(found, name) for name in ASKED if getattr(found, name)}


@pytest.mark.parametrize(
    ("comment", "want"),
    [
        (
            "pgtrident: route=primary consistency=eventual key=user:42 priority=high",
            {"route": "primary", "consistency": "eventual", "key": "user:42", "priority": "high"},
        ),
        ("pgtrident:route=REPLICA,node=r1", {"route": "replica", "node": "r1"}),
        ("pgtrident: key='a b, c' after=\"1:0/16B3748\"", {"key": "a b, c", "after": "1:0/16B3748"}),
        ("pgtrident: key=пользователь", {"key": "пользователь"}),
        ("pgtrident: timeout=250ms", {"timeout": 0.25}),
        ("pgtrident: timeout=1.5min", {"timeout": 90.0}),
        ("pgtrident: timeout=250", {"ignored": ("timeout=250",)}),
        ("pgtrident: timeout=0s", {"ignored": ("timeout=0s",)}),
        ("pgtrident: timeout=8000h", {"ignored": ("timeout=8000h",)}),
        ("pgtrident: route=anywhere colour=red", {"ignored": ("route=anywhere", "colour=red")}),
        ("pgtrident: route=primary route=replica", {"route": "primary", "ignored": ("route=replica",)}),
        ("pgtrident: please, route=primary", {"route": "primary", "ignored": ("please",)}),
        ("pgtrident: debug=on", {"ignored": ("debug=on",)}),
        ("pgtrident: key=", {"ignored": ("key=",)}),
        ("pgtrident: key='open", {"ignored": ("key='open",)}),
        ("pgtrident: key=" + "x" * 256, {"key": "x" * 256}),
        ("pgtrident: key=" + "x" * 257, {"ignored": ("key=" + "x" * 60,)}),
        ("pgtrident: key=" + "я" * 129, {"ignored": ("key=" + "я" * 60,)}),
        ("pgtrident: bell\a", {"ignored": ("bell?",)}),
        ("pgtrident: " + "x=1 " * 20, {"ignored": ("x=1",) * 8}),
        ("action='%2Fpay',pgtrident_key='user%3A42%27s',pgtrident_route='primary',traceparent='00-5b-c5-01'",
         {"route": "primary", "key": "user:42's"}),
        ("pgtrident_key='it\\'s',\n pgtrident_colour='red'", {"key": "it's", "ignored": ("colour=red",)}),
        ("controller='pgtrident',note='%2Cpgtrident_route=%27primary%27'", {}),
        ("see the manual of pgtrident: route=primary", {}),
        ("PGTRIDENT: route=primary", {}),
    ],
)  # fmt: skip
def test_what_is_understood(comment: str, want: dict[str, object]) -> None:
    for text in (f"/*{comment}*/ SELECT 1", f"SELECT 1 /*{comment}*/"):
        found = split(text.encode())
        assert asked(found and found.hints) == want
        if found is not None:
            assert found.body == b"SELECT 1"


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (HINT + b"SELECT 1", b"SELECT 1"),
        (b" ;\n" + HINT + b"\n SELECT 1 ; ", b"SELECT 1 ; "),
        (b"SELECT 1" + HINT, b"SELECT 1"),
        (b"SELECT 1 ; " + HINT + b" ;\n", b"SELECT 1 ;"),
        (b"SELECT 1 -- one\n" + HINT, b"SELECT 1 -- one"),
        (b"-- name: GetUser :one\n" + HINT + b" SELECT 1", b"SELECT 1"),
        (b"/* app */ " + HINT + b" /* b */ SELECT 1 /* c */", b"SELECT 1 /* c */"),
        (b"SELECT 1 /* a */ " + HINT + b"/* b */", b"SELECT 1"),
        (HINT + b" SELECT 1 /* pgtrident: route=primary key=k */", b"SELECT 1"),
        (b"SELECT 2 */* pgtrident: route=replica */", b"SELECT 2 *"),
        (b"SELECT a - b / c, $1, 'it''s', \"na\"\"me\", E'\\'', $a$ ' $a$ " + HINT, b"SELECT a - b / c, $1, 'it''s', "
         b"\"na\"\"me\", E'\\'', $a$ ' $a$"),
        (b"SELECT U&'\\0041' , x'1f' " + HINT, b"SELECT U&'\\0041' , x'1f'"),
        (b"SELECT /* a /* nested */ b */ 1 " + HINT, b"SELECT /* a /* nested */ b */ 1"),
        (HINT, b""),
        (b"SELECT '\xff' " + HINT, b"SELECT '\xff'"),
        (HINT + b"SELECT " + b"1," * 50_000, b"SELECT " + b"1," * 50_000),
    ],
)  # fmt: skip
def test_comments_in_front_and_behind_count(text: bytes, body: bytes) -> None:
    found = split(text)
    assert found is not None
    assert found.hints.route == "replica"
    assert found.body == body
    assert text[found.start : found.start + len(found.body)] == body


@pytest.mark.parametrize(
    "text",
    [
        b"SELECT " + HINT + b" 1",
        b"SELECT '" + HINT + b"'",
        b"SELECT E'\\' " + HINT + b" '",
        b"SELECT E'\\'' || 'x " + HINT,
        b'SELECT "' + HINT + b'"',
        b"SELECT $$ " + HINT + b" $$",
        b"SELECT $a$ $$ " + HINT,
        b"SELECT $a$ " + HINT,
        b"SELECT '" + HINT,
        b"SELECT 1 -- " + HINT,
        b"SELECT 1 /* " + HINT + b" */",
        b"SELECT 1 /* open " + HINT,
        b"/* " + HINT + b" */ SELECT 1",
        b"-- " + HINT + b"\nSELECT 1",
        b"SELECT pgtrident FROM pgtrident /* route=primary */",
        b"SELECT 'pgtrident: route=primary' /* x */",
        b"/* pgtrident: route=primary",
        b"/*/ pgtrident: route=primary",
        b"SELECT 1 " + HINT + b" x",
        b"SELECT 1 " + HINT + b" + 1 -- */",
        b"--" + b" " * (hints.MAX_COMMENTS - 2) + HINT + b"\nSELECT 1",
        b"/*" + b" " * hints.MAX_COMMENTS + HINT[2:] + b" SELECT 1",
        b"SELECT " + b"1," * hints.MAX_TEXT + b"1" + HINT,
        b"SELECT " + b"( " * hints.MAX_TOKENS + b"$$$$" + HINT,
    ],
)
def test_other_comments_do_not(text: bytes) -> None:
    assert split(text) is None


PIECES = [
    b"a", b"+", b"-", b"/", b"*", b"(", b")", b"1.5", b"$1", b"e", b"u&", b"E''", b"E'\\''", b"'\\'", b"''''", b'"\'"',
    b"'" + HINT + b"'", b"E'\\' " + HINT + b"'", b"$$ ' " + HINT + b"$$", b"$e$ $$ " + HINT + b"$e$", b"\xc3\xa9$1",
    b";", b'"' + HINT + b'"', b"-- " + HINT + b"\n", b"/* ' */", b"/* /* */ " + HINT + b"*/", HINT, b"/**/",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES)), st.sampled_from([b" ", b"\n", b" \t"]))
def test_whatever_stands_between(pieces: list[bytes], blank: bytes) -> None:
    text = blank.join([b"SELECT", *pieces, b"x"])
    assert split(text) is None
    for behind in (HINT, blank + HINT + b";"):
        found = split(text + behind)
        assert found is not None
        assert (found.start, found.body) == (0, text)
    found = split(HINT + blank + text)
    assert found is not None
    assert found.body == text


@given(st.lists(st.sampled_from([*PIECES, b"'", b'"', b"$$", b"/*", b"*/", b"pgtrident_route='", b"%", b"\0"])))
def test_no_text_makes_it_raise(pieces: list[bytes]) -> None:
    for text in (b"".join(pieces), b" ".join(pieces) + HINT, HINT + b"".join(pieces)):
        found = split(text)
        if found is not None:
            assert text[found.start : found.start + len(found.body)] == found.body


@given(st.binary(), st.binary())
def test_no_bytes_make_it_raise(one: bytes, other: bytes) -> None:
    for text in (one, b"/* pgtrident:" + one + b"*/" + other, one + b"/*pgtrident_key='" + other + b"'*/"):
        split(text)


def test_texts_that_differ_by_the_hint_share_a_classification() -> None:
    splitter, classifier = Splitter(100, 10_000), Classifier(100, 10_000)
    found = [
        splitter.split(text)
        for text in (HINT + b"SELECT a FROM t", b"SELECT a FROM t " + HINT, b"/* pgtrident: key=k */SELECT a FROM t")
    ]
    assert len({classifier.classify(one.body if one else b"") for one in found}) == 1
    assert classifier.misses == 1


def test_what_was_split_is_remembered() -> None:
    splitter = Splitter(4, 1000)
    first, again, other = (
        splitter.split(text) for text in (HINT + b"SELECT 1", HINT + b"SELECT 1", b"SELECT 2" + HINT)
    )
    assert first is not None
    assert other is not None
    assert first is again
    assert other.hints is first.hints
    for number in range(100):
        splitter.split(b"/* pgtrident: key=%d */" % number)
    assert len(splitter._known) <= 4
    assert splitter.split(b"SELECT 1 /* nothing */") is None


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        ({}, None),
        ({"search_path": "a"}, None),
        ({"pgtrident.route": ""}, None),
        (
            {"pgtrident.route": "Replica", "pgtrident.consistency": "key", "pgtrident.consistency_key": "user 42"},
            {"route": "replica", "consistency": "key", "key": "user 42"},
        ),
        (
            {"pgtrident.priority": "low", "pgtrident.token": "1:0/5", "pgtrident.debug": "on", "pgtrident.node": "r1"},
            {"priority": "low", "after": "1:0/5", "debug": True, "node": "r1"},
        ),
        ({"pgtrident.key": "k", "pgtrident.debug": "maybe"}, {"ignored": ("key=k", "debug=maybe")}),
    ],
)
def test_settings(settings: dict[str, str], want: dict[str, object] | None) -> None:
    found = of_settings(settings)
    assert (asked(found) or None) == want
    assert (found is None) == (want is None)
