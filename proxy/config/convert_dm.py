"""dm_svc.conf, the file of service names of DM clients -> our TOML.

Owns what each of its keys becomes, and says of each that becomes nothing why. Its services become
[services.NAME], their servers nodes. Values that hold for all services go to [routing.affinity], DM's
defaults with them, so that the result behaves as before. Pure. Called by `convert`. Source of the meanings:
DM8's documentation of dm_svc.conf, and the drivers' names for the same keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..errors import ConfigError
from .converted import Output, Tree, node_name, whole, write

DEFAULT_PORT = 5236

_LINE = re.compile(r"([^=\s(]+)\s*=\s*(?:\(([^)]*)\)|([^\s()#]*))\s*(?:#.*)?")
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+))(?::(\d+))?")
_HAS_ADDRESS = re.compile(r":\d|\[|\d+\.\d+\.\d+\.\d+")

_NAMES = {"SWITCHTIME": "SWITCHTIMES", "EPSELECTION": "EPSELECTOR", "DOSWITCH": "AUTORECONNECT"}
"""Other names of the same keys (all without underscores and in capitals, as drivers write them in several ways)."""
_DEFAULTS = {"SWITCHTIMES": "1", "SWITCHINTERVAL": "200", "AUTORECONNECT": "0", "EPSELECTOR": "0"}
_RECONNECT = {1: "notify", 2: "failback", 4: "balance"}
_DSC = ("DSC", "3")
"""Values of CLUSTER for shared storage, where every server writes."""

_ROLES = "roles are found by asking, and a statement goes where it may"
_READS = "reads go to replicas as far as these are fresh"
_CLIENT = "a matter of the client's session"
_DRIVER = "a matter of the driver"
_LIMITS = "see `[pool]` and `[listen]` for time limits"
_IGNORED = {
    **dict.fromkeys(("LOGINMODE", "LOGINSTATUS", "LOGINDSCCTRL"), _ROLES),
    **dict.fromkeys(("RWPERCENT", "RWAUTODISTRIBUTE", "RWHA", "RWFILTERTYPE", "RWIGNORESQL"), _READS),
    "RWSTANDBYRECOVERTIME": "nodes are probed by [health]",
    **dict.fromkeys(("DBALIVECHECKFREQ", "DBALIVECHECKTIMEOUT"), "nodes are probed by [health]"),
    **dict.fromkeys(("TIMEZONE", "LANGUAGE", "CHARCODE", "SCHEMA", "CASESENSITIVE", "ISOLATIONLEVEL"), _CLIENT),
    **dict.fromkeys(("CONNECTTIMEOUT", "SOCKETTIMEOUT", "SESSIONTIMEOUT", "QUERYTIMEOUT"), _LIMITS),
    **dict.fromkeys(("LOGINENCRYPT", "COMMUNICATIONENCRYPT", "SSLFILESPATH", "SSLPATH"), "see `[listen.tls]`"),
    **dict.fromkeys(("COMPRESSMSG", "COMPRESSID", "DIRECT", "DEC2DOUB", "KEYWORDS", "ADDRESSREMAP"), _DRIVER),
    **dict.fromkeys(("ENABLERSCACHE", "ENRSCACHE", "RSCACHESIZE", "RSREFRESHFREQ", "WALLETLOCATION"), _DRIVER),
    **dict.fromkeys(("USERREMAP", "MPPLOCAL", "EPSELECTORDYNAMIC", "COMPATIBLEMODE", "OSAUTHTYPE"), _DRIVER),
    **dict.fromkeys(("STATENABLE", "STATDIR", "LOGDIR", "LOGLEVEL"), _DRIVER),
}
_USED = ("SWITCHTIMES", "SWITCHINTERVAL", "CHECKFREQ", "AUTORECONNECT", "EPSELECTOR", "RWSEPARATE", "CLUSTER")


@dataclass(slots=True)
class _File:
    """The file as it is. Keys as `_key` makes them, with the name that the file gives them."""

    common: dict[str, str] = field(default_factory=dict)
    services: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    sections: dict[str, dict[str, str]] = field(default_factory=dict)
    """By service in small letters: case doesn't matter there."""
    unknown: list[str] = field(default_factory=list)


def is_dm_svc(text: str) -> bool:
    """Whether a file is one: its first line that counts is `NAME=(...)`, outside of any section."""
    first = next(iter(_lines(text)), (0, ""))[1]
    return re.match(r"[^=\s(\[]+\s*=\s*\(", first) is not None


def convert(text: str) -> str:
    """The TOML text, with a comment for everything that isn't carried over.

    ConfigError names the line that can't be read.
    """
    file = _parse(text)
    out = Output()
    out.notes += file.unknown
    if file.services:
        out.notes.append(
            "services: a client chooses one by the database that it names (`services.NAME.databases`) or by its "
            "startup option `pgtrident.service`"
        )
        out.notes.append(
            "nodes: hosts and ports are those of the file; name the servers of PostgreSQL's protocol there"
        )
    else:
        out.notes.append("no service: add nodes under [nodes.NAME]")
    out.notes.append("users: the file has none; add [users.NAME], `auth.userlist` or `auth.query`")
    affinity: Tree = {}
    out.set(("routing", "affinity"), affinity)
    _switching(out, affinity, _DEFAULTS | file.common, "")
    nodes: dict[tuple[str, int], str] = {}
    for name, addresses in file.services.items():
        own = file.sections.pop(name.casefold(), {})
        section: Tree = {"nodes": tuple(dict.fromkeys(_node(out, nodes, address) for address in addresses))}
        out.set(("services", name), section)
        section["selector"] = _selector(_DEFAULTS | file.common | own, len(section["nodes"]))
        _switching(out, section, own, f"services.{name}: ")
        _reads(out, name, file.common | own)
    for section_name in file.sections:
        out.notes.append(f"[{section_name}]: there is no service of that name")
    return write(out, "a DM client's dm_svc.conf")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """What counts, with line numbers."""
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = raw.strip()
        if line and not line.startswith(("#", "//")):
            yield number, line


def _parse(text: str) -> _File:
    file = _File()
    sections = {match[1].casefold() for _, line in _lines(text) if (match := re.match(r"\[(.+?)\]", line))}
    here = file.common
    section = ""
    for number, line in _lines(text):
        if match := re.fullmatch(r"\[(.+?)\]\s*(?:#.*)?", line):
            section = match[1].strip()
            here = file.sections.setdefault(section.casefold(), {})
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ConfigError(f"line {number}: expected `NAME=(value)`")
        name, value = match[1], (match[3] if match[2] is None else match[2]).strip()
        key = _key(name)
        where = f"services.{section}: " if section else ""
        if key in _USED:
            here[key] = value
        elif key in _IGNORED:
            file.unknown.append(f"{where}{name}: {_IGNORED[key]}")
        elif not section and (name.casefold() in sections or _HAS_ADDRESS.search(value)):
            file.services[name] = _addresses(value, number)
        else:
            file.unknown.append(f"{where}{name}: not known")
    return file


def _key(name: str) -> str:
    plain = name.replace("_", "").upper()
    return _NAMES.get(plain, plain)


def _addresses(value: str, number: int) -> list[tuple[str, int]]:
    found = []
    for item in filter(None, map(str.strip, value.split(","))):
        match = _ADDRESS.fullmatch(item)
        if match is None:
            raise ConfigError(f"line {number}: expected host:port, not {item!r}")
        found.append((match[1] or match[2], int(match[3] or DEFAULT_PORT)))
    return found


def _node(out: Output, nodes: dict[tuple[str, int], str], address: tuple[str, int]) -> str:
    """The name of the node at an address; services share it."""
    if address not in nodes:
        nodes[address] = node_name(address, nodes.values())
        out.set(("nodes", nodes[address]), {"host": address[0], "port": address[1]})
    return nodes[address]


def _count(key: str, value: str) -> int:
    number = whole(key, value)
    if number < 0:
        raise ConfigError(f"{key}: expected a number of at least 0, not {value!r}")
    return number


def _selector(values: Mapping[str, str], nodes: int) -> str:
    """0 takes turns, 1 begins with the first server; further ones are counted on from the start."""
    number = _count("EP_SELECTOR", values["EPSELECTOR"])
    return str((number - 1) % nodes + 1 if number > nodes > 0 else number)


def _switching(out: Output, section: Tree, values: Mapping[str, str], where: str) -> None:
    """When to take the next server and when to come back; durations are milliseconds there."""
    if "SWITCHTIMES" in values:
        section["switch_times"] = _count("SWITCH_TIMES", values["SWITCHTIMES"])
    for theirs, key, ours in (
        ("SWITCHINTERVAL", "SWITCH_INTERVAL", "switch_interval"),
        ("CHECKFREQ", "CHECK_FREQ", "check_interval"),
    ):
        if theirs in values:
            section[ours] = _count(key, values[theirs]) / 1000
    if "CHECKFREQ" in values:
        out.notes.append(f"{where}CHECK_FREQ: taken for milliseconds; `check_interval` says what that is in seconds")
    if "AUTORECONNECT" in values:
        bits = _count("AUTO_RECONNECT", values["AUTORECONNECT"])
        section["reconnect"] = tuple(mode for bit, mode in _RECONNECT.items() if bits & bit)
        if bits > sum(_RECONNECT):
            out.notes.append(f"{where}AUTO_RECONNECT: of {bits} only 1, 2 and 4 are known")


def _reads(out: Output, name: str, values: Mapping[str, str]) -> None:
    if values.get("RWSEPARATE", "0") not in ("0", ""):
        out.set(("routing", "read_split"), True)
        out.notes.append(f"services.{name}: RW_SEPARATE: `routing.read_split` is on for all databases now")
    cluster = values.get("CLUSTER", "")
    if cluster.upper() in _DSC:
        out.set(("group", "multi_writer"), True)
        out.notes.append(f'services.{name}: CLUSTER: say `role = "primary"` of the nodes that write')
    elif cluster:
        out.notes.append(f"services.{name}: CLUSTER: {_ROLES}")
