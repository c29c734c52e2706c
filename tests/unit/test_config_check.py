"""Settings that don't fit each other."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from proxy.config.check import Finding, check
from proxy.config.schema import Config


def findings(tree: dict) -> list[Finding]:
    tree = {"nodes": {"db1": {"host": "a"}}, "users": {"app": {"password": "x"}}} | tree
    return list(check(msgspec.convert(tree, Config)))


@dataclass
class Case:
    key: str
    part: str
    tree: dict
    warning: bool = False


CASES = [
    Case("nodes", "no node", {"nodes": {}}),
    Case("nodes.b.role", "`a` is the primary already", {"nodes": {
        "a": {"host": "a", "role": "primary"}, "b": {"host": "b", "role": "primary"}}}),
    Case("nodes", "no node can be the primary", {"nodes": {"a": {"host": "a", "role": "replica"}}}),
    Case("nodes.b.host", "the same server as `a`", {"nodes": {"a": {"host": "h"}, "b": {"host": "h"}}}),
    Case("nodes.a/b", "expected a name", {"nodes": {"a/b": {"host": "h"}}}),
    Case("nodes.a.host", "expected one name", {"nodes": {"a": {"host": "h,i"}}}),
    Case("nodes.a.tls", "needs `server.ca`", {"nodes": {"a": {"host": "h", "tls": "verify-full"}}}),
    Case("nodes.a.max_connections", "can't fill", {"nodes": {"a": {"host": "h", "max_connections": 5}}}, True),
    Case("listen.host", "nothing to listen on", {"listen": {"host": ""}}),
    Case("listen.proxy_protocol", "must name", {"listen": {"proxy_protocol": True}}),
    Case("listen.proxy_protocol_trusted", "'10.0.0.0/33'", {"listen": {"proxy_protocol_trusted": ["10.0.0.0/33"]}}),
    Case("listen.max_clients", "lets nobody in", {"listen": {"max_clients": 0}}),
    Case("listen.login_timeout", "no time", {"listen": {"login_timeout": 0}}),
    Case("listen.tls.cert", "must be set", {"listen": {"tls": {"mode": "allow", "key": "k"}}}),
    Case("listen.tls.key", "must be set", {"listen": {"tls": {"mode": "allow", "cert": "c"}}}),
    Case("listen.tls.ca", "must be set", {"listen": {"tls": {"mode": "verify-ca", "cert": "c", "key": "k"}}}),
    Case("listen.tls.mode", "isn't used", {"listen": {"tls": {"cert": "c"}}}, True),
    Case("server.key", "belong together", {"server": {"cert": "c"}}),
    Case("server.tls", "needs `server.ca`", {"server": {"tls": "verify-ca"}}),
    Case("server.tls_direct", "or stricter", {"server": {"tls_direct": True}}),
    Case("server.channel_binding", "needs TLS", {"server": {"channel_binding": "require", "tls": "disable"}}),
    Case("pool.min_pool_size", "larger than `pool_size` (20)", {"pool": {"min_pool_size": 21}}),
    Case("pool.reserve_timeout", "never used", {"pool": {"reserve": 1, "reserve_timeout": 9, "checkout_timeout": 9}}),
    Case("pool.max_total", "no pool can fill", {"pool": {"max_total": 3}}, True),
    Case("databases.d.pool_size", "is below", {"pool": {"min_pool_size": 5}, "databases": {"d": {"pool_size": 4}}}),
    Case("users.u.pool_size", "is below", {"pool": {"min_pool_size": 5}, "users": {"u": {"pool_size": 4}}}),
    Case("databases.d.password", "without `user`", {"databases": {"d": {"password": "x"}}}, True),
    Case("auth.hba_file", "keep one", {"auth": {"hba": ["local all all trust"], "hba_file": "f"}}),
    Case("auth.hba", "`hba` line 1: unknown connection type", {"auth": {"hba": ["hots all all all trust"]}}),
    Case("auth.query.user", "must be set", {"auth": {"query": {"enabled": True}}}),
    Case("auth.query.query", "$1", {"auth": {"query": {"enabled": True, "user": "u", "query": "SELECT 1, 2"}}}),
    Case("users", "nobody can log in", {"users": {}}, True),
    Case("health.timeout", "below `interval` (5 s)", {"health": {"timeout": 5}}),
    Case("health.timeout", "fail", {"health": {"timeout": 0}}),
    Case("health.sample_interval", "without a pause", {"health": {"sample_interval": 0}}),
    Case("admin.port", "`listen.port`", {"admin": {"port": 6432}}),
    Case("admin.users", "[users.ops]", {"admin": {"users": ["app", "ops"]}}, True),
]  # fmt: skip


def test_nothing_wrong():
    assert findings({}) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.key}: {case.part}")
def test_findings(case: Case):
    [found] = [finding for finding in findings(case.tree) if ".".join(finding.key) == case.key]
    assert case.part in found.message
    assert found.warning is case.warning
    assert len(findings(case.tree)) == 1
