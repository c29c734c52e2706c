"""An embedded fleet to try the proxy on: a primary, two streaming replicas, two columnar nodes and traffic.

`main` is the command `pgtrident demo`. `postgres` (servers to try things on) also serves tests and benchmarks.
Nothing outside this package imports more of it than those two.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo until it is interrupted, or its check; the exit code."""
    from .run import main as run  # the demo's own dependencies are needed by nothing else

    return run(argv)
