"""A worker's helper process: `python -m proxy.run_witness`, started by `dataplane.witness`.

Reads long texts on standard input, one JSON string a line, and answers each with a line that holds the second witness's
opinion. sqlglot takes many milliseconds for them, and threads would not keep that from the worker's event loop. Ends
with its standard input, which is when the worker ends. It must not do anything else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TextIO

from .sql.analyze import patient_opinion

_NICE = 10
"""Clients wait for workers, and nobody for it."""


def answer(lines_in: TextIO, lines_out: TextIO) -> None:
    """Answer each line until there are no more."""
    for line in lines_in:
        lines_out.write(patient_opinion(json.loads(line)) + "\n")
        lines_out.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the supervisor decides
    # uvloop hands on what the worker has itself inherited: sockets that listen, and must close with it.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.nice(_NICE)
    answer(sys.stdin, sys.stdout)
