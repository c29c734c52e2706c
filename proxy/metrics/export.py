"""The catalogue and the current figures as a Prometheus page; the only importer of prometheus_client.

The page is made when it is asked for, from one `Scrape`; nothing is counted here. Called by `admin.http`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from . import catalog
from .catalog import Metric, Source
from .totals import PoolKey

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_Family = CounterMetricFamily | GaugeMetricFamily


@dataclass(frozen=True, slots=True)
class Scrape:
    """The figures of one moment."""

    version: str
    """Of the program."""
    workers: int
    epoch: int
    snapshot_version: int
    serving: frozenset[str]
    """Names of the nodes that may take new work."""
    nodes: Sequence[Mapping[str, Any]]
    """Rows with name, role, health, lag_bytes, since, probes, probe_failures (the last four may be missing)."""
    values: Mapping[str, int]
    """Counters by name, as `WorkerCounters.as_dict` names them, summed over the workers."""
    pools: Mapping[PoolKey, Mapping[str, int]]


def page(scrape: Scrape) -> bytes:
    """The page in Prometheus' text format (version 0.0.4), UTF-8; its type is `CONTENT_TYPE`.

    Takes about 0.4 ms a pool, so with many pools it belongs in a thread.
    """
    return generate_latest(_Collector(scrape))


class _Collector(Collector):
    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterable[_Family]:
        page = _Page()
        _fill(page, self._scrape)
        return page.families.values()


class _Page:
    """All families in the order of the catalogue, to which samples are added."""

    def __init__(self) -> None:
        self.families = {metric: _family(metric) for metric in catalog.all_metrics()}

    def add(self, metric: Metric, value: float, **labels: str) -> None:
        self.families[metric].add_metric([labels[name] for name in metric.labels], value)

    def add_source(self, source: Source, value: int, labels: Mapping[str, str]) -> None:
        self.add(source.metric, value * source.scale, **labels, **source.labels)


def _fill(page: _Page, scrape: Scrape) -> None:
    page.add(catalog.BUILD, 1, version=scrape.version)
    page.add(catalog.WORKERS, scrape.workers)
    page.add(catalog.EPOCH, scrape.epoch)
    page.add(catalog.SNAPSHOT, scrape.snapshot_version)
    for node in scrape.nodes:
        name = node["name"]
        for health in catalog.HEALTHS:
            page.add(catalog.NODE_HEALTH, node["health"] == health, node=name, role=str(node["role"]), health=health)
        page.add(catalog.NODE_SERVING, name in scrape.serving, node=name)
        for metric, key in (
            (catalog.NODE_LAG, "lag_bytes"),
            (catalog.NODE_LAG_SECONDS, "lag_seconds"),
            (catalog.NODE_WEIGHT, "weight"),
            (catalog.NODE_SINCE, "since"),
            (catalog.NODE_PROBES, "probes"),
            (catalog.NODE_PROBE_FAILURES, "probe_failures"),
        ):
            if node.get(key) is not None:
                page.add(metric, node[key], node=name)
    for field, source in catalog.WORKER.items():
        page.add_source(source, scrape.values.get(field, 0), {})
    for field, count in scrape.values.items():
        if field.startswith("route:"):
            _, node_and_reason = field.split(":", 1)
            name, reason = node_and_reason.rsplit(":", 1)
            page.add(catalog.ROUTES, count, node=name, reason=reason)
        elif field.startswith("rule:"):
            rule, result = field.split(":", 1)[1].rsplit(":", 1)
            page.add(catalog.RULES, count, rule=rule, result=result)
        elif field.startswith("switch:"):
            _, name, reason, service = field.split(":", 3)
            page.add(catalog.SWITCHES, count, service=service, node=name, reason=reason)
    for (node_name, database, user), counts in scrape.pools.items():
        labels = {"node": node_name, "database": database, "user": user}
        for field, source in catalog.POOL.items():
            page.add_source(source, counts.get(field, 0), labels)


def _family(metric: Metric) -> _Family:
    family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return family(catalog.PREFIX + metric.name, metric.help, labels=metric.labels)
