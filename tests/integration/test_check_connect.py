"""`pgtrident check --connect` against real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.cli import main
from tests.support.fleet import Fleet


@pytest.fixture
def check(tmp_path: Path, capsys):
    def check(*lines: str) -> tuple[int, list[str]]:
        """Exit code and output for these lines of configuration."""
        file = tmp_path / "pgtrident.toml"
        file.write_text(
            "\n".join(["[health]", 'user = "postgres"', "[auth]", 'hba = ["host all all all trust"]', *lines])
        )
        code = main(["check", "-c", str(file), "--connect"])
        return code, capsys.readouterr().out.splitlines()

    return check


def node(name: str, port: int, role: str = "auto") -> str:
    return f'[nodes.{name}]\nhost = "localhost"\nport = {port}\nrole = "{role}"'


def test_all_well(check, fleet: Fleet):
    code, out = check(node("a", fleet.primary.port), node("b", fleet.replicas[0].port, "replica"))
    assert code == 0
    assert out[0].startswith("nodes.a: primary, version 1")
    assert out[1].startswith("nodes.b: replica, version 1")
    assert "ok (2 nodes" in out[2]


def test_a_node_that_is_away_or_has_another_role(check, fleet: Fleet):
    code, out = check(node("a", fleet.primary.port, "replica"), node("b", 1))
    assert code == 1
    assert out[0].endswith('; but the configuration says "replica"')
    assert "port 1" in out[1]
    assert len(out) == 2


def test_no_primary(check, fleet: Fleet):
    code, out = check(node("b", fleet.replicas[0].port))
    assert code == 1
    assert out[-1] == "nodes: 0 primaries; expected one"


def test_a_login_that_is_refused(check, fleet: Fleet, monkeypatch):
    monkeypatch.setenv("PGTRIDENT_HEALTH__DATABASE", "absent")
    code, out = check(node("a", fleet.primary.port))
    assert code == 1
    assert 'database "absent" does not exist' in out[0]
