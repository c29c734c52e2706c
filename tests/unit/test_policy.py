"""Policies: which rule holds, who is asked first, and that no write leaves the primary unasked."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import check
from proxy.config.schema import Config, Rule
from proxy.routing import policy as module
from proxy.routing.bind import UNREADABLE
from proxy.routing.policy import DEFAULT, NOTHING, Decision, Policies, Policy
from proxy.sql import hints as hint_words
from proxy.sql.classify import Classifier, classify
from proxy.sql.facts import shape
from proxy.sql.hints import Hints
from proxy.sql.model import Class

NODES = {
    "p": {"host": "p", "role": "primary"},
    "r": {"host": "r", "role": "replica"},
    "c": {"host": "c", "role": "columnar"},
    "a": {"host": "a"},
}
FIELDS = ("route", "node", "consistency", "key", "priority", "timeout", "reject", "stale", "reason")
READ = "SELECT total FROM orders"
WRITE = "UPDATE orders SET total = 1"


def policies(**rules: dict[str, object]) -> Policies:
    return Policies(msgspec.convert({"nodes": NODES, "rules": rules}, Config))


def decide(
    rules: dict[str, dict[str, object]],
    sql: str = READ,
    hint: Hints | None = None,
    setting: Hints | None = None,
    client: tuple[str, str, str] = ("shop", "app", "web"),
) -> Decision:
    return policies(**rules).of_client(*client).decide(sql.encode(), classify(sql.encode()), hint, setting)


def differences(policy: Policy) -> dict[str, object]:
    """What is not the default."""
    return {name: getattr(policy, name) for name in FIELDS if getattr(policy, name) != getattr(DEFAULT, name)}


def test_words_are_the_same_everywhere() -> None:
    hints = typing.get_type_hints(Rule)
    for name, words in (
        ("route", hint_words.ROUTES),
        ("consistency", hint_words.CONSISTENCIES),
        ("priority", hint_words.PRIORITIES),
    ):
        assert set(typing.get_args(typing.get_args(hints[name])[0])) == set(words)
    assert check.MAX_KEY == hint_words.MAX_KEY


# ---- which rule holds


@pytest.mark.parametrize(
    ("conditions", "sql", "holds"),
    [
        ({}, READ, True),
        ({"database": ["shop"]}, READ, True),
        ({"database": ["sho", "shopp", "Shop"]}, READ, False),
        ({"database": ["s*p"], "user": ["*"], "application_name": ["x", "w*"]}, READ, True),
        ({"database": ["s*p"], "user": ["root"]}, READ, False),
        ({"application_name": ["web*1"]}, READ, False),
        ({"user": ["a.p"]}, READ, False),
        ({"table": ["orders"]}, READ, True),
        ({"table": ["orders"]}, "INSERT INTO lines SELECT * FROM shop.ORDERS", True),
        ({"table": ["ord*"]}, "DELETE FROM orders", True),
        ({"table": ["orders"]}, 'SELECT * FROM "Orders"', False),
        ({"table": ["shop.*"]}, "SELECT * FROM a, shop.b", True),
        ({"table": ["shop.*"]}, "SELECT * FROM shop", False),
        ({"table": ["*.orders"]}, READ, False),
        ({"table": ["orders"]}, "SELECT 'orders' AS orders", False),
        ({"table": ["orders"]}, "SELECT * FROM orders WHERE", False),
        ({"shape": [shape(b"SELECT total FROM orders WHERE id = 1")]}, "select total from orders where id = 7", True),
        ({"shape": [shape(b"SELECT total FROM orders WHERE id = 1")]}, READ, False),
        ({"shape": [shape(b"SET ROLE a")]}, "SET ROLE b", False),
        ({"pattern": [r"\bfrom\s+orders\b"]}, READ, True),
        ({"pattern": ["nothing", "TOTAL"]}, READ, True),
        ({"pattern": ["total.from"]}, "SELECT total\nFROM orders", True),
        ({"pattern": ["^total"]}, READ, False),
        ({"pattern": ["total"], "table": ["lines"]}, READ, False),
        ({"pattern": ["needle"]}, "SELECT " + " " * module.MAX_SEARCHED + "needle", False),
    ],
)
def test_conditions(conditions: dict[str, object], sql: str, holds: bool) -> None:
    decision = decide({"x": {**conditions, "priority": "low"}}, sql)
    assert decision.rule == ("x" if holds else "")
    assert decision.policy.priority == ("low" if holds else "normal")


def test_the_first_rule_that_holds_decides() -> None:
    rules: dict[str, dict[str, object]] = {
        "z": {"user": ["other"], "reject": "no"},
        "lines": {"table": ["lines"], "route": "primary"},
        "exception": {"pattern": ["lines|orders"]},
        "rest": {"reject": "closed"},
    }
    assert decide(rules).rule == "exception"
    assert decide(rules).policy is DEFAULT
    assert decide(rules, "SELECT * FROM lines").policy.route == "primary"
    assert differences(decide(rules, "SELECT 1").policy) == {"reject": "closed", "reason": "rule"}


def test_an_unreadable_text_meets_only_rules_about_its_client() -> None:
    rules: dict[str, dict[str, object]] = {
        "a": {"table": ["orders"], "reject": "a"},
        "b": {"pattern": [""], "reject": "b"},
        "c": {"user": ["app"], "timeout": 5},
    }
    found = policies(**rules).of_client("shop", "app", "").decide(b"", UNREADABLE, None, None)
    assert (found.rule, found.policy.timeout) == ("c", 5)


# ---- who is asked first


@dataclass
class Case:
    want: dict[str, object]
    rule: dict[str, object] = field(default_factory=dict)
    hint: Hints | None = None
    setting: Hints | None = None
    ignored: tuple[str, ...] = ()
    sql: str = READ


PLACES = [
    Case({"route": "replica", "reason": "rule"}, {"route": "replica"}),
    Case({"route": "primary", "reason": "setting"}, {"node": "r"}, setting=Hints(route="primary")),
    Case({"node": "a", "reason": "hint"}, {"node": "r"}, Hints(node="a"), Hints(route="primary")),
    Case({"route": "replica", "node": "r", "reason": "hint"}, {}, Hints(node="r", route="replica")),
    Case({"node": "r", "reason": "rule"}, {"node": "r", "final": True}, Hints(route="primary"), Hints(node="a"),
         ("route=primary: the rule is final",)),
    Case({"route": "primary", "priority": "low", "reason": "hint"}, {"priority": "low", "final": True},
         Hints(route="primary", priority="high")),
    Case({"reject": "no", "reason": "rule"}, {"reject": "no"}, Hints(route="primary", timeout=1)),
    Case({"route": "primary", "reason": "setting"}, {}, Hints(node="x"), Hints(route="primary"),
         ("node=x: there is no such node",)),
    Case({}, {}, setting=Hints(node="x"), ignored=("node=x: there is no such node",)),
    Case({"node": "r", "reason": "rule"}, {"node": "r"}, Hints(route="replica", node="c"),
         ignored=("route=replica node=c: that node is columnar",)),
    Case({"route": "columnar", "node": "c", "reason": "hint"}, {}, Hints(route="columnar", node="c")),
    Case({"consistency": "strong", "route": "primary", "reason": "strong"}, {"consistency": "strong"}),
    Case({"consistency": "strong", "route": "primary", "reason": "strong"}, {"consistency": "strong", "stale": True},
         Hints(route="replica"), ignored=("replica: consistency is strong",)),
    Case({"consistency": "strong", "route": "primary", "reason": "setting"}, {}, Hints(consistency="strong"),
         Hints(route="primary")),
]  # fmt: skip

THE_REST = [
    Case({"consistency": "eventual", "priority": "high", "timeout": 3.0, "stale": True},
         {"consistency": "eventual", "priority": "high", "timeout": 3, "stale": True}),
    Case({"consistency": "global", "priority": "low"}, {"consistency": "eventual", "priority": "high"},
         Hints(consistency="global"), Hints(priority="low", consistency="session")),
    Case({"consistency": "eventual", "priority": "high", "key": "h"},
         {"consistency": "eventual", "priority": "high", "final": True}, Hints(consistency="global", key="h")),
    Case({"timeout": 2.0}, {"timeout": 2}, Hints(timeout=5.0)),
    Case({"timeout": 1.0}, {"timeout": 2, "final": True}, Hints(timeout=1.0)),
    Case({"timeout": 5.0}, {}, Hints(timeout=5.0)),
    Case({"consistency": "key", "key": "k"}, {"consistency": "key", "consistency_key": "k"}),
    Case({"consistency": "key", "key": "k"}, {"consistency": "key"}, setting=Hints(key="k")),
    Case({"consistency": "key", "key": "h"}, {"consistency": "session"}, Hints(key="h"), Hints(key="k")),
    Case({"consistency": "eventual", "key": "k"}, {}, Hints(consistency="eventual"), Hints(key="k")),
    Case({"consistency": "session"}, {}, Hints(consistency="key"), ignored=("consistency=key: there is no key",)),
]  # fmt: skip

WRITES = [
    Case({}, {}, Hints(route="replica"), ignored=("route=replica: it is taken for a write",), sql=WRITE),
    Case({}, {}, Hints(node="r"), ignored=("node=r: it is taken for a write",), sql=WRITE),
    Case({}, {}, Hints(node="a"), sql=WRITE),
    Case({}, {}, Hints(route="primary"), sql=WRITE),
    Case({}, {"route": "replica", "final": True}, setting=Hints(route="replica"), sql=WRITE),
    Case({"route": "replica", "reason": "rule"}, {"route": "replica", "move_writes": True}, sql=WRITE),
    Case({"node": "r", "reason": "hint"}, {"move_writes": True}, Hints(node="r"), sql=WRITE),
    Case({}, {"move_writes": True}, Hints(route="columnar"), ignored=("route=columnar: it is taken for a write",),
         sql=WRITE),
    Case({}, {"move_writes": True}, Hints(node="c"), ignored=("node=c: it is taken for a write",), sql=WRITE),
    *(Case({}, {"move_writes": True, "route": "replica"}, sql=sql)
      for sql in ("BEGIN", "COMMIT", "SET x.y = 1", "LISTEN a", "CREATE TEMP TABLE t ()", WRITE + ";" + WRITE)),
    Case({"consistency": "key", "key": "k", "timeout": 1.0}, {}, Hints(key="k", timeout=1.0), sql=WRITE),
]  # fmt: skip


@pytest.mark.parametrize("case", [*PLACES, *THE_REST, *WRITES], ids=repr)
def test_precedence(case: Case) -> None:
    decision = decide({"x": case.rule}, case.sql, case.hint, case.setting)
    assert differences(decision.policy) == case.want
    assert decision.ignored == case.ignored
    assert decision.rule == "x"
    if not case.rule:
        without = decide({}, case.sql, case.hint, case.setting)
        assert without.policy.effect() == decision.policy.effect()


WISHES = st.builds(
    Hints,
    route=st.sampled_from(["", *hint_words.ROUTES]),
    node=st.sampled_from(["", "x", *NODES]),
    consistency=st.sampled_from(["", *hint_words.CONSISTENCIES]),
    key=st.sampled_from(["", "k"]),
)
RULES = st.fixed_dictionaries(
    {},
    optional={
        "route": st.sampled_from(hint_words.ROUTES),
        "node": st.sampled_from(list(NODES)),
        "consistency": st.sampled_from(hint_words.CONSISTENCIES),
        "final": st.booleans(),
        "shadow": st.booleans(),
        "stale": st.booleans(),
    },
)
TEXTS = st.sampled_from(
    [READ, WRITE, "SELECT f(1)", "SELECT 1 FOR UPDATE", "BEGIN", "LISTEN a", "SET a.b = 1", "", "x"]
)


@given(st.lists(RULES, max_size=3), TEXTS, WISHES | st.none(), WISHES | st.none(), st.booleans())
def test_what_always_holds(
    rules: list[dict[str, object]], sql: str, hint: Hints | None, setting: Hints | None, moves: bool
) -> None:
    named = {f"r{number}": {**rule, "move_writes": moves} for number, rule in enumerate(rules)}
    decision = decide(named, sql, hint, setting)
    found = classify(sql.encode())
    for policy in (decision.policy, *(shadow.policy for shadow in decision.shadows)):
        if found.cls not in (Class.READ, Class.ANALYTIC):
            assert policy.route != "columnar"
            assert policy.node != "c"
            if not moves or found.cls is Class.SESSION:
                assert (policy.route, policy.node) == ("", "")
        if policy.consistency == "strong":
            assert policy.route in ("", "primary")
            assert not policy.stale
        assert policy.node in ("", *NODES)
        assert policy.key or policy.consistency != "key"
        assert bool(policy.reason) == bool(policy.route or policy.node)


# ---- shadow rules


def test_shadow_rules_are_compared_and_not_obeyed() -> None:
    rules: dict[str, dict[str, object]] = {
        "no": {"shadow": True, "table": ["lines"], "reject": "no"},
        "slow": {"shadow": True, "timeout": 1},
        "same": {"shadow": True, "priority": "low"},
        "real": {"priority": "low"},
        "never": {"shadow": True, "reject": "no"},
    }
    decision = decide(rules)
    assert (decision.rule, differences(decision.policy)) == ("real", {"priority": "low"})
    assert [(one.rule, one.differs, differences(one.policy)) for one in decision.shadows] == [
        ("slow", True, {"timeout": 1.0}),
        ("same", False, {"priority": "low"}),
    ]
    assert decision.noted


def test_a_shadow_rule_leaves_ignored_hints_alone() -> None:
    rules: dict[str, dict[str, object]] = {"s": {"shadow": True, "route": "primary", "final": True}}
    decision = decide(rules, hint=Hints(route="replica"))
    assert (decision.policy.route, decision.ignored) == ("replica", ())
    assert [one.differs for one in decision.shadows] == [True]


# ---- what is remembered


def test_clients_without_rules_take_the_short_way() -> None:
    all_rules = policies(a={"user": ["ops"], "reject": "no"})
    client = all_rules.of_client("shop", "app", "web")
    assert client.plain
    assert client.decide(READ.encode(), classify(READ.encode()), None, None) is NOTHING
    assert NOTHING.policy is DEFAULT
    assert not NOTHING.noted
    assert not all_rules.of_client("shop", "ops", "web").plain
    assert all_rules.of_client("other", "app", "web") is client


def test_equal_policies_are_one_object() -> None:
    all_rules = policies(a={"user": ["ops"], "priority": "low"}, b={"priority": "low"})
    first, second = (
        all_rules.of_client("shop", user, "").decide(sql.encode(), classify(sql.encode()), None, None)
        for user, sql in (("ops", READ), ("app", WRITE))
    )
    assert (first.rule, second.rule) == ("a", "b")
    assert first.policy is second.policy


def test_decisions_are_remembered_by_what_they_depend_on() -> None:
    client = policies(a={"pattern": ["id = 4[0-9]"], "reject": "no"}).of_client("", "", "")
    classifier = Classifier(100, 10_000)

    def ask(sql: bytes, hint: Hints | None = None) -> Decision:
        return client.decide(sql, classifier.classify(sql), hint, None)

    first, other, again = (ask(b"SELECT 1 FROM t WHERE id = %d" % number) for number in (41, 51, 42))
    assert classifier.misses == 1  # they share a classification, and yet:
    assert (first.rule, other.rule) == ("a", "")
    assert again is first
    hint = Hints(route="primary")
    assert ask(b"SELECT 1 FROM t WHERE id = 51", hint).policy.route == "primary"
    assert ask(b"SELECT 1 FROM t WHERE id = 52", hint) is ask(b"SELECT 1 FROM t WHERE id = 53", hint)
    assert ask(b"SELECT 1 FROM t WHERE id = 51").policy is DEFAULT


def test_a_text_too_large_for_a_parser_is_ruled_by_what_it_shares_its_shape_with() -> None:
    classifier = Classifier(100, 100_000)
    client = policies(a={"table": ["audit"], "reject": "no"}).of_client("", "", "")
    small = classifier.classify(b"SELECT 1 FROM audit WHERE id IN ('x')")
    large = b"SELECT 1 FROM audit WHERE id IN (%s)" % b",".join([b"'x'"] * 2000)
    assert classifier.classify(large) is small
    assert client.decide(large, small, None, None).rule == "a"


def test_decisions_of_other_clients_and_settings_are_others() -> None:
    owner = policies(a={"user": ["ops"], "priority": "low"}, b={"user": ["app"], "priority": "high"})
    text, found = READ.encode(), classify(READ.encode())
    settings = [None, Hints(route="primary"), Hints(route="replica")]
    for _ in range(2):
        for user, priority in (("ops", "low"), ("app", "high"), ("web", "normal")):
            seen = [owner.of_client("", user, "").decide(text, found, None, one).policy for one in settings]
            assert {policy.priority for policy in seen} == {priority}
            assert [policy.route for policy in seen] == ["", "primary", "replica"]


def test_what_is_remembered_is_bounded() -> None:
    rules = {"a": {"user": ["u1*"], "timeout": 1}, "b": {"user": ["u2*"], "priority": "low"}}
    all_rules = Policies(msgspec.convert({"rules": rules}, Config), clients=5, decisions=5)
    found = classify(READ.encode())
    for number in range(100):
        client = all_rules.of_client("shop", f"u{number}", "")
        client.decide(READ.encode(), found, Hints(key=str(number)), None)
        assert max(map(len, (all_rules._by_client, all_rules._by_rules, all_rules.decisions, all_rules._known))) <= 5
    assert all_rules.one(Policy()) is DEFAULT


# ---- batches


@pytest.mark.parametrize(
    ("one", "other", "want"),
    [
        (Policy(route="replica"), Policy(route="replica", priority="low"), {"route": "replica"}),
        (Policy(route="replica"), DEFAULT, {}),
        (Policy(node="r"), Policy(node="a"), {}),
        (Policy(route="replica"), Policy(route="primary"), {"route": "primary", "reason": "joined"}),
        (Policy(reject="no"), Policy(route="primary"), {"reject": "no"}),
        (Policy(timeout=2.0), Policy(timeout=3.0, stale=True), {"timeout": 2.0}),
        (Policy(timeout=2.0, priority="low"), Policy(priority="high"), {"timeout": 2.0, "priority": "high"}),
        (Policy(consistency="eventual"), DEFAULT, {}),
        (Policy(consistency="eventual"), Policy(consistency="strong"), {"consistency": "strong"}),
        (Policy(consistency="session"), Policy(consistency="key", key="k"), {"consistency": "global"}),
        (Policy(consistency="key", key="a"), Policy(consistency="key", key="b"), {"consistency": "global"}),
        (Policy(consistency="key", key="a", stale=True), Policy(consistency="key", key="a", stale=True),
         {"consistency": "key", "key": "a", "stale": True}),
    ],
)  # fmt: skip
def test_join(one: Policy, other: Policy, want: dict[str, object]) -> None:
    owner = policies()
    joined = owner.join(one, other)
    assert differences(joined) == want
    assert owner.join(other, one).effect() == joined.effect()
    assert owner.join(one, one) is one
