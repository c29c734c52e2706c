"""How long it takes until a node that is silent counts as down, whatever workers say meanwhile."""

from __future__ import annotations

import asyncio
import random

import pytest

from proxy.controlplane.probes import Pace
from proxy.health.machine import Limits, NodeHealth
from proxy.health.pace import JITTER
from proxy.health.table import Layer, Seen
from proxy.testing import SeededRng
from proxy.topology.model import Health


class Leaping(asyncio.SelectorEventLoop):
    """A loop whose clock leaps to the next timer instead of waiting for it."""

    leapt = 0.0

    def time(self) -> float:
        return self.leapt

    def _run_once(self) -> None:
        timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if timers and not self._ready:  # type: ignore[attr-defined]
            self.leapt = max(self.leapt, min(timers))
        super()._run_once()  # type: ignore[misc]


async def detect(rng: random.Random, interval: float, lasting: float, fail_after: int, evidence: list[float]) -> float:
    """Seconds from the silence of a node to its `down`. A probe that fails takes `lasting` seconds; evidence comes so
    many seconds after each failure that counts."""
    loop = asyncio.get_running_loop()
    silent = rng.uniform(2 * interval, 5 * interval)
    limits = Limits(fail_after=fail_after, spacing={Layer.DATABASE: interval / 2})
    health = NodeHealth("n1", limits, now=0.0, state=Health.ACTIVE)
    down = asyncio.Event()

    async def look() -> None:
        fails = loop.time() >= silent
        await asyncio.sleep(lasting if fails else lasting * rng.random() / 2)
        before = health.failures
        health.observe(Layer.DATABASE, Seen.TIMEOUT if fails else Seen.PASS, loop.time())
        if health.failures > before and evidence:
            loop.call_later(evidence.pop(), pace.hurry)
        if health.state is Health.DOWN:
            down.set()

    pace = Pace(look, lambda: interval, rng)
    running = asyncio.create_task(pace.run())
    await down.wait()
    running.cancel()
    return loop.time() - silent


@pytest.mark.parametrize("seed", range(200))
def test_evidence_never_makes_it_later(seed: int) -> None:
    rng = SeededRng(seed)
    interval, fail_after = 5.0, rng.randint(1, 5)
    lasting = rng.uniform(0.1, 4.9)
    evidence = [rng.uniform(0, rng.choice((0.5, 1.0)) * interval) for _ in range(rng.randint(0, 6))]
    with asyncio.Runner(loop_factory=Leaping) as runner:
        took = runner.run(detect(rng, interval, lasting, fail_after, evidence))
    assert took <= interval * (1 + JITTER) * fail_after + lasting + 1e-6, (rng, evidence)


async def _looks(put_off: bool) -> int:
    """How often a look that is due each 5 s is made in 60 s, while another one sees the same each 3 s."""
    loop = asyncio.get_running_loop()
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1

    pace = Pace(look, lambda: 5.0, SeededRng(1))
    running = asyncio.create_task(pace.run())
    while loop.time() < 60:
        await asyncio.sleep(3)
        if put_off:
            pace.put_off()
    running.cancel()
    return looks


@pytest.mark.parametrize(("put_off", "counts"), [(True, range(1, 2)), (False, range(11, 15))])
def test_what_was_just_seen_is_not_looked_at(put_off: bool, counts: range) -> None:
    with asyncio.Runner(loop_factory=Leaping) as runner:
        found = runner.run(_looks(put_off))
    assert found in counts
