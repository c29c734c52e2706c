"""Imports go down only.

Walks the imports of every module of `proxy/` (by syntax tree, so those inside functions count too) and
fails on a breach of the layers, of I/O in pure code, or of a library that has one importer.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "proxy"

# The unit is what stands directly below proxy/: a package or a module.
LAYERS = {
    0: {"errors", "clock", "ids", "log", "testing"},
    1: {"wire", "sql", "topology", "config", "metrics"},
    2: {"session", "routing", "pool", "health", "failover", "degrade", "sharding"},
    3: {"ipc"},
    4: {"dataplane", "controlplane", "admin", "demo"},
    5: {"__main__", "cli", "reach", "supervisor", "run_controller", "run_witness", "run_worker"},
}
LAYER = {unit: layer for layer, units in LAYERS.items() for unit in units}

# Packages on one level don't know each other, with these exceptions.
SIDEWAYS = {("routing", "session")}

IO_MODULES = {"asyncio", "socket", "ssl", "selectors", "socketserver", "uvloop", "aiohttp", "http", "urllib"}
IO_MODULES_ALLOWED = {"ipc/channel.py"}
IO_LAYERS = {4, 5}

SOLE_IMPORTER = {
    "sqlglot": "sql/analyze.py",
    "pgparse": "sql/grammar.py",
    "prometheus_client": "metrics/export.py",
    "structlog": "log.py",
}


def unit_of(path: Path) -> str:
    """The package or module directly below proxy/; "" for proxy/__init__.py."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of each module that is imported, relative imports resolved."""
    here = ("proxy", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            # In "from proxy import wire" the names are what is imported.
            if module == "proxy":
                for alias in node.names:
                    yield node.lineno, f"proxy.{alias.name}"
            else:
                yield node.lineno, module


def breaches(source: str, path: Path) -> list[str]:
    """What `source`, as the text of the module at `path`, breaks; one line each."""
    unit = unit_of(path)
    name = path.relative_to(PACKAGE).as_posix()
    found = []
    if unit and unit not in LAYER:
        return [f"proxy/{name}: {unit} stands in no layer"]
    for line, module in imported(ast.parse(source), path):
        parts = module.split(".")
        if parts[0] == "proxy" and len(parts) > 1:
            target = parts[1]
            if target.startswith("__") and target != "__main__":
                continue  # names of proxy/__init__.py, which imports nothing
            problem = crossing(unit, target)
        else:
            problem = foreign(unit, name, parts[0])
        if problem:
            found.append(f"proxy/{name}:{line}: {problem}")
    return found


def crossing(unit: str, target: str) -> str:
    """Why `unit` may not import `target`, or ""."""
    if target == unit:
        return ""
    if target not in LAYER:
        return f"imports {target}, which stands in no layer"
    if not unit:
        return f"the package itself imports {target}"
    if LAYER[target] > LAYER[unit]:
        return f"{unit} (L{LAYER[unit]}) imports {target} above it (L{LAYER[target]})"
    sideways_is_free = LAYER[unit] in {0, 5}  # plain modules, not packages
    if LAYER[target] == LAYER[unit] and not sideways_is_free and (unit, target) not in SIDEWAYS:
        return f"{unit} imports {target}, which is on the same level (L{LAYER[unit]})"
    return ""


def foreign(unit: str, name: str, library: str) -> str:
    """Why the module `name` may not import `library`, or ""."""
    if library in IO_MODULES and LAYER.get(unit) not in IO_LAYERS and name not in IO_MODULES_ALLOWED:
        return f"imports {library}: pure code does no input or output"
    owner = SOLE_IMPORTER.get(library)
    if owner and name != owner:
        return f"imports {library}: only {owner} may"
    return ""


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_module_keeps_its_layer(path: Path) -> None:
    assert breaches(path.read_text(), path) == []


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("wire/x.py", "from ..pool import state", "above it"),
        ("wire/x.py", "from ..sql.model import Effect", "same level"),
        ("wire/x.py", "def f():\n    from proxy import dataplane", "above it"),
        ("pool/x.py", "from ..session import state", "same level"),
        ("dataplane/x.py", "import proxy.controlplane.probes", "same level"),
        ("routing/x.py", "from ..session import state", ""),
        ("ipc/x.py", "from ..topology import snapshot\nfrom ..errors import NoNode", ""),
        ("ipc/messages.py", "import asyncio", "no input or output"),
        ("ipc/channel.py", "import asyncio", ""),
        ("pool/x.py", "from asyncio import Future", "no input or output"),
        ("dataplane/x.py", "import asyncio, socket, ssl", ""),
        ("sql/classify.py", "import sqlglot.expressions", "only sql/analyze.py"),
        ("sql/analyze.py", "import sqlglot", ""),
        ("sql/analyze.py", "from pgparse import parse", "only sql/grammar.py"),
        ("admin/http.py", "import prometheus_client", "only metrics/export.py"),
        ("cli.py", "import structlog", "only log.py"),
        ("extra/x.py", "", "no layer"),
        ("wire/x.py", "from .. import extra", "no layer"),
        ("errors.py", "from .wire import codes", "above it"),
        ("supervisor.py", "from .run_worker import main\nfrom . import __version__", ""),
    ],
)
def test_breaches_are_found(name: str, source: str, message: str) -> None:
    found = breaches(source, PACKAGE / name)
    assert [message in line for line in found] == ([True] if message else []), found
