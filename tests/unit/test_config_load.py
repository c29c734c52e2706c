"""Reading a configuration: values, overrides, secrets, and where each problem is said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config.lines import line_numbers
from proxy.config.load import Reading, load, read
from proxy.config.schema import Config, Node
from proxy.config.units import format_duration, format_size, parse_duration, parse_size
from proxy.errors import ConfigError

NODE = '\n[nodes.db1]\nhost = "10.0.0.1"\n[users.app]\npassword = "x"\n'


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "pgtrident.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    return write


def problems(reading: Reading, file: Path) -> list[str]:
    """The problems with the directory taken off."""
    return [str(problem).removeprefix(f"{file.parent}/") for problem in reading.problems]


def test_defaults(write):
    config = load(write(NODE), environ={})
    assert config.nodes == {"db1": Node(host="10.0.0.1")}
    assert config.pool == Config().pool


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("200ms", 0.2), ("5s", 5), ("10min", 600), ("1h", 3600), ("7d", 604800), ("1.5h", 5400), ("3", 3), ("50us", 5e-5)],
)
def test_durations(text: str, seconds: float):
    assert parse_duration(text) == seconds
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(("text", "size"), [("64kB", 65536), ("16MB", 1 << 24), ("1.5GB", 3 << 29), ("17", 17)])
def test_sizes(text: str, size: int):
    assert parse_size(text) == size
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize("text", ["", "s", "5 m", "-5s", "5S", "1e3", "٣s", "inf", "5s5s"])
def test_what_is_no_duration(text: str):
    with pytest.raises(ValueError):
        parse_duration(text)


def test_values_of_every_kind(write):
    text = """
workers = 2
listen = { host = "*", unix_socket_mode = 0o770, tls = { mode = "disable" } }
[pool]
checkout_timeout = "1min"
lifetime = 30
[routing]
cache_bytes = "1MB"
read_split = true
[auth]
hba = ["host all all all trust"]
[databases."*"]
pool_mode = "session"
"""
    config = load(write(text + NODE), environ={})
    assert config.workers == 2
    assert (config.listen.host, config.listen.unix_socket_mode) == ("*", 0o770)
    assert (config.pool.checkout_timeout, config.pool.lifetime) == (60.0, 30.0)
    assert (config.routing.cache_bytes, config.routing.read_split) == (1 << 20, True)
    assert config.auth.hba == ("host all all all trust",)
    assert config.databases["*"].pool_mode == "session"


@pytest.mark.parametrize("selector", ["0", "1", "12", '"2"', '"hash"', '"spread"'])
def test_selectors_are_numbers_or_words(write, selector: str):
    text = (
        f'[routing]\nread_split = true\n[services.s]\nnodes = ["db1"]\nselector = {selector}\nreconnect = ["notify"]\n'
    )
    service = load(write(text + NODE), environ={"PGTRIDENT_SERVICES__S__SWITCH_TIMES": "0"}).services["s"]
    assert (service.selector, service.reconnect, service.switch_times) == (selector.strip('"'), ("notify",), 0)
    assert service.check_interval is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[listen]\nprot = 1\n", "pgtrident.toml:2: listen.prot: unknown setting; did you mean `port`?"),
        ("\n[lisden]\n", "pgtrident.toml:2: lisden: unknown setting; did you mean `listen`?"),
        ("pool_size = 3\n", "pgtrident.toml:1: pool_size: unknown setting; did you mean `pool.pool_size`?"),
        (
            "[pool]\ndefault_pool_size = 3\n",
            "pgtrident.toml:2: pool.default_pool_size: unknown setting; did you mean `pool_size`?",
        ),
        (
            "[listen]\n\nport = 70000\n",
            "pgtrident.toml:3: listen.port: expected a whole number from 0 to 65535, not 70000",
        ),
        ("[listen]\nport = true\n", "pgtrident.toml:2: listen.port: expected a whole number from 0 to 65535, not True"),
        (
            '[pool]\n# c\nidle_timeout = "5 minutes"\n',
            'pgtrident.toml:3: pool.idle_timeout: expected a duration such as "200ms", "5s", "10min", "1h", "7d" '
            "or a number of seconds, not '5 minutes'",
        ),
        (
            '[pool]\nmode = "txn"\n',
            'pgtrident.toml:2: pool.mode: expected one of "session", "statement", "transaction", not \'txn\'',
        ),
        ("listen = 5\n", "pgtrident.toml:1: listen: expected a section [listen]"),
        ("databases = 5\n", "pgtrident.toml:1: databases: expected sections [databases.NAME]"),
        ("[databases]\nx = 5\n", "pgtrident.toml:2: databases.x: expected a section [databases.x]"),
        ('[nodes."b c"]\nport = 1\n', 'pgtrident.toml:1: nodes."b c".host: must be set: expected a string'),
        ("[pool]\nlifetime = -1\n", "pgtrident.toml:2: pool.lifetime: expected a duration"),
        ("[pool]\nlifetime = nan\n", "pgtrident.toml:2: pool.lifetime: expected a duration"),
        ("[auth]\nhba = [1]\n", "pgtrident.toml:2: auth.hba: expected a list of strings"),
        (
            "[services.s]\nselector = 1000\n",
            'pgtrident.toml:2: services.s.selector: expected 0, a number up to 999, "hash"',
        ),
        ("[services.s]\nselector = true\n", "pgtrident.toml:2: services.s.selector: expected 0, a number up to 999"),
        ('[services.s]\nreconnect = ["failover"]\n', "pgtrident.toml:2: services.s.reconnect: expected a list of "),
        ("[rules.r]\nuser = 1\n", "pgtrident.toml:2: rules.r.user: expected a string or a list of strings, not 1"),
        (
            '[rules.r]\nroute = "x"\n',
            'pgtrident.toml:2: rules.r.route: expected one of "columnar", "primary", "replica"',
        ),
        ("[pool\n", "pgtrident.toml:1: not TOML: "),
        ("a = 1\na = 2\n", "pgtrident.toml:2: not TOML: "),
    ],
)
def test_problems_name_file_line_key_and_what_is_allowed(write, text: str, expected: str):
    file = write(text + NODE)
    reading = read(file, environ={})
    assert reading.config is None
    assert any(line.startswith(expected) for line in problems(reading, file)), problems(reading, file)


def test_all_problems_at_once_and_in_the_error(write):
    file = write("[listen]\nport = -1\nprot = 2\n")
    assert len(read(file, environ={}).problems) == 2
    with pytest.raises(ConfigError) as caught:
        load(file, environ={})
    assert caught.value.message.endswith("(and 1 more)")
    assert len(caught.value.detail.splitlines()) == 2


def test_a_secret_is_not_in_the_message(write):
    file = write("[users.app]\npassword = 4711\n")
    [problem] = problems(read(file, environ={}), file)
    assert "4711" not in problem


def test_files_that_cant_be_read(tmp_path: Path):
    assert "No such file" in str(read(tmp_path / "absent.toml").problems[0])
    (tmp_path / "latin.toml").write_bytes(b"# x\n# \xe9\n")
    assert str(read(tmp_path / "latin.toml").problems[0]).endswith("latin.toml:2: not UTF-8")


def test_environment_and_command_line(write):
    file = write("[pool]\npool_size = 1\n[nodes.DB2]\nhost = 'a'\n" + NODE)
    environ = {
        "PGTRIDENT_WORKERS": "3",
        "PGTRIDENT_POOL__POOL_SIZE": "2",
        "PGTRIDENT_POOL__IDLE_TIMEOUT": "5s",
        "PGTRIDENT_LISTEN__TLS__MODE": "disable",
        "PGTRIDENT_LISTEN__UNIX_SOCKET_MODE": "0770",
        "PGTRIDENT_NODES__DB2__PORT": "5433",
        "PGTRIDENT_NODES__DB3__HOST": "c",
        "PGTRIDENT_ADMIN__USERS": "app, ops",
        "PGTRIDENT_USERS__APP__PASSWORD": "5432",
        "PGTRIDENT_PORT": "tcp://10.0.0.9:6432",  # Kubernetes
        "PGTRIDENT_SERVICE_HOST": "10.0.0.9",
    }
    overrides = ["pool.pool_size=4", "routing.read_split=on", 'databases."*".pool_size = 7', 'auth.hba=["a", "b"]']
    reading = read(file, overrides[:3], environ)
    assert reading.problems == []
    config = reading.config
    assert config is not None
    assert (config.workers, config.pool.pool_size, config.pool.idle_timeout) == (3, 4, 5.0)
    assert config.nodes["DB2"].port == 5433
    assert config.nodes["db3"].host == "c"
    assert config.admin.users == ("app", "ops")
    assert config.users["app"].password == "5432"
    assert config.listen.unix_socket_mode == 0o770
    assert config.routing.read_split is True
    assert config.databases["*"].pool_size == 7


@pytest.mark.parametrize(
    ("overrides", "environ", "expected"),
    [
        (
            ["pool.pol_size=4"],
            {},
            "--set pool.pol_size: pool.pol_size: unknown setting; did you mean `pool.pool_size`?",
        ),
        (["pool=4"], {}, "--set pool: pool: unknown setting"),
        (["workers"], {}, "--set workers: expected KEY=VALUE"),
        (["workers=many"], {}, "--set workers: workers: expected a whole number from 1 to 256, not 'many'"),
        (["workers=0"], {}, "--set workers: workers: expected a whole number from 1 to 256, not '0'"),
        (["workers=1\nx=2"], {}, "--set workers: workers: expected a whole number"),
        ([], {"PGTRIDENT_POOL__SIZ": "1"}, "environment variable PGTRIDENT_POOL__SIZ: pool.siz: unknown setting"),
        (["health.timeout=5s"], {}, "--set health.timeout: health.timeout: must be below `interval` (5 s)"),
    ],
)
def test_problems_of_overrides_name_their_source(write, overrides, environ, expected):
    reading = read(write(NODE), overrides, environ)
    assert [str(problem) for problem in reading.problems if str(problem).startswith(expected)], reading.problems


def test_secrets_from_files(write):
    write("geheim\n", "secret")
    file = write('[users.ops]\npassword_file = "secret"\n' + NODE)
    reading = read(file, environ={})
    assert reading.config is not None
    assert reading.config.users["ops"].password == "geheim"
    assert reading.warnings == []


def test_a_secret_that_everyone_may_read_is_warned_of(write):
    write("geheim\n\n", "secret").chmod(0o644)
    reading = read(write('[users.ops]\npassword_file = "secret"\n' + NODE), environ={})
    assert reading.config is not None
    assert reading.config.users["ops"].password == "geheim\n"  # one line end is taken off
    assert [warning.key for warning in reading.warnings] == ["users.ops.password_file"]


def test_a_secret_given_twice_or_absent(write):
    write("geheim", "secret")
    file = write('[users.a]\npassword_file = "secret"\npassword = "y"\n[users.b]\npassword_file = "absent"\n' + NODE)
    assert problems(read(file, environ={}), file) == [
        "pgtrident.toml:2: users.a.password_file: `password` is set too; keep one of them",
        f"pgtrident.toml:5: users.b.password_file: there is no file {file.parent}/absent",
    ]


def test_paths_start_at_the_file_and_on_the_command_line_where_one_is(write, tmp_path, monkeypatch):
    write("", "list")
    write("", "rules")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    file = write('[auth]\nuserlist = "list"\n' + NODE)
    config = load(file, ["auth.passfile=../rules"], {})
    assert config.auth.userlist == str(tmp_path / "list")
    assert config.auth.passfile == str(tmp_path / "rules")


def test_lines_of_keys():
    text = '''top = 1
[a] # comment [b]
x = """
[not.a.table]
y = 2
"""
"q.r" = [
  1, # ]
  "]",
]
z = { m = 1, n = { o = [1, 2], p = "}" }, q = 3 }
d.e.f = 'x'
[ s . "t u" ]
k = 1

[[rows]]
v = {}
w = 2
[last]'''
    lines = line_numbers(text)
    expected = {
        ("top",): 1,
        ("a",): 2,
        ("a", "x"): 3,
        ("a", "q.r"): 7,
        ("a", "z"): 11,
        ("a", "z", "m"): 11,
        ("a", "z", "n", "o"): 11,
        ("a", "z", "n", "p"): 11,
        ("a", "z", "q"): 11,
        ("a", "d", "e", "f"): 12,
        ("s", "t u"): 13,
        ("s", "t u", "k"): 14,
        ("rows",): 16,
        ("rows", "v"): 17,
        ("rows", "w"): 18,
        ("last",): 19,
    }
    assert {path: line for path, line in lines.items() if path in expected} == expected
    assert ("not", "a", "table") not in lines
    assert ("a", "y") not in lines


def test_a_service_completes_a_node(write):
    write("[main]\nhost=10.1.1.1\nport=5433\nsslmode=verify-full\nuser=x\n[odd]\nport=many\n", "services")
    text = '[server]\nservicefile = "services"\nca = "services"\n[nodes.b]\nservice = "main"\nport = 5555\n'
    config = load(write(text + NODE), environ={})
    assert config.nodes["b"] == Node(host="10.1.1.1", port=5555, tls="verify-full", service="main")

    odd = '[nodes.b]\nservice = "odd"\nhost = "h"\n[nodes.c]\nservice = "none"\nhost = "h"\n'
    file = write('[server]\nservicefile = "services"\n' + odd + NODE)
    assert problems(read(file, environ={}), file) == [
        "pgtrident.toml:4: nodes.b.service: port of the service: expected a whole number from 1 to 65535, not 'many'",
        "pgtrident.toml:7: nodes.c.service: `server.servicefile` has no section [none]",
    ]
    file = write(odd + NODE)
    assert "pgtrident.toml:2: nodes.b.service: needs `server.servicefile`" in problems(read(file, environ={}), file)


def test_rules_keep_their_order_and_one_condition_needs_no_brackets(write):
    file = write('[rules.b]\nuser = "u"\n[rules.a]\ntable = ["x", "y"]\ntimeout = "5s"\n' + NODE)
    config = load(file, environ={})
    assert list(config.rules) == ["b", "a"]
    assert (config.rules["b"].user, config.rules["a"].table) == (("u",), ("x", "y"))


def test_the_rules_of_a_file_are_tried(write):
    write("local all all trust\nhost all all 10.0.0.0/8 maybe\n", "rules")
    file = write('[auth]\nhba_file = "rules"\n' + NODE)
    [problem] = problems(read(file, environ={}), file)
    assert problem.startswith(f'pgtrident.toml:2: auth.hba_file: {file.parent}/rules line 2: unknown method "maybe"')


def test_the_list_of_users_is_tried(write):
    write('"ann" "x"\n"bob\n', "users")
    file = write('[auth]\nuserlist = "users"\n' + NODE)
    [problem] = problems(read(file, environ={}), file)
    assert problem.startswith(f"pgtrident.toml:2: auth.userlist: {file.parent}/users")
