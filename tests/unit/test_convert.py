"""pgbouncer.ini and dm_svc.conf files of several kinds become configurations that load and mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config.convert import convert
from proxy.config.load import load, read
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


# --- dm_svc.conf

DM = """\
# global part
TIME_ZONE=(+480)
LANGUAGE=(cn)
SWITCH_INTERVAL=(500)
SVC1=(192.168.0.1:5236,192.168.0.2:5236)
svc2=( 192.168.0.2 , [fd00::3]:5237 ,192.168.0.1:5236,)
DW = (dw1,dw2)     # names without a port
SOMETHING=(new)

[SVC1]
LOGIN_MODE=(1)
SWITCH_TIMES=(3)
SWITCH_INTERVAL=(100)      # milliseconds
EP_SELECTOR=(1)            # in order
AUTO_RECONNECT=(3)
CHECK_FREQ=(30000)
[SVC2]
EP_SELECTOR =(5)
DO_SWITCH=(15)
rwSeparate=1
RW_PERCENT=(25)
[dw]
SWITCH_TIME=(60)
[OLD]
SWITCH_TIMES=(1)
"""


def test_services_of_dm_clients(tmp_path: Path):
    config, text = converted(DM, tmp_path)
    assert {name: (node.host, node.port) for name, node in config.nodes.items()} == {
        "192_168_0_1_5236": ("192.168.0.1", 5236),
        "192_168_0_2_5236": ("192.168.0.2", 5236),
        "fd00_3_5237": ("fd00::3", 5237),
        "dw1_5236": ("dw1", 5236),
        "dw2_5236": ("dw2", 5236),
    }
    general = config.routing.affinity
    assert (general.switch_times, general.switch_interval, general.check_interval) == (1, 0.5, 60.0)
    assert general.reconnect == ()
    one, two, three = config.services["SVC1"], config.services["svc2"], config.services["DW"]
    assert one.nodes == ("192_168_0_1_5236", "192_168_0_2_5236")
    assert (one.selector, one.switch_times, one.switch_interval, one.check_interval) == ("1", 3, 0.1, 30.0)
    assert one.reconnect == ("notify", "failback")
    assert two.nodes == ("192_168_0_2_5236", "fd00_3_5237", "192_168_0_1_5236")
    assert (two.selector, two.switch_times, two.switch_interval) == ("2", None, None)
    assert two.reconnect == ("notify", "failback", "balance")
    assert (three.selector, three.switch_times, three.reconnect) == ("0", 60, None)
    assert config.routing.read_split is True
    assert config.group.multi_writer is False
    assert text.startswith("# Made from a DM client's dm_svc.conf.\n")
    said = notes(text)
    assert said["SOMETHING"] == "not known"
    assert said["[old]"] == "there is no service of that name"
    for key in ("TIME_ZONE", "LANGUAGE", "services.SVC1", "services.SVC2", "services.svc2", "nodes", "users"):
        assert said[key]
    for part in ("services.SVC1: LOGIN_MODE: ", "services.SVC2: RW_PERCENT: ", "AUTO_RECONNECT: of 15", "CHECK_FREQ: "):
        assert part in text


def test_a_small_file_keeps_dms_defaults(tmp_path: Path):
    config, _ = converted("\ufeff// c\n\nDB=(10.0.0.1)\n", tmp_path)
    assert [(node.host, node.port) for node in config.nodes.values()] == [("10.0.0.1", 5236)]
    general, service = config.routing.affinity, config.services["DB"]
    assert (general.switch_times, general.switch_interval, general.reconnect) == (1, 0.2, ())
    assert (service.nodes, service.selector) == (("10_0_0_1_5236",), "0")


def test_settings_before_the_services_hold_for_all(tmp_path: Path):
    text = "SWITCH_TIMES=(5)\nEP_SELECTOR=(2)\nAUTO_RECONNECT=(2)\nCLUSTER=(DSC)\nA=(h:1,i:1)\nC=(i:1,h:1)\n"
    config, out = converted(text + "[A]\nEP_SELECTOR=(0)\nB=(j:1)\n", tmp_path)
    assert config.routing.affinity.switch_times == 5
    assert config.routing.affinity.reconnect == ("failback",)
    assert {name: service.selector for name, service in config.services.items()} == {"A": "0", "C": "2"}
    assert config.group.multi_writer is True
    assert "services.A: B: not known" in out


def test_a_switch_that_would_never_happen_is_said(tmp_path: Path):
    """The budget of many files in use: a minute, and a server has restarted by then."""
    file = tmp_path / "out.toml"
    file.write_text(
        convert("A=(h:1,i:1)\n[A]\nRW_SEPARATE=(1)\nSWITCH_TIMES=(60)\nSWITCH_INTERVAL=(1000)\n", no_include)
    )
    [warning] = [w for w in read(file, environ={}).warnings if w.key.startswith("services")]
    assert warning.key == "services.A.switch_times"
    assert "the switch would never happen" in warning.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=(h:1)\nwords\n", r"line 2: expected `NAME=\(value\)`"),
        ("A=(h:1,i:x)\n", "line 1: expected host:port, not 'i:x'"),
        ("A=(h:1)\nSWITCH_TIMES=(x)\n", "SWITCH_TIMES: expected a whole number, not 'x'"),
        ("A=(h:1)\n[A]\nEP_SELECTOR=(-1)\n", "EP_SELECTOR: expected a number of at least 0, not '-1'"),
    ],
)
def test_what_cant_be_read_of_dm(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        convert(text, no_include)
