"""Who a client is: its access rule, its stored password, the exchange.

Owns the rules and users of the configuration in force, the pace of failures and the order of look-ups
(users, userlist, auth.query). It must not touch sockets other than through the LoginStream it is given,
and never tells a client whether a user exists: an unknown one goes through the same exchange with a
secret that nothing fits. Called by `accept`.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ..config import hba, userlist
from ..config.schema import Config
from ..errors import ConfigError, LoginError
from ..wire import auth
from ..wire.auth import Credentials, ScramSecret
from ..wire.login import ClientLogin, Password, Proved, Send
from ..wire.startup import Startup
from . import keys
from .connect import LoginStream
from .lookup import Host, UserLookup


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What is known of a client's end. `address` is None for a Unix socket."""

    name: str
    """For logs: address and port, or `unix:` and the process id."""
    address: hba.IpAddress | None = None
    local_address: hba.IpAddress | None = None
    os_user: str = ""
    """Of the process behind a Unix socket."""
    tls: bool = False
    has_certificate: bool = False
    """It showed a certificate that our CA vouches for."""
    common_name: str = ""
    """That certificate's."""
    binding: bytes | None = field(default=None, repr=False)
    """The hash of our own certificate, where SCRAM can be bound to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedIn:
    """A client that has proved who it is."""

    user: str
    database: str
    params: Mapping[str, str]
    """Session settings of the startup packet, those out of `options` included."""
    replication: str
    """"" for an ordinary session, else the value that the client gave."""
    minor: int
    """Of protocol 3."""
    credentials: Credentials | None
    """What it can log in to nodes with; None when nothing is known but its name."""
    peer: str
    tls: bool
    authenticated_by: str
    """The method of the rule."""


@dataclass(frozen=True, slots=True)
class _Access:
    """What the configuration in force says, compiled."""

    config: Config
    rules: tuple[hba.Rule, ...]
    userlist: dict[str, str]
    nonce: bytes
    """The same in all workers, and secret if any password is: salts made from it don't tell known users
    from unknown ones."""


def _compile(config: Config) -> _Access:
    settings = config.auth
    try:
        if settings.hba_file:
            rules = hba.parse(Path(settings.hba_file).read_text().splitlines(), settings.hba_file)
        else:
            rules = hba.parse(settings.hba or hba.DEFAULT_LINES)
        listed = Path(settings.userlist).read_text() if settings.userlist else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"a file of [auth] can't be read: {error}") from error
    seed = msgspec.json.encode((settings, config.users)) + listed.encode()
    nonce = hmac.digest(b"login", seed, "sha256")
    return _Access(config, rules, userlist.parse(listed, settings.userlist), nonce)


class Authenticator:
    """Authenticates clients by the host's configuration; raises ConfigError if that can't be used."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._seen = host.config
        self._access = _compile(host.config)
        self._lookup = UserLookup(host)
        self._next_failure = 0.0

    def close(self) -> None:
        self._lookup.close()

    def forget_users(self, user: str) -> None:
        """Passwords have changed, of one user or (empty) of anybody: ask the primary anew."""
        self._lookup.expire(user)

    async def run(self, login: ClientLogin, startup: Startup, stream: LoginStream, peer: Peer) -> LoggedIn:
        """Carry a login from its startup packet to the point where AuthenticationOk is due.

        Raises LoginError (28000, 28P01 ...), ProtocolViolation, the errors of a failed look-up, and
        OSError when the client goes away.
        """
        self._refresh()
        rule = self._find_rule(startup, peer)
        _check_certificate(rule, startup.user, peer)
        credentials: Credentials | None
        match rule.method:
            case "md5" | "scram-sha-256" | "password":
                credentials = await self._by_password(rule.method, login, startup, stream, peer)
            case _:
                if rule.method == "peer" and peer.os_user != startup.user:
                    raise LoginError(f'Peer authentication failed for user "{startup.user}"')
                credentials = self._credentials(startup.user, self._configured(startup.user))
                stream.write(login.ask_nothing())
        return LoggedIn(
            user=startup.user,
            database=startup.database,
            params=startup.settings,
            replication=startup.replication,
            minor=startup.minor,
            credentials=credentials,
            peer=peer.name,
            tls=peer.tls,
            authenticated_by=rule.method,
        )

    def _refresh(self) -> None:
        """Compile a new configuration once; one that can't be used leaves the old one in force."""
        config = self._host.config
        if config is self._seen:
            return
        self._seen = config
        try:
            self._access = _compile(config)
        except ConfigError as error:
            self._host.log.error("auth_config_refused", reason=error.message)
        self._lookup.forget()

    def _find_rule(self, startup: Startup, peer: Peer) -> hba.Rule:
        caller = hba.Caller(
            database=startup.database,
            user=startup.user,
            address=peer.address,
            local_address=peer.local_address,
            tls=peer.tls,
            physical_replication=startup.replication not in ("", "database"),
        )
        rule = hba.find(self._access.rules, caller)
        if rule is not None and rule.method != "reject":
            return rule
        if caller.physical_replication:
            whom = f'replication connection from host "{peer.address or "[local]"}", user "{startup.user}"'
        else:
            whom = f'host "{peer.address or "[local]"}", user "{startup.user}", database "{startup.database}"'
        encryption = "SSL encryption" if peer.tls else "no encryption"
        verdict = "no pg_hba.conf entry for" if rule is None else "pg_hba.conf rejects connection for"
        if rule is not None and caller.physical_replication:
            verdict = "pg_hba.conf rejects"
        raise LoginError(f"{verdict} {whom}, {encryption}")

    def _configured(self, user: str) -> str | None:
        """The stored password in configuration or userlist."""
        settings = self._access.config.users.get(user)
        if settings is not None and settings.password:
            return settings.password
        return self._access.userlist.get(user) or None

    async def _by_password(
        self, method: str, login: ClientLogin, startup: Startup, stream: LoginStream, peer: Peer
    ) -> Credentials:
        user = startup.user
        stored = self._configured(user)
        if stored is None and self._access.config.auth.query.enabled:
            stored = await self._lookup.find(user, startup.database)
        is_plain = stored is not None and not auth.is_md5(stored) and auth.parse_secret(stored) is None
        if method == "password":
            stream.write(login.ask_password())
        elif method == "md5" and stored is not None and (is_plain or auth.is_md5(stored)):
            hashed = auth.md5_hash(stored, user) if is_plain else stored
            stream.write(login.ask_md5(hashed, secrets.token_bytes(4)))
        else:
            # Rule md5 with a SCRAM secret means SCRAM (manual 21.5), and so it does with an unknown user.
            secret = await self._scram_secret(user, stored, is_plain=is_plain)
            stream.write(login.ask_scram(secret, secrets.token_urlsafe(18), peer.binding))
        while True:
            for event in login.feed(await stream.read()):
                match event:
                    case Send(data):
                        stream.write(data)
                    case Password(text):
                        if not await self._is_password(text, user, stored):
                            await self._fail(user)
                        return Credentials(user, password=text)
                    case Proved(proved):
                        stream.write(login.final())
                        known = self._credentials(user, stored) or Credentials(user)
                        if proved is not None and known.password is None and self._access.config.auth.passthrough:
                            return Credentials(user, scram_keys=proved)
                        return known
                    case _:
                        await self._fail(user)

    async def _scram_secret(self, user: str, stored: str | None, *, is_plain: bool) -> ScramSecret:
        """The secret to check against; one that nothing fits where there is none."""
        if stored is not None and is_plain:
            salt = auth.user_salt(user, self._access.nonce)
            return auth.secret_of(await keys.cache.keys(user, stored, salt, auth.DEFAULT_ITERATIONS))
        secret = None if stored is None else auth.parse_secret(stored)
        return secret or auth.mock_secret(user, self._access.nonce)

    async def _is_password(self, given: str, user: str, stored: str | None) -> bool:
        """Whether a password in clear is the stored one. Takes as long for an unknown user."""
        if stored is not None and auth.is_md5(stored):
            return hmac.compare_digest(auth.md5_hash(given, user), stored)
        secret = None if stored is None else auth.parse_secret(stored)
        if stored is not None and secret is None:
            return hmac.compare_digest(given.encode(), stored.encode())
        checked = secret or auth.mock_secret(user, self._access.nonce)
        derived = await keys.cache.once(given, checked.salt, checked.iterations)
        return hmac.compare_digest(auth.secret_of(derived).stored_key, checked.stored_key)

    def _credentials(self, user: str, stored: str | None) -> Credentials | None:
        """What a stored password is good for towards nodes; a SCRAM secret alone is good for nothing."""
        if stored is None or auth.parse_secret(stored) is not None:
            return None
        if auth.is_md5(stored):
            return Credentials(user, md5_hash=stored)
        return Credentials(user, password=stored)

    async def _fail(self, user: str) -> None:
        """Let a wrong password wait for its answer: `failure_delay`, and not over `failures_per_second`.

        Logins that succeed are not slowed. Whoever would wait longer than `login_timeout` is dropped by
        that; so the queue is cut there.
        """
        settings, now = self._access.config.auth, self._host.clock.now()
        at = max(now + settings.failure_delay, self._next_failure)
        if settings.failures_per_second:
            self._next_failure = min(
                at + 1 / settings.failures_per_second, now + max(1.0, self._access.config.listen.login_timeout)
            )
        await asyncio.sleep(at - now)
        raise LoginError(f'password authentication failed for user "{user}"', sqlstate="28P01")


def _check_certificate(rule: hba.Rule, user: str, peer: Peer) -> None:
    """What `cert` and `clientcert` ask for."""
    if rule.method != "cert" and not rule.client_certificate:
        return
    if not peer.has_certificate:
        raise LoginError("connection requires a valid client certificate")
    if (rule.method == "cert" or rule.client_certificate == "verify-full") and peer.common_name != user:
        raise LoginError(f'certificate authentication failed for user "{user}"')
