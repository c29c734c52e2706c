"""Build hook: compiles the hottest modules with mypyc when a wheel is built.

Owns the list of compiled modules. Must not touch anything but the build directory: the typed Python
file stays the only source, and it is packed beside its compiled form. Called by hatchling.

Editable installs stay pure, so that what is edited is what runs.

PGTRIDENT_PURE=1     build a wheel without compiled modules
PGTRIDENT_MYPYC="…"  compile these files too (paths from the root, separated by blanks)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "proxy/clock.py",
    "proxy/wire/scan.py",
    "proxy/sql/model.py",
    "proxy/sql/cache.py",
    "proxy/sql/lexical.py",
    "proxy/sql/classify.py",
    "proxy/routing/bind.py",
    "proxy/routing/balance.py",
    "proxy/routing/consistency.py",
    "proxy/routing/decide.py",
    "proxy/routing/router.py",
    "proxy/session/prepared.py",
    "proxy/pool/state.py",
    "proxy/dataplane/unit.py",
    "proxy/dataplane/virtual.py",
    "proxy/dataplane/begins.py",
    "proxy/dataplane/server.py",
    "proxy/dataplane/audit.py",
    "proxy/dataplane/batch.py",
    "proxy/dataplane/rerun.py",
    "proxy/dataplane/catalogues.py",
    "proxy/dataplane/consistency.py",
    "proxy/dataplane/routes.py",
    "proxy/dataplane/client.py",
    "proxy/dataplane/pools.py",
    "proxy/dataplane/waiter.py",
    "proxy/dataplane/worker.py",
    "proxy/metrics/counters.py",
)
"""What a profile of `pgbench -S` names: with these the proxy's own code per query takes less than half."""

# mypycify calls mypy and writes C files; it runs in a process of its own because it ends the process on a type error.
SETUP = """
from mypyc.build import mypycify
from setuptools import setup
import sys
setup(name="pgtrident", packages=[], ext_modules=mypycify(sys.argv[3:], opt_level="3", group_name="pgtrident"),
      script_args=["build_ext", "--build-lib", sys.argv[1], "--build-temp", sys.argv[2]])
"""


class MypycHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel and gives it the platform's tag."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the wheel is an editable one or shall be pure. Raises on a compiler error."""
        if version == "editable" or os.environ.get("PGTRIDENT_PURE") == "1":
            return
        modules = [*COMPILED, *os.environ.get("PGTRIDENT_MYPYC", "").split()]
        out = self._build_dir()
        compile_modules(Path(self.root), modules, out)
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        for library in sorted(out.rglob(f"*{suffix}")):
            build_data["force_include"][str(library)] = library.relative_to(out).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._build_dir(), ignore_errors=True)

    def _build_dir(self) -> Path:
        return Path(self.root) / "build" / f"mypyc-{os.getpid()}"


def compile_modules(root: Path, modules: list[str], out: Path) -> None:
    """Write the extension modules for `modules` (paths from `root`) below `out`, laid out as in the package."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = os.environ | {
            "MYPY_CACHE_DIR": f"{scratch}/mypy",
            # mypyc writes its C files into the current directory's build/, so it gets a copy of the tree to work in.
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        shutil.copytree(root / "proxy", f"{scratch}/proxy", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        Path(f"{scratch}/mypy.ini").write_text("[mypy]\nignore_missing_imports = true\n")
        command = [sys.executable, "-c", SETUP, str(out), f"{scratch}/build", *modules]
        subprocess.run(command, check=True, cwd=scratch, env=environment)
