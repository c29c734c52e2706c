"""The reference page and the commented example, both made from the schema.

The text of a setting is the docstring under its field, so nothing is said twice. `python -m
proxy.config.reference` in the project's directory writes docs/configuration.md and
config/pgtrident.toml; a test fails when they are not what would be written.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
from msgspec.inspect import IntType, LiteralType

from .settings import NAME, ROOT, Group, Named, Setting, toml

REFERENCE = Path("docs/configuration.md")
EXAMPLE = Path("config/pgtrident.toml")

_PREFACE = """\
# Configuration

<!-- Made from proxy/config/schema.py by `python -m proxy.config.reference`; change it there. -->

One TOML file, named to `pgtrident serve -c FILE`. `pgtrident check -c FILE` says what is wrong with it and
where; with `--connect` it tries the nodes too.

- **Durations** are written "200ms", "5s", "10min", "1h", "7d", or as a number of seconds. **Sizes** are written
  "64kB", "16MB", or as a number of bytes; a kB is 1024 bytes.
- **Environment**: `PGTRIDENT_LISTEN__PORT=6433` sets `listen.port`; two underscores stand for each dot. It
  overrides the file, and `--set listen.port=6433` on the command line overrides both. A list is written with
  commas or in TOML form.
- **Secrets** can stay out of the file: `password_file` names a file that holds the password; one line end at its
  end is dropped.
- **Relative paths** start at the directory of the configuration file.
- **Reload**: SIGHUP reads the file again. Settings marked *restart* take effect at the next start; those that
  belong to a connection hold for connections made afterwards.
- In `[databases.NAME]`, the name `*` stands for every database without a section of its own. Without any such
  section clients reach every database of the nodes; with some but no `*`, only those.
"""

_EXAMPLE_PREFACE = """\
# Every setting of pgtrident with its default. A line `#name = value` shows the default: remove the `#`
# and change the value. What stands in brackets at the end of a comment:
#   [duration]  "200ms", "5s", "10min", "1h", "7d" or a number of seconds
#   [size]      "64kB", "16MB" or a number of bytes
#   [restart]   a reload (SIGHUP) can't apply it
# docs/configuration.md says more.
"""

_UNITS = {"seconds": "duration", "bytes": "size"}
_NAMED_EXAMPLES = {"nodes": "db1", "databases": "app", "users": "app", "services": "app", "rules": "reports"}
_REQUIRED_EXAMPLES = {"host": "127.0.0.1"}


@cache
def field_docs(cls: type[msgspec.Struct]) -> dict[str, str]:
    """The docstring under each field of a section, in one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body = tree.body[0].body  # type: ignore[attr-defined]
    docs = {}
    for statement, following in itertools.pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            assert isinstance(statement.target, ast.Name)
            docs[statement.target.id] = " ".join(ast.literal_eval(following.value).split())
    return docs


def reference() -> str:
    """docs/configuration.md."""
    parts = [_PREFACE]
    for title, group in _sections(ROOT, ()):
        parts.append(f"\n## {title or 'At the top of the file'}\n\n{_about(group)}\n\n")
        parts.append("| setting | default | allowed | meaning |\n| --- | --- | --- | --- |\n")
        for setting in _settings(group):
            meaning = field_docs(group.cls)[setting.name] + (" *Restart.*" if setting.restart else "")
            cells = (f"`{setting.name}`", _default(setting), _UNITS.get(setting.unit, setting.allowed()), meaning)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(parts)


def example() -> str:
    """config/pgtrident.toml."""
    lines = [_EXAMPLE_PREFACE.rstrip()]
    for title, group in _sections(ROOT, ()):
        if title:
            lines += [""]
            name = title.strip("[]").replace(NAME, _NAMED_EXAMPLES.get(title.strip("[]").split(".")[0], NAME))
            # Databases and users shut others out once there is one, a service needs nodes, and rules do something: the
            # example has none.
            active = not title.startswith(("[databases.", "[users.", "[services.", "[rules."))
            lines += [*_comment(_about(group)), f"{'' if active else '#'}[{name}]"]
        for setting in _settings(group):
            text = field_docs(group.cls)[setting.name] + _example_marks(setting)
            lines += ["", *_comment(text), _example_line(setting)]
    return "\n".join(lines) + "\n"


def _sections(group: Group, path: tuple[str, ...]) -> Iterator[tuple[str, Group]]:
    yield (f"[{'.'.join(path)}]" if path else ""), group
    for name, entry in group.children.items():
        if isinstance(entry, Group):
            yield from _sections(entry, (*path, name))
        elif isinstance(entry, Named):
            yield from _sections(entry.item, (*path, name, NAME))


def _settings(group: Group) -> Iterator[Setting]:
    return (entry for entry in group.children.values() if isinstance(entry, Setting))


def _about(group: Group) -> str:
    return " ".join((inspect.getdoc(group.cls) or "").split()) if group is not ROOT else "What belongs to no section."


def _default(setting: Setting) -> str:
    if setting.required:
        return "required"
    return "not set" if setting.default is None else f"`{toml(setting.default, setting.unit)}`"


def _example_line(setting: Setting) -> str:
    if setting.required:
        return f"{setting.name} = {toml(_REQUIRED_EXAMPLES[setting.name])}"
    if setting.default is None:
        return f"# {setting.name} is not set"
    return f"#{setting.name} = {toml(setting.default, setting.unit)}"


def _example_marks(setting: Setting) -> str:
    """What the default doesn't show of what is allowed, and the marks in brackets."""
    limited = isinstance(setting.type, LiteralType) or (isinstance(setting.type, IntType) and not setting.unit)
    allowed = f" Allowed: {setting.allowed()}." if limited else ""
    marks = [*filter(None, [_UNITS.get(setting.unit)]), *(["restart"] if setting.restart else [])]
    return allowed + (f" [{', '.join(marks)}]" if marks else "")


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 98, break_long_words=False, break_on_hyphens=False)]


def main() -> None:
    """Writes both files below the working directory."""
    REFERENCE.write_text(reference())
    EXAMPLE.write_text(example())


if __name__ == "__main__":
    main()
