"""The configurations in deploy/ are ones that the proxy takes."""

from __future__ import annotations

import textwrap
from pathlib import Path

from proxy.config.load import load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def test_compose_configuration_loads() -> None:
    config = load(DEPLOY / "compose" / "pgtrident.toml")
    assert set(config.nodes) == {"primary", "replica"}
    assert config.routing.read_split


def test_sidecar_configuration_loads(tmp_path: Path) -> None:
    manifest = (DEPLOY / "kubernetes" / "sidecar.yaml").read_text()
    block = manifest.partition("pgtrident.toml: |\n")[2].partition("\n---\n")[0]
    secret = tmp_path / "app-password"
    secret.write_text("secret\n")
    secret.chmod(0o600)
    text = textwrap.dedent(block).replace("/etc/pgtrident/secret/app-password", str(secret))
    text = text.replace("<", "").replace(">", "")
    (tmp_path / "pgtrident.toml").write_text(text)
    config = load(tmp_path / "pgtrident.toml")
    assert config.users["app"].password == "secret"
    assert config.admin.host == "0.0.0.0"
