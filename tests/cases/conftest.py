"""Fixtures of the cases about TLS and passwords (a server and proxies that want both) and about routing."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from proxy.demo.postgres import Cluster, Server

from ..support.proxy import PLAIN_HEALTH, Proxy
from ..support.target import Target
from ..support.witness import Witness

USER, PASSWORD, DATABASE = "alice", "wonderland", "postgres"


@dataclass(frozen=True)
class Secure:
    """A server that takes only TLS with SCRAM, its authority, and certificates for it and for the proxy."""

    server: Server
    proxy_cert: Path
    proxy_key: Path
    ca: Path

    def settings(self, tls_mode: str, *rules: str, channel_binding: str = "prefer") -> dict[str, Any]:
        """A proxy in front of it: TLS towards clients as `tls_mode` says, host rules in order."""
        return {
            "listen": {
                "host": "127.0.0.1",
                "port": 0,
                "tls": {"mode": tls_mode, "cert": str(self.proxy_cert), "key": str(self.proxy_key)},
                "login_timeout": 1.5,
            },
            "admin": {"port": 0},
            "server": {"tls": "verify-full", "ca": str(self.ca), "channel_binding": channel_binding},
            "auth": {"hba": list(rules), "failure_delay": 0.1},
            "nodes": {"primary": {"host": "localhost", "port": self.server.port}},
            "databases": {"*": {}},
            "users": {USER: {"password": PASSWORD}},
            "health": {"user": USER, "password": PASSWORD, "interval": 1.0, "timeout": 0.8, **PLAIN_HEALTH},
        }

    def context(self) -> ssl.SSLContext:
        """A client's TLS that trusts the authority."""
        return ssl.create_default_context(cafile=self.ca)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.server.port


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    for name in ("server", "proxy"):
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_pem.write_to_path(str(directory / f"{name}.key"))
        with (directory / f"{name}.pem").open("wb") as file:
            for blob in issued.cert_chain_pems:
                file.write(blob.bytes())
    with Cluster() as cluster:
        server = cluster.create("secure", hba=["hostssl all all 127.0.0.1/32 scram-sha-256"], start=False)
        server.enable_tls(directory / "server.pem", directory / "server.key")
        server.start()
        server.query(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
        yield Secure(server, directory / "proxy.pem", directory / "proxy.key", directory / "ca.pem")


@pytest.fixture(scope="session")
def secure_proxy(secure: Secure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """TLS offered, SCRAM with it and without."""
    with Proxy(secure.settings("allow", "host all all all scram-sha-256"), tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def tls_only_proxy(secure: Secure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """No login over TCP without TLS."""
    with Proxy(secure.settings("require", "host all all all scram-sha-256"), tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def clear_proxy(secure: Secure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """No TLS towards clients."""
    with Proxy(secure.settings("disable", "host all all all scram-sha-256"), tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.fixture
def witness(target: Target) -> Iterator[Witness]:
    """Tells which nodes answer the target's clients."""
    witness = Witness(target)
    yield witness
    witness.close()
