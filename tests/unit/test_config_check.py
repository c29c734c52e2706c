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


def rule(**given: object) -> dict:
    return {"rules": {"r": given}}


@dataclass
class Case:
    key: str
    part: str
    tree: dict
    warning: bool = False


def service(**settings: object) -> dict:
    return {"routing": {"read_split": True}, "services": {"s": {"nodes": ["db1"]} | settings}}


CASES = [
    Case("nodes", "no node", {"nodes": {}}),
    Case("nodes.b.role", "`a` is the primary already", {"nodes": {
        "a": {"host": "a", "role": "primary"}, "b": {"host": "b", "role": "primary"}}}),
    Case("services.s.nodes", "at least one", service(nodes=[])),
    Case("services.s.nodes", "no [nodes.b]", service(nodes=["db1", "b"])),
    Case("services.s.nodes", "`db1` stands there twice", service(nodes=["db1", "db1"])),
    Case("services.t.databases", "`d` belongs to service `s` already", {"routing": {"read_split": True}, "services": {
        "s": {"nodes": ["db1"], "databases": ["c", "d"]}, "t": {"nodes": ["db1"], "databases": ["d"]}}}),
    Case("services.t.databases", "`t` belongs to service `s` already", {"routing": {"read_split": True}, "services": {
        "s": {"nodes": ["db1"], "databases": ["t"]}, "t": {"nodes": ["db1"]}}}),
    Case("services.s.selector", "1 nodes, so this is the same as 1", service(selector="2"), True),
    Case("services.s.by", "isn't used with `selector` 0", service(by="user"), True),
    Case("services.s.reconnect", '"balance" does nothing', service(selector="hash", reconnect=["balance"]), True),
    Case("services.s", "does nothing", {"services": {"s": {"nodes": ["db1"]}}}, True),
    Case("services.s.switch_times", "is 31 s, and a restart (`group.usual_restart`) takes 30 s",
         service(switch_times=31), True),
    Case("services.s.switch_interval", "is 24 s, and a restart", service(switch_interval=8) | {
        "group": {"usual_restart": 20}}, True),
    Case("services.s.switch_interval", "refused after `routing.hold_timeout` (10 s)", service(switch_interval=4), True),
    Case("routing.affinity.switch_times", "the switch would never happen", {
        "routing": {"affinity": {"by": "user", "switch_times": 31}}}, True),
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
    Case("health.network_interval", "without a pause", {"health": {"network_interval": 0}}),
    Case("load.interval", "health.timeout", {"load": {"interval": 0.5}}),
    Case("load.oldest_in", "`oldest_out` (60)", {"load": {"oldest_out": 60}}),
    Case("load.cpu_in", "`cpu_out` (50)", {"load": {"cpu_out": 50}}),
    Case("admin.port", "`listen.port`", {"admin": {"port": 6432}}),
    Case("admin.users", "[users.ops]", {"admin": {"users": ["app", "ops"]}}, True),
    Case("rules.a/b", "expected a name", {"rules": {"a/b": {"reject": "no"}}}),
    Case("rules.b", "never tried: `a`", {"rules": {"a": {"route": "primary"}, "b": {"user": ["u"]}}}, True),
    Case("rules.r.user", "is empty", rule(user=[])),
    Case("rules.r.table", "is empty", rule(table=["a", ""])),
    Case("rules.r.shape", "16 hexadecimal digits, not 'xy'", rule(shape=["0123456789abcdef", "xy"])),
    Case("rules.r.pattern", "not a regular expression: missing )", rule(pattern=["a", "(b"])),
    Case("rules.r.pattern", "'a*' is found in every text", rule(pattern=["a*"]), True),
    Case("rules.r.route", "isn't used: `reject`", rule(route="primary", reject="no"), True),
    Case("rules.r.final", "says nothing", rule(user=["u"], final=True), True),
    Case("rules.r.node", "there is no [nodes.db2]", rule(node="db2")),
    Case("rules.r.node", '`db1` is "primary", and `route` is "replica"', rule(node="db1", route="replica") | {
        "nodes": {"db1": {"host": "a", "role": "primary"}}}),
    Case("rules.r.route", 'no node has `role` "columnar"', rule(route="columnar"), True),
    Case("rules.r.route", 'no node has `role` "replica"', rule(route="replica") | {
        "nodes": {"db1": {"host": "a", "role": "primary"}}}, True),
    Case("rules.r.consistency", "reads the primary", rule(consistency="strong", route="replica")),
    Case("rules.r.consistency", "reads the primary", rule(consistency="strong", stale=True)),
    Case("rules.r.consistency", 'is "session" for clients', rule(consistency="key"), True),
    Case("rules.r.consistency_key", "isn't used", rule(consistency="global", consistency_key="k"), True),
    Case("rules.r.consistency_key", "at most 256 bytes", rule(consistency="key", consistency_key="я" * 129)),
]  # fmt: skip


def test_nothing_wrong():
    assert findings({}) == []


def test_services_with_nothing_wrong():
    """30 times a second are just what a restart takes; what stands in no use isn't looked at."""
    assert findings(service(switch_times=30) | {"routing": {"read_split": True, "hold_timeout": 30}}) == []
    assert findings({"routing": {"affinity": {"switch_times": 1000}}}) == []


def test_several_primaries_where_the_group_allows_them():
    nodes = {name: {"host": name, "role": "primary"} for name in "ab"}
    services = {"s": {"nodes": ["b", "a"], "selector": "hash", "by": "user", "reconnect": ["notify", "failback"]}}
    assert findings({"group": {"multi_writer": True}, "nodes": nodes, "services": services}) == []


def test_rules_with_nothing_wrong():
    shadow = {"shadow": True, "reject": "no"}
    assert findings({"rules": {"a": shadow, "b": {"user": ["u"]}, "c": {"node": "db1", "route": "replica"}}}) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.key}: {case.part}")
def test_findings(case: Case):
    [found] = [finding for finding in findings(case.tree) if ".".join(finding.key) == case.key]
    assert case.part in found.message
    assert found.warning is case.warning
    assert len(findings(case.tree)) == 1
