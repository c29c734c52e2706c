"""Routes: every class with every set of nodes in service, freshness, and even spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import NoNode
from proxy.routing.bind import UNREADABLE, readable
from proxy.routing.router import Hold, Route, Router
from proxy.sql.model import Class, Effect
from proxy.topology.snapshot import Snapshot

Load = Callable[[str], int]


def router(
    primary: str = "p", replicas: str = "", columnar: str = "", *, has_columnar: bool = False, to_primary: bool = False
) -> Router:
    snapshot = Snapshot(
        primary=primary,
        replicas=tuple(replicas.split()),
        columnar=tuple(columnar.split()),
        has_columnar=has_columnar or bool(columnar),
    )
    return Router(snapshot, analytic_to_primary=to_primary)


def ask(
    router: Router,
    cls: Class,
    *,
    split: bool = True,
    known: bool = True,
    written: int = 0,
    replicas: int = 10,
    columnar: int = 10,
    able: bool = True,
    load: Load = lambda node: 0,
) -> str:
    """`node reason`, `hold`, or `none` where no node may serve it."""
    try:
        route = router.route(
            cls,
            split=split,
            known=known,
            written_ns=written,
            replicas_ns=replicas,
            columnar_ns=columnar,
            columnar_able=able,
            load=load,
        )
    except NoNode:
        return "none"
    if isinstance(route, Hold):
        return "hold"
    assert isinstance(route, Route)
    return f"{route.node} {route.reason}"


@pytest.mark.parametrize(
    "nodes, cls, want",
    [
        (("p", "r", "c"), Class.WRITE, "p write"),
        (("p", "r", "c"), Class.SESSION, "p session"),
        (("p", "r", "c"), Class.READ, "r read"),
        (("p", "r", "c"), Class.ANALYTIC, "c analytic"),
        (("p", "r", ""), Class.ANALYTIC, "r read"),
        (("p", "", ""), Class.ANALYTIC, "p no_replica"),
        (("p", "", ""), Class.READ, "p no_replica"),
        (("p", "", "c"), Class.READ, "p no_replica"),
        (("", "r", "c"), Class.WRITE, "none"),
        (("", "r", "c"), Class.SESSION, "none"),
        (("", "r", "c"), Class.READ, "r read"),
        (("", "r", "c"), Class.ANALYTIC, "c analytic"),
        (("", "", "c"), Class.READ, "none"),
        (("", "", ""), Class.READ, "none"),
    ],
)
def test_by_class_and_nodes(nodes: tuple[str, str, str], cls: Class, want: str) -> None:
    assert ask(router(*nodes), cls) == want


def test_columnar_nodes_away() -> None:
    """The fleet has some, none is in service: replicas, and the primary only where a rule says so."""
    assert ask(router("p", "r", has_columnar=True), Class.ANALYTIC) == "r analytic_to_replica"
    assert ask(router("p", "", has_columnar=True), Class.ANALYTIC) == "none"
    assert ask(router("p", "", has_columnar=True, to_primary=True), Class.ANALYTIC) == "p analytic_to_primary"
    assert ask(router("p", "r", has_columnar=True), Class.READ) == "r read"


def test_a_statement_that_columnar_nodes_would_answer_otherwise_is_a_read() -> None:
    assert ask(router("p", "r", "c"), Class.ANALYTIC, able=False) == "r read"
    assert ask(router("p", "", "c"), Class.ANALYTIC, able=False) == "p no_replica"


@pytest.mark.parametrize("cls", Class)
def test_without_read_split_all_goes_to_the_primary(cls: Class) -> None:
    assert ask(router("p", "r", "c"), cls, split=False) == "p read_split_off"


def test_without_a_primary_reads_go_on() -> None:
    """Also where they would not have left the primary: a read of a copy is better than none."""
    assert ask(router("", "r"), Class.READ, split=False) == "r no_primary"
    assert ask(router("", "r"), Class.WRITE, split=False) == "none"
    assert ask(router("", "r"), Class.READ, written=20) == "r no_primary"


def test_after_a_write_reads_stay_until_copies_have_it() -> None:
    nodes = router("p", "r", "c")
    assert ask(nodes, Class.READ, written=10, replicas=10) == "p after_write"
    assert ask(nodes, Class.READ, written=10, replicas=11) == "r read"
    assert ask(nodes, Class.ANALYTIC, written=10, columnar=10) == "hold"
    assert ask(nodes, Class.ANALYTIC, written=10, columnar=11) == "c analytic"
    assert ask(router("p", "r", has_columnar=True), Class.ANALYTIC, written=10, replicas=10) == "hold"


@pytest.mark.parametrize("cls", [Class.READ, Class.ANALYTIC])
def test_no_copy_serves_before_it_is_known_what_names_mean(cls: Class) -> None:
    assert ask(router("p", "r", "c"), cls, known=False) == "p catalogue_unread"
    assert ask(router("", "r", "c"), cls, known=False) == "none"
    assert ask(router("p", "r", "c"), Class.WRITE, known=False) == "p write"


def test_the_least_loaded_copy() -> None:
    load = {"a": 3, "b": 1, "c": 2}
    nodes = router("p", "a b c")
    assert {ask(nodes, Class.READ, load=load.__getitem__) for _ in range(6)} == {"b read"}


def test_equal_copies_take_turns() -> None:
    nodes = router("p", "a b c")
    assert Counter(ask(nodes, Class.READ) for _ in range(30)) == {"a read": 10, "b read": 10, "c read": 10}


def test_routes_are_kept() -> None:
    """Nothing is built for each unit."""
    nodes = router("p", "a")
    assert nodes.primary is nodes._route("p", "write")
    assert nodes._route("a", "read") is nodes._route("a", "read")


@given(
    primary=st.sampled_from(["", "p"]),
    replicas=st.sampled_from(["", "r1", "r1 r2"]),
    columnar=st.sampled_from(["", "c1", "c1 c2"]),
    has=st.booleans(),
    to_primary=st.booleans(),
    cls=st.sampled_from(Class),
    split=st.booleans(),
    written=st.integers(0, 3),
    fresh=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    able=st.booleans(),
)
def test_what_always_holds(
    primary: str,
    replicas: str,
    columnar: str,
    has: bool,
    to_primary: bool,
    cls: Class,
    split: bool,
    written: int,
    fresh: tuple[int, int],
    able: bool,
) -> None:
    nodes = router(primary, replicas, columnar, has_columnar=has, to_primary=to_primary)
    got = ask(nodes, cls, split=split, written=written, replicas=fresh[0], columnar=fresh[1], able=able)
    node = got.split()[0]
    if cls in (Class.WRITE, Class.SESSION):
        assert node == (primary or "none")
    if node in columnar.split():
        assert cls is Class.ANALYTIC
        assert able
        assert split
        assert written < fresh[1]
    if node in replicas.split() and primary:
        assert split
        assert written < fresh[0]
    if cls is Class.ANALYTIC and able and split and (has or columnar) and not to_primary:
        # An analytic statement never falls to the primary of itself.
        assert node != "p"


# ---- which texts may be read at all


@pytest.mark.parametrize("encoding", ["SJIS", "big5", "GBK", "UHC", "GB18030", "JOHAB", "SHIFT_JIS_2004"])
def test_unsafe_encodings(encoding: str) -> None:
    assert not readable({"client_encoding": encoding})


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "EUC_JP", "WIN1252", "SQL_ASCII"])
def test_safe_encodings(encoding: str) -> None:
    assert readable({"client_encoding": encoding, "standard_conforming_strings": "on"})
    assert not readable({"client_encoding": encoding, "standard_conforming_strings": "off"})


def test_what_an_unreadable_text_may_do() -> None:
    assert UNREADABLE.cls is Class.WRITE
    assert Effect.UNKNOWN_CODE | Effect.SET_ANY | Effect.DISCARD in UNREADABLE.effects
    assert not UNREADABLE.plain
