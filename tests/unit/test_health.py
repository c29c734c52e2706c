"""The health table, its machine, and the verdict over a group."""

from __future__ import annotations

import itertools

import pytest

from proxy.health.judge import Facts, judge, role_of
from proxy.health.machine import NodeHealth
from proxy.health.table import FAILURES, PASSES, TABLE, Seen, row
from proxy.testing import SeededRng
from proxy.topology.model import Health, Role

ACTIVE, SUSPECT, DOWN, RECOVERING = Health.ACTIVE, Health.SUSPECT, Health.DOWN, Health.RECOVERING


def machine(state: Health = SUSPECT, fail_after: int = 3, recover_after: int = 2, spacing: float = 2.5) -> NodeHealth:
    return NodeHealth("n1", fail_after=fail_after, recover_after=recover_after, spacing=spacing, now=0.0, state=state)


def walk(node: NodeHealth, observations: str | list[Seen], step: float = 5.0) -> list[Health]:
    """States after each observation; in a string `p` is a pass and `f` a time-out."""
    states = []
    now = 0.0
    for seen in observations:
        now += step
        node.observe({"p": Seen.PASS, "f": Seen.TIMEOUT}.get(seen, seen), now)  # type: ignore[arg-type]
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
        node.observe(Seen.BUSY, 99.0)
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


def test_the_way_back_is_two_rounds_twice() -> None:
    assert walk(machine(DOWN), "pppp") == [DOWN, RECOVERING, RECOVERING, ACTIVE]
    assert walk(machine(DOWN), "ppf") == [DOWN, RECOVERING, DOWN]


def test_fail_after_one_goes_straight_down() -> None:
    node = machine(ACTIVE, fail_after=1)
    moves = node.observe(Seen.REFUSED, 1.0)
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


@pytest.mark.parametrize("seed", range(50))
def test_random_walks_keep_the_invariants(seed: int) -> None:
    rng = SeededRng(seed)
    fail_after, recover_after = rng.randint(1, 4), rng.randint(1, 4)
    node = machine(rng.choice(list(Health)), fail_after, recover_after, spacing=1.0)
    edges = {(ACTIVE, SUSPECT), (SUSPECT, ACTIVE), (SUSPECT, DOWN), (ACTIVE, DOWN), (RECOVERING, DOWN)}
    edges |= {(DOWN, RECOVERING), (RECOVERING, ACTIVE)}
    run_of_failures = run_of_passes = 0
    now = 0.0
    for _ in range(400):
        now += 1.0
        seen = rng.choice(list(Seen)) if rng.random() < 0.4 else rng.choice((Seen.PASS, Seen.TIMEOUT))
        since = node.since
        moves = node.observe(seen, now)
        run_of_failures = run_of_failures + 1 if seen in FAILURES or seen is Seen.WRONG_ROLE else 0
        run_of_passes = run_of_passes + 1 if seen in PASSES else run_of_passes if seen is Seen.BUSY else 0
        for moved in moves:
            assert (moved.before, moved.after) in edges, rng
            assert moved.cause is seen
            if moved.before is not DOWN and moved.after is DOWN and moved.before is not RECOVERING:
                assert seen is Seen.WRONG_ROLE or run_of_failures >= fail_after, rng
            if moved.after in (RECOVERING,):
                assert run_of_passes >= recover_after, rng
        assert node.since == (now if moves else since)
        assert not (node.failures and node.passes)
        assert node.answering == (seen in PASSES)


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
