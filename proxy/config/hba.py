"""Host-based access rules, in the form of pg_hba.conf: which rule a connection meets, first match wins.

Owns the form of the lines and what matches; it must not authenticate anybody or read files. Called by
`config.check` (errors) and `dataplane.authenticate`. Source: PostgreSQL manual 21.1. Where PostgreSQL has
more (groups, regular expressions, host names, maps), the error says what is allowed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal, TypeVar, get_args

from ..errors import ConfigError

Kind = Literal["local", "host", "hostssl", "hostnossl"]
Method = Literal["trust", "reject", "md5", "scram-sha-256", "password", "cert", "peer"]
ClientCertificate = Literal["", "verify-ca", "verify-full"]
IpAddress = IPv4Address | IPv6Address

DEFAULT_LINES = (
    "local all all scram-sha-256",
    "local replication all scram-sha-256",
    "host all all all scram-sha-256",
    "host replication all all scram-sha-256",
)
"""The rules when the configuration has none: everybody by SCRAM."""

T = TypeVar("T", bound=str)
_KEYWORDS = ("all", "sameuser", "replication")


@dataclass(frozen=True, slots=True)
class Caller:
    """What rules look at. `address` is None for a Unix socket; `local_address` is our own end."""

    database: str
    user: str
    address: IpAddress | None = None
    local_address: IpAddress | None = None
    tls: bool = False
    physical_replication: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """A database or user in a rule; in quotes a keyword is an ordinary name."""

    text: str
    keyword: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """One line. `networks` is empty for `all`; `same_host` is `samehost`."""

    line: int
    kind: Kind
    databases: tuple[Name, ...]
    users: tuple[Name, ...]
    networks: tuple[IPv4Network | IPv6Network, ...]
    same_host: bool
    method: Method
    client_certificate: ClientCertificate = ""

    def matches(self, caller: Caller) -> bool:
        return (
            self._matches_link(caller)
            and any(_is_database(name, caller) for name in self.databases)
            and any(name.text == ("all" if name.keyword else caller.user) for name in self.users)
        )

    def _matches_link(self, caller: Caller) -> bool:
        if caller.address is None or self.kind == "local":
            return caller.address is None and self.kind == "local"
        if (self.kind == "hostssl" and not caller.tls) or (self.kind == "hostnossl" and caller.tls):
            return False
        if self.same_host:
            return caller.address.is_loopback or caller.address == caller.local_address
        return not self.networks or any(caller.address in network for network in self.networks)


def _is_database(name: Name, caller: Caller) -> bool:
    """`all` doesn't cover physical replication: that needs `replication` (manual 21.1)."""
    if name.keyword and name.text == "replication":
        return caller.physical_replication
    if caller.physical_replication:
        return False
    if name.keyword:
        return name.text == "all" or caller.database == caller.user
    return name.text == caller.database


def find(rules: Iterable[Rule], caller: Caller) -> Rule | None:
    """The first rule that matches, or None: then nobody may come in."""
    return next((rule for rule in rules if rule.matches(caller)), None)


def parse(lines: Iterable[str], source: str = "auth.hba") -> tuple[Rule, ...]:
    """Rules of these lines. Raises ConfigError naming source, line and what is allowed."""
    rules = []
    for number, text in enumerate(lines, 1):
        fields = list(_fields(text, f"{source} line {number}"))
        if fields:
            rules.append(_rule(number, fields, f"{source} line {number}"))
    return tuple(rules)


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    quoted: bool


_Field = list[_Word]


def _fields(text: str, where: str) -> Iterator[_Field]:
    """Fields between white space, each a list of words between commas; `#` begins a comment."""
    field: _Field = []
    at, more = 0, False
    while True:
        while at < len(text) and (text[at].isspace() or text[at] == ","):
            at += 1
        if at >= len(text) or text[at] == "#":
            break
        if field and not more:
            yield field
            field = []
        word, quoted = "", False
        while at < len(text) and not text[at].isspace() and text[at] not in ",#":
            if text[at] == '"':
                end = text.find('"', at + 1)
                if end < 0:
                    raise ConfigError(f"{where}: a quote is not closed")
                word, quoted, at = word + text[at + 1 : end], True, end + 1
            else:
                word, at = word + text[at], at + 1
        field.append(_Word(word, quoted))
        more = at < len(text) and text[at] == ","
        if more:
            at += 1
    if field:
        yield field


def _rule(number: int, fields: list[_Field], where: str) -> Rule:
    kind = _one_of(fields[0], get_args(Kind), "connection type", where)
    rest = fields[1:]
    needed = 3 if kind == "local" else 4
    if len(rest) < needed:
        form = "DATABASE USER METHOD" if kind == "local" else "DATABASE USER ADDRESS METHOD"
        raise ConfigError(f"{where}: too few fields; expected: {kind} {form}")
    databases = tuple(_name(word, "database", _KEYWORDS, where) for word in rest[0])
    users = tuple(_name(word, "user", ("all",), where) for word in rest[1])
    rest = rest[2:]
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    same_host = False
    if kind != "local":
        address = _single(rest[0], "address", where)
        rest = rest[1:]
        if address.text == "samehost" and not address.quoted:
            same_host = True
        elif address.text != "all" or address.quoted:
            mask = ""
            if "/" not in address.text and len(rest) > 1 and _is_address(rest[0][0].text):
                mask, rest = rest[0][0].text, rest[1:]
            networks = (_network(address.text, mask, where),)
    method = _one_of(rest[0], get_args(Method), "method", where)
    if method == "peer" and kind != "local":
        raise ConfigError(f"{where}: method peer is for local only")
    if method == "cert" and kind != "hostssl":
        raise ConfigError(f"{where}: method cert is for hostssl only")
    return Rule(number, kind, databases, users, networks, same_host, method, _options(rest[1:], kind, where))


def _options(fields: list[_Field], kind: Kind, where: str) -> ClientCertificate:
    certificate: ClientCertificate = ""
    for field in fields:
        name, _, value = _single(field, "option", where).text.partition("=")
        if name != "clientcert":
            raise ConfigError(f'{where}: option "{name}" is not supported; allowed: clientcert')
        if kind != "hostssl":
            raise ConfigError(f"{where}: clientcert is for hostssl only")
        if value not in ("verify-ca", "verify-full"):
            raise ConfigError(f'{where}: clientcert can\'t be "{value}"; allowed: verify-ca, verify-full')
        certificate = "verify-ca" if value == "verify-ca" else "verify-full"
    return certificate


def _single(field: _Field, what: str, where: str) -> _Word:
    if len(field) != 1:
        raise ConfigError(f"{where}: more than one {what}; write a line for each")
    return field[0]


def _one_of(field: _Field, allowed: tuple[T, ...], what: str, where: str) -> T:
    word = _single(field, what, where).text
    for value in allowed:
        if value == word:
            return value
    raise ConfigError(f'{where}: unknown {what} "{word}"; allowed: {", ".join(allowed)}')


def _name(word: _Word, what: str, keywords: tuple[str, ...], where: str) -> Name:
    if not word.text:
        raise ConfigError(f"{where}: empty {what} name")
    if word.quoted:
        return Name(word.text, keyword=False)
    if word.text[0] in "+@/" or word.text in ("samerole", "samegroup"):
        raise ConfigError(f'{where}: {what} "{word.text}" is not supported; allowed: {", ".join(keywords)}, or names')
    return Name(word.text, keyword=word.text in keywords)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _network(address: str, mask: str, where: str) -> IPv4Network | IPv6Network:
    allowed = "allowed: all, samehost, an address with a prefix length (10.0.0.0/8) or with a mask"
    if "/" not in address and not mask:
        if _is_address(address):
            raise ConfigError(f'{where}: address "{address}" has neither prefix length nor mask; {allowed}')
        raise ConfigError(f'{where}: "{address}" is not an address; {allowed}')
    try:
        # PostgreSQL ignores the bits behind the mask.
        return ip_network(f"{address}/{mask}" if mask else address, strict=False)
    except ValueError:
        if mask and ":" in address:  # a mask of IPv6 is written as an address
            bits = bin(int(ip_address(mask)))[2:]
            if len(bits) == 128 and "01" not in bits:
                return ip_network(f"{address}/{bits.count('1')}", strict=False)
        raise ConfigError(f'{where}: "{address}" is not an address with a good mask; {allowed}') from None
