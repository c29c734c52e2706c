"""What a reload changes."""

from __future__ import annotations

from proxy.config.diff import Change, diff, with_fixed
from proxy.config.schema import Admin, ClientTls, Config, Listen, Node, PoolSettings, Rule, User


def test_changes_say_old_new_and_restart():
    old = Config(nodes={"a": Node(host="h")}, listen=Listen(port=1))
    new = Config(nodes={"a": Node(host="h", tls="require")}, pool=PoolSettings(lifetime=90), listen=Listen(port=2))
    assert list(diff(old, new)) == [
        Change("listen.port", "1", "2", True),
        Change("pool.lifetime", '"1h"', '"90s"', False),
        Change("nodes.a.tls", "", '"require"', False),
    ]


def test_no_change():
    assert list(diff(Config(), Config())) == []


def test_a_section_that_comes_and_goes():
    changes = list(diff(Config(nodes={"a": Node(host="h")}), Config(nodes={"b c": Node(host="h")})))
    names = ("host", "port", "role", "max_connections", "service", "weight", "zone")
    names += ("dialect", "lacks", "tables", "protocol")
    assert [change.key for change in changes] == [
        *(f"nodes.a.{name}" for name in names),
        *(f'nodes."b c".{name}' for name in names),
    ]
    assert not any(change.restart for change in changes)


def test_the_order_of_rules_counts():
    a, b = Rule(reject="a"), Rule(reject="b")
    [change] = diff(Config(rules={"a": a, "b": b}), Config(rules={"b": b, "a": a}))
    assert change == Change("rules", '["a", "b"]', '["b", "a"]', False)


def test_secrets_are_not_shown():
    [change] = diff(Config(users={"u": User(password="old")}), Config(users={"u": User(password="new")}))
    assert (change.old, change.new) == ('"***"', '"***"')


def test_what_holds_after_a_reload():
    running = Config(workers=2, listen=Listen(port=1, max_clients=5), nodes={"a": Node(host="h")})
    wanted = Config(
        workers=3,
        listen=Listen(port=2, max_clients=6, tls=ClientTls(mode="allow")),
        admin=Admin(port=9, users=("u",)),
        nodes={"b": Node(host="h")},
    )
    assert with_fixed(running, wanted) == Config(
        workers=2,
        listen=Listen(port=1, max_clients=6, tls=ClientTls(mode="allow")),
        admin=Admin(users=("u",)),
        nodes={"b": Node(host="h")},
    )
