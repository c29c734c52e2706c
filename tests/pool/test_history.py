"""What happens to a fleet is kept with its cause, and told by console, page and command."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from ..conftest import base_settings
from ..support.proxy import ROOT, merged
from .conftest import CONSOLE_USER, Serve, eventually


def test_what_is_told(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "history"
    service = serve({"history": {"file": str(file)}}, own=True)
    proxy = service.proxy
    service.console("FORGET SHAPES")
    seen = len(proxy.lines)
    settings = merged(base_settings(service.fleet), {"admin": {"users": [CONSOLE_USER]}, "users": {CONSOLE_USER: {}}})
    proxy.write_config(merged(settings, {"history": {"file": str(file)}, "lag": {"replica_out": 0.3}}))
    proxy.reload()
    proxy.wait_for("reloaded", after=seen)

    def told() -> list[dict[str, str | None]]:
        return service.console("SHOW HISTORY")

    assert eventually(lambda: any(row["cause"] == "lag.replica_out" for row in told()))
    rows = told()
    assert rows[0]["kind"] == "process" and rows[0]["after"] == "started"
    came = [row for row in rows if row["kind"] == "health" and row["node"] == "replica1"]
    assert (came[0]["before"], came[0]["after"], came[0]["cause"], came[0]["seen"]) == (
        "suspect",
        "active",
        "pass",
        "database pass",
    )
    (primary,) = [row for row in rows if row["kind"] == "primary"]
    assert (primary["before"], primary["after"]) == ("", "primary")
    (command,) = [row for row in rows if row["kind"] == "command"]
    assert (command["after"], command["who"]) == ("FORGET SHAPES", CONSOLE_USER)
    (changed,) = [row for row in rows if row["cause"] == "lag.replica_out"]
    assert (changed["kind"], changed["who"]) == ("config", "SIGHUP")

    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.admin_port}/history?kind=command") as page:
        assert [event["after"] for event in json.load(page)] == ["FORGET SHAPES"]
    shown = [
        sys.executable,
        "-m",
        "proxy",
        "history",
        "--file",
        str(file),
        "--since",
        "1h",
        "--json",
        "--node",
        "primary",
    ]
    lines = subprocess.run(shown, check=True, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()
    assert {json.loads(line)["kind"] for line in lines} == {"health", "role"}
