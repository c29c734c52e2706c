"""`pgtrident demo --check`, as a person runs it: it passes, and it finds the fault that it is given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def demo(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "proxy", "demo", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--break=all-to-primary"], 1)])
def test_check(arguments: list[str], code: int) -> None:
    process = demo("--check", *arguments)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert ("FAILED" in said) == bool(code), said
    assert "that row is seen by replica1, replica2, columnar1, columnar2" in said


def test_the_live_table_and_the_way_down() -> None:
    process = demo("--sales", "2000")
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        os.kill(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    said = "".join(lines)
    assert process.returncode == 0, said + rest
    assert "connect to  postgresql://app:" in said
    for node in ("primary", "replica1", "replica2", "columnar1", "columnar2"):
        assert node in said
