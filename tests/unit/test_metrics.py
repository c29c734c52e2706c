"""Counters, their sums over workers, and the page that Prometheus reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from proxy.admin.stats import Stats
from proxy.metrics import catalog
from proxy.metrics.counters import POOL_FIELDS, POOL_GAUGES, POOL_MAXIMA, WORKER_FIELDS, PoolCounters, WorkerCounters
from proxy.metrics.export import page
from proxy.metrics.totals import MAX_POOLS, Totals, merge_pools
from proxy.testing import FakeClock
from proxy.topology.model import Health
from tests.support.fake_view import FakeView, pool_row, worker_report


def families(view: FakeView) -> dict[str, dict[tuple[str, ...], float]]:
    """The page as a scraper reads it: label values in order of their labels' names to value, by family."""
    text = page(Stats(view, FakeClock()).scrape()).decode()
    return {
        family.name: {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in family.samples
        }
        for family in text_string_to_metric_families(text)
    }


def test_counters_start_at_zero_and_have_no_dict() -> None:
    worker, pool = WorkerCounters(), PoolCounters()
    assert set(worker.as_dict().values()) == {0}
    assert set(pool.as_dict().values()) == {0}
    assert not hasattr(worker, "__dict__")
    assert not hasattr(pool, "__dict__")


def test_routes_are_counted_by_node_and_reason() -> None:
    worker = WorkerCounters()
    worker.routed("pg:1", "select")
    worker.routed("pg:1", "select")
    assert worker.as_dict()["route:pg:1:select"] == 2


def test_switches_are_counted_by_service_node_and_reason() -> None:
    """Whatever a service is called, it is a counter."""
    worker = WorkerCounters()
    for _ in range(2):
        worker.switched("a:b_current", "pg1", "affinity_next")
    view = FakeView()
    view.counters = {0: worker_report(0, **worker.as_dict()), 1: worker_report(1, **worker.as_dict())}
    assert families(view)["pgtrident_service_switches"] == {("pg1", "affinity_next", "a:b_current"): 4}
    totals = Totals()
    totals.update(0, worker.as_dict(), [])
    totals.keep([])
    assert totals.values()["switch:pg1:affinity_next:a:b_current"] == 2


def test_every_counter_has_a_metric_and_every_metric_a_counter() -> None:
    assert set(catalog.WORKER) == set(WORKER_FIELDS)
    assert set(catalog.POOL) == set(POOL_FIELDS)
    assert set(POOL_FIELDS) > POOL_GAUGES > POOL_MAXIMA


def test_kind_of_every_metric_fits_its_counter() -> None:
    for name, source in catalog.WORKER.items():
        assert (source.metric.kind == "gauge") == name.endswith("_current"), name
    for name, source in catalog.POOL.items():
        assert (source.metric.kind == "gauge") == (name in POOL_GAUGES), name


def test_sources_of_one_metric_differ_in_their_labels() -> None:
    for table in (catalog.WORKER, catalog.POOL):
        seen = [(source.metric.name, *sorted(source.labels.items())) for source in table.values()]
        assert len(seen) == len(set(seen))
    for source in (*catalog.WORKER.values(), *catalog.POOL.values()):
        given = set(source.labels) | (set(catalog.POOL_LABELS) & set(source.metric.labels))
        assert given == set(source.metric.labels)


def test_names_are_unique_and_healths_are_those_of_the_model() -> None:
    names = [metric.name for metric in catalog.all_metrics()]
    assert len(names) == len(set(names))
    assert set(catalog.HEALTHS) == {health.value for health in Health}


def test_page_has_exactly_the_catalogue() -> None:
    view = FakeView()
    view.counters[0].values["route:pg1:insert"] = 4
    view.counters[0].values["rule:closed:held"] = 2
    view.counters[0].values["switch:pg1:affinity_next:billing"] = 3
    found = families(view)
    assert set(found) == {catalog.PREFIX + metric.name for metric in catalog.all_metrics()}
    assert all(samples for samples in found.values()), [name for name, samples in found.items() if not samples]


def test_page_sums_workers() -> None:
    found = families(FakeView())
    pool = ("shop", "pg1", "app")
    assert found["pgtrident_clients"][()] == 5
    assert found["pgtrident_pool_queries"][pool] == 15
    assert found["pgtrident_pool_max_wait_seconds"][pool] == 1.5
    assert found["pgtrident_workers"][()] == 2
    assert found["pgtrident_epoch"][()] == 3
    assert found["pgtrident_node_health"][("down", "pg2", "replica")] == 1
    assert found["pgtrident_node_health"][("active", "pg2", "replica")] == 0
    assert found["pgtrident_node_serving"] == {("pg1",): 1, ("pg2",): 0}
    assert found["pgtrident_node_lag_bytes"] == {("pg2",): 64}


def test_page_quotes_names() -> None:
    view = FakeView()
    view.counters = {0: worker_report(0, [pool_row(database='a"b\\c\nd', queries=1)])}
    assert families(view)["pgtrident_pool_queries"] == {('a"b\\c\nd', "pg1", "app"): 1}


def test_page_without_snapshot_or_workers() -> None:
    view = FakeView()
    view.snapshot, view.counters = None, {}
    found = families(view)
    assert found["pgtrident_workers"][()] == 0
    assert found["pgtrident_clients"][()] == 0


def test_sums_do_not_fall_when_a_worker_starts_anew() -> None:
    totals = Totals()
    pool = ("pg1", "shop", "app")
    first = worker_report(0, [pool_row(queries=100, servers_idle=3)], clients_total=10, clients_current=5)
    again = worker_report(0, [pool_row(queries=1, servers_idle=1)], clients_total=1, clients_current=1)
    for report in (first, again):
        totals.update(0, report.values, report.pools)
    assert totals.values()["clients_total"] == 11
    assert totals.values()["clients_current"] == 1
    assert totals.pools()[pool]["queries"] == 101
    assert totals.pools()[pool]["servers_idle"] == 1
    totals.keep([])
    assert totals.values()["clients_total"] == 11
    assert totals.values().get("clients_current", 0) == 0
    assert totals.pools()[pool]["queries"] == 101


def test_sums_keep_a_pool_that_was_removed() -> None:
    totals = Totals()
    totals.update(0, {}, [pool_row(queries=100)])
    totals.update(0, {}, [])
    totals.update(0, {}, [pool_row(queries=2)])
    assert totals.pools()[("pg1", "shop", "app")]["queries"] == 102


def test_pools_of_the_past_are_bounded() -> None:
    totals = Totals()
    for number in range(MAX_POOLS + 50):
        totals.update(0, {}, [pool_row(user=f"u{number}", queries=1)])
    totals.update(0, {}, [])
    pools = totals.pools()
    assert len(pools) == MAX_POOLS + 1
    assert pools[("pg1", "shop", "(other)")]["queries"] == 50


def test_merge_pools_adds_and_takes_the_longest_wait() -> None:
    rows = [
        pool_row(clients_waiting=1, max_wait_us=5),
        pool_row(clients_waiting=2, max_wait_us=9),
        pool_row(node="pg0"),
    ]
    merged = merge_pools(rows)
    assert [row["node"] for row in merged] == ["pg0", "pg1"]
    assert merged[1]["clients_waiting"] == 3
    assert merged[1]["max_wait_us"] == 9
    assert merged[1]["mode"] == "transaction"


def test_averages_look_back_one_minute() -> None:
    view, clock = FakeView(), FakeClock()
    stats = Stats(view, clock)
    for second in range(10, 200, 10):
        clock.advance(10)
        view.counters = {0: worker_report(0, [pool_row(queries=second * 7)])}
        stats.sample()
    seconds, past = stats.window()
    assert 50 <= seconds <= 60
    assert (stats.by_database()["shop"]["queries"] - past["shop"]["queries"]) / seconds == 7
