"""SHOW SHAPES SEEN and pgtrident shapes: what clients send, by all ways, over restarts of workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.rawpg import B, E, P, Q, S
from .conftest import Serve, Service, eventually


def listed(service: Service) -> dict[str, dict[str, str | None]]:
    """Lines of the test's own database by text."""
    rows = service.console("SHOW SHAPES SEEN")
    return {str(row["text"]): row for row in rows if row["database"] == service.database}


@pytest.mark.parametrize("split", [False, True])
def test_all_ways_are_counted(serve: Serve, split: bool) -> None:
    service = serve({"routing": {"read_split": split}}, own=True)
    client = service.client(pool=20)
    for n in range(3):
        client.query(f"SELECT label FROM item WHERE id = {n}")
    client.query("/* pgtrident: consistency=global */ SELECT qty FROM item")
    client.run("BEGIN", "UPDATE item SET qty = 7 WHERE id = 1", "ROLLBACK")
    client.ask(P("", "SELECT id FROM item WHERE id = $1", [23]), B(params=["5"]), E(), S)
    client.ask(P("n", "DELETE FROM trail WHERE id = 99"), S)
    for _ in range(2):
        client.ask(B("", "n"), E(), S)
    found = listed(service)
    assert {text: (row["count"], row["class"], row["consistency"]) for text, row in found.items()} == {
        "SELECT label FROM item WHERE id = $1": ("3", "read", "session"),
        "SELECT qty FROM item": ("1", "read", "global"),
        "UPDATE item SET qty = $1 WHERE id = $2": ("1", "write", ""),
        "SELECT id FROM item WHERE id = $1": ("1", "read", "session"),
        "DELETE FROM trail WHERE id = $1": ("3", "write", ""),
    }
    line = found["SELECT label FROM item WHERE id = $1"]
    assert (line["tables"], line["user"]) == ("item", "pool20")


def test_a_worker_that_dies_and_the_commands(serve: Serve, tmp_path: Path) -> None:
    run = tmp_path / "run"
    service = serve({"workers": 1, "runtime_dir": str(run)}, own=True)
    config = str(service.proxy.config_file)

    def shapes(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "proxy", "shapes", *arguments, "-c", config]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    text = "SELECT label FROM item WHERE id = $1"
    service.client(pool=5).query("SELECT label FROM item WHERE id = 1")
    assert listed(service)[text]["count"] == "1"
    os.kill(int(service.proxy.wait_for("worker_joined")["pid"]), signal.SIGKILL)
    service.forget_connections()
    service.proxy.wait_for("child_ended")
    assert eventually(lambda: service.open().login({"user": "pool5", "database": service.database}).endswith("ZI"), 10)
    service.client(pool=5).query("SELECT label FROM item WHERE id = 2")
    assert listed(service)[text]["count"] == "2"

    form = shapes("export")
    assert (form.returncode, form.stderr) == (0, "")
    facts = f"2 times in {service.database}; read; consistency session; tables item; last by pool5"
    assert f"# {facts}\n# {text}\n" in form.stdout
    rules = tmp_path / "rules.toml"
    rules.write_text(form.stdout)
    unnamed = shapes("check", str(rules))
    assert unnamed.returncode == 1 and text in unnamed.stdout
    names = (f"[rules.business{n}]\nshape" for n in range(1000))
    rules.write_text(re.sub(r"#\[rules.NAME\]\n#shape", lambda _: next(names), form.stdout))
    named = shapes("check", str(rules))
    assert (named.returncode, named.stdout, named.stderr) == (0, "", "")
    service.client(pool=5).send(Q("SELECT max(id) FROM item")).until()
    new = shapes("check", str(rules))
    assert new.returncode == 1 and len(new.stdout.splitlines()) == 1 and "max(id)" in new.stdout
