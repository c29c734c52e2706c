"""What settings mean together: the faults that no single value shows.

Pure: a configuration in, findings out. Types and ranges of single values are `settings`' business,
files and places `load`'s. Called by `load`, so that nothing starts on a configuration with a fault.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import ConfigError
from . import hba
from .schema import Config, Node, Rule

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}")
"""Of a node or rule: it stands in metrics, log lines and keys of permits."""
_SHAPE = re.compile(r"[0-9a-f]{16}")
_DEFAULTS = Node(host="")
MAX_KEY = 256
"""Bytes of a consistency key."""
_CONDITIONS = ("database", "user", "application_name", "table", "shape", "pattern")
_RESULTS = (
    "route",
    "node",
    "consistency",
    "consistency_key",
    "priority",
    "timeout",
    "transactions",
    "stale",
    "move_writes",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault, or with `warning` something that works and is hardly meant."""

    key: tuple[str, ...]
    message: str
    warning: bool = False


def check(config: Config) -> Iterator[Finding]:
    """All findings."""
    yield from _listen(config)
    yield from _tls(config)
    yield from _nodes(config)
    yield from _services(config)
    yield from _pools(config)
    yield from _auth(config)
    yield from _health(config)
    yield from _admin(config)
    yield from _rules(config)


def _listen(config: Config) -> Iterator[Finding]:
    listen = config.listen
    if not listen.host and not listen.unix_socket_dir:
        yield Finding(("listen", "host"), "nothing to listen on: expected an address or `unix_socket_dir`")
    if listen.proxy_protocol and not listen.proxy_protocol_trusted:
        yield Finding(("listen", "proxy_protocol"), "`proxy_protocol_trusted` must name the load balancers")
    for network in listen.proxy_protocol_trusted:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            yield Finding(("listen", "proxy_protocol_trusted"), f"expected addresses or networks, not {network!r}")
    if not listen.max_clients:
        yield Finding(("listen", "max_clients"), "0 lets nobody in; expected at least 1")
    if not listen.login_timeout:
        yield Finding(("listen", "login_timeout"), "0 leaves no time to log in; expected more")


def _tls(config: Config) -> Iterator[Finding]:
    tls = config.listen.tls
    if tls.mode != "disable":
        for name in ("cert", "key"):
            if not getattr(tls, name):
                yield Finding(("listen", "tls", name), f'must be set while `mode` is "{tls.mode}"')
    elif tls.cert or tls.key:
        yield Finding(("listen", "tls", "mode"), 'is "disable", so the certificate isn\'t used', warning=True)
    if tls.mode.startswith("verify") and not tls.ca:
        yield Finding(("listen", "tls", "ca"), f'must be set while `mode` is "{tls.mode}"')

    server = config.server
    if bool(server.cert) != bool(server.key):
        yield Finding(("server", "key" if server.cert else "cert"), "`cert` and `key` belong together")
    modes = {("server", "tls"): server.tls} | {
        ("nodes", name, "tls"): node.tls for name, node in config.nodes.items() if node.tls is not None
    }
    for key, mode in modes.items():
        if mode.startswith("verify") and not server.ca:
            yield Finding(key, f'"{mode}" needs `server.ca`')
    if server.tls_direct and server.tls in ("disable", "prefer"):
        yield Finding(("server", "tls_direct"), f'needs `tls` "require" or stricter, and that is "{server.tls}"')
    if server.channel_binding == "require" and server.tls == "disable":
        yield Finding(("server", "channel_binding"), '"require" needs TLS, and `tls` is "disable"')


def _nodes(config: Config) -> Iterator[Finding]:
    if not config.nodes:
        yield Finding(("nodes",), "no node: expected at least one section [nodes.NAME] with `host`")
    primaries = [name for name, node in config.nodes.items() if node.role == "primary"]
    for name in () if config.group.multi_writer else primaries[1:]:
        message = f"`{primaries[0]}` is the primary already; a group has one, unless `group.multi_writer` is set"
        yield Finding(("nodes", name, "role"), message)
    if config.nodes and not primaries and all(node.role != "auto" for node in config.nodes.values()):
        yield Finding(("nodes",), 'no node can be the primary: expected one with `role` "primary" or "auto"')
    seen: dict[tuple[str, int], str] = {}
    for name, node in config.nodes.items():
        if not _NAME.fullmatch(name):
            yield Finding(("nodes", name), "expected a name of up to 63 letters, digits, `_`, `-` and `.`")
        yield from _address(name, node)
        for setting in ("dialect", "lacks", "tables", "protocol"):
            if node.role != "columnar" and getattr(node, setting) != getattr(_DEFAULTS, setting):
                yield Finding(("nodes", name, setting), 'only for a node with `role` "columnar"')
        other = seen.setdefault((node.host, node.port), name)
        if other != name:
            yield Finding(("nodes", name, "host"), f"the same server as `{other}` ({node.host}, port {node.port})")


def _address(name: str, node: Node) -> Iterator[Finding]:
    if not node.host or "," in node.host or node.host != node.host.strip():
        yield Finding(("nodes", name, "host"), "expected one name, address or directory of a Unix socket")


def _services(config: Config) -> Iterator[Finding]:
    owners: dict[str, str] = {}
    for name, service in config.services.items():
        here = ("services", name)
        if not service.nodes:
            yield Finding((*here, "nodes"), "expected at least one name of [nodes.NAME]")
        for place, node in enumerate(service.nodes):
            if node not in config.nodes:
                yield Finding((*here, "nodes"), f"there is no [nodes.{node}]")
            elif node in service.nodes[:place]:
                yield Finding((*here, "nodes"), f"`{node}` stands there twice")
        for database in service.databases or (name,):
            other = owners.setdefault(database, name)
            if other != name:
                yield Finding((*here, "databases"), f"`{database}` belongs to service `{other}` already")
        number = int(service.selector) if service.selector.isdecimal() else 0
        if service.nodes and number > len(service.nodes):
            message = (
                f"there are {len(service.nodes)} nodes, so this is the same as {(number - 1) % len(service.nodes) + 1}"
            )
            yield Finding((*here, "selector"), message, warning=True)
        if service.by is not None and service.selector.isdecimal():
            yield Finding((*here, "by"), f"isn't used with `selector` {service.selector}", warning=True)
        if "balance" in (service.reconnect or ()) and service.selector != "0":
            message = f'"balance" does nothing with `selector` {service.selector}, which gives each client its node'
            yield Finding((*here, "reconnect"), message, warning=True)
    split = config.routing.read_split or any(database.read_split for database in config.databases.values())
    if config.services and not split and not config.group.multi_writer:
        message = "does nothing: without `routing.read_split` or `group.multi_writer` all goes to the primary"
        yield Finding(("services", next(iter(config.services))), message, warning=True)
    yield from _switches(config)


def _switches(config: Config) -> Iterator[Finding]:
    """How long clients wait for their own node, beside how long it is away when it merely restarts."""
    general = config.routing.affinity
    budgets: dict[tuple[str, ...], float] = {}
    for name, service in config.services.items():
        times = general.switch_times if service.switch_times is None else service.switch_times
        interval = general.switch_interval if service.switch_interval is None else service.switch_interval
        own = [k for k in ("switch_times", "switch_interval") if getattr(service, k) is not None]
        budgets[("services", name, own[0]) if own else ("routing", "affinity", "switch_times")] = times * interval
    if general.by is not None:
        budgets["routing", "affinity", "switch_times"] = general.switch_times * general.switch_interval
    for key, budget in budgets.items():
        usual, patience = config.group.usual_restart, config.routing.hold_timeout
        waits = f"times `switch_interval` is {budget:g} s"
        if budget > usual:
            message = f"{waits}, and a restart (`group.usual_restart`) takes {usual:g} s: the switch would never happen"
            yield Finding(key, message, warning=True)
        elif budget > patience:
            message = f"{waits}, and units are refused after `routing.hold_timeout` ({patience:g} s), before the switch"
            yield Finding(key, message, warning=True)


def _pools(config: Config) -> Iterator[Finding]:
    pool = config.pool
    if pool.min_pool_size > pool.pool_size:
        yield Finding(("pool", "min_pool_size"), f"is larger than `pool_size` ({pool.pool_size})")
    if pool.reserve and pool.checkout_timeout and pool.reserve_timeout >= pool.checkout_timeout:
        yield Finding(("pool", "reserve_timeout"), "is not below `checkout_timeout`: the reserve is never used")
    if pool.max_total and pool.max_total < pool.pool_size:
        message = f"is below `pool_size` ({pool.pool_size}): no pool can fill"
        yield Finding(("pool", "max_total"), message, warning=True)
    for table, sized in (("databases", config.databases), ("users", config.users)):
        for name, item in sized.items():
            if item.pool_size and item.pool_size < pool.min_pool_size:
                message = f"is below `pool.min_pool_size` ({pool.min_pool_size})"
                yield Finding((table, name, "pool_size"), message)
    largest = max([pool.pool_size, *(database.pool_size for database in config.databases.values())])
    for name, node in config.nodes.items():
        if node.max_connections and node.max_connections < largest:
            message = f"is below the size of one pool ({largest}): that pool can't fill on this node"
            yield Finding(("nodes", name, "max_connections"), message, warning=True)
    for name, database in config.databases.items():
        if database.password and not database.user:
            yield Finding(("databases", name, "password"), "is not used without `user`", warning=True)


def _auth(config: Config) -> Iterator[Finding]:
    auth = config.auth
    if auth.hba and auth.hba_file:
        yield Finding(("auth", "hba_file"), "`hba` is set too; keep one of them")
    try:
        hba.parse(auth.hba, "`hba`")
    except ConfigError as error:
        yield Finding(("auth", "hba"), error.message)
    if auth.query.enabled and not auth.query.user:
        yield Finding(("auth", "query", "user"), "must be set while `enabled` is true")
    if auth.query.enabled and "$1" not in auth.query.query:
        yield Finding(("auth", "query", "query"), "expected $1 where the user's name belongs")
    anyone = auth.userlist or auth.query.enabled or auth.hba or auth.hba_file
    if not config.users and not anyone:
        message = "nobody can log in: expected [users.NAME], `auth.userlist`, `auth.query` or `auth.hba`"
        yield Finding(("users",), message, warning=True)


def _health(config: Config) -> Iterator[Finding]:
    health = config.health
    if not health.timeout:
        yield Finding(("health", "timeout"), "0 lets every probe fail; expected more")
    if health.timeout >= health.interval:
        yield Finding(("health", "timeout"), f"must be below `interval` ({health.interval:g} s)")
    if not health.sample_interval:
        yield Finding(("health", "sample_interval"), "0 would sample without a pause; expected more")
    if not health.network_interval:
        yield Finding(("health", "network_interval"), "0 would connect without a pause; expected more")
    if 0 < config.load.interval < health.timeout:
        yield Finding(("load", "interval"), f"must not be below `health.timeout` ({health.timeout:g} s)")
    for figure in ("connections", "transactions", "locks", "oldest", "cpu", "primary_cpu", "memory"):
        out, back = (getattr(config.load, f"{figure}_{way}") for way in ("out", "in"))
        if out and not 0 < back <= out:
            yield Finding(("load", f"{figure}_in"), f"expected more than 0 and at most `{figure}_out` ({out:g})")


def _admin(config: Config) -> Iterator[Finding]:
    admin, listen = config.admin, config.listen
    if admin.enabled and admin.port and admin.port == listen.port:
        yield Finding(("admin", "port"), f"{admin.port} is `listen.port`; expected another one")
    if not config.auth.userlist and not config.auth.query.enabled:
        for user in admin.users:
            if user not in config.users:
                yield Finding(("admin", "users"), f"there is no [users.{user}]", warning=True)


def _rules(config: Config) -> Iterator[Finding]:
    everything = ""
    for name, rule in config.rules.items():
        key = ("rules", name)
        if not _NAME.fullmatch(name):
            yield Finding(key, "expected a name of up to 63 letters, digits, `_`, `-` and `.`")
        if everything:
            yield Finding(key, f"is never tried: `{everything}` before it holds for everything", warning=True)
        elif not rule.shadow and all(getattr(rule, condition) is None for condition in _CONDITIONS):
            everything = name
        yield from _conditions(key, rule)
        yield from _results(key, rule, config)


def _conditions(key: tuple[str, ...], rule: Rule) -> Iterator[Finding]:
    for condition in _CONDITIONS:
        given = getattr(rule, condition)
        if given is not None and (not given or "" in given):
            yield Finding((*key, condition), "is empty, so it never holds; leave it out if everything is meant")
    for shape in rule.shape or ():
        if shape and not _SHAPE.fullmatch(shape):
            yield Finding((*key, "shape"), f"expected 16 hexadecimal digits, not {shape!r}")
    for pattern in filter(None, rule.pattern or ()):
        try:
            empty = re.compile(pattern).search("")
        except (re.error, RecursionError, OverflowError) as error:
            yield Finding((*key, "pattern"), f"not a regular expression: {error}: {pattern!r}")
        else:
            if empty:
                yield Finding((*key, "pattern"), f"{pattern!r} is found in every text", warning=True)


def _results(key: tuple[str, ...], rule: Rule, config: Config) -> Iterator[Finding]:
    given = [result for result in _RESULTS if getattr(rule, result)]
    if rule.reject:
        for result in given:
            yield Finding((*key, result), "isn't used: `reject` is set", warning=True)
        return
    if rule.final and not given:
        yield Finding((*key, "final"), "the rule says nothing that could be final", warning=True)
    roles = {node: settings.role for node, settings in config.nodes.items()}
    if rule.node and rule.node not in roles:
        yield Finding((*key, "node"), f"there is no [nodes.{rule.node}]")
    elif rule.node and rule.route and roles[rule.node] not in ("auto", rule.route):
        yield Finding((*key, "node"), f'`{rule.node}` is "{roles[rule.node]}", and `route` is "{rule.route}"')
    elif rule.route and rule.route not in roles.values() and ("auto" not in roles.values() or rule.route == "columnar"):
        yield Finding((*key, "route"), f'no node has `role` "{rule.route}"', warning=True)
    if rule.consistency == "strong" and (rule.route in ("replica", "columnar") or rule.stale):
        yield Finding((*key, "consistency"), '"strong" reads the primary, and the rule says otherwise')
    if rule.consistency == "key" and not rule.consistency_key:
        message = '"key" without `consistency_key` is "session" for clients that give no key'
        yield Finding((*key, "consistency"), message, warning=True)
    if rule.consistency_key and rule.consistency not in (None, "key"):
        yield Finding((*key, "consistency_key"), f'isn\'t used: `consistency` is "{rule.consistency}"', warning=True)
    if len(rule.consistency_key.encode()) > MAX_KEY:
        yield Finding((*key, "consistency_key"), f"expected at most {MAX_KEY} bytes")
