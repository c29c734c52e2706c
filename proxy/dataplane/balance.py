"""Sockets between workers: each has a datagram socket by which the others reach it.

SO_REUSEPORT spreads few long-lived connections badly (2 workers, 16 clients: one gets 10 or more in 45 %
of runs). So a worker with too many passes the socket that it has just accepted, and not touched, to the
one with the fewest (SCM_RIGHTS, unix(7)). Cancel requests for clients of another worker take the same way.

Owns the datagram socket and the sockets that wait to be passed on. It must not log anybody in. Called by
`worker`.

The kernel queues few datagrams (net.unix.max_dgram_qlen, often 10), and nothing tells when there is room
again; so what finds the queue full is tried again each millisecond, and kept after `PATIENCE`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence

from ..clock import Clock
from ..ipc.board import Board
from ..log import Logger

SLACK = 2
"""Clients above or below the mean of the workers that are left as they are."""
PATIENCE = 0.05
"""Seconds that a socket or a cancel request waits for room in another worker's queue."""
RETRY = 0.001
MAX_PARKED = 256
"""Sockets that wait for room; who comes on top is kept."""
READS_AT_ONCE = 64
_MAX_DATAGRAM = 512
_FD_BYTES = 4
_CANCEL = b"c"
_SOCKET = b"s"


def better_place(loads: Sequence[int | None], own: int) -> int | None:
    """The worker that should have a new connection instead of `own`; None if that keeps it.

    `loads` are the connections that each worker has; None is one that can't take any. It is passed on when
    `own` would get more than `SLACK` above the mean, or another one lies more than that below it.
    """
    mine = loads[own]
    present = [load for load in loads if load is not None]
    if mine is None or len(present) < 2:
        return None
    least = min(present)
    mean = (sum(present) + 1) / len(present)
    if least >= mine or (mine + 1 <= mean + SLACK and least >= mean - SLACK):
        return None
    return loads.index(least)


class Peers:
    """The other workers of this proxy, as one of them sees them."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        log: Logger,
        board: Board,
        index: int,
        paths: Sequence[str],
        load: Callable[[], tuple[int, int]],
        take: Callable[[socket.socket], None],
        cancel: Callable[[int, bytes], None],
    ) -> None:
        """`paths` are the workers' datagram sockets. `load` tells the own clients and half-open logins;
        `take` gets each socket that comes or is kept after all, `cancel` each request that comes."""
        self._loop = loop
        self._clock = clock
        self._log = log
        self._board = board
        self._index = index
        self._paths = paths
        self._load = load
        self._take = take
        self._cancel = cancel
        self._parked: deque[tuple[float, socket.socket]] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self._stopped = False
        path = paths[index]
        if os.path.exists(path):
            os.unlink(path)
        # In between nothing can come, so what the board counts from here on is what will arrive.
        board.join()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(path)
        loop.add_reader(self._socket, self._readable)

    def stop(self) -> None:
        """Pass nothing on, and be passed nothing any more; cancel requests still come and go."""
        if self._retry is not None:
            self._retry.cancel()
        self._stopped = True
        self._board.leave()
        while self._parked:
            self._take(self._parked.popleft()[1])

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def tell(self, adopted: int = 0) -> None:
        """Let the others know how many clients there are. To be called several times a second. `adopted` are
        those whose logins are just ending, and would be counted twice."""
        if not self._stopped:
            clients, logins = self._load()
            self._board.tell(clients, logins - adopted, self._clock.boot_ns())

    def clients_elsewhere(self) -> int:
        """Clients of all other workers."""
        return self._board.clients_elsewhere(self._clock.boot_ns())

    def elsewhere(self, sock: socket.socket) -> bool:
        """Whether an accepted socket is somebody else's from now on."""
        self.tell()
        if self._parked and len(self._parked) < MAX_PARKED:
            self._park(sock)
            return True
        passed = self._pass(sock)
        if passed is None and len(self._parked) < MAX_PARKED:
            self._park(sock)
            return True
        return bool(passed)

    async def forward_cancel(self, worker: int, pid: int, key: bytes) -> None:
        """Let another worker carry out a cancel request; one that can't be told in time is given up."""
        data = _CANCEL + pid.to_bytes(4, "big") + key
        deadline = self._clock.now() + PATIENCE
        while True:
            try:
                self._socket.sendto(data, self._paths[worker])
                return
            except BlockingIOError as error:
                failure: OSError = error
            except OSError as error:
                failure, deadline = error, 0.0
            if self._clock.now() >= deadline:
                self._log.warning("cancel_not_forwarded", to=worker, error=str(failure))
                return
            await asyncio.sleep(RETRY)

    def _pass(self, sock: socket.socket) -> bool | None:
        """Pass a socket to who has the fewest clients. False: it stays here; None: there was no room."""
        to = better_place(self._board.loads(self._clock.boot_ns()), self._index)
        if to is None:
            return False
        self._board.passed(to)
        try:
            # Not socket.send_fds and recv_fds: those of Python 3.11 ignore address and flags.
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, sock.fileno().to_bytes(_FD_BYTES, sys.byteorder))
            self._socket.sendmsg([_SOCKET], [rights], 0, self._paths[to])
        except OSError as error:
            self._board.passed(to, -1)
            return None if isinstance(error, BlockingIOError) else False
        sock.close()
        return True

    def _park(self, sock: socket.socket) -> None:
        self._parked.append((self._clock.now() + PATIENCE, sock))
        if self._retry is None:
            self._retry = self._loop.call_later(RETRY, self._pass_parked)

    def _pass_parked(self) -> None:
        self._retry = None
        now = self._clock.now()
        while self._parked:
            until, sock = self._parked[0]
            self.tell()
            passed = self._pass(sock)
            if passed is None and now < until:
                self._retry = self._loop.call_later(RETRY, self._pass_parked)
                return
            self._parked.popleft()
            if not passed:
                self._take(sock)

    def _readable(self) -> None:
        for _ in range(READS_AT_ONCE):
            try:
                data, rights, _, _ = self._socket.recvmsg(
                    _MAX_DATAGRAM, socket.CMSG_LEN(_FD_BYTES), socket.MSG_CMSG_CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                return
            if data[:1] == _SOCKET:
                for _, _, fd in rights:  # none if this process has no descriptor left
                    self._take(socket.socket(fileno=int.from_bytes(fd, sys.byteorder)))
                self.tell()
                self._board.taken()
            elif len(data) > 5:
                self._cancel(int.from_bytes(data[1:5], "big"), data[5:])
