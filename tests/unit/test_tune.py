"""Settings from a calculation: what they come to, what is refused, and that they load."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.cli import main
from proxy.config.load import read
from proxy.config.schema import Config
from proxy.controlplane.history import Event, History
from proxy.errors import ConfigError
from proxy.health.pace import Times
from proxy.health.tune import Asked, NodeSize, choose_probes, measured_jitter, parse_node, tune

from ..support.proxy import ROOT

OTHERS = '[users.app]\npassword = "x"\n'


def loaded(text: str, tmp_path: Path) -> Config:
    """The configuration that a text makes: without a problem or a warning."""
    path = tmp_path / "tuned.toml"
    path.write_text(text + OTHERS)
    reading = read(path, environ={})
    assert reading.config is not None, reading.problems
    assert not reading.warnings
    return reading.config


def comments(text: str) -> str:
    """All that is said, without line ends."""
    return " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))


def test_an_outage_of_half_a_minute(tmp_path: Path) -> None:
    text = tune(Asked())
    config = loaded(text, tmp_path)
    health = config.health
    assert (health.interval, health.fail_after, health.timeout, health.recover_after) == (5.0, 3, 2.0, 2)
    said = comments(text)
    assert "3 x 5 s = 15 s, 50 % of it" in said
    table = [line[2:].split("  ") for line in text.splitlines() if line.startswith(("# primary", "# repl", "# col"))]
    assert [[cell.strip() for cell in row if cell] for row in table] == [
        ["primary", "15 s", "5 s", "20 s", "29.5 s"],
        ["replica", "15 s", "2 s", "17 s", "21 s"],
        ["columnar", "15 s", "10 s", "25 s", "29 s"],
    ]
    assert "Warning: a third of 30 s (10 s) would be stricter: 3 x 3.3 s = 9.9 s, with --strict." in said
    assert said.count("Warning") == 1
    assert config.routing.hold_timeout == 10.5
    assert config.server.connect_timeout == 5.0
    assert (config.pool.pool_size, config.nodes["db1"].max_connections) == (9, 84)


def test_the_page_shows_what_is_printed() -> None:
    page = (ROOT / "docs/health.md").read_text()
    assert f"$ pgtrident tune --outage 30s\n{tune(Asked())}```" in page
    with pytest.raises(ConfigError) as refused:
        tune(Asked(outage=3))
    assert f"$ pgtrident tune --outage 3s\n{refused.value.message}\n```" in page


@pytest.mark.parametrize(
    ("asked", "interval", "fail_after", "timeout"),
    [
        (Asked(strict=True), 3.3, 3, 2.0),
        (Asked(outage=60), 10, 3, 2.0),
        (Asked(outage=80), 10, 4, 2.0),
        (Asked(outage=600), 10, 30, 2.0),
        (Asked(outage=600, strict=True), 10, 20, 2.0),
        (Asked(outage=20), 2.8, 3, 2.0),  # (20 - 5 - 2.5) / 4.4
        (Asked(outage=15), 1.9, 3, 1.2),  # no time for a lost first packet
        (Asked(outage=7, jitter=0), 0.39, 3, 0.2),
        (Asked(jitter=0.25), 4.6, 3, 3.5),
    ],
)
def test_what_is_chosen(asked: Asked, interval: float, fail_after: int, timeout: float) -> None:
    chosen = choose_probes(asked)
    assert (chosen.interval, chosen.fail_after, chosen.timeout) == (interval * 1000, fail_after, timeout * 1000)


def test_what_is_warned_of() -> None:
    assert "Warning" not in tune(Asked(strict=True))
    said = comments(tune(Asked(outage=15)))
    assert "Warning: statements for columnar nodes may wait longer than 15 s: 17.77 s at worst." in said
    assert "Warning: a probe whose first packet is lost fails" in said
    # A third of it would leave no time for a probe.
    assert "(4.666 s) would be stricter: but a probe takes too long for that." in comments(tune(Asked(outage=14)))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (Asked(outage=3), "an outage of 3 s can't be kept: .* that needs 13.6 s at least"),
        (Asked(outage=0), "an outage of 0 s can't be kept"),
        (Asked(outage=7200), "an outage of 7200 s leaves time for a human to act; expected at most 3600 s"),
        (Asked(jitter=0.5), r"a probe may take 5.2 s \(10 round trips of 500 ms"),
        (Asked(jitter=2), "a probe may take 20.2 s .* can't be told from one that is slow"),
        (Asked(nodes=(NodeSize("a", 2, 6),)), "a: of 6 connections none is left for clients"),
        (Asked(nodes=(NodeSize("a", 2, 99), NodeSize("a", 4, 99))), "a: named twice"),
    ],
)
def test_what_cant_be_had(asked: Asked, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        tune(asked)


def test_what_a_refusal_says_is_enough_is_enough() -> None:
    assert choose_probes(Asked(outage=13.6))
    with pytest.raises(ConfigError):
        choose_probes(Asked(outage=13.5))


def test_limits_of_the_smallest_node(tmp_path: Path) -> None:
    text = tune(Asked(nodes=(NodeSize("db1", 32, 500), NodeSize("10.0.0.2", 16, 30), NodeSize("db3", 64, 30))))
    config = loaded(text, tmp_path)
    assert config.pool.pool_size == 21
    assert {name: node.max_connections for name, node in config.nodes.items()} == {
        "db1": 444,
        "10.0.0.2": 21,
        "db3": 21,
    }
    assert "2 x 16 cores + 1 = 33 are enough to keep 10.0.0.2 at work" in comments(text)
    assert "but it has only 21" in comments(text)


names = st.text("ab10_.-", min_size=1, max_size=8)
nodes = st.builds(NodeSize, names, st.integers(1, 512), st.integers(1, 5000))
durations = st.floats(0, 5000) | st.floats(0, 60) | st.floats(0, 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.builds(
        Asked,
        outage=durations,
        jitter=st.floats(0, 0.2) | durations,
        lag=durations,
        columnar_lag=durations,
        nodes=st.lists(nodes, min_size=1, max_size=4, unique_by=lambda node: node.name).map(tuple),
        strict=st.booleans(),
    )
)
def test_it_keeps_within_the_outage_or_is_refused(tmp_path: Path, asked: Asked) -> None:
    try:
        text = tune(asked)
    except ConfigError:
        return
    config = loaded(text, tmp_path)
    health, lag = config.health, config.lag
    outage = asked.outage + 0.001  # it is rounded to milliseconds
    detection = health.interval * health.fail_after
    assert detection <= outage / (3 if asked.strict else 2)
    worst = detection * 1.1 + health.timeout * 1.25
    assert worst + 5 + health.interval * 1.1 <= outage
    assert worst + config.routing.hold_timeout <= outage
    assert asked.jitter * 10 < health.timeout < health.interval <= 10
    assert health.fail_after >= 3
    assert 0 < lag.replica_in < lag.replica_out
    assert 0 < lag.columnar_in < lag.columnar_out < lag.columnar_alarm
    assert lag.replica_in >= asked.lag and lag.columnar_in >= asked.columnar_lag
    for node in asked.nodes:
        assert config.pool.pool_size <= config.nodes[node.name].max_connections < node.max_connections
    assert f"{health.fail_after} x " in text


def test_nodes_as_they_are_written() -> None:
    assert parse_node("db1:8:200") == NodeSize("db1", 8, 200)
    for text in ("db1", "db1:8", "db1:0:200", "db1:8:x", "a b:8:200", ":8:200", "db1:8:200:9"):
        with pytest.raises(ValueError, match="expected NAME:CORES:MAX_CONNECTIONS"):
            parse_node(text)


def test_what_was_measured() -> None:
    quiet, busy = Times(720, 1, 0.002, 0.008, 0.02), Times(1000, 2, 0.003, 0.0125, 0.9)
    jitter, found = measured_jitter([("a", quiet), ("b", busy), ("a", quiet)])
    assert jitter == 0.003  # 12.5 ms x 2 / 10, in whole milliseconds
    assert found == (
        "Measured with 2,440 probes, the longest 900.0 ms: in the worst hour of b 99 % took up to 12.5 ms. Times 2 for "
        "safety, over 10 round trips: 3 ms each."
    )
    _, found = measured_jitter([("a", quiet), ("b", Times(100, 20, 0.5, 1.9, 1.99))])
    assert "Warning: 21 probes more weren't answered in time" in found
    with pytest.raises(ConfigError, match="no times of probes yet"):
        measured_jitter([])


# The command.


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["tune", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())


def test_without_a_terminal_nobody_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys) == (0, tune(Asked()), "")
    arguments = ["--outage", "60", "--jitter=50ms", "--lag", "1s", "--columnar-lag=5s", "--strict"]
    status, out, err = run(capsys, *arguments, "--node", "a:8:200", "--node=b:4:100")
    assert (status, err) == (0, "")
    assert out == tune(Asked(60, 0.05, 1, 5, (NodeSize("a", 8, 200), NodeSize("b", 4, 100)), strict=True))
    made_by = out.splitlines()[0].removeprefix("# Made by: pgtrident tune ")
    assert made_by.startswith("--outage 1min --jitter 50ms --lag 1s --columnar-lag 5s --node a:8:200")


def test_on_a_terminal_what_is_missing_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("soon\n20s\n\n2s\na:8\na:8:200 b:4:100\n"))
    status, out, err = run(capsys, "--jitter", "20ms")
    assert status == 0
    assert out == tune(Asked(20, 0.02, 0.1, 2, (NodeSize("a", 8, 200), NodeSize("b", 4, 100))))
    assert err.startswith("the outage that the business tolerates [30s]: not a number with a known unit\n")
    assert "behind, on a bad day [100ms]: " in err
    assert err.endswith("nodes, each NAME:CORES:MAX_CONNECTIONS [db1:4:100]: ")


def test_refusals_and_wrong_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, err = run(capsys, "--outage", "3s")
    assert (status, out) == (1, "")
    assert err.startswith("an outage of 3 s can't be kept: ") and err.count("\n") == 1
    for arguments, message in (
        (["--outage", "soon"], "argument --outage: not a number with a known unit"),
        (["--node", "db1"], "argument --node: expected NAME:CORES:MAX_CONNECTIONS"),
        (["--from-history"], "--from-history goes with one of -c and --file"),
        (["--file", "x"], "--from-history goes with one of -c and --file"),
        (["--from-history", "--file", "x", "--jitter", "1s"], "--jitter is what --from-history finds out"),
    ):
        with pytest.raises(SystemExit) as caught:
            run(capsys, *arguments)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err


def test_from_history(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "history"
    history = History(file, keep=1e12)
    history.note(Event(1.0, "health", "db1", "active", "suspect"))
    history.start()
    history.stop()
    status, out, err = run(capsys, "--from-history", "--file", str(file))
    assert (status, out) == (1, "")
    assert err == f"{file}: it holds no times of probes yet; they are noted once an hour while the proxy runs\n"

    history = History(file, keep=1e12)
    for node, p99 in (("db1", 0.05), ("db1", 0.1), ("gone", 0.4)):
        history.note(Event(2.0, "probe", node, seen=str(Times(720, 0, 0.01, p99, p99))))
    history.start()
    history.stop()
    status, out, err = run(capsys, "--from-history", "--file", str(file))
    assert (status, err) == (0, "")
    assert "in the worst hour of gone 99 % took up to 400.0 ms" in comments(out)
    assert "[nodes." not in out and "pool_size" not in out
    assert loaded(out + '[nodes.db1]\nhost = "x"\n', tmp_path).health.timeout == 1.8

    config = tmp_path / "pgtrident.toml"
    config.write_text(f'[history]\nfile = "{file}"\n[nodes.db1]\nhost = "db1"\n{OTHERS}')
    status, out, err = run(capsys, "--from-history", "-c", str(config), "--node", "db1:4:100")
    assert (status, err) == (0, "")
    assert "in the worst hour of db1 99 % took up to 100.0 ms" in comments(out)
    assert loaded(out, tmp_path).health.timeout == 1.2

    assert run(capsys, "--from-history", "--file", str(tmp_path / "none"))[0] == 1
