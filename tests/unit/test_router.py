"""Routes: every class with every set of nodes in service, freshness, and even spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import NoNode, TridentError
from proxy.routing.balance import Balancer
from proxy.routing.bind import UNREADABLE, readable
from proxy.routing.consistency import (
    ANY,
    GLOBAL_WAIT,
    MOVE_AFTER_NS,
    MOVE_WAIT,
    VAIN_NS,
    Fallbacks,
    Token,
    doubted,
    patience,
    read_token,
    token_text,
)
from proxy.routing.router import Router
from proxy.sql.model import Class, Effect
from proxy.topology.model import TRIAL
from proxy.topology.snapshot import Copy, Freshness, NodeView, Snapshot

Load = Callable[[str], int]


def router(
    primary: str = "p", replicas: str = "", columnar: str = "", *, has_columnar: bool = False, to_primary: bool = False
) -> Router:
    names = [*replicas.split(), *columnar.split()]
    snapshot = Snapshot(
        epoch=1,
        nodes={name: NodeView(name=name, host=name, port=1) for name in names},
        primary=primary,
        replicas=tuple(replicas.split()),
        columnar=tuple(columnar.split()),
        has_columnar=has_columnar or bool(columnar),
    )
    return Router(snapshot, analytic_to_primary=to_primary)


def held(fresh: dict[str, int], **more: int) -> dict[str, Copy]:
    """Copies that hold all until these moments."""
    return {name: Copy(fresh_ns=moment, lsn=moment, weight=100, **more) for name, moment in fresh.items()}


def ask(
    router: Router,
    cls: Class,
    *,
    split: bool = True,
    known: bool = True,
    strong: str = "",
    written: int = 0,
    replicas: int = 10,
    columnar: int = 10,
    able: bool = True,
    load: Load = lambda node: 0,
    token: Token | None = None,
    copies: dict[str, Copy] | None = None,
) -> str:
    """`node reason`, or `none` where no node may serve it."""
    snapshot = router.snapshot
    if copies is None:
        copies = held(dict.fromkeys(snapshot.replicas, replicas) | dict.fromkeys(snapshot.columnar, columnar))
    router.refresh(Freshness(epoch=1, copies=copies))
    if cls is Class.ANALYTIC and not able:
        cls = Class.READ
    try:
        route = router.route(
            cls,
            split=split,
            known=known,
            strong=strong,
            token=token or Token(wrote_ns=written),
            columnar=snapshot.columnar if able else (),
            load=load,
        )
    except NoNode:
        return "none"
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


def test_after_a_write_reads_stay_until_a_copy_has_it() -> None:
    nodes = router("p", "r", "c")
    assert ask(nodes, Class.READ, written=10, replicas=10) == "p after_write"
    assert ask(nodes, Class.READ, written=10, replicas=11) == "r read"
    assert ask(nodes, Class.ANALYTIC, written=10, columnar=10, replicas=11) == "r analytic_to_replica"
    assert ask(nodes, Class.ANALYTIC, written=10, columnar=10, replicas=10) == "none"
    assert ask(nodes, Class.ANALYTIC, written=10, columnar=11) == "c analytic"


def test_each_copy_counts_by_itself() -> None:
    """One that stands still keeps nobody else from serving."""
    nodes = router("p", "a b")
    for _ in range(4):
        assert ask(nodes, Class.READ, written=10, copies=held({"a": 5, "b": 11})) == "b read"


def test_strong_reads_are_on_the_primary() -> None:
    assert ask(router("p", "r", "c"), Class.READ, strong="strong") == "p strong"
    assert ask(router("p", "r", "c"), Class.ANALYTIC, strong="hint") == "p hint"
    assert ask(router("", "r", "c"), Class.READ, strong="strong") == "none"


def test_what_was_seen_on_a_copy_is_not_unseen_on_another() -> None:
    nodes = router("p", "a b")
    seen = Token(seen_ns=20, seen_node="a")
    for _ in range(4):
        assert ask(nodes, Class.READ, token=seen, copies=held({"a": 10, "b": 20})) == "a read"
    got = {ask(nodes, Class.READ, token=seen, copies=held({"a": 10, "b": 21})) for _ in range(4)}
    assert got == {"a read", "b read"}
    # It has been started anew since, and may be behind what it was.
    assert ask(nodes, Class.READ, token=seen, copies=held({"a": 10, "b": 20}, since_ns=20)) == "p after_write"


def test_what_was_seen_on_the_primary() -> None:
    seen = Token(seen_ns=20)
    assert ask(router("p", "a"), Class.READ, token=seen, copies=held({"a": 20})) == "p after_write"
    assert ask(router("p", "a"), Class.READ, token=seen, copies=held({"a": 21})) == "a read"


def test_a_node_that_is_asked_for() -> None:
    nodes = router("p", "a b", "c")
    copies = held({"a": 10, "b": 10, "c": 10})

    def asked(node: str, token: Token = ANY, able: bool = False) -> str:
        nodes.refresh(Freshness(epoch=1, copies=copies))
        route = nodes.route(
            Class.READ,
            split=True,
            known=True,
            strong="",
            token=token,
            columnar=nodes.snapshot.columnar if able else (),
            load=lambda name: 0,
            node=node,
            node_reason="hint",
        )
        return f"{route.node} {route.reason}"

    assert {asked("b") for _ in range(4)} == {"b hint"}
    assert asked("p") == "p hint"
    assert asked("c") != "c hint"
    assert asked("c", able=True) == "c hint"
    copies["b"] = Copy(fresh_ns=5, lsn=5, weight=100)
    assert asked("b", Token(wrote_ns=5)) == "a read"
    assert asked("gone") in ("a read", "b read")


def test_old_data_where_a_rule_would_rather_have_that() -> None:
    nodes = router("p", "a b")
    nodes.refresh(Freshness(epoch=1, copies=held({"a": 10, "b": 11})))
    route = nodes.stale(lambda name: 0)
    assert route is not None
    assert (route.node, route.reason) == ("b", "stale")
    assert router("p").stale(lambda name: 0) is None


def test_what_others_with_the_key_saw() -> None:
    nodes = router("p", "a b")
    on_a = [(20, nodes.tags["a"])]
    assert {ask(nodes, Class.READ, token=Token(others=on_a), replicas=10) for _ in range(4)} == {"a read"}
    both = [*on_a, (20, nodes.tags["b"])]
    assert ask(nodes, Class.READ, token=Token(others=both), replicas=10) == "p after_write"
    assert ask(nodes, Class.READ, token=Token(others=[(20, 0)]), replicas=10) == "p after_write"
    assert ask(nodes, Class.READ, token=Token(others=both), replicas=21) in ("a read", "b read")


def test_a_copy_that_may_have_gone_back() -> None:
    """It is known again when it holds what came after that moment, and what was seen there before still counts."""
    known = Freshness(epoch=1, copies=held({"a": 30, "b": 30}, since_ns=5))
    for moment, want in ((30, (0, 30)), (29, (30, 29)), (4, (30, 5))):
        copy = doubted(known, {"a": moment, "gone": 9}).copies["a"]
        assert (copy.fresh_ns, copy.since_ns) == want
    nodes = router("p", "a b")
    copies = dict(doubted(known, {"a": 31}).copies)
    for token in (Token(seen_ns=32, seen_node="a"), Token(seen_ns=6, seen_node="a"), Token(lsn=7), Token(others=[])):
        assert not token.held_by("a", nodes.tags["a"], copies["a"])
    assert {ask(nodes, Class.READ, token=Token(wrote_ns=1), copies=copies) for _ in range(4)} == {"b read"}
    assert {ask(nodes, Class.READ, token=ANY, copies=copies) for _ in range(4)} == {"a read", "b read"}


def test_a_position_from_elsewhere() -> None:
    nodes = router("p", "a b")
    assert ask(nodes, Class.READ, token=Token(lsn=8), copies=held({"a": 7, "b": 8})) == "b read"
    assert ask(nodes, Class.READ, token=Token(lsn=9), copies=held({"a": 7, "b": 8})) == "p after_write"


def test_names_with_one_tag_have_none() -> None:
    assert Router(Snapshot(nodes={"plumless": NodeView(name="x", host="x", port=1)}), analytic_to_primary=False).tags[
        "plumless"
    ]


def test_what_is_known_of_another_epoch_counts_for_nothing() -> None:
    nodes = router("p", "a")
    nodes.refresh(Freshness(epoch=2, copies=held({"a": 50})))
    assert not nodes.replicas.serving


def test_a_copy_beyond_its_lag_limit_gets_nothing() -> None:
    nodes = router("p", "a b")
    copies = held({"a": 10, "b": 10})
    copies["a"] = Copy(fresh_ns=10, lsn=10, weight=0)
    assert {ask(nodes, Class.READ, token=ANY, copies=copies) for _ in range(4)} == {"b read"}
    copies["b"] = copies["a"]
    assert ask(nodes, Class.READ, token=ANY, copies=copies) == "p lagging"
    nodes = router("", "a b")
    copies["b"] = Copy(fresh_ns=10, lsn=11, weight=0)
    assert ask(nodes, Class.READ, token=ANY, copies=copies) == "b no_primary"


def test_a_copy_comes_back_in_steps() -> None:
    """In parallel use a share of 10 % takes a tenth of what another takes."""
    nodes = router("p", "a b")
    copies = held({"a": 10, "b": 10})
    copies["a"] = Copy(fresh_ns=10, lsn=10, weight=10)
    at_work: Counter[str] = Counter()
    for _ in range(110):
        at_work[ask(nodes, Class.READ, token=ANY, copies=copies, load=at_work.__getitem__).split()[0]] += 1
    assert 9 <= at_work["a"] <= 11


def recovering(shares: dict[str, int], *, balancer: Balancer | None = None) -> Router:
    views = {name: NodeView(name=name, host=name, port=1, share=share) for name, share in shares.items()}
    snapshot = Snapshot(epoch=1, nodes=views, primary="p", replicas=tuple(shares))
    made = Router(snapshot, analytic_to_primary=False, balancer=balancer)
    made.refresh(Freshness(epoch=1, copies=held(dict.fromkeys(shares, 10))))
    return made


def choices(router: Router, count: int, load: Load = lambda node: 0) -> Counter[str]:
    options = {"split": True, "known": True, "strong": "", "token": ANY, "columnar": ()}
    routes = (router.route(Class.READ, load=load, **options) for _ in range(count))  # type: ignore[arg-type]
    return Counter(f"{route.node} {route.reason}" for route in routes)


def test_a_replica_on_trial_gets_one_read_of_a_hundred() -> None:
    assert choices(recovering({"a": 100, "b": TRIAL}), 1000) == {"a read": 990, "b trial": 10}
    # Not while it has one already, nor what it doesn't hold yet.
    assert choices(recovering({"a": 100, "b": TRIAL}), 1000, {"a": 5, "b": 1}.__getitem__) == {"a read": 1000}
    behind = recovering({"a": 100, "b": TRIAL})
    written = {"split": True, "known": True, "strong": "", "token": Token(20), "columnar": (), "load": lambda node: 0}
    assert {behind.route(Class.READ, **written).node for _ in range(1000)} == {"p"}  # type: ignore[arg-type]
    # It counts over snapshots, of which there are many just then.
    turns = Balancer()
    parts = [choices(recovering({"a": 100, "b": TRIAL}, balancer=turns), 50) for _ in range(4)]
    assert sum(part["b trial"] for part in parts) == 2


def test_a_replica_that_comes_back_gets_its_share() -> None:
    found = choices(recovering({"a": 100, "b": 25}, balancer=Balancer("weighted")), 1000)
    assert found == {"a read": 800, "b read": 200}


def test_balance() -> None:
    weights = {"a": 100, "b": 300, "c": 0}
    latencies = {"a": 50, "b": 400, "c": 1}
    loads = {"a": 3, "b": 6, "c": 0}

    def taken(method: str, nodes: str = "a b c", weights: dict[str, int] = weights) -> Counter[str]:
        balancer = Balancer(method)
        return Counter(balancer.choose(nodes.split(), weights, latencies, loads.__getitem__) for _ in range(40))

    assert taken("least") == {"b": 40}  # 7 servers of 300 are less than 4 of 100
    assert taken("weighted") == {"a": 10, "b": 30}
    assert taken("round_robin") == {"a": 10, "b": 30}
    assert sorted(taken("round_robin", weights=dict.fromkeys("abc", 100)).values()) == [13, 13, 14]
    assert taken("latency") == {"a": 40}
    assert taken("least", "c") == {"c": 40}


def test_copies_of_the_same_zone_are_preferred() -> None:
    snapshot = Snapshot(epoch=1, primary="p", replicas=("a", "b"))
    nodes = Router(snapshot, analytic_to_primary=False, zones={"a": "east", "b": "west", "p": ""}, zone="west")
    assert {ask(nodes, Class.READ) for _ in range(4)} == {"b read"}
    assert ask(nodes, Class.READ, written=10, copies=held({"a": 11, "b": 5})) == "a read"


# ---- waiting for a copy, and not


def test_patience() -> None:
    wrote = Token(wrote_ns=1_000)
    soon, late = 1_000 + MOVE_AFTER_NS, 1_001 + MOVE_AFTER_NS
    assert patience(wrote, "session", 0.0, late, 1_001) == MOVE_WAIT
    assert patience(wrote, "session", 0.0, soon, 1_001) == 0.0  # the wait would cost more than it gains
    assert patience(wrote, "session", 0.0, late, 1_000) == 0.0  # no copy has the write yet
    assert patience(wrote, "session", 0.3, soon, 0) == 0.3
    assert patience(wrote, "global", 0.0, soon, 0) == GLOBAL_WAIT
    # Where a wait was in vain the next ones would be as well; one that the configuration asks for is kept up.
    for level, asked, usual in (("session", 0.0, MOVE_WAIT), ("global", 0.0, GLOBAL_WAIT), ("session", 0.3, 0.3)):
        assert patience(wrote, level, asked, late, late, late - 1) == asked
        assert patience(wrote, level, asked, late + VAIN_NS, late, late) == usual


def test_fallbacks_are_bounded() -> None:
    budget = Fallbacks()
    assert all(budget.allows(True, 50, 1.0) for _ in range(100))  # so many always may
    assert not budget.allows(True, 50, 1.5)
    assert all(budget.allows(False, 50, 1.5) for _ in range(100))
    assert budget.allows(True, 50, 1.9)
    assert not budget.allows(True, 50, 1.9)
    assert budget.allows(True, 50, 2.0)


def test_tokens_travel() -> None:
    assert token_text(1, 0x16B3748) == "1:0/16B3748"
    assert read_token("1:0/16B3748") == (1, 0x16B3748)
    assert read_token("12:A/FF") == (12, 0xA000000FF)
    for text in ("", "1", "1:", "x:0/0", "1:0", "1:0/0/0x", "-1:0/0", "1:g/0", "9" * 50 + ":0/0"):
        with pytest.raises(TridentError) as refused:
            read_token(text)
        assert refused.value.sqlstate == "22023"


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
