"""Numbers that name things across processes: what a cancel key says of its owner, and instances.

Owns the layout of the process id that clients get in BackendKeyData. Must not keep a registry; the
worker that gave a key out looks it up. Called by the workers and the controller.
"""

from __future__ import annotations

import os
from collections.abc import Container

_SERIAL_BITS = 15
_WORKER_BITS = 8

MAX_SERIAL = (1 << _SERIAL_BITS) - 1
MAX_WORKER = (1 << _WORKER_BITS) - 1
MAX_INSTANCE = 255


def cancel_pid(instance: int, worker: int, serial: int) -> int:
    """The process id for a client's BackendKeyData: instance (8 bits), worker (8), serial (15).

    31 bits, so that drivers which read it as a signed number see a positive one. `instance` is
    1..255 and `worker` 0..255; `serial` wraps, so an owner is found by process id *and* key.
    """
    if not 1 <= instance <= MAX_INSTANCE or not 0 <= worker <= MAX_WORKER:
        raise ValueError(f"instance {instance} or worker {worker} out of range")
    # 8 + 8 + 15 bits: exactly 31, the sign bit stays clear.
    return instance << (_WORKER_BITS + _SERIAL_BITS) | worker << _SERIAL_BITS | serial & MAX_SERIAL


def free_pid(instance: int, worker: int, serial: int, taken: Container[int]) -> int:
    """The first process id from `serial` on that is not taken. One worker has 32,768; when all are, two clients
    share one, and only the later of them can be cancelled."""
    for number in range(serial, serial + MAX_SERIAL + 1):
        pid = cancel_pid(instance, worker, number)
        if pid not in taken:
            return pid
    return cancel_pid(instance, worker, serial)


def new_instance() -> int:
    """A random instance number, 1..255, for a proxy that was given none."""
    return os.urandom(1)[0] % MAX_INSTANCE + 1
