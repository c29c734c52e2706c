"""A configuration file, the environment and the command line -> Config, or every problem in them.

Owns decoding, the order of precedence (file, then environment, then `--set`), secrets kept in files
and the places that messages name. It reads files and nothing else; what settings mean together is
judged by `check`. Called by the supervisor at start, by the controller at a reload and by `cli`.

Environment: PGTRIDENT_LISTEN__PORT=6433 is `listen.port`; names of nodes, databases and users are
matched without regard to case with those in the file, and are lower case otherwise.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError
from ..log import get_logger
from . import check, hba, userlist
from .check import Finding
from .lines import line_numbers
from .passfile import find_service
from .schema import Config
from .settings import ROOT, Entry, Group, Named, Setting, dotted, leaves

ENVIRONMENT = "PGTRIDENT_"
MAX_FILE = 4 * 1024 * 1024
MAX_SECRET = 64 * 1024

_log = get_logger("config")
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding with its place."""

    where: str
    """`FILE:LINE`, or the override that it came from."""
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.message}" if self.key else f"{self.where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of reading: the configuration unless there are problems; warnings in any case."""

    config: Config | None
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def load(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Config:
    """The configuration, warnings logged; ConfigError with the first problem, all of them in its detail.

    `overrides` are "key=value" texts; `environ` is for tests, None is the environment of the process.
    """
    reading = read(path, overrides, environ)
    for warning in reading.warnings:
        _log.warning("config_warning", where=warning.where, setting=warning.key, message=warning.message)
    if reading.config is None:
        first, *others = reading.problems
        more = f" (and {len(others)} more)" if others else ""
        raise ConfigError(f"{first}{more}", detail="\n".join(map(str, reading.problems)))
    return reading.config


def read(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Reading:
    """The same without raising, for whoever shows all problems."""
    file = Path(path)
    try:
        text = _read_text(file, MAX_FILE)
        raw = tomllib.loads(text)
    except OSError as error:
        return Reading(None, [Problem(str(path), "", f"can't be read: {error.strerror}")])
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError among them
        return Reading(None, [_broken(str(path), error)])
    reader = _Reader(file, text)
    config = reader.read(raw, overrides, os.environ if environ is None else environ)
    return Reading(config, reader.problems, reader.warnings)


class _Reader:
    """One reading: collects problems, and remembers where each value came from."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.lines = line_numbers(text)
        self.origins: dict[Key, str] = {}  # of what doesn't come from the file
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def read(self, raw: dict[str, Any], overrides: Sequence[str], environ: Mapping[str, str]) -> Config | None:
        tree = self._decode(ROOT, raw, ())
        for where, key, text in [*self._from_environment(environ, tree), *self._from_command_line(overrides)]:
            self._override(tree, where, key, text)
        self._read_services(tree)
        for key in list(_missing(ROOT, tree, ())):
            self._report(Finding(key, f"must be set: expected {_lookup(key).allowed()}"))
        for group, section, key, setting in list(_present(ROOT, tree, ())):
            if setting.path and section[setting.name]:
                self._locate(group, section, key, setting)
        if self.problems:
            return None
        config = msgspec.convert(tree, Config)
        for finding in check.check(config):
            self._report(finding)
        return None if self.problems else config

    def _report(self, finding: Finding) -> None:
        problem = Problem(self._where(finding.key), dotted(finding.key), finding.message)
        (self.warnings if finding.warning else self.problems).append(problem)

    def _where(self, key: Key) -> str:
        if key in self.origins:
            return self.origins[key]
        for length in range(len(key), 0, -1):
            if key[:length] in self.lines:
                return f"{self.file}:{self.lines[key[:length]]}"
        return f"{self.file}:1"

    def _decode(self, group: Group, raw: Mapping[str, Any], path: Key) -> dict[str, Any]:
        """What fits, as a tree of plain values; what doesn't is reported."""
        tree: dict[str, Any] = {}
        for name, value in raw.items():
            here = (*path, name)
            match group.children.get(name):
                case None:
                    self._report(Finding(here, f"unknown setting{_suggestion(group, here)}"))
                case Setting() as setting:
                    try:
                        tree[name] = setting.read(value)
                    except ValueError as error:
                        self._report(Finding(here, _refusal(setting, value, error)))
                case Group() as child if isinstance(value, dict):
                    tree[name] = self._decode(child, value, here)
                case Named(item=item) if isinstance(value, dict):
                    tree[name] = {}
                    for title, content in value.items():
                        if isinstance(content, dict):
                            tree[name][title] = self._decode(item, content, (*here, title))
                        else:
                            self._report(Finding((*here, title), f"expected a section [{dotted((*here, title))}]"))
                case Named():
                    self._report(Finding(here, f"expected sections [{dotted(here)}.NAME]"))
                case _:
                    self._report(Finding(here, f"expected a section [{dotted(here)}]"))
        return tree

    def _from_environment(self, environ: Mapping[str, str], tree: Mapping[str, Any]) -> Iterator[tuple[str, Key, str]]:
        for variable, text in sorted(environ.items()):
            if not variable.startswith(ENVIRONMENT):
                continue
            parts = variable.removeprefix(ENVIRONMENT).split("__")
            # Kubernetes sets PGTRIDENT_PORT and the like for a service of that name: a variable
            # without a section counts only when it names a setting outside of all sections.
            if len(parts) > 1 or isinstance(ROOT.children.get(parts[0].lower()), Setting):
                yield f"environment variable {variable}", _in_case(parts, tree), text

    def _from_command_line(self, overrides: Sequence[str]) -> Iterator[tuple[str, Key, str]]:
        for override in overrides:
            name, equals, text = override.partition("=")
            where = f"--set {name.strip()}"
            if equals:
                yield where, _split(name), text.strip()
            else:
                self.problems.append(Problem(where, "", "expected KEY=VALUE, for example pool.pool_size=5"))

    def _override(self, tree: dict[str, Any], where: str, key: Key, text: str) -> None:
        self.origins[key] = where
        try:
            setting = _lookup(key)
        except LookupError:
            self._report(Finding(key, f"unknown setting{_suggestion(ROOT, key)}"))
            return
        section = tree
        for part in key[:-1]:
            section = section.setdefault(part, {})
        try:
            value = setting.read_text(text)
        except ValueError as error:
            self._report(Finding(key, _refusal(setting, text, error)))
            return
        # A relative path on the command line is one of the working directory, as in any command.
        section[setting.name] = os.path.abspath(value) if setting.path and value else value

    def _locate(self, group: Group, section: dict[str, Any], key: Key, setting: Setting) -> None:
        """Makes a path absolute; a file must be readable, and a secret's file is read."""
        path = self.file.parent.absolute() / section[setting.name]
        section[setting.name] = str(path)
        if setting.path != "file":
            return
        if not path.is_file():
            self._report(Finding(key, f"there is no file {path}"))
            return
        if not os.access(path, os.R_OK):
            self._report(Finding(key, f"{path} may not be read by this user"))
            return
        secret = group.children.get(setting.name.removesuffix("_file"))
        if isinstance(secret, Setting) and secret.secret:
            self._read_secret(section, key, secret.name, path)
        elif key == ("auth", "hba_file"):
            self._try(key, path, lambda text: hba.parse(text.splitlines(), str(path)))
        elif key == ("auth", "userlist"):
            self._try(key, path, lambda text: userlist.parse(text, str(path)))

    def _read_secret(self, section: dict[str, Any], key: Key, secret: str, path: Path) -> None:
        if section.get(secret):
            self._report(Finding(key, f"`{secret}` is set too; keep one of them"))
            return
        if path.stat().st_mode & stat.S_IROTH:
            self._report(Finding(key, f"{path} may be read by everyone; chmod o-r would keep it secret", warning=True))
        try:
            section[secret] = _read_text(path, MAX_SECRET).removesuffix("\n").removesuffix("\r")
        except (OSError, ValueError) as error:
            self._report(Finding(key, f"{path} can't be read: {error}"))

    def _try(self, key: Key, path: Path, parse: Callable[[str], object]) -> None:
        """Reports what makes a file of rules or users unusable; whoever needs its content reads it again."""
        try:
            parse(_read_text(path, MAX_FILE))
        except ConfigError as error:
            self._report(Finding(key, error.message))
        except (OSError, ValueError) as error:
            self._report(Finding(key, f"{path} can't be read: {error}"))

    def _read_services(self, tree: Mapping[str, Any]) -> None:
        """Completes nodes that name a service; what the node says itself stands."""
        for name, node in tree.get("nodes", {}).items():
            if not node.get("service"):
                continue
            key = ("nodes", name, "service")
            file = tree.get("server", {}).get("servicefile")
            if not file:
                self._report(Finding(key, "needs `server.servicefile`"))
                continue
            path = self.file.parent / file
            try:
                found = find_service(_read_text(path, MAX_FILE), node["service"], str(path))
            except ConfigError as error:
                self._report(Finding(key, error.message))
            except (OSError, ValueError) as error:
                self._report(Finding(key, f"{path} can't be read: {error}"))
            else:
                self._complete(key, node, found)

    def _complete(self, key: Key, node: dict[str, Any], service: Mapping[str, str] | None) -> None:
        if service is None:
            self._report(Finding(key, f"`server.servicefile` has no section [{node['service']}]"))
            return
        for theirs, ours in (("host", "host"), ("port", "port"), ("sslmode", "tls")):
            text = service.get(theirs)
            if text is None or ours in node:
                continue
            if ours == "tls" and text == "allow":
                text = "prefer"  # TLS where both can, which is more than was asked for
            try:
                node[ours] = _lookup((*key[:-1], ours)).read_text(text)
            except ValueError as error:
                self._report(Finding(key, f"{theirs} of the service: {error}, not {text!r}"))


def _read_text(path: Path, limit: int) -> str:
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"longer than {limit} bytes")
    return content.decode()


def _broken(path: str, error: ValueError) -> Problem:
    if isinstance(error, UnicodeDecodeError):
        line = error.object[: error.start].count(b"\n") + 1
        return Problem(f"{path}:{line}", "", "not UTF-8")
    match = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error), re.DOTALL)
    return (
        Problem(f"{path}:{match[2]}", "", f"not TOML: {match[1]}") if match else Problem(path, "", f"not TOML: {error}")
    )


def _refusal(setting: Setting, value: object, error: ValueError) -> str:
    """The reason, with the offending value unless that may be a secret."""
    if setting.secret or not isinstance(value, str | int | float):
        return str(error)
    return f"{error}, not {value!r}"


def _lookup(key: Key) -> Setting:
    """The setting of a key; LookupError when there is none."""
    entry: Entry = ROOT
    for part in key:
        match entry:
            case Group(children=children):
                entry = children[part]
            case Named(item=item):
                entry = item
            case Setting():
                raise LookupError(key)
    if not isinstance(entry, Setting):
        raise LookupError(key)
    return entry


def _present(group: Group, tree: dict[str, Any], path: Key) -> Iterator[tuple[Group, dict[str, Any], Key, Setting]]:
    """Every setting that has a value in a decoded tree, with the section that holds it and its description."""
    for name, value in tree.items():
        here = (*path, name)
        match group.children[name]:
            case Setting() as setting:
                yield group, tree, here, setting
            case Group() as child:
                yield from _present(child, value, here)
            case Named(item=item):
                for title, content in value.items():
                    yield from _present(item, content, (*here, title))


def _missing(group: Group, tree: dict[str, Any], path: Key) -> Iterator[Key]:
    for name, entry in group.children.items():
        match entry:
            case Setting(required=True) if name not in tree:
                yield (*path, name)
            case Group():
                yield from _missing(entry, tree.get(name, {}), (*path, name))
            case Named(item=item):
                for title, content in tree.get(name, {}).items():
                    yield from _missing(item, content, (*path, name, title))


def _in_case(parts: Sequence[str], tree: Mapping[str, Any]) -> Key:
    """An environment variable's parts as a key: lower case, names as the file writes them."""
    key = [part.lower() for part in parts]
    if len(key) == 3 and isinstance(ROOT.children.get(key[0]), Named):
        key[1] = next((name for name in tree.get(key[0], {}) if name.lower() == key[1]), key[1])
    return tuple(key)


def _split(name: str) -> Key:
    """The parts of a dotted key, quoted ones too."""
    try:
        node: Any = tomllib.loads(f"{name} = 0")
    except tomllib.TOMLDecodeError:
        return tuple(name.strip().split("."))
    key: list[str] = []
    while isinstance(node, dict):
        part, node = next(iter(node.items()))
        key.append(part)
    return tuple(key)


def _suggestion(group: Group, key: Key) -> str:
    """` (did you mean ...?)`: a near name in the same section, or the same name in another one."""
    near = difflib.get_close_matches(key[-1], group.children, 1, 0.6)
    if near and group is not ROOT:
        return f"; did you mean `{near[0]}`?"
    elsewhere = {".".join(path): path for path, _ in leaves(ROOT)} | {name: (name,) for name in ROOT.children}
    exact = [full for full, path in elsewhere.items() if path[-1] == key[-1]]
    near = exact or difflib.get_close_matches(".".join(key), elsewhere, 1, 0.7)
    return f"; did you mean `{near[0]}`?" if near else f"; allowed here: {', '.join(group.children)}"
