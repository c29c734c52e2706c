"""From what each node says of itself to one verdict over the group: who is the primary, who is unfit.

Owns the rules for two primaries, none, and foreign data; must not move any health, nor publish.
Pure. Called by `controlplane.controller` after each observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..topology.model import Health, Role
from .table import Seen


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one node."""

    name: str
    wanted: str
    """The role in the config: auto, primary, replica or columnar."""
    role: Role
    """As it last answered, or as assumed (see `role_of`); unknown if it never did."""
    health: Health
    answering: bool
    """The latest look at it was a pass."""
    system: str = ""
    """System identifier (pg_control_system); empty if not known."""
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    primary: str = ""
    """Name of the node that takes writes; empty: none may."""
    unfit: dict[str, str] = field(default_factory=dict)
    """Nodes that must not be used whatever their health, with the reason."""
    alarm: str = ""
    """One sentence when the group contradicts itself."""
    writers: tuple[str, ...] = ()
    """Where the group may have several: all that may take writes, if their health lets them."""


def role_of(wanted: str, in_recovery: bool | None, lone: bool) -> tuple[Role, Seen]:
    """The role of a node that answered, and how that counts.

    `in_recovery` is the answer of pg_is_in_recovery(), or None when the probe could not log in: then the
    config is believed, and a `lone` node (no other could be the primary) is the primary.
    """
    if wanted == "columnar":
        return Role.COLUMNAR, Seen.NO_LOGIN if in_recovery is None else Seen.PASS
    if in_recovery is None:
        if wanted == "auto":
            return (Role.PRIMARY if lone else Role.UNKNOWN), Seen.NO_LOGIN
        return Role(wanted), Seen.NO_LOGIN
    role = Role.REPLICA if in_recovery else Role.PRIMARY
    return role, Seen.PASS if wanted in ("auto", role) else Seen.WRONG_ROLE


def judge(nodes: Sequence[Facts], was: str, *, multi_writer: bool = False) -> Verdict:
    """`was` is the primary until now, or empty.

    Two that say primary: the one that was stays, unless it is silent and exactly one other has a later
    timeline (it was promoted). Without one that was, the config's word decides, else nobody writes.
    With `multi_writer` those that the config calls primary all write, each beside the others; one that merely
    says so, such as a replica promoted by mistake, still doesn't.
    """
    claims = [n for n in nodes if n.role is Role.PRIMARY and (n.answering or n.health is not Health.DOWN)]
    said = [n for n in claims if n.wanted == "primary"] if multi_writer else []
    lead = [n for n in said if n.name == was] or [n for n in said if n.answering][:1]
    primary, alarm = _primary(lead or claims, was)
    writers = tuple(n.name for n in said)
    unfit = {n.name: "second_primary" for n in claims if n.name != primary and n.name not in writers}
    system = next((n.system for n in nodes if n.name == primary), "")
    if system:
        for n in nodes:
            if n.role is Role.REPLICA and n.system and n.system != system:
                unfit[n.name] = "other_system"
    return Verdict(primary, unfit, alarm, writers)


def _primary(claims: Sequence[Facts], was: str) -> tuple[str, str]:
    """(name, alarm)."""
    incumbent = next((n for n in claims if n.name == was), None)
    # Who is silent has no say against the one that was: its role may be long outdated.
    rivals = [n for n in claims if n.answering and n.name != was]
    if incumbent is not None:
        if not rivals:
            return was, ""
        promoted = [n for n in rivals if n.timeline > incumbent.timeline]
        if not incumbent.answering and len(promoted) == 1:
            return promoted[0].name, ""
        return was, f"several nodes say that they are the primary: {_names([incumbent, *rivals])}; {was} stays"
    if len(rivals) == 1:
        return rivals[0].name, ""
    if not rivals:
        return "", ""
    said = [n for n in rivals if n.wanted == "primary"]
    alarm = f"several nodes say that they are the primary: {_names(rivals)}"
    if len(said) == 1:
        return said[0].name, f"{alarm}; {said[0].name} is it by the configuration"
    return "", f"{alarm}; none takes writes"


def _names(nodes: Sequence[Facts]) -> str:
    return ", ".join(sorted(n.name for n in nodes))
