"""Which nodes the clients of this worker keep to.

Owns each client's tie (its service, its key, where it went last) and the worker's `Affinity`, made anew with each
snapshot. It decides nothing: orders, waiting and coming back are `routing.affinity`'s, which nodes serve is the
router's. Called by `worker` at login, for each unit of a tied client, after snapshots and reloads; by `upkeep` for
what no unit asks for. A client without a tie costs one test per unit.

With several writers every client is tied: its writes and transactions go to one of them. What a copy holds is known
of one primary's WAL only, so reads that have to see something go to the writer too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import LoginError, Moved
from ..ipc.messages import Home, NeedHomes
from ..routing.affinity import Affinity, Choice, Plans, moves
from ..session.wishes import KEY, SERVICE
from ..topology.model import Health, Role
from ..topology.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .authenticate import LoggedIn
    from .client import Client
    from .worker import Worker

SEVERAL_WRITERS = "several_writers"
"""The reason of reads that are on a writer because it isn't known what a copy holds."""
BALANCED = "affinity_balance"


class Tie:
    """How one client keeps to nodes, and what `Services.place` last said of a unit."""

    __slots__ = ("error", "key", "node", "on", "reason", "rule", "service", "strong", "writer")

    def __init__(self, service: str, key: str, rule: tuple[str, str, str]) -> None:
        self.service = service
        self.key = key
        self.rule = rule
        """Service, selector and `by`: while these stay, so does the key."""
        self.on: dict[Role, str] = {}
        """Where its units went last, by the role of the node."""
        self.error: Moved | None = None
        """What its next statement is answered with."""
        self.node = ""
        """The copy for a read; empty: any."""
        self.reason = ""
        self.writer = ""
        """The node for writes and all that isn't read from copies; empty: the primary."""
        self.strong = ""
        """Why a read is to be on the writer; empty: it may go to a copy."""


class Services:
    """Of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.plans = Plans(worker.config)
        self.several = worker.config.group.multi_writer
        self._writers = _active_writers(worker.snapshot)
        self._since: dict[str, float] = {}
        """When a client last went over to another node, by service; Unix seconds."""
        self.affinity = Affinity(self.plans, worker.snapshot, worker.clock.now(), first_turn=worker.index)

    # ------------------------------------------------------------------ what has changed

    def published(self) -> None:
        """There is a new snapshot, and the router has it already."""
        worker = self._worker
        snapshot = worker.snapshot
        self._writers = _active_writers(snapshot)
        self.affinity = Affinity(self.plans, snapshot, worker.clock.now(), before=self.affinity)

    def reconfigured(self) -> None:
        """A reload: clients whose service or selector is another one are tied anew."""
        worker = self._worker
        self.plans = Plans(worker.config)
        self.several = worker.config.group.multi_writer
        self._since = {name: since for name, since in self._since.items() if self.plans.get(name) is not None}
        self.published()
        for client in worker.clients.values():
            client.tie = self.tie(client, client.tie)

    def leaves(self, node: str) -> bool:
        """Whether those who wait at a writer ask again: it may be doubtful only, and they have others."""
        return self.several and node in self._worker.snapshot.writers and node not in self._writers

    # ------------------------------------------------------------------ one client

    def check(self, login: LoggedIn) -> None:
        """Raises LoginError where a client names a service that doesn't exist."""
        self.plans.service_of(login.database, login.params.get(SERVICE, ""))

    def tie(self, client: Client, before: Tie | None = None) -> Tie | None:
        """The tie of a client; None where all nodes are equal to it, or it has no choice of nodes."""
        login = client.login
        try:
            service = self.plans.service_of(login.database, client.startup_wishes.get(SERVICE, ""))
        except LoginError:
            service = self.plans.service_of(login.database)  # it went with a reload
        plan = self.plans.get(service)
        if not self.several and (plan is None or not client.settings.split):
            return None
        rule = (service, plan.selector, plan.by) if plan is not None else (service, "", "")
        if before is not None and before.rule == rule:
            return before
        facts = {
            "application_name": login.params.get("application_name", ""),
            "user": login.user,
            "database": login.database,
            "client_addr": login.peer.rpartition(":")[0],
            "key": client.startup_wishes.get(KEY, ""),
        }
        tie = Tie(service, self.affinity.key(service, facts), rule)
        if plan is not None and plan.selector == "spread":
            self.affinity.order(service, tie.key, self._role)
            self._ask_homes()
        return tie

    def place(self, tie: Tie, level: str, *, copies: bool, able: bool, named: bool = False) -> float:
        """Say in `tie` where a unit should go; until when it waits for its node instead, or 0.

        `copies`: it is a read that may leave the writer. `able`: columnar nodes may answer it. `named`: hint or rule
        name the node.
        """
        affinity = self.affinity
        now = self._worker.clock.now()
        until = 0.0
        tie.node = tie.writer = tie.strong = ""
        if self.several:
            if copies and (level != "eventual" or (not able and self._reads_from_writer(tie.service))):
                copies = False
                tie.strong = SEVERAL_WRITERS
            choice = self._choose(tie, Role.PRIMARY, now)
            tie.writer = choice.node
            if not copies:
                until = choice.hold_until
                self._went(tie, Role.PRIMARY, choice)
        if copies and not named:
            role = Role.COLUMNAR if able else Role.REPLICA
            choice = self._choose(tie, role, now)
            tie.node, tie.reason = choice.node, choice.reason
            until = choice.hold_until
            self._went(tie, role, choice)
        if affinity.wanted:
            self._ask_homes()
        return until

    def _choose(self, tie: Tie, role: Role, now: float) -> Choice:
        return self.affinity.choose(tie.service, tie.key, role, now, self._serving(role), tie.on.get(role, ""))

    def _serving(self, role: Role) -> Sequence[str]:
        if role is Role.PRIMARY:
            return self._writers
        router = self._worker.router
        return router.columnar.serving if role is Role.COLUMNAR else router.replicas.serving

    def _reads_from_writer(self, service: str) -> bool:
        """Whether a service lists no replicas: with several writers it is then read where it is written."""
        return self.plans.get(service) is not None and not self.affinity.members(service, Role.REPLICA)

    @property
    def _role(self) -> Role:
        """Of the nodes that services mostly keep to."""
        return Role.PRIMARY if self.several else Role.REPLICA

    def _went(self, tie: Tie, role: Role, choice: Choice) -> None:
        """A client's units go to this node from now on."""
        node = choice.node
        before = tie.on.get(role, "")
        if not node or node == before:
            return
        tie.on[role] = node
        if not before:
            return
        self._worker.counters.switched(tie.service, node, choice.reason)
        self._since[tie.service] = self._worker.clock.wall()
        if choice.notify and tie.error is None:
            tie.error = Moved(
                f'service "{tie.service}" was moved from node "{before}" to node "{node}"',
                detail="Nothing of this statement was run.",
                hint="Run it again.",
            )

    # ------------------------------------------------------------------ what no unit asks for

    def upkeep(self) -> None:
        """Once a second, and after each snapshot."""
        if any(plan.notify for plan in self.plans.all):
            self._note_moves()
        for plan in self.plans.all:
            if plan.balance:
                self._balance(plan.name)
        self._ask_homes()

    def _note_moves(self) -> None:
        """Clients that want to be told of a switch are, also those that were idle all the time."""
        now = self._worker.clock.now()
        for client in self._worker.clients.values():
            tie = client.tie
            plan = self.plans.get(tie.service) if tie is not None else None
            if tie is None or plan is None or not plan.notify:
                continue
            for role in list(tie.on):
                choice = self._choose(tie, role, now)
                if choice.notify:
                    self._went(tie, role, choice)

    def _balance(self, service: str) -> None:
        """Give some clients of a service other nodes, so that all have equally many."""
        role = self._role
        affinity = self.affinity
        nodes = [node for node in affinity.members(service, role) if node in self._serving(role)]
        plan = self.plans.get(service)
        assert plan is not None
        sessions: dict[int, str] = {}
        for number, client in self._worker.clients.items():
            tie = client.tie
            if tie is None or tie.service != service:
                continue
            kept = tie.on.get(role, "") if not plan.failback else ""
            sessions[number] = (
                kept if kept in nodes else next((n for n in affinity.order(service, tie.key, role) if n in nodes), "")
            )
        for number, node in moves(sessions, nodes).items():
            tie = self._worker.clients[number].tie
            if tie is not None:
                tie.key = affinity.turn_to(service, role, node)
                if not plan.failback:
                    self._went(tie, role, Choice(node, BALANCED))

    # ------------------------------------------------------------------ the homes of `spread`

    def _ask_homes(self) -> None:
        """Let the controller say where names go that are new."""
        if self.affinity.wanted:
            self._worker.send(NeedHomes([Home(*wanted) for wanted in self.affinity.take_wanted()]))

    def told(self, homes: Sequence[Home]) -> None:
        """The controller has said so."""
        for home in homes:
            self.affinity.told(home.service, home.role, home.name, home.node)

    # ------------------------------------------------------------------ looking at it

    def rows(self) -> list[dict[str, Any]]:
        """One row a service; keys as in `admin.view.ControllerView.report`."""
        now = self._worker.clock.now()
        sessions: dict[str, dict[str, int]] = {plan.name: {} for plan in self.plans.all}
        role = self._role
        for client in self._worker.clients.values():
            tie = client.tie
            if tie is not None and tie.service in sessions and (node := tie.on.get(role, "")):
                counts = sessions[tie.service]
                counts[node] = counts.get(node, 0) + 1
        return [
            {
                "service": plan.name,
                "preferred": self._first(plan.name, role) if not plan.has_keys and plan.selector != "0" else "",
                "node": self._now(plan.name, role, now) if not plan.has_keys and plan.selector != "0" else "",
                "sessions": sessions[plan.name],
                "since": self._since.get(plan.name),
            }
            for plan in self.plans.all
        ]

    def _first(self, service: str, role: Role) -> str:
        return next(iter(self.affinity.order(service, "", role)), "")

    def _now(self, service: str, role: Role, now: float) -> str:
        return self.affinity.choose(service, "", role, now, self._serving(role)).node


def _active_writers(snapshot: Snapshot) -> tuple[str, ...]:
    """Doubtful ones are waited for, be it the primary."""
    return tuple(name for name in snapshot.writers if snapshot.nodes[name].health is Health.ACTIVE)
