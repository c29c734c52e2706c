"""pgbouncer.ini files of several kinds become configurations that load and mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config.convert import convert
from proxy.config.load import load
from proxy.config.schema import Config
from proxy.errors import ConfigError


def no_include(name: str) -> str:
    raise AssertionError(name)


def converted(ini: str, tmp_path: Path) -> tuple[Config, str]:
    """The configuration and the text; files that the ini names in DIR exist."""
    for name in ("userlist.txt", "cert.pem", "key.pem", "ca.pem"):
        (tmp_path / name).write_text("")
    (tmp_path / "hba.conf").write_text("host all all 10.0.0.0/8 md5\n")
    text = convert(ini.replace("DIR", str(tmp_path)), no_include)
    file = tmp_path / "out.toml"
    file.write_text(text)
    return load(file, environ={}), text


def notes(text: str) -> dict[str, str]:
    pairs = (line.removeprefix("#   ").partition(": ") for line in text.splitlines() if line.startswith("#   "))
    return {key: reason for key, _, reason in pairs}


def test_a_small_file_keeps_pgbouncers_defaults(tmp_path: Path):
    config, text = converted("[databases]\napp = host=10.0.0.1\n[pgbouncer]\nauth_file = DIR/userlist.txt\n", tmp_path)
    assert config.pool.mode == "session"
    assert config.listen.max_clients == 100
    assert (config.listen.host, config.listen.port, config.listen.unix_socket_dir) == ("", 6432, "/tmp")
    assert config.server.connect_timeout == 15.0
    assert config.auth.userlist == f"{tmp_path}/userlist.txt"
    assert config.auth.hba == ("local all all md5", "host all all all md5")
    assert [(node.host, node.port) for node in config.nodes.values()] == [("10.0.0.1", 5432)]
    assert list(config.databases) == ["app"]
    assert notes(text) == {}


FULL = r"""
;; a long file
[databases]
app = host=db1.internal port=5433 dbname=application pool_size=50 pool_mode=session
"odd ""na""me" = host=db1.internal port=5433 user=svc password='it''s; a "secret"'
legacy= host=db1.internal port=5433 client_encoding=UNICODE connect_query='SET work_mem TO ''1MB''' max_db_connections=7
* = host=db1.internal port=5433 auth_user=lookup reserve_pool=10

[users]
batch = pool_mode=statement max_user_connections=10 max_user_client_connections=20
nothing =

[pgbouncer]
# where
listen_addr = *
listen_port = 7000
listen_backlog = 256
unix_socket_dir = DIR
unix_socket_mode = 0770
unix_socket_group = db
logfile = /var/log/pgbouncer.log
pidfile = /run/pgbouncer.pid
user = postgres
auth_type = scram-sha-256
auth_file = DIR/userlist.txt
auth_user = lookup
auth_query = SELECT usename, passwd FROM public.lookup($1)
auth_dbname = postgres
admin_users = root, ops
stats_users = ops, metrics
pool_mode = transaction
default_pool_size = 40
min_pool_size = 5
reserve_pool_size = 3
reserve_pool_timeout = 2.5
max_client_conn = 5000
max_db_connections = 100
max_prepared_statements = 300
server_reset_query = DISCARD ALL
server_lifetime = 1800
server_idle_timeout = 90
server_connect_timeout = 7
query_timeout = 30
query_wait_timeout = 20
client_idle_timeout = 3600
client_login_timeout = 10
idle_transaction_timeout = 45
tcp_keepidle = 20
tcp_keepintvl = 4
tcp_keepcnt = 2
tcp_user_timeout = 12500
client_tls_sslmode = prefer
client_tls_cert_file = DIR/cert.pem
client_tls_key_file = DIR/key.pem
server_tls_sslmode = verify-full
server_tls_ca_file = DIR/ca.pem
server_tls_ciphers = HIGH
ignore_startup_parameters = extra_float_digits
log_connections = 0
something_new = 1
"""


def test_a_full_file(tmp_path: Path):
    config, text = converted(FULL, tmp_path)
    listen, pool, server, query = config.listen, config.pool, config.server, config.auth.query
    assert (listen.host, listen.port, listen.backlog, listen.max_clients) == ("*", 7000, 256, 5000)
    assert (listen.unix_socket_dir, listen.unix_socket_mode, listen.login_timeout) == (str(tmp_path), 0o770, 10.0)
    assert (listen.tls.mode, listen.tls.cert, listen.tls.key) == (
        "allow",
        f"{tmp_path}/cert.pem",
        f"{tmp_path}/key.pem",
    )
    assert (server.tls, server.ca, server.connect_timeout) == ("verify-full", f"{tmp_path}/ca.pem", 7.0)
    for side in (listen, server):
        assert (side.keepalive_idle, side.keepalive_interval, side.keepalive_count) == (20.0, 4.0, 2)
        assert side.user_timeout == 12.5
    assert (pool.mode, pool.pool_size, pool.min_pool_size) == ("transaction", 40, 5)
    assert (pool.reserve, pool.reserve_timeout) == (3, 2.5)
    assert (pool.lifetime, pool.idle_timeout, pool.query_timeout, pool.checkout_timeout) == (1800, 90, 30, 20)
    assert (pool.client_idle_timeout, pool.idle_in_transaction_timeout) == (3600, 45)
    assert pool.max_prepared_statements == 300
    assert config.auth.hba == ("local all all scram-sha-256", "host all all all scram-sha-256")
    assert (query.enabled, query.user, query.database) == (True, "lookup", "postgres")
    assert query.query == "SELECT usename, passwd FROM public.lookup($1)"
    assert config.admin.users == ("root", "ops", "metrics")
    assert config.log.connections is False
    assert [(name, node.host, node.port) for name, node in config.nodes.items()] == [
        ("db1_internal_5433", "db1.internal", 5433)
    ]
    assert list(config.databases) == ["app", 'odd "na"me', "legacy", "*"]
    app = config.databases["app"]
    assert (app.dbname, app.pool_size, app.pool_mode) == ("application", 50, "session")
    odd = config.databases['odd "na"me']
    assert (odd.user, odd.password) == ("svc", """it's; a "secret\"""")
    assert (config.users["batch"].pool_mode, config.users["batch"].max_clients) == ("statement", 20)

    said = notes(text)
    for key in (
        "auth_user",
        "logfile",
        "pidfile",
        "user",
        "server_reset_query",
        "max_db_connections",
        "unix_socket_group",
    ):
        assert said[key]
    assert said["something_new"] == "not known"
    assert "connect_query" in said["databases.legacy"] or "max_db" in said["databases.legacy"]
    assert "secret" not in "".join(said.values())


def test_several_servers_become_nodes_of_one_fleet(tmp_path: Path):
    ini = "[databases]\napp = host=pg-a\napp_ro = host=pg-b,pg-c dbname=app\nlocal = port=5433\n"
    config, text = converted(ini + "[pgbouncer]\nauth_type = trust\nlisten_addr = 127.0.0.1, ::1\n", tmp_path)
    assert {name: (node.host, node.port) for name, node in config.nodes.items()} == {
        "pg-a": ("pg-a", 5432),
        "pg-b": ("pg-b", 5432),
        "pg-c": ("pg-c", 5432),
        "tmp_5433": ("/tmp", 5433),
    }
    assert config.listen.host == "127.0.0.1, ::1"
    assert "one primary and its replicas" in text


@pytest.mark.parametrize(
    ("method", "rules"),
    [
        ("any", ("local all all trust", "host all all all trust")),
        ("trust", ("local all all trust", "host all all all trust")),
        ("plain", ("local all all password", "host all all all password")),
        ("cert", ("hostssl all all all cert",)),
        ("pam", ()),
    ],
)
def test_ways_to_log_in(tmp_path: Path, method: str, rules: tuple[str, ...]):
    config, _ = converted(f"[databases]\n* = host=h\n[pgbouncer]\nauth_type = {method}\n", tmp_path)
    assert config.auth.hba == rules


def test_rules_from_a_file(tmp_path: Path):
    ini = "[databases]\n* = host=h\n[pgbouncer]\nauth_type = hba\nauth_hba_file = DIR/hba.conf\ntcp_keepalive = 0\n"
    config, _ = converted(ini, tmp_path)
    assert (config.auth.hba_file, config.auth.hba) == (f"{tmp_path}/hba.conf", ())
    assert (config.listen.keepalive_idle, config.server.keepalive_count) == (0.0, 0)


def test_what_is_useless_alone_is_said(tmp_path: Path):
    ini = (
        "[databases]\n* = host=h\n[pgbouncer]\nauth_query = SELECT 1\nauth_hba_file = x\nunix_socket_dir = @abstract\n"
    )
    _, text = converted(ini + "listen_addr = ::\n[peers]\n1 = host=x\n", tmp_path)
    assert set(notes(text)) == {"auth_query", "auth_hba_file", "unix_socket_dir", "[peers]"}


def test_included_files():
    files = {"more.ini": "[databases]\na = host=h\n%include deep.ini\n", "deep.ini": "[databases]\nb = host=h\n"}
    text = convert("%include more.ini\n[pgbouncer]\nlisten_addr = *\n", files.__getitem__)
    assert "[databases.a]" in text
    assert "[databases.b]" in text
    with pytest.raises(ConfigError, match="ten deep"):
        convert("%include x\n", lambda name: "%include x\n")


@pytest.mark.parametrize(
    ("ini", "message"),
    [
        ("[pgbouncer]\nlisten_port = http\n", "listen_port: expected a whole number, not 'http'"),
        ("[pgbouncer]\njust words\n", "line 2: expected `key = value`"),
        ("[databases]\na = host='open\n", "line 2: expected key=value pairs"),
        ("[databases]\na = host=h port=x\n", "port: expected a whole number"),
        ("[databases]\na = host=h pool_size=x\n", "a: pool_size: expected a whole number"),
        ("[pgbouncer]\nquery_timeout = soon\n", "query_timeout: expected a number, not 'soon'"),
    ],
)
def test_what_cant_be_read(ini: str, message: str):
    with pytest.raises(ConfigError, match=message):
        convert(ini, no_include)
