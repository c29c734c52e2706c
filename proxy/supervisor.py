"""The supervisor: binds the sockets, starts one controller and N workers, restarts what dies.

It does nothing else: no client and no node is known here. It holds the listening sockets, so that a
worker that is started again finds the connections that came meanwhile in the backlog. Children learn what to do
on their standard input (`ipc.start`) and end when that does.

Signals: SIGTERM and SIGINT let transactions end within a deadline, a second one ends at once; SIGHUP
has the controller read the configuration anew. Called by `cli` (`serve`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from . import log
from .config.load import load
from .config.schema import Config
from .errors import ConfigError
from .ids import new_instance
from .ipc import board
from .ipc.paths import RuntimePaths
from .ipc.start import ControllerStart, WorkerStart, line
from .run_worker import DRAIN

FIRST_BACKOFF = 0.1
LAST_BACKOFF = 5.0
"""Seconds before a child that died is started again; doubled each time."""
STABLE = 10.0
"""Seconds after which a child that dies is started again without delay."""
GRACE = 2.0
"""Seconds over its drain that a child gets before it is killed."""

_log = log.get_logger("supervisor")


def main(path: str, overrides: Sequence[str]) -> int:
    """Serve until told to stop. Exit code: 0 stopped by a signal, 1 the configuration or an address can't
    be used."""
    try:
        config = load(path, overrides)
    except ConfigError as error:
        sys.stderr.write(f"{error.detail or error.message}\n")
        return 1
    log.configure(config.log.format, config.log.level, common={"process": "supervisor"})
    try:
        return asyncio.run(Supervisor(config, path, overrides).run())
    except OSError as error:
        _log.error("not_started", error=str(error))
        return 1


class Supervisor:
    """One proxy. `worker_module` and `controller_module` are for tests."""

    def __init__(
        self,
        config: Config,
        path: str,
        overrides: Sequence[str],
        *,
        worker_module: str = "proxy.run_worker",
        controller_module: str = "proxy.run_controller",
    ) -> None:
        self._config = config
        self._path = path
        self._overrides = list(overrides)
        self._worker_module = worker_module
        self._controller_module = controller_module
        self._sockets = _Sockets()
        self._workers: list[_Child] = []
        self._controller: _Child | None = None
        self._ready: set[int] = set()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> int:
        """Until a signal; raises OSError if an address can't be bound or the runtime directory made."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._told_to_reload)
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(_runtime_dir(self._config.runtime_dir))
            self._config = stack.enter_context(self._sockets.bound(self._config))
            paths = RuntimePaths(directory)
            board.create(paths.board, self._config.workers)
            ready_read, ready_write = os.pipe()
            stack.callback(os.close, ready_read)
            stack.callback(os.close, ready_write)
            loop.add_reader(ready_read, self._became_ready, ready_read)
            stack.callback(loop.remove_reader, ready_read)
            self._make_children(directory, ready_write)
            assert self._controller is not None
            running = [asyncio.create_task(c.run(), name=c.name) for c in (self._controller, *self._workers)]
            stopping = asyncio.create_task(self._stop.wait(), name="stop")
            await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            _log.info("stopping")
            await asyncio.gather(*(worker.stop(DRAIN + GRACE, self._hurry) for worker in self._workers))
            await self._controller.stop(GRACE, self._hurry)
            await asyncio.gather(*running)
        _log.info("stopped")
        return 0

    def _make_children(self, directory: Path, ready: int) -> None:
        config = self._config
        start = ControllerStart(
            runtime_dir=str(directory),
            config=config,
            path=self._path,
            overrides=self._overrides,
            instance=new_instance(),
        )
        self._controller = _Child("controller", self._controller_module, line(start), [])
        for number in range(config.workers):
            sockets = self._sockets.of_worker(number)
            order = WorkerStart(
                runtime_dir=str(directory),
                worker=number,
                listen_fds=sockets,
                ready_fd=ready,
                log_format=config.log.format,
                log_level=config.log.level,
            )
            self._workers.append(_Child(f"worker {number}", self._worker_module, line(order), [*sockets, ready]))

    def _became_ready(self, pipe: int) -> None:
        """Workers say that they accept clients; the first time that all have, it is told to the world."""
        before = len(self._ready)
        self._ready.update(os.read(pipe, 256))
        if before < len(self._ready) == self._config.workers:
            listen, admin = self._config.listen, self._config.admin
            _log.info(
                "listening",
                host=listen.host,
                port=listen.port,
                unix=self._sockets.unix_path,
                admin_host=admin.host if admin.enabled else "",
                admin_port=admin.port if admin.enabled else 0,
                workers=self._config.workers,
            )

    def _told_to_stop(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def _told_to_reload(self) -> None:
        if self._controller is not None:
            self._controller.signal(signal.SIGHUP)


class _Child:
    """One child process, started again whenever it ends."""

    def __init__(self, name: str, module: str, order: bytes, fds: Sequence[int]) -> None:
        self.name = name
        self._module = module
        self._order = order
        self._fds = tuple(fds)
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until `stop`."""
        loop = asyncio.get_running_loop()
        backoff = FIRST_BACKOFF
        while not self._stopping.is_set():
            began = loop.time()
            code = await self._once()
            if self._stopping.is_set():
                return
            wait = 0.0
            if loop.time() - began < STABLE:
                wait, backoff = backoff, min(backoff * 2, LAST_BACKOFF)
            else:
                backoff = FIRST_BACKOFF
            _log.error("child_ended", child=self.name, code=code, again_in=wait)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._stopping.wait()

    async def _once(self) -> int:
        """Start it and wait for its end; the exit code, negative for a signal."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", self._module, stdin=asyncio.subprocess.PIPE, pass_fds=self._fds
        )
        self._process = process
        _log.info("child_started", child=self.name, pid=process.pid)
        assert process.stdin is not None
        process.stdin.write(self._order)
        if self._stopping.is_set():
            self.signal(signal.SIGTERM)
        code = await process.wait()
        process.stdin.close()
        return code

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, seconds: float, hurry: asyncio.Event) -> None:
        """SIGTERM; SIGKILL after `seconds`, or as soon as `hurry` is set."""
        self._stopping.set()
        self.signal(signal.SIGTERM)
        if self._process is None:
            return
        ended = asyncio.create_task(self._process.wait(), name=f"end of {self.name}")
        hurried = asyncio.create_task(hurry.wait(), name="hurry")
        await asyncio.wait([ended, hurried], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not ended.done():
            _log.warning("child_killed", child=self.name)
            self.signal(signal.SIGKILL)
        await ended


class _Sockets:
    """All listening sockets: a TCP socket for each worker and address, one Unix socket for all."""

    def __init__(self) -> None:
        self._tcp: list[list[socket.socket]] = []
        """By worker."""
        self._unix: socket.socket | None = None
        self.unix_path = ""

    def of_worker(self, number: int) -> list[int]:
        """File descriptors of the sockets on which a worker accepts."""
        shared = [] if self._unix is None else [self._unix]
        return [s.fileno() for s in (*self._tcp[number], *shared)]

    @contextlib.contextmanager
    def bound(self, config: Config) -> Iterator[Config]:
        """Binds all; yields the configuration with the ports that were chosen for 0."""
        with contextlib.ExitStack() as stack:
            listen = config.listen
            port = listen.port
            self._tcp = [[] for _ in range(config.workers)]
            for family, host in _addresses(listen.host):
                if port:
                    _refuse_taken(family, host, port)
                for own in self._tcp:
                    sock = stack.enter_context(_tcp_socket(family, host, port, reuse_port=True))
                    port = sock.getsockname()[1]
                    sock.listen(listen.backlog)
                    own.append(sock)
            if listen.unix_socket_dir:
                self.unix_path = f"{listen.unix_socket_dir.rstrip('/')}/.s.PGSQL.{port}"
                self._unix = stack.enter_context(_unix_socket(self.unix_path, listen.unix_socket_mode, listen.backlog))
                stack.callback(_unlink, self.unix_path)
            admin = config.admin
            if admin.enabled:
                # Held without listening, so that the port stays ours while the controller, which
                # listens on it, is started again (both sockets have SO_REUSEADDR).
                family, host = _addresses(admin.host)[0]
                held = stack.enter_context(_tcp_socket(family, host, admin.port, reuse_port=False))
                admin = msgspec.structs.replace(admin, port=held.getsockname()[1])
            yield msgspec.structs.replace(config, listen=msgspec.structs.replace(listen, port=port), admin=admin)


def _addresses(hosts: str) -> list[tuple[int, str]]:
    """(family, address) of each place to listen; OSError if a name is unknown."""
    found: list[tuple[int, str]] = []
    for host in (part.strip() for part in hosts.split(",")):
        if host == "*":
            found.append((socket.AF_INET, "0.0.0.0"))
            if socket.has_dualstack_ipv6():
                found.append((socket.AF_INET6, "::"))
        else:
            for family, _, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
                found.append((family, str(address[0])))
    return list(dict.fromkeys(found))


def _tcp_socket(family: int, host: str, port: int, *, reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"can't listen on {host}, port {port}: {error.strerror}") from error
    return sock


def _refuse_taken(family: int, host: str, port: int) -> None:
    """OSError if anybody listens there. SO_REUSEPORT alone would let two proxies of one user share the port in
    silence."""
    _tcp_socket(family, host, port, reuse_port=False).close()


def _unix_socket(path: str, mode: int, backlog: int) -> socket.socket:
    """A listening Unix socket; one that a dead process left there is replaced. OSError where it can't be."""
    if len(os.fsencode(path)) > 107:
        raise OSError(f"can't listen on {path}: the path of a Unix socket may have 107 bytes")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            if other.connect_ex(path) == 0:
                raise OSError(f"can't listen on {path}: somebody else does")
        _unlink(path)
        sock.setblocking(False)
        sock.bind(path)
        os.chmod(path, mode)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


@contextlib.contextmanager
def _runtime_dir(wanted: str) -> Iterator[Path]:
    """A private directory: the configured one, emptied of what an earlier run left, or a temporary one."""
    if not wanted:
        path = Path(tempfile.mkdtemp(prefix="pgtrident-"))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
        return
    paths = RuntimePaths(wanted)
    paths.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths.directory.chmod(0o700)
    with open(paths.lock, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OSError(error.errno, f"the runtime directory {wanted} is in use by another proxy") from error
        for old in paths.left_behind():
            old.unlink(missing_ok=True)
        yield paths.directory
