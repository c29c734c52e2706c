"""Settings from a calculation: periods, counts, time-outs and limits that keep within an outage that is tolerated.

Owns the arithmetic of `pgtrident tune` and the TOML that it prints, each setting with its calculation in front. Pure:
what is asked for goes in, a text or a ConfigError with the reason comes out. All is reckoned in whole milliseconds, so
that what is printed is exactly what was compared. Called by the command line.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..config.settings import dotted, toml
from ..config.units import format_duration
from ..errors import ConfigError
from .pace import JITTER, Times

FAIL_AFTER = 3
"""Failed probes in a row; one alone never switches. More only where the interval would be longer than the longest."""
RECOVER_AFTER = 2
LONGEST_INTERVAL = 10_000
"""Milliseconds. What is looked at more rarely is hardly looked at: a longer outage takes more probes instead."""
LONGEST_OUTAGE = 3_600_000
"""Milliseconds. Within more a human can act."""
ROUND_TRIPS = 10
"""Of one probe: TCP 1, SSLRequest 1, TLS 1.2 2 (1.3: 1), startup 1, SCRAM 2, and up to three queries
(`controlplane.probes`)."""
SYN_AGAIN = 1000
"""Milliseconds until a connection's lost first packet is sent again (RFC 6298, section 2)."""
PACKET_AGAIN = 200
"""The same for a lost packet of an open connection (Linux: TCP_RTO_MIN)."""
LOOK_UP = 4
"""Part of the time-out that a look-up of the node's name may take in front of a probe (`controlplane.controller`)."""
SHARE = 2
"""Detection takes half of the outage at most."""
STRICT_SHARE = 3
"""The same, with --strict."""
MEASURED_MARGIN = 2
"""Times what was measured."""
OUT = 2
"""Times the lag below which a copy comes back, until it is out."""
TAKEOVER = {"primary": 5_000, "replica": 2_000, "columnar": 10_000}
"""Milliseconds allowed for what follows detection: a replica is promoted and takes writes; reads go to other replicas;
statements go to another columnar node or to a replica."""
SAMPLES = (20, 100)
"""Milliseconds between two readings of positions: the shortest is that with which reads are waited for."""
ALARM = 5
"""The same until a columnar node is to be rebuilt."""
RESERVED = 3
"""superuser_reserved_connections of PostgreSQL (manual, section 20.3.1)."""
OWN = 3
"""The proxy's own connections to a node: probe, positions, catalogue."""
OTHERS = 10
"""Percent of a node's connections left to people, backups and monitoring."""

_NODE = re.compile(r"([A-Za-z0-9_.-]{1,63}):([0-9]{1,4}):([0-9]{1,6})", re.ASCII)


class NodeSize(NamedTuple):
    """A node's name, its processor cores, and max_connections in its postgresql.conf."""

    name: str
    cores: int
    max_connections: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What the settings have to do. All durations are seconds."""

    outage: float = 30.0
    """That the business tolerates, from the last statement that was answered to the next one."""
    jitter: float = 0.1
    """The longest round trip between proxy and nodes on a bad day."""
    lag: float = 0.1
    """How far replicas are behind on a bad day, and should get reads nevertheless."""
    columnar_lag: float = 1.0
    """The same for columnar nodes."""
    nodes: tuple[NodeSize, ...] = (NodeSize("db1", 4, 100),)
    """Without any, limits of connections are left as they are."""
    strict: bool = False
    """Detection within a third of the outage instead of half of it."""
    source: str = ""
    """How `jitter` is known, if it was measured."""


@dataclass(frozen=True, slots=True)
class Probes:
    """How nodes are probed. Milliseconds."""

    interval: int
    timeout: int
    fail_after: int
    again: int
    """What of the time-out is for a lost packet: `SYN_AGAIN` or `PACKET_AGAIN`."""

    @property
    def detection(self) -> int:
        """From one probe that passed to the verdict, where a node refuses and all goes by plan."""
        return self.interval * self.fail_after

    @property
    def latest_interval(self) -> int:
        """Between two starts, of which each may be moved."""
        return self.interval + round(self.interval * JITTER)

    @property
    def latest_detection(self) -> int:
        """The same where a node is silent, starts are moved and its name is looked up slowly."""
        return self.latest_interval * self.fail_after + _with_look_up(self.timeout)


def parse_node(text: str) -> NodeSize:
    """NAME:CORES:MAX_CONNECTIONS; ValueError otherwise."""
    match = _NODE.fullmatch(text)
    if match is None or not int(match[2]):
        raise ValueError(f"expected NAME:CORES:MAX_CONNECTIONS, such as db1:8:200, not {text!r}")
    return NodeSize(match[1], int(match[2]), int(match[3]))


def measured_jitter(times: Iterable[tuple[str, Times]]) -> tuple[float, str]:
    """The longest round trip in seconds that measured probes speak of, and how that was found; by node.

    ConfigError if nothing was measured.
    """
    known = list(times)
    if not known:
        raise ConfigError("it holds no times of probes yet; they are noted once an hour while the proxy runs")
    node, worst = max(known, key=lambda one: one[1].p99)
    probes, timeouts = (sum(getattr(one, name) for _, one in known) for name in ("count", "timeouts"))
    longest = max(one.longest for _, one in known)
    jitter = max(1, _whole(worst.p99 * MEASURED_MARGIN / ROUND_TRIPS))
    found = (
        f"Measured with {probes:,} probes, the longest {_ms(longest)} ms: in the worst hour of {node} 99 % took up to "
        f"{_ms(worst.p99)} ms. Times {MEASURED_MARGIN} for safety, over {ROUND_TRIPS} round trips: {jitter} ms each."
    )
    if timeouts * 100 > probes:
        found += (
            f" Warning: {timeouts:,} probes more weren't answered in time, and count nowhere here. Where their nodes "
            "were in service, raise `health.timeout` first and measure again."
        )
    return jitter / 1000, found


def tune(asked: Asked) -> str:
    """The settings as TOML, with their calculation as comments; ConfigError for what can't be had, with the reason."""
    probes = choose_probes(asked)
    settings = [*_server(probes), *_health(asked, probes), *_lag(asked), *_routing(asked, probes), *_sizes(asked)]
    lines = [*_comment(_made_for(asked)), *(_comment(asked.source)), "#"]
    lines += [*_comment(_outage(asked, probes)), "#", *_table(probes), "#"]
    lines += [line for text in (_worst(probes), *_warnings(asked, probes)) for line in _comment(text)]
    section: tuple[str, ...] = ()
    for setting in settings:
        if setting.key[:-1] != section:
            section = setting.key[:-1]
            lines += ["", f"[{dotted(section)}]"]
        lines += [*_comment(setting.why), f"{setting.key[-1]} = {toml(setting.value, setting.unit)}"]
    return "\n".join(lines) + "\n"


def choose_probes(asked: Asked) -> Probes:
    """The longest period that keeps within the outage; ConfigError if none does."""
    outage, jitter = _whole(asked.outage), _whole(asked.jitter)
    if outage > LONGEST_OUTAGE:
        raise ConfigError(
            f"an outage of {_s(outage)} leaves time for a human to act; expected at most {_s(LONGEST_OUTAGE)}"
        )
    share = STRICT_SHARE if asked.strict else SHARE
    found = _fitting(outage, jitter, share)
    if found is not None:
        return found
    shortest = PACKET_AGAIN + ROUND_TRIPS * jitter
    takes = (
        f"a probe may take {_s(shortest)} ({ROUND_TRIPS} round trips of {_s(jitter)}, and {_s(PACKET_AGAIN)} for a "
        "lost packet)"
    )
    if _with_look_up(shortest) >= LONGEST_INTERVAL:
        raise ConfigError(
            f"{takes}, and has to be over before the next one begins, at most {_s(LONGEST_INTERVAL)} later: on such a "
            "network a node that is down can't be told from one that is slow"
        )
    enough = next(more for more in range(outage, LONGEST_OUTAGE, 100) if _fitting(more, jitter, share))
    raise ConfigError(
        f"an outage of {_s(outage)} can't be kept: {takes}, {FAIL_AFTER} in a row have to fail within 1/{share} of the "
        f"outage, and a new primary takes {_s(TAKEOVER['primary'])} more; that needs {_s(enough)} at least"
    )


def _fitting(outage: int, jitter: int, share: int) -> Probes | None:
    """`share`: into how many parts the outage is cut, of which detection gets one."""
    for again in (SYN_AGAIN, PACKET_AGAIN):
        timeout = again + ROUND_TRIPS * jitter
        fail_after = max(FAIL_AFTER, outage // share // LONGEST_INTERVAL)
        # A primary that another program promotes is seen by the probe that follows: one interval more.
        room = outage - TAKEOVER["primary"] - _with_look_up(timeout)
        interval = min(LONGEST_INTERVAL, outage // share // fail_after, int(room / ((1 + JITTER) * (fail_after + 1))))
        interval -= interval % (100 if interval >= 1000 else 10)
        if _with_look_up(timeout) < interval:
            return Probes(interval, timeout, fail_after, again)
    return None


def _with_look_up(timeout: int) -> int:
    return timeout + math.ceil(timeout / LOOK_UP)


# The text.


class _Setting(NamedTuple):
    key: tuple[str, ...]
    value: int | float | str
    why: str
    unit: str = ""


def _duration(*key: str, ms: int, why: str) -> _Setting:
    return _Setting(key, ms / 1000, why, "seconds")


def _made_for(asked: Asked) -> str:
    flags = {"outage": asked.outage, "jitter": asked.jitter, "lag": asked.lag, "columnar-lag": asked.columnar_lag}
    words = [f"--{name} {format_duration(_whole(seconds) / 1000)}" for name, seconds in flags.items()]
    words += [f"--node {node.name}:{node.cores}:{node.max_connections}" for node in asked.nodes]
    return " ".join(["Made by: pgtrident tune", *words, *(["--strict"] if asked.strict else [])])


def _outage(asked: Asked, probes: Probes) -> str:
    outage = _whole(asked.outage)
    return (
        f"An outage of {_s(outage)} is tolerated. A node is down after {probes.fail_after} failed probes that begin "
        f"{_s(probes.interval)} apart: {probes.fail_after} x {_s(probes.interval)} = {_s(probes.detection)}, "
        f"{100 * probes.detection // outage} % of it."
    )


def _table(probes: Probes) -> Iterator[str]:
    yield "# node      detected after  taken over in  together  at worst"
    for role, takes in TAKEOVER.items():
        together, worst = probes.detection + takes, _worst_of(role, probes)
        yield f"# {role:<9} {_s(probes.detection):<15} {_s(takes):<14} {_s(together):<9} {_s(worst)}"


def _worst_of(role: str, probes: Probes) -> int:
    return probes.latest_detection + TAKEOVER[role] + (probes.latest_interval if role == "primary" else 0)


def _worst(probes: Probes) -> str:
    latest, timeout = probes.latest_interval, probes.timeout
    return (
        f"At worst starts are {JITTER * 100:.0f} % late ({probes.fail_after} x {_s(latest)} = "
        f"{_s(latest * probes.fail_after)}), the node is silent and its name is looked up slowly ({_s(timeout)} + "
        f"{_s(_with_look_up(timeout) - timeout)}): {_s(probes.latest_detection)}; and a primary that another program "
        f"promotes is seen by the probe that follows ({_s(latest)})."
    )


def _warnings(asked: Asked, probes: Probes) -> Iterator[str]:
    outage = _whole(asked.outage)
    if not asked.strict and probes.detection > outage // STRICT_SHARE:
        stricter = _fitting(outage, _whole(asked.jitter), STRICT_SHARE)
        by = (
            f"{stricter.fail_after} x {_s(stricter.interval)} = {_s(stricter.detection)}, with --strict"
            if stricter
            else "but a probe takes too long for that"
        )
        yield f"Warning: a third of {_s(outage)} ({_s(outage // STRICT_SHARE)}) would be stricter: {by}."
    columnar = _worst_of("columnar", probes)
    if columnar > outage:
        yield f"Warning: statements for columnar nodes may wait longer than {_s(outage)}: {_s(columnar)} at worst."
    if probes.again < SYN_AGAIN:
        yield (
            f"Warning: a probe whose first packet is lost fails, as that is sent again only after {_s(SYN_AGAIN)}; "
            f"{probes.fail_after} in a row have to."
        )


def _server(probes: Probes) -> Iterator[_Setting]:
    why = "One `health.interval`: who dials a silent node has given up when the next probe of it begins."
    yield _duration("server", "connect_timeout", ms=probes.interval, why=why)


def _health(asked: Asked, probes: Probes) -> Iterator[_Setting]:
    outage, jitter = _whole(asked.outage), _whole(asked.jitter)
    share = STRICT_SHARE if asked.strict else SHARE
    part = outage // share
    why = (
        f"1/{share} of {_s(outage)} is {_s(part)}, and over {probes.fail_after} probes {_s(part // probes.fail_after)}"
    )
    if probes.interval == LONGEST_INTERVAL:
        why += f"; at most {_s(LONGEST_INTERVAL)}"
    elif part // probes.fail_after - probes.interval >= 100:
        why += (
            f"; shorter, so that the worst of a primary ({_s(_worst_of('primary', probes))}) keeps within {_s(outage)}"
        )
    yield _duration("health", "interval", ms=probes.interval, why=f"{why}.")
    yield _duration(
        "health",
        "timeout",
        ms=probes.timeout,
        why=f"{ROUND_TRIPS} round trips of {_s(jitter)} make {_s(ROUND_TRIPS * jitter)}, and a lost "
        f"{'first packet' if probes.again == SYN_AGAIN else 'packet'} costs {_s(probes.again)}. "
        f"It is below `interval`, with {_s(_with_look_up(probes.timeout) - probes.timeout)} for a look-up in front.",
    )
    why = f"One failed probe never switches. {probes.fail_after} x {_s(probes.interval)} = {_s(probes.detection)}."
    yield _Setting(("health", "fail_after"), probes.fail_after, why)
    why = (
        f"The way back is longer than one good answer: {RECOVER_AFTER} passes from down to recovering and "
        f"{RECOVER_AFTER} to active, {2 * RECOVER_AFTER} x {_s(probes.interval)} = "
        f"{_s(2 * RECOVER_AFTER * probes.interval)}."
    )
    yield _Setting(("health", "recover_after"), RECOVER_AFTER, why)
    sample = _sample(asked)
    shortest, longest = SAMPLES
    why = f"As often as a replica may be late ({_s(_whole(asked.lag))}), from {_s(shortest)} to {_s(longest)}."
    yield _duration("health", "sample_interval", ms=sample, why=why)


def _sample(asked: Asked) -> int:
    shortest, longest = SAMPLES
    return min(longest, max(shortest, _whole(asked.lag)))


def _lag(asked: Asked) -> Iterator[_Setting]:
    sample, jitter = _sample(asked), _whole(asked.jitter)
    for role, lag in (("replica", _whole(asked.lag)), ("columnar", _whole(asked.columnar_lag))):
        back = max(sample, lag) + 2 * jitter
        why = f"{OUT} x `{role}_in`, so that a copy doesn't come and go."
        yield _duration("lag", f"{role}_out", ms=OUT * back, why=why)
        at_least = "" if lag >= sample else f" (read every {_s(sample)})"
        why = (
            f"Late by {_s(max(sample, lag))}{at_least}, and two round trips of {_s(jitter)} to see it, of primary and "
            f"copy: {_s(back)}."
        )
        yield _duration("lag", f"{role}_in", ms=back, why=why)
        if role == "columnar":
            yield _duration("lag", "columnar_alarm", ms=ALARM * back, why=f"{ALARM} x `columnar_in`.")


def _routing(asked: Asked, probes: Probes) -> Iterator[_Setting]:
    takes, seen = TAKEOVER["primary"], probes.latest_interval
    left = _whole(asked.outage) - probes.latest_detection
    why = (
        f"A unit waits from the verdict on: {_s(takes)} for a new primary and {_s(seen)} until that is seen. Of the "
        f"outage there are {_s(left)} left then."
    )
    yield _duration("routing", "hold_timeout", ms=takes + seen, why=why)


def _sizes(asked: Asked) -> Iterator[_Setting]:
    names = [node.name for node in asked.nodes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{', '.join(twice)}: named twice")
    limits = {node.name: _limit(node) for node in asked.nodes}
    if not limits:
        return
    smallest = min(asked.nodes, key=lambda node: min(_useful(node), limits[node.name]))
    useful, limit = _useful(smallest), limits[smallest.name]
    size = min(useful, limit)
    why = (
        f"2 x {smallest.cores} cores + 1 = {useful} are enough to keep {smallest.name} at work (PostgreSQL wiki, "
        "Number Of Database Connections)"
    )
    why += f", but it has only {limit}" if limit < useful else f"; it has room for {limit // size} pools of {size}"
    why += ". More are needed where transactions wait for their clients."
    yield _Setting(("pool", "pool_size"), size, why)
    for node in asked.nodes:
        why = "Put its address here; leave this line out where the section has one."
        yield _Setting(("nodes", node.name, "host"), node.name, why)
        why = (
            f"Of {node.max_connections} connections {RESERVED} are the superuser's, {OWN} the proxy's own, "
            f"{_for_others(node)} ({OTHERS} %) for others. With several proxies divide it by their number."
        )
        yield _Setting(("nodes", node.name, "max_connections"), limits[node.name], why)


def _useful(node: NodeSize) -> int:
    return 2 * node.cores + 1


def _for_others(node: NodeSize) -> int:
    return math.ceil(node.max_connections * OTHERS / 100)


def _limit(node: NodeSize) -> int:
    """Servers that clients may have there; ConfigError if there are none."""
    limit = node.max_connections - RESERVED - OWN - _for_others(node)
    if limit < 1:
        raise ConfigError(
            f"{node.name}: of {node.max_connections} connections none is left for clients: {RESERVED} are the "
            f"superuser's, {OWN} the proxy's own, {_for_others(node)} for others"
        )
    return limit


def _whole(seconds: float) -> int:
    """Milliseconds, rounded up."""
    return math.ceil(round(seconds * 1000, 6))


def _s(milliseconds: int) -> str:
    """As it stands in comments: 300 ms, 2.8 s, 3600 s."""
    return f"{milliseconds} ms" if 0 < milliseconds < 1000 else f"{milliseconds / 1000:.10g} s"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 98, break_long_words=False, break_on_hyphens=False)]
