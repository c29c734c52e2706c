"""Which of several copies that could serve a read gets it. Pure. Called by `router`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..topology.model import TRIAL

METHODS = ("least", "weighted", "round_robin", "latency")


class Balancer:
    """Remembers whose turn it is."""

    def __init__(self, method: str = "least") -> None:
        """`method`: see METHODS; the setting `routing.balance`."""
        self.method = method
        self._turn = 0
        self._trials = 0
        self._credit: dict[str, int] = {}

    @property
    def turn(self) -> tuple[int, int, dict[str, int]]:
        """Whose turn it is: to be set again when a choice was only tried."""
        return self._turn, self._trials, dict(self._credit)

    @turn.setter
    def turn(self, before: tuple[int, int, dict[str, int]]) -> None:
        self._turn, self._trials, self._credit = before

    def tries(self) -> bool:
        """Whether it is the turn of one that has to show that it can serve."""
        self._trials += 1
        return self._trials % (100 // TRIAL) == 0

    def choose(
        self,
        nodes: Sequence[str],
        weights: dict[str, int],
        latencies: dict[str, int],
        load: Callable[[str], int],
    ) -> str:
        """One of `nodes`. A node whose weight is 0 gets something only where all others are 0 too."""
        if len(nodes) == 1:
            return nodes[0]
        if not all(weights[node] for node in nodes):
            nodes = [node for node in nodes if weights[node]] or nodes
        self._turn += 1
        first = self._turn % len(nodes)
        if self.method == "weighted":
            return self._by_weight(nodes, weights)
        turns = [*nodes[first:], *nodes[:first]]
        if self.method == "round_robin":
            return self._by_weight(nodes, weights) if len({weights[node] for node in nodes}) > 1 else turns[0]
        if self.method == "latency":
            return min(turns, key=lambda node: latencies.get(node, 0) * 100 // max(1, weights[node]))
        if len({weights[node] for node in nodes}) == 1:
            return min(turns, key=load)
        return min(turns, key=lambda node: (load(node) + 1) / max(1, weights[node]))

    def _by_weight(self, nodes: Sequence[str], weights: dict[str, int]) -> str:
        """Smooth weighted round robin: each gains its weight, the richest pays for all (as nginx does it)."""
        credit = self._credit
        total = 0
        best = nodes[0]
        for node in nodes:
            weight = max(1, weights[node])
            total += weight
            credit[node] = credit.get(node, 0) + weight
            if credit[node] > credit[best]:
                best = node
        credit[best] -= total
        if len(credit) > 2 * len(nodes) + 16:
            self._credit = {node: credit[node] for node in nodes}
        return best
