"""P18: protocol versions and options that one side doesn't know."""

from __future__ import annotations

import pytest

from ..support.rawpg import PROTOCOL_3_0, Q, Wire, show, startup_message
from ..support.target import DIRECT, PROXY, Target, targets

PROTOCOL_3_2 = 0x30002
GREASE = 0x30000 + 9999
EITHER = targets(DIRECT, PROXY)


def greeting(target: Target, version: int) -> tuple[Wire, list[str]]:
    """Log in; the replies in front of the first Authentication message."""
    wire = target.open()
    replies = wire.login(target.params(), version=version).split(" ")
    assert replies[-1] == "ZI", replies
    target.compare = False
    return wire, replies[: replies.index("R0")]


def test_3_0_is_not_negotiated(target: Target) -> None:
    wire, first = greeting(target, PROTOCOL_3_0)
    assert first == []
    assert len(wire.key) == 4


@EITHER
def test_3_2(target: Target) -> None:
    """Granted in full, with nothing to negotiate, or brought down to 3.0."""
    wire, first = greeting(target, PROTOCOL_3_2)
    if target.name == DIRECT:
        assert first == ["v[0]"]
    else:
        assert first == []
        assert 4 < len(wire.key) <= 256
    wire.send(Q("SELECT pg_sleep(20)"))
    assert wire.silence(0.3)
    wire.cancel()
    assert show(wire.until()) == "T[pg_sleep] E[57014] ZI"


@EITHER
def test_grease(target: Target) -> None:
    options = {"_pq_.test_protocol_negotiation": ""}
    wire = target.open()
    replies = wire.login({**target.params(), **options}, version=GREASE).split(" ")
    target.compare = False
    assert replies[-1] == "ZI"
    assert replies[0] == f"v[{0 if target.name == DIRECT else 2},_pq_.test_protocol_negotiation]"
    assert [r[0] for r in replies].count("v") == 1
    assert wire.value("SELECT 1") == "1"


def test_unknown_option_with_3_0(target: Target) -> None:
    wire = target.open()
    assert wire.login({**target.params(), "_pq_.foo": "1", "_pq_.bar": "x"}).startswith("v[0,_pq_.foo,_pq_.bar] R0 ")
    # It is no setting.
    assert wire.query("SHOW _pq_.foo") == "E[42704] ZI"


@EITHER
def test_option_only_is_negotiated_at_3_2(target: Target) -> None:
    wire = target.open()
    replies = wire.login({**target.params(), "_pq_.foo": "1"}, version=PROTOCOL_3_2).split(" ")
    target.compare = False
    assert replies[0].endswith(",_pq_.foo]")
    assert replies[-1] == "ZI"


@pytest.mark.parametrize("version", [0x40000, 0x20000, 0x10000, 0x30000 * 5])
def test_unknown_major(target: Target, version: int) -> None:
    target.compare = False
    wire = target.open()
    replies = wire.send(startup_message(target.params(), version)).until("EOF")
    if version < PROTOCOL_3_0 and target.name == DIRECT:
        # Such an old client is answered in its own form, which has no length.
        assert replies[-1].kind == "EOF"
        return
    assert show(replies) == "E[FATAL 0A000] EOF"
    assert replies[0].fields["M"].startswith("unsupported frontend protocol")


def test_once_when_the_first_server_is_slow(target: Target) -> None:
    """A pool with no server yet: the negotiation is sent once, however long the login takes."""
    for _ in range(3):
        wire = target.open()
        replies = wire.login({**target.params(pool=3), "_pq_.x": "1"}).split(" ")
        assert [r for r in replies if r.startswith("v")] == ["v[0,_pq_.x]"]
        assert replies[-1] == "ZI"
