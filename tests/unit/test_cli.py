"""The command line: arguments, output and exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from proxy import __version__
from proxy.cli import main
from proxy.config.load import load
from proxy.reach import Target, from_url, of_proxy

GOOD = '[nodes.db1]\nhost = "10.0.0.1"\n[users.app]\npassword = "x"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "pgtrident.toml"
    path.write_text(GOOD)
    return path


def test_version():
    result = subprocess.run([sys.executable, "-m", "proxy", "version"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"pgtrident {__version__}\n", "")


def test_check_of_a_good_file(config: Path, capsys):
    assert main(["check", "-c", str(config)]) == 0
    assert capsys.readouterr().out == f"{config}: ok (1 nodes, 0 databases, 1 users)\n"


def test_check_of_a_bad_file(config: Path, capsys):
    config.write_text(GOOD + "[pool]\nmin_pool_size = 100\n")
    assert main(["check", "-c", str(config)]) == 1
    assert capsys.readouterr().out == f"{config}:6: pool.min_pool_size: is larger than `pool_size` (20)\n"


def test_check_with_overrides_and_warnings(config: Path, capsys):
    assert main(["check", "-c", str(config), "--set", "pool.max_total=3"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("--set pool.max_total: pool.max_total: warning: is below `pool_size` (20)")
    assert second.endswith("ok (1 nodes, 0 databases, 1 users)")


def test_convert(tmp_path: Path, capsys):
    ini = tmp_path / "pgbouncer.ini"
    ini.write_text("%include databases.ini\n[pgbouncer]\nlisten_addr = *\n")
    (tmp_path / "databases.ini").write_text("[databases]\n* = host=db1\n")
    assert main(["convert", str(ini)]) == 0
    out = tmp_path / "out.toml"
    out.write_text(capsys.readouterr().out)
    assert load(out, environ={}).nodes["db1"].host == "db1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[pgbouncer]\nlisten_port = x\n", "pgbouncer.ini: listen_port: expected a whole number, not 'x'\n"),
        (b"\xff", "pgbouncer.ini: not UTF-8\n"),
        (b"%include absent.ini\n", "absent.ini: can't be read: No such file or directory\n"),
    ],
)
def test_convert_of_what_cant_be_read(tmp_path: Path, capsys, content: bytes, message: str):
    ini = tmp_path / "pgbouncer.ini"
    ini.write_bytes(content)
    assert main(["convert", str(ini)]) == 1
    assert capsys.readouterr().err == f"{tmp_path}/{message}"


@pytest.mark.parametrize("arguments", [[], ["check"], ["nonsense"], ["serve"]])
def test_wrong_usage(arguments: list[str], capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: pgtrident" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_traceback(config: Path):
    command = f"{sys.executable} -m proxy convert {config.parent}/pgbouncer.ini | true"
    (config.parent / "pgbouncer.ini").write_text("[databases]\n" + "".join(f"d{n} = host=h\n" for n in range(20_000)))
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("listen", "host"),
    [
        ("", "127.0.0.1"),
        ('host = "*"', "127.0.0.1"),
        ('host = "::, 10.0.0.9"', "::1"),
        ('host = "10.0.0.9"', "10.0.0.9"),
        ('host = ""\nunix_socket_dir = "/tmp"', "/tmp"),
    ],
)
def test_where_a_running_proxy_is_reached(config: Path, listen: str, host: str):
    config.write_text(f"{GOOD}[listen]\n{listen}\n")
    target = of_proxy(load(config, environ={}), "ann", "shop")
    assert (target.host, target.port, target.user, target.database) == (host, 6432, "ann", "shop")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("host=db1", "the DSN must look like"),
        ("postgresql://db1/shop", "the DSN must look like"),
        ("postgresql://a@db1:99999/shop", "the DSN must look like"),
        ("postgresql://a@db1/shop?sslmode=perhaps", "sslmode is one of"),
    ],
)
def test_a_url_that_cant_be_used(url: str, message: str, capsys):
    assert main(["explain", "--dsn", url, "SELECT 1"]) == 1
    assert capsys.readouterr().err.startswith(message)


def test_a_url_and_its_password(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PGPASSWORD", "p")
    assert from_url("postgresql://a%40b@db1:6432/?sslmode=require") == Target("db1", 6432, "a@b", "p", "a@b", "require")
    assert from_url("postgresql://a:x%2Fy@/d?host=/run").password == "x/y"


def test_explain_without_a_proxy(config: Path, capsys):
    assert main(["explain", "-c", str(config), "--set", "listen.port=0", "SELECT 1"]) == 1
    assert "names no port" in capsys.readouterr().err
