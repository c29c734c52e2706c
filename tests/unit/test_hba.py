"""Access rules, userlist, .pgpass and service files."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from proxy.config import hba, passfile, userlist
from proxy.errors import ConfigError


def caller(text: str = "10.1.2.3", **fields: object) -> hba.Caller:
    address = ip_address(text) if text else None
    return hba.Caller(**{"database": "shop", "user": "ada", "address": address, **fields})  # type: ignore[arg-type]


def method(lines: str, who: hba.Caller) -> str | None:
    rule = hba.find(hba.parse(lines.splitlines()), who)
    return None if rule is None else rule.method


@pytest.mark.parametrize(
    ("line", "who", "matches"),
    [
        ("host all all all trust", caller(), True),
        ("host all all 0.0.0.0/0 trust", caller(), True),
        ("host all all ::/0 trust", caller(), False),
        ("host all all 10.0.0.0/8 trust", caller(), True),
        ("host all all 10.9.9.9/8 trust", caller(), True),
        ("host all all 10.0.0.0 255.0.0.0 trust", caller(), True),
        ("host all all 10.0.0.0 255.255.0.0 trust", caller(), False),
        ("host all all fe80:: ffff:: trust", caller("fe80::1"), True),
        ("host all all 10.1.2.3/32 trust", caller("10.1.2.4"), False),
        ("host all all samehost trust", caller("127.0.0.1"), True),
        ("host all all samehost trust", caller(local_address=ip_address("10.1.2.3")), True),
        ("host all all samehost trust", caller(local_address=ip_address("10.1.2.4")), False),
        ("hostssl all all all trust", caller(), False),
        ("hostssl all all all trust", caller(tls=True), True),
        ("hostnossl all all all trust", caller(), True),
        ("hostnossl all all all trust", caller(tls=True), False),
        ("local all all trust", caller(""), True),
        ("local all all trust", caller(), False),
        ("host all all all trust", caller(""), False),
        ("host shop,till ada,bob all trust", caller(), True),
        ("host till,shop bob,ada all trust", caller(), True),
        ("host till, shop bob,  ada all trust", caller(), True),
        ("host till ada all trust", caller(), False),
        ("host shop bob all trust", caller(), False),
        ("host sameuser all all trust", caller(), False),
        ("host sameuser all all trust", caller(database="ada"), True),
        ('host "all" all all trust', caller(), False),
        ('host "all" all all trust', caller(database="all"), True),
        ('host "two words" all all trust', caller(database="two words"), True),
        ("host all all all trust # ada only", caller(), True),
        ("host all all all trust", caller(physical_replication=True), False),
        ("host replication all all trust", caller(physical_replication=True), True),
        ("host replication all all trust", caller(database="replication"), False),
    ],
)
def test_match(line: str, who: hba.Caller, matches: bool) -> None:
    assert (method(line, who) == "trust") is matches


def test_first_match_wins() -> None:
    lines = "# head\n\nhost all bob all trust\nhost all all 10.0.0.0/8 reject\nhost all all all md5"
    assert method(lines, caller()) == "reject"
    assert method(lines, caller("192.168.0.1")) == "md5"
    assert method(lines, caller(user="bob")) == "trust"
    assert method(lines, caller("")) is None


def test_the_default_lets_everybody_in_by_scram() -> None:
    rules = hba.parse(hba.DEFAULT_LINES)
    for who in (caller(), caller(""), caller(physical_replication=True), caller("", physical_replication=True)):
        rule = hba.find(rules, who)
        assert rule is not None
        assert rule.method == "scram-sha-256"


def test_client_certificates() -> None:
    (rule,) = hba.parse(["hostssl all all all scram-sha-256 clientcert=verify-full"])
    assert rule.client_certificate == "verify-full"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("hostgssenc all all all trust", "allowed: local, host, hostssl, hostnossl"),
        ("host all all all ident", "allowed: trust, reject, md5, scram-sha-256, password, cert, peer"),
        ("host all all trust", "expected: host DATABASE USER ADDRESS METHOD"),
        ("local all trust", "expected: local DATABASE USER METHOD"),
        ("host all +staff all trust", '"\\+staff" is not supported'),
        ("host @file all all trust", "allowed: all, sameuser, replication, or names"),
        ("host /^a all all trust", "not supported"),
        ("host samerole all all trust", "not supported"),
        ("host all all samenet trust", "allowed: all, samehost"),
        ("host all all db.example.com trust", "allowed: all, samehost"),
        ("host all all 10.0.0.1 trust", "neither prefix length nor mask"),
        ("host all all 10.0.0.0/33 trust", "good mask"),
        ("host all all 10.0.0.0 255.0.255.0 trust", "good mask"),
        ("host all all all peer", "for local only"),
        ("host all all all cert", "for hostssl only"),
        ("hostssl all all all cert map=m", 'option "map" is not supported; allowed: clientcert'),
        ("hostssl all all all md5 clientcert=1", "allowed: verify-ca, verify-full"),
        ("host all all all md5 clientcert=verify-ca", "for hostssl only"),
        ('host "all all all trust', "quote is not closed"),
    ],
)
def test_errors_name_the_line_and_what_is_allowed(line: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^pg_hba.conf line 2: .*{says}"):
        hba.parse(["# comment", line], "pg_hba.conf")


def test_userlist() -> None:
    text = '; comment\n# too\n\n"ada" "open ""sesame""" ""\n "bob"\t"md5abc"\n"ada" "second"\n'
    assert userlist.parse(text, "users.txt") == {"ada": 'open "sesame"', "bob": "md5abc"}


def test_a_bad_userlist_is_named_but_not_shown() -> None:
    with pytest.raises(ConfigError, match=r'^users.txt line 1: expected "user" "password"$'):
        userlist.parse('"ada" secret', "users.txt")


PASSFILE = r"""# comment
db1:5432:shop:ada:first
*:*:*:bob:any:colon
h\:x:1:*:a\\da:es\:caped
db1:5432:*:ada:second
db1:5432:*:eve:
short:line
"""


@pytest.mark.parametrize(
    ("key", "password"),
    [
        (("db1", 5432, "shop", "ada"), "first"),
        (("db1", 5432, "else", "ada"), "second"),
        (("db2", 5432, "shop", "ada"), None),
        (("any", 1, "x", "bob"), "any:colon"),
        (("h:x", 1, "x", r"a\da"), "es:caped"),
        (("db1", 5432, "x", "eve"), None),
    ],
)
def test_passfile(key: tuple[str, int, str, str], password: str | None) -> None:
    assert passfile.find_password(PASSFILE, *key) == password


def test_service_file() -> None:
    text = "# comment\n[one]\nhost=a\nport = 1\nhost=second\n\n[two]\nhost=b\n"
    assert passfile.find_service(text, "one") == {"host": "a", "port": "1"}
    assert passfile.find_service(text, "two") == {"host": "b"}
    assert passfile.find_service(text, "three") is None
    with pytest.raises(ConfigError, match="line 2"):
        passfile.find_service("[one]\nhost", "one")
