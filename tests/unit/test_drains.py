"""What may be drained, when a node is empty, and what a snapshot, a service and EXPLAIN (ROUTE) make of it."""

from __future__ import annotations

import pytest

from proxy.config.schema import Config, Service
from proxy.controlplane import drains
from proxy.errors import TridentError
from proxy.ipc.messages import Counters
from proxy.routing.affinity import Affinity, Plans
from proxy.routing.balance import Balancer
from proxy.routing.consistency import ANY
from proxy.routing.explain import candidates
from proxy.routing.router import Router
from proxy.topology.compile import compile_snapshot
from proxy.topology.model import Health, Role
from proxy.topology.snapshot import Address, Drain, NodeView, Snapshot

BY_COMMAND = Drain(1, drains.COMMAND)
GONE = Drain(1, drains.REMOVED)


def view(name: str, role: Role = Role.REPLICA, drain: Drain | None = None, health: Health = Health.ACTIVE) -> NodeView:
    return NodeView(
        name=name,
        host=name,
        port=5432,
        role=role,
        health=health,
        addresses=(Address("10.0.0.1", 5432),),
        drain=drain,
    )


def picture(*nodes: NodeView, primary: str = "", writers: tuple[str, ...] = ()) -> Snapshot:
    return compile_snapshot(nodes, primary=primary, unfit=(), writers=writers, version=1, epoch=1)


def test_a_drained_node_gets_no_new_work() -> None:
    made = picture(
        view("p", Role.PRIMARY),
        view("w", Role.PRIMARY, BY_COMMAND),
        view("a"),
        view("b", drain=BY_COMMAND),
        view("c", Role.COLUMNAR, GONE),
        primary="p",
        writers=("p", "w"),
    )
    assert (made.primary, made.writers, made.replicas, made.columnar) == ("p", ("p",), ("a",), ())
    assert made.nodes["b"].health is Health.ACTIVE


@pytest.mark.parametrize(
    ("node", "writers", "refused"),
    [
        (view("p", Role.PRIMARY), ("p",), "no other node takes writes"),
        (view("p", Role.PRIMARY), (), "no other node takes writes"),
        (view("p", Role.PRIMARY), ("p", "w"), ""),
        (view("a"), ("p",), ""),
        (view("a", drain=BY_COMMAND), ("p",), ""),
        (view("a", drain=GONE), ("p",), "no longer in the configuration"),
    ],
)
def test_what_may_be_drained(node: NodeView, writers: tuple[str, ...], refused: str) -> None:
    snapshot = Snapshot(writers=writers)
    if not refused:
        drains.check_drain(node, snapshot)
        return
    with pytest.raises(TridentError, match=refused) as error:
        drains.check_drain(node, snapshot)
    assert error.value.sqlstate == "55000"


def test_what_may_come_back() -> None:
    drains.check_undrain(view("a", drain=BY_COMMAND))
    for node in (view("a"), view("a", drain=GONE)):
        with pytest.raises(TridentError) as error:
            drains.check_undrain(node)
        assert error.value.sqlstate == "55000"


@pytest.mark.parametrize(
    ("node", "one", "several"),
    [
        (view("p", Role.PRIMARY), True, True),
        (view("p", Role.PRIMARY, BY_COMMAND), True, False),  # promoted while it was drained, or one of several
        (view("a", drain=BY_COMMAND), True, True),
        (view("a", Role.PRIMARY, GONE), False, False),
    ],
)
def test_who_has_a_say_in_who_writes(node: NodeView, one: bool, several: bool) -> None:
    assert drains.may_lead(node, multi_writer=False) is one
    assert drains.may_lead(node, multi_writer=True) is several


def test_when_a_node_is_empty() -> None:
    def told(worker: int, version: int, **servers: int) -> Counters:
        return Counters(worker, {}, [], version, servers)

    for counters, empty in (
        ([told(0, 7), told(1, 7, b=3)], True),
        ([told(0, 7), told(1, 7, a=1)], False),
        ([told(0, 7), told(1, 6)], False),  # it hasn't heard of the drain yet
        ([told(0, 7)], False),  # the other worker hasn't said anything
    ):
        assert drains.is_empty("a", 7, 2, {c.worker: c for c in counters}) is empty


def test_nobody_waits_for_a_drained_node_nor_is_told_of_it() -> None:
    config = Config(services={"s": Service(nodes=("a", "b"), selector="1", reconnect=("notify", "failback"))})
    plans = Plans(config)
    first = Affinity(plans, picture(view("a"), view("b")), 0.0)
    assert first.choose("s", "", Role.REPLICA, 0.0, ("a", "b")).node == "a"
    restarting = view("a", drain=BY_COMMAND, health=Health.SUSPECT)
    drained = Affinity(plans, picture(restarting, view("b")), 1.0, before=first)
    choice = drained.choose("s", "", Role.REPLICA, 1.0, ("b",), "a")
    assert (choice.node, choice.notify) == ("b", False)
    back = Affinity(plans, picture(view("a"), view("b")), 2.0, before=drained)
    (plan,) = plans.all
    assert back.choose("s", "", Role.REPLICA, 2.0 + plan.check_interval, ("a", "b"), "b").node == "a"


def test_it_is_said_in_words() -> None:
    nodes = (view("p", Role.PRIMARY), view("a", drain=BY_COMMAND), view("b", drain=Drain(1, drains.COMMAND, done=True)))
    router = Router(picture(*nodes, primary="p"), analytic_to_primary=False, balancer=Balancer())
    found = candidates(router, ANY, lambda node: 0, 0, primary_only="", not_columnar={})
    assert [one.trouble for one in found] == ["", "draining, takes no new work", "drained, takes no new work"]
    assert drains.in_words(BY_COMMAND) == "draining (by command)"
    assert drains.in_words(GONE) == "draining (it is no longer in the configuration)"
