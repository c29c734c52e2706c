"""The command `pgtrident`: its subcommands, their arguments and exit codes.

Owns argument parsing, what `tune` asks for, and what `check` and `convert` print; everything else is
handed to the module that does it, imported only then, so that each subcommand starts fast. Exit codes: 0
well, 1 what was asked for failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import __version__
from .config.schema import Config, Node
from .config.units import format_duration, parse_duration
from .errors import ConfigError, TridentError

if TYPE_CHECKING:
    from . import reach
    from .config import labels
    from .health.tune import Asked, NodeSize
    from .sql.catalogue import Catalogue


_T = TypeVar("_T")
_QUESTIONS = {
    "outage": "the outage that the business tolerates",
    "jitter": "the longest round trip to a node, on a bad day",
    "lag": "how far replicas are behind, on a bad day",
    "columnar_lag": "how far columnar nodes are behind, on a bad day",
}
"""What `tune` asks for, all durations, by the name of the argument."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["demo"]:  # its arguments are its own
        return _demo(arguments[1:])
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except BrokenPipeError:
        # The reader of our output has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pgtrident", description="One address in front of a PostgreSQL fleet.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the proxy")
    _configuration(serve)
    serve.set_defaults(run=_serve)

    check = commands.add_parser("check", help="say what is wrong with a configuration")
    _configuration(check)
    check.add_argument("--connect", action="store_true", help="log in to every node too and ask for its role")
    check.set_defaults(run=_check)

    convert = commands.add_parser(
        "convert", help="write the configuration that a pgbouncer.ini or dm_svc.conf amounts to"
    )
    convert.add_argument("file", metavar="FILE", type=Path)
    convert.set_defaults(run=_convert)

    classify = commands.add_parser("classify", help="say what statements need: JSON lines on standard input")
    _database(classify)
    classify.set_defaults(run=_classify)

    lint = commands.add_parser("lint", help="say which queries of SQL files or logs will stay on the primary, and why")
    _database(lint)
    lint.add_argument("files", metavar="FILE", nargs="+", type=Path, help="SQL, or the server's log")
    lint.set_defaults(run=_lint)

    explain = commands.add_parser("explain", help="say where a running proxy would send a statement now, and why")
    _running(explain, "postgresql://user:password@host:port/database")
    explain.add_argument("-U", "--user", default="", help="with -c: who asks; else PGUSER, or the system's name")
    explain.add_argument("-d", "--database", default="", help="with -c: which database; else that of the user's name")
    explain.add_argument("sql", metavar="SQL")
    explain.set_defaults(run=_explain)

    history = commands.add_parser("history", help="say what has happened to the fleet, and why")
    where = history.add_mutually_exclusive_group(required=True)
    where.add_argument("-c", "--config", metavar="FILE", type=Path, help="the fleet of this configuration")
    where.add_argument("--file", metavar="FILE", type=Path, help="the fleet whose `history.file` this is")
    _overrides(history)
    history.add_argument("--since", metavar="AGE", type=parse_duration, help="for example 2h or 7d; else all")
    history.add_argument("--node", default="", help="what happened to this one")
    kinds = "health, drain, role, primary, unfit, alarm, config, command or process; else all of these; or probe"
    history.add_argument("--kind", default="", help=kinds)
    history.add_argument("--json", action="store_true", help="one object a line")
    history.set_defaults(run=_history)

    shapes = commands.add_parser("shapes", help="give names to the statements that clients send").add_subparsers(
        required=True, metavar="COMMAND"
    )
    export = shapes.add_parser("export", help="write a rules file to fill in, of all statements seen")
    check_shapes = shapes.add_parser("check", help="name the statements seen that no rule of a file is for")
    for parser_of, run in ((export, _shapes_export), (check_shapes, _shapes_check)):
        _running(parser_of, "postgresql://user:password@host:port/pgtrident")
        parser_of.set_defaults(run=run)
    check_shapes.add_argument("rules", metavar="RULES", type=Path, help="TOML with sections [rules.NAME]")

    catalog = commands.add_parser("catalog", help="read what the names of a database mean, for classify --catalog")
    catalog.add_argument("dsn", metavar="URL", help="postgresql://user:password@host:port/database")
    catalog.set_defaults(run=_catalog)

    tune = commands.add_parser("tune", help="work settings out from the outage that is tolerated; asks on a terminal")
    for name, question in _QUESTIONS.items():
        tune.add_argument(f"--{name.replace('_', '-')}", metavar="TIME", type=_value(parse_duration), help=question)
    tune.add_argument(
        "--node",
        metavar="NAME:CORES:MAX_CONNECTIONS",
        dest="nodes",
        action="append",
        type=_value(_node_size),
        help="a node, its cores and max_connections; may be repeated",
    )
    tune.add_argument("--strict", action="store_true", help="detect within a third of the outage, not half of it")
    tune.add_argument("--from-history", action="store_true", help="take round trips from the probes that were measured")
    where = tune.add_mutually_exclusive_group()
    where.add_argument("-c", "--config", metavar="FILE", type=Path, help="those of the fleet of this configuration")
    where.add_argument("--file", metavar="FILE", type=Path, help="those of the fleet whose `history.file` this is")
    _overrides(tune)
    tune.set_defaults(run=_tune, wrong=tune.error)

    commands.add_parser("demo", help="run an embedded fleet with the proxy in front", add_help=False)

    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_version)
    return parser


def _database(parser: argparse.ArgumentParser) -> None:
    known = parser.add_mutually_exclusive_group()
    known.add_argument("--catalog", metavar="FILE", type=Path, help="in the database that this catalogue was read from")
    known.add_argument("--dsn", metavar="URL", help="in this database: postgresql://user:password@host:port/database")


def _running(parser: argparse.ArgumentParser, url: str) -> None:
    """Which running proxy is meant."""
    proxy = parser.add_mutually_exclusive_group(required=True)
    proxy.add_argument("-c", "--config", metavar="FILE", type=Path, help="the one with this configuration")
    proxy.add_argument("--dsn", metavar="URL", help=f"the one at {url}; PGPASSWORD is taken too")
    _overrides(parser)


def _configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", required=True, type=Path, help="configuration in TOML")
    _overrides(parser)


def _overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="override a setting, for example --set pool.pool_size=5",
    )


def _serve(options: argparse.Namespace) -> int:
    from . import supervisor

    return supervisor.main(str(options.config), options.overrides)


def _check(options: argparse.Namespace) -> int:
    from .config.load import read

    reading = read(options.config, options.overrides)
    for problem in reading.problems:
        print(problem)
    for warning in reading.warnings:
        print(f"{warning.where}: {warning.key}: warning: {warning.message}")
    config = reading.config
    if config is None:
        return 1
    if options.connect and not asyncio.run(_try_nodes(config)):
        return 1
    nodes, databases, users = len(config.nodes), len(config.databases), len(config.users)
    print(f"{options.config}: ok ({nodes} nodes, {databases} databases, {users} users)")
    return 0


async def _try_nodes(config: Config) -> bool:
    """Probes every node once as the controller would, and prints what it finds; whether all is well."""
    from .controlplane.probes import probe
    from .controlplane.resolve import Resolver
    from .health.table import Seen
    from .run_controller import dial_as_prober
    from .topology.snapshot import NodeView

    resolver = Resolver()

    async def look(name: str, node: Node) -> tuple[str, str]:
        """The role that was found, or nothing; and what to print."""
        addresses = await resolver.resolve(node.host, node.port, config.health.timeout)
        view = NodeView(name=name, host=node.host, port=node.port, addresses=addresses)
        columnar = node.role == "columnar"
        answer = await probe(view, config, dial_as_prober, columnar=columnar)
        if answer.seen is not Seen.PASS:
            return "", answer.error
        role = "columnar" if columnar else "replica" if answer.in_recovery else "primary"
        return role, f"{role}, version {answer.version}, {answer.seconds * 1000:.0f} ms"

    found = await asyncio.gather(*(look(name, node) for name, node in config.nodes.items()))
    resolver.stop()
    well = True
    for (name, node), (role, text) in zip(config.nodes.items(), found, strict=True):
        expected = node.role in ("auto", role)
        mismatch = f'; but the configuration says "{node.role}"' if role and not expected else ""
        well = well and role != "" and expected
        print(f"nodes.{name}: {text}{mismatch}")
    primaries = [role for role, _ in found].count("primary")
    if well and primaries != 1:
        print(f"nodes: {primaries} primaries; expected one")
        well = False
    return well


def _convert(options: argparse.Namespace) -> int:
    from .config.convert import convert

    directory = options.file.parent
    try:
        text = convert(options.file.read_text(), lambda name: (directory / name).read_text())
    except OSError as error:
        print(f"{error.filename}: can't be read: {error.strerror}", file=sys.stderr)
        return 1
    except UnicodeDecodeError:
        print(f"{options.file}: not UTF-8", file=sys.stderr)
        return 1
    except ConfigError as error:
        print(f"{options.file}: {error.message}", file=sys.stderr)
        return 1
    print(text, end="")
    return 0


def _classify(options: argparse.Namespace) -> int:
    from .sql import command

    try:
        catalogue = _chosen_catalogue(options)
    except TridentError as error:
        print(error.message, file=sys.stderr)
        return 1
    return command.main(sys.stdin, sys.stdout, catalogue)


def _lint(options: argparse.Namespace) -> int:
    from .sql.lint import lint

    status = 0
    try:
        catalogue = _chosen_catalogue(options)
    except TridentError as error:
        print(error.message, file=sys.stderr)
        return 1
    for path in options.files:
        try:
            text = path.read_text("utf-8", "replace")
        except OSError as error:
            print(f"{path}: can't be read: {error.strerror}", file=sys.stderr)
            status = 1
            continue
        for finding in lint(text, catalogue):
            status = 1
            sql = " ".join(finding.sql.split())
            print(f"{path}:{finding.line}: {finding.reason}: {sql if len(sql) <= 80 else sql[:77] + '...'}")
    return status


def _chosen_catalogue(options: argparse.Namespace) -> Catalogue | None:
    """That of --catalog or --dsn; raises TridentError if it can't be had."""
    import msgspec

    from .sql.catalogue import Catalogue

    if options.dsn is not None:
        return _read_catalogue(options.dsn)
    if options.catalog is None:
        return None
    try:
        return msgspec.json.decode(options.catalog.read_bytes(), type=Catalogue)
    except OSError as error:
        raise ConfigError(f"{options.catalog}: can't be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{options.catalog}: not a catalogue: {error}") from None


def _catalog(options: argparse.Namespace) -> int:
    import msgspec

    try:
        catalogue = _read_catalogue(options.dsn)
    except TridentError as error:
        print(error.message, file=sys.stderr)
        return 1
    print(msgspec.json.format(msgspec.json.encode(catalogue), indent=1).decode())
    return 0


def _read_catalogue(dsn: str) -> Catalogue:
    """The catalogue of one database; raises TridentError for a URL that can't be used and for what the node says."""
    from . import reach
    from .controlplane.catalogues import read

    return reach.use(reach.from_url(dsn), read)


def _explain(options: argparse.Namespace) -> int:
    from . import reach

    try:
        target = reach.from_url(options.dsn) if options.dsn else _proxy(options)
        rows = reach.ask(target, f"EXPLAIN (ROUTE) {options.sql}")
    except TridentError as error:
        print(error.message, file=sys.stderr)
        return 1
    for item, value in rows:
        print(f"{(item or b'').decode():<12} {(value or b'').decode('utf-8', 'replace')}".rstrip())
    return 0


def _history(options: argparse.Namespace) -> int:
    import sqlite3
    import time

    import msgspec

    from .admin.command import timestamp
    from .config.load import load
    from .controlplane.history import read

    try:
        file = options.file or _history_file(load(options.config, options.overrides))
        since = time.time() - options.since if options.since is not None else 0.0
        for event in read(file, since=since, node=options.node, kind=options.kind, limit=sys.maxsize):
            if options.json:
                print(msgspec.json.encode(event).decode())
                continue
            move = " -> ".join(word for word in (event.before, event.after) if word)
            told = (event.kind, event.node, move, event.cause, event.seen, event.who and f"by {event.who}")
            print("  ".join(word for word in (timestamp(event.at) or "", *told) if word))
    except TridentError as error:
        print(error.message, file=sys.stderr)
        return 1
    except sqlite3.Error as error:
        print(f"{file}: can't be read: {error}", file=sys.stderr)
        return 1
    return 0


def _history_file(config: Config) -> Path:
    from .ipc.paths import RuntimePaths

    if config.history.file:
        return Path(config.history.file)
    if not config.runtime_dir:
        raise ConfigError("neither `history.file` nor `runtime_dir` is set: what happened is forgotten with the proxy")
    return RuntimePaths(config.runtime_dir).history


def _tune(options: argparse.Namespace) -> int:
    from .health.tune import Asked, tune

    if options.from_history != (options.config is not None or options.file is not None):
        options.wrong("--from-history goes with one of -c and --file")
    if options.from_history and options.jitter is not None:
        options.wrong("--jitter is what --from-history finds out")
    try:
        asked = _measured(options) if options.from_history else Asked()
        print(tune(_answered(asked, options)), end="")
    except TridentError as error:
        print(error.message, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 1
    return 0


def _measured(options: argparse.Namespace) -> Asked:
    """What the history tells; ConfigError if that can't be read, or tells nothing."""
    import sqlite3

    from .config.load import load
    from .controlplane.history import MEASURED, read
    from .health.pace import parse_times
    from .health.tune import Asked, measured_jitter

    config = load(options.config, options.overrides) if options.config is not None else None
    file = options.file if config is None else _history_file(config)
    try:
        events = read(file, kind=MEASURED, limit=sys.maxsize)
        known = [event for event in events if config is None or event.node in config.nodes]
        jitter, source = measured_jitter((event.node, parse_times(event.seen)) for event in known)
    except (sqlite3.Error, ValueError) as error:
        raise ConfigError(f"{file}: can't be read: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{file}: {error.message}") from None
    return Asked(jitter=jitter, source=source, nodes=())


def _answered(asked: Asked, options: argparse.Namespace) -> Asked:
    """With what arguments say, and on a terminal with what somebody answers; else as it is."""
    given: dict[str, Any] = {"strict": options.strict}
    for name, question in _QUESTIONS.items():
        known, default = getattr(options, name), getattr(asked, name)
        if known is None and not (name == "jitter" and options.from_history):
            known = _answer(question, format_duration(default), parse_duration)
        given[name] = default if known is None else known
    nodes = options.nodes
    if nodes is None:
        default = " ".join(":".join(map(str, node)) for node in asked.nodes)
        nodes = _answer(
            "nodes, each NAME:CORES:MAX_CONNECTIONS", default, lambda text: [_node_size(part) for part in text.split()]
        )
    return replace(asked, **given, nodes=asked.nodes if nodes is None else tuple(nodes))


def _answer(question: str, default: str, parse: Callable[[str], _T]) -> _T | None:
    """Nobody is asked, and None returned, where standard input is no terminal. The questions don't go to standard
    output, which may be the file that is being made."""
    while sys.stdin.isatty():
        print(f"{question} [{default}]: ", end="", file=sys.stderr, flush=True)
        try:
            return parse(sys.stdin.readline().strip() or default)
        except ValueError as error:
            print(error, file=sys.stderr)
    return None


def _node_size(text: str) -> NodeSize:
    from .health.tune import parse_node

    return parse_node(text)


def _value(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """For argparse, which otherwise keeps the reason to itself."""

    def parsed(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def _shapes_export(options: argparse.Namespace) -> int:
    from .config import labels

    try:
        print(labels.form(_seen(options)), end="")
    except TridentError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


def _shapes_check(options: argparse.Namespace) -> int:
    from .config import labels

    try:
        known = labels.labelled(options.rules.read_text())
        lines = labels.unlabelled(_seen(options), known)
    except OSError as error:
        print(f"{options.rules}: can't be read: {error.strerror}", file=sys.stderr)
        return 1
    except UnicodeDecodeError:
        print(f"{options.rules}: not UTF-8", file=sys.stderr)
        return 1
    except TridentError as error:
        print(error.message, file=sys.stderr)
        return 1
    for line in lines:
        print(line)
    return 1 if lines else 0


def _seen(options: argparse.Namespace) -> list[labels.Seen]:
    """What a running proxy's console says of the statements that it has seen."""
    from . import reach
    from .config import labels
    from .config.load import load

    target = reach.from_url(options.dsn) if options.dsn else reach.of_console(load(options.config, options.overrides))
    rows = reach.ask(target, "SHOW SHAPES SEEN")
    return [labels.Seen(*((value or b"").decode("utf-8", "replace") for value in row)) for row in rows]


def _proxy(options: argparse.Namespace) -> reach.Target:
    """The running proxy that --config means."""
    from . import reach
    from .config.load import load

    user = options.user or os.environ.get("PGUSER") or getpass.getuser()
    return reach.of_proxy(load(options.config, options.overrides), user, options.database or user)


def _demo(arguments: list[str]) -> int:
    from .demo import main as demo

    return demo(arguments)


def _version(options: argparse.Namespace) -> int:
    print(f"pgtrident {__version__}")
    return 0
