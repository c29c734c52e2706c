"""The health table, its machine, and the verdict over a group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from proxy.health.judge import Facts, judge, role_of
from proxy.health.machine import MAX_DAMPING, Limits, NodeHealth
from proxy.health.table import FAILURES, LIMITS, TABLE, Layer, Seen, row
from proxy.topology.model import TRIAL, Health, Role

ACTIVE, SUSPECT, DOWN, RECOVERING = Health.ACTIVE, Health.SUSPECT, Health.DOWN, Health.RECOVERING


DATABASE, NETWORK, LOAD = Layer.DATABASE, Layer.NETWORK, Layer.LOAD
PASS = Seen.PASS
BARE = Limits(ramp=0.0, flap_window=0.0, spacing=dict.fromkeys(Layer, 2.5))
"""Nothing but the counts."""


def machine(state: Health = SUSPECT, limits: Limits = BARE, layers: Sequence[Layer] = (DATABASE,)) -> NodeHealth:
    return NodeHealth("n1", limits, now=0.0, layers=layers, state=state)


def walk(node: NodeHealth, observations: str | list[Seen], step: float = 5.0) -> list[Health]:
    """States after each observation of the database; in a string `p` is a pass and `f` a time-out."""
    states = []
    now = 0.0
    for seen in observations:
        now += step
        node.observe(DATABASE, {"p": PASS, "f": Seen.TIMEOUT}.get(seen, seen), now)  # type: ignore[arg-type]
        states.append(node.state)
    return states


def test_every_pair_has_a_row() -> None:
    assert set(TABLE) == set(itertools.product(Health, Seen))


def test_an_unknown_pair_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    node = machine(ACTIVE)
    walk(node, "pf")
    before = (node.state, node.failures, node.passes, node.last, node.cause, node.since)
    monkeypatch.delitem(TABLE, (SUSPECT, Seen.BUSY))
    with pytest.raises(ValueError, match=r"suspect .* busy"):
        node.observe(DATABASE, Seen.BUSY, 99.0)
    assert (node.state, node.failures, node.passes, node.last, node.cause, node.since) == before
    with pytest.raises(ValueError, match="no row"):
        row(SUSPECT, Seen.BUSY)


def test_first_pass_makes_a_fresh_node_active() -> None:
    assert walk(machine(), "p") == [ACTIVE]
    assert walk(machine(), [Seen.NO_LOGIN]) == [ACTIVE]
    assert walk(machine(), [Seen.BUSY, Seen.PASS]) == [SUSPECT, ACTIVE]


def test_a_node_that_failed_first_proves_itself_longer() -> None:
    assert walk(machine(), "fpp") == [SUSPECT, SUSPECT, ACTIVE]


@pytest.mark.parametrize("seen", FAILURES)
def test_three_failures_in_a_row_take_a_node_out(seen: Seen) -> None:
    node = machine(ACTIVE)
    assert walk(node, [seen] * 4) == [SUSPECT, SUSPECT, DOWN, DOWN]
    assert node.cause is seen


def test_one_failure_never_does() -> None:
    assert DOWN not in walk(machine(ACTIVE), "fppfppffpp")


def test_rounds_are_consecutive() -> None:
    assert ACTIVE not in walk(machine(), "fpfpfpfp")
    assert walk(machine(DOWN), "pfpfpf") == [DOWN] * 6


def test_the_way_back_is_two_rounds_twice() -> None:
    assert walk(machine(DOWN), "pppp") == [DOWN, RECOVERING, RECOVERING, ACTIVE]
    assert walk(machine(DOWN), "ppf") == [DOWN, RECOVERING, DOWN]


def test_fail_after_one_goes_straight_down() -> None:
    node = machine(ACTIVE, replace(BARE, fail_after=1))
    moves = node.observe(DATABASE, Seen.REFUSED, 1.0)
    assert [(m.before, m.after) for m in moves] == [(ACTIVE, SUSPECT), (SUSPECT, DOWN)]


def test_causes_that_are_no_failure() -> None:
    assert walk(machine(ACTIVE), [Seen.NO_LOGIN, Seen.BUSY] * 5) == [ACTIVE] * 10
    # A busy answer breaks a run of failures, and never brings a node back by itself.
    assert walk(machine(ACTIVE), [Seen.TIMEOUT, Seen.TIMEOUT, Seen.BUSY, Seen.TIMEOUT])[-1] is SUSPECT
    assert walk(machine(DOWN), [Seen.BUSY] * 5) == [DOWN] * 5


@pytest.mark.parametrize("state", list(Health))
def test_a_wrong_role_is_out_at_once(state: Health) -> None:
    assert walk(machine(state), [Seen.WRONG_ROLE]) == [DOWN]


def test_a_burst_of_probes_is_one_finding() -> None:
    node = machine(ACTIVE)
    assert walk(node, "ffffff", step=0.1) == [SUSPECT] * 6
    assert node.failures == 1
    node = machine(DOWN)
    assert walk(node, "pppp", step=0.1) == [DOWN] * 4


LAYERS = (NETWORK, DATABASE, LOAD)


def test_an_open_port_says_nothing_against_a_stuck_server() -> None:
    node = machine(ACTIVE, layers=LAYERS)
    for now in range(5, 20, 5):
        node.observe(NETWORK, PASS, now - 1.0)
        node.observe(DATABASE, Seen.TIMEOUT, float(now))
    assert node.state is DOWN
    # Nor does it bring the node back.
    for now in range(20, 100, 5):
        node.observe(NETWORK, PASS, float(now))
        node.observe(LOAD, PASS, float(now))
    assert node.state is DOWN


def test_the_network_alone_makes_suspect_and_never_down() -> None:
    node = machine(ACTIVE, layers=LAYERS)
    for now in range(5, 100, 5):
        node.observe(NETWORK, Seen.TIMEOUT, float(now))
    assert node.state is SUSPECT
    for now in range(100, 200, 5):
        node.observe(DATABASE, PASS, float(now))
        node.observe(LOAD, PASS, float(now))
    assert node.state is SUSPECT  # a round is a pass of all layers


@pytest.mark.parametrize("seen", LIMITS)
def test_limits_make_suspect_and_never_down(seen: Seen) -> None:
    node = machine(ACTIVE, layers=LAYERS)
    layer = LOAD if seen is Seen.LOADED else DATABASE
    for now in range(5, 100, 5):
        node.observe(layer, seen, float(now))
        node.observe(NETWORK, PASS, float(now))
    assert (node.state, node.cause) == (SUSPECT, seen)
    for now in (100.0, 105.0):
        assert node.state is SUSPECT
        for each in LAYERS:
            node.observe(each, PASS, now)
    assert node.state is ACTIVE


def test_hard_evidence_counts_at_once() -> None:
    """Refused while all that was open broke: the same counter, quicker."""
    node = machine(ACTIVE, layers=LAYERS)
    for now in (1.0, 1.1, 1.25, 1.5):
        assert node.state is not DOWN
        node.observe(NETWORK, Seen.REFUSED, now, hard=True)
    assert node.state is DOWN
    node = machine(ACTIVE, layers=LAYERS)
    for now in (1.0, 1.25, 1.5):
        node.observe(NETWORK, Seen.REFUSED, now)
    assert node.state is SUSPECT


def test_a_primary_that_restarts_within_the_grace_is_never_down() -> None:
    node = machine(ACTIVE, layers=LAYERS)
    node.primary = True
    for now in (1.0, 1.25, 1.5):
        assert not node.halted
        node.observe(NETWORK, Seen.REFUSED, now, hard=True)
    assert node.halted
    for now in (2.0, 3.0, 4.4):
        node.observe(NETWORK, Seen.REFUSED, now, hard=True)
    node.observe(DATABASE, Seen.STARTING, 4.45)
    assert (node.state, node.halted) == (SUSPECT, True)
    node.observe(DATABASE, PASS, 4.47)
    assert (node.state, node.halted, node.failures) == (SUSPECT, False, 0)


def test_a_primary_is_down_after_the_grace() -> None:
    node = machine(ACTIVE, layers=LAYERS)
    node.primary = True
    for now in (1.0, 1.25, 1.5, 4.25):
        node.observe(NETWORK, Seen.REFUSED, now, hard=True)
        assert node.state is SUSPECT
    node.observe(NETWORK, Seen.REFUSED, 4.5, hard=True)
    assert (node.state, node.halted) == (DOWN, False)


def test_a_refused_login_is_no_way_around_the_grace() -> None:
    node = machine(ACTIVE, layers=LAYERS)
    node.primary = True
    for layer, now in ((NETWORK, 1.0), (NETWORK, 1.25), (DATABASE, 1.3), (NETWORK, 1.5), (NETWORK, 4.25)):
        node.observe(layer, Seen.REFUSED, now, hard=layer is NETWORK)
    assert (node.state, node.halted) == (SUSPECT, True)


def test_silence_of_a_primary_needs_no_grace_on_top() -> None:
    node = machine(ACTIVE)
    node.primary = True
    assert walk(node, "fff") == [SUSPECT, SUSPECT, DOWN]


def test_a_recovering_copy_comes_back_in_steps() -> None:
    node = machine(DOWN, replace(BARE, ramp=10.0))
    shares = []
    for now in range(5, 35, 5):
        node.observe(DATABASE, PASS, float(now))
        shares.append((now, node.state, node.share(now)))
    assert shares == [
        (5, DOWN, 0),
        (10, RECOVERING, TRIAL),
        (15, RECOVERING, 10),
        (20, RECOVERING, 60),
        (25, ACTIVE, 100),
        (30, ACTIVE, 100),
    ]
    assert [node.share(now) for now in (15, 19, 24)] == [100] * 3
    node = machine(RECOVERING, replace(BARE, ramp=10.0))
    node.observe(DATABASE, PASS, 0.0)
    assert [node.share(now) for now in (0.0, 0.9, 1.0, 5.5, 8.9, 9.0, 50.0)] == [10, 10, 20, 60, 90, 100, 100]


def test_a_recovering_copy_is_not_active_before_it_is_verified() -> None:
    node = machine(RECOVERING)
    for now in range(5, 50, 5):
        node.observe(DATABASE, PASS, float(now), verified=False)
    assert node.state is RECOVERING
    node.observe(DATABASE, PASS, 50.0, verified=True)
    assert node.state is ACTIVE


def test_a_node_that_comes_and_goes_waits_longer_each_time() -> None:
    node = machine(ACTIVE, replace(BARE, flap_window=10_000.0))
    now = 0.0
    waits = []
    for _ in range(7):
        now += 5
        node.observe(DATABASE, Seen.TIMEOUT, now)
        passes = 0
        while node.state is not ACTIVE:
            now += 5
            passes += 1
            node.observe(DATABASE, PASS, now)
        waits.append(passes)
    assert waits == [2, 4, 8, 16, 32, 2 * MAX_DAMPING, 2 * MAX_DAMPING]
    node.observe(DATABASE, Seen.TIMEOUT, now + 20_000)
    assert node.damping(now + 20_000) == 1  # that was long ago


def test_one_that_was_down_again_and_again_confirms_for_longer() -> None:
    node = machine(ACTIVE, replace(BARE, flap_window=10_000.0, fail_after=1))
    now = 0.0
    waits = []
    for _ in range(4):
        now += 5
        node.observe(DATABASE, Seen.TIMEOUT, now)
        passes = 0
        while node.state is not ACTIVE:
            now += 5
            passes += node.state is RECOVERING
            node.observe(DATABASE, PASS, now)
        waits.append(passes)
    assert waits == [2, 4, 8, 16]


def facts(name: str, role: Role, **more: object) -> Facts:
    values: dict[str, object] = {"wanted": "auto", "health": ACTIVE, "answering": True, "system": "7", "timeline": 1}
    return Facts(name=name, role=role, **{**values, **more})  # type: ignore[arg-type]


def test_the_only_primary() -> None:
    verdict = judge([facts("a", Role.PRIMARY), facts("b", Role.REPLICA)], "")
    assert (verdict.primary, verdict.unfit, verdict.alarm) == ("a", {}, "")


def test_two_primaries_the_one_that_was_stays() -> None:
    verdict = judge([facts("a", Role.PRIMARY), facts("b", Role.PRIMARY, timeline=2)], "a")
    assert verdict.primary == "a"
    assert verdict.unfit == {"b": "second_primary"}
    assert "a, b" in verdict.alarm


def test_two_primaries_and_none_before() -> None:
    both = [facts("a", Role.PRIMARY), facts("b", Role.PRIMARY)]
    verdict = judge(both, "")
    assert verdict.primary == ""
    assert set(verdict.unfit) == {"a", "b"}
    assert "none takes writes" in verdict.alarm
    assert judge([facts("a", Role.PRIMARY), facts("b", Role.PRIMARY, wanted="primary")], "").primary == "b"


def test_promotion_while_the_old_primary_is_silent() -> None:
    silent = facts("a", Role.PRIMARY, answering=False, health=SUSPECT)
    assert judge([silent, facts("b", Role.PRIMARY, timeline=2)], "a").primary == "b"
    same_timeline = judge([silent, facts("b", Role.PRIMARY)], "a")
    assert same_timeline.primary == "a"
    assert same_timeline.alarm


def test_a_dead_primary_takes_no_writes_and_one_that_answers_again_does() -> None:
    dead = facts("a", Role.PRIMARY, answering=False, health=DOWN)
    assert judge([dead, facts("b", Role.REPLICA)], "a").primary == ""
    assert judge([facts("a", Role.PRIMARY, health=DOWN)], "a").primary == "a"
    assert judge([facts("a", Role.PRIMARY, health=SUSPECT, answering=False)], "a").primary == "a"


def test_several_writers_where_the_group_may_have_them() -> None:
    def verdict(was: str, *nodes: Facts) -> tuple[str, tuple[str, ...], dict[str, str], str]:
        found = judge(nodes, was, multi_writer=True)
        return found.primary, found.writers, found.unfit, found.alarm

    a, b = (facts(name, Role.PRIMARY, wanted="primary", timeline=place) for place, name in enumerate("ab"))
    promoted = facts("c", Role.PRIMARY)
    silent = facts("a", Role.PRIMARY, wanted="primary", answering=False, health=SUSPECT)
    dead = facts("a", Role.PRIMARY, wanted="primary", answering=False, health=DOWN)
    assert verdict("", a, b) == ("a", ("a", "b"), {}, "")
    assert verdict("b", a, b) == ("b", ("a", "b"), {}, "")
    assert verdict("a", a, b, promoted) == ("a", ("a", "b"), {"c": "second_primary"}, "")
    assert verdict("c", a, b, promoted) == ("a", ("a", "b"), {"c": "second_primary"}, "")
    assert verdict("a", silent, b) == ("a", ("a", "b"), {}, "")
    assert verdict("", silent, b) == ("b", ("a", "b"), {}, "")
    assert verdict("a", dead, b) == ("b", ("b",), {}, "")
    assert verdict("", promoted) == ("c", (), {}, "")
    assert judge([a, b], "a").writers == ()


def test_foreign_data_is_not_read() -> None:
    verdict = judge([facts("a", Role.PRIMARY), facts("b", Role.REPLICA, system="8")], "a")
    assert verdict.unfit == {"b": "other_system"}
    columnar = judge([facts("a", Role.PRIMARY), facts("c", Role.COLUMNAR, system="")], "a")
    assert columnar.unfit == {}


@pytest.mark.parametrize(
    ("wanted", "in_recovery", "lone", "role", "seen"),
    [
        ("auto", True, False, Role.REPLICA, Seen.PASS),
        ("auto", False, False, Role.PRIMARY, Seen.PASS),
        ("primary", False, False, Role.PRIMARY, Seen.PASS),
        ("primary", True, False, Role.REPLICA, Seen.WRONG_ROLE),
        ("replica", False, False, Role.PRIMARY, Seen.WRONG_ROLE),
        ("columnar", False, False, Role.COLUMNAR, Seen.PASS),
        ("columnar", None, False, Role.COLUMNAR, Seen.NO_LOGIN),
        ("replica", None, False, Role.REPLICA, Seen.NO_LOGIN),
        ("auto", None, False, Role.UNKNOWN, Seen.NO_LOGIN),
        ("auto", None, True, Role.PRIMARY, Seen.NO_LOGIN),
    ],
)
def test_roles_are_checked_against_the_config(
    wanted: str, in_recovery: bool | None, lone: bool, role: Role, seen: Seen
) -> None:
    assert role_of(wanted, in_recovery, lone) == (role, seen)
