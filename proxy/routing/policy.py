"""What is to be done with a statement besides what it is: by hint, session setting and rule. Pure.

Owns the precedence of who may say where a statement goes, how fresh its data must be, and the like. It must not choose
a node: that is the router's, which gets a Policy. What it guards: nothing that is not known to be a read leaves the
primary unless a rule with `move_writes` holds for it.

Who is asked first, for each of place (route and node together), consistency, key and priority by itself:

    1  a rule's `reject`; all that a rule with `final` says
    2  the hint in the statement's comment
    3  `SET LOCAL pgtrident.x`, `SET`, the startup packet's options: what PostgreSQL says the setting is
    4  the rule
    5  the configuration's defaults: "" in a Policy

A key without a consistency beside it asks for consistency `key`. Of timeouts the shortest counts. The rule is the first
in the order of the file that holds; shadow rules in front of it are tried too and change nothing. A rule sees a
statement's text, so it is no fence: a function or view hides what it uses.

Called by the data plane: `of_client` when a client's user, database or application name is known or changes, then
`decide` for each text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from ..config.schema import Config, Rule
from ..sql.cache import TextCache
from ..sql.facts import SHAPED, shape, tables
from ..sql.hints import PRIORITIES, Hints
from ..sql.model import Class, Classification
from .names import Tables, globs

MAX_CLIENTS = 10_000
"""Kinds of clients (database, user, application name) remembered; with more, all are forgotten."""
MAX_DECISIONS = 10_000
"""Remembered in a worker; with more, all are forgotten."""
MAX_SEARCHED = 2048
"""Bytes of a text in which patterns are looked for: a careless one takes time that grows with the square of them."""

HINT: Final = "hint"
SETTING: Final = "setting"
RULE: Final = "rule"
STRONG: Final = "strong"
JOINED: Final = "joined"
"""Reasons of a policy's place."""


class Policy:
    """What the router is told. Immutable, and one object for equal ones, so that it can be a key.

    Attributes:
        route: "primary", "replica", "columnar"; "" leaves it to the class.
        node: only this one may take it; "" is any.
        consistency: "eventual", "session", "key", "global", "strong"; "" is the default.
        key: the consistency key.
        priority: "low", "normal", "high".
        timeout: seconds; 0 is no limit of its own.
        reject: what the client is told instead of an answer; "" if the statement may run.
        stale: whether old data is better than none; to be counted.
        transactions: of a BEGIN, where its transaction runs; "" is the default.
        reason: who said where it goes: "hint", "setting", "rule", "strong" (consistency), or "".
    """

    __slots__ = (
        "consistency",
        "key",
        "node",
        "priority",
        "reason",
        "reject",
        "route",
        "stale",
        "timeout",
        "transactions",
    )

    def __init__(
        self,
        *,
        route: str = "",
        node: str = "",
        consistency: str = "",
        key: str = "",
        priority: str = "normal",
        timeout: float = 0.0,
        reject: str = "",
        stale: bool = False,
        transactions: str = "",
        reason: str = "",
    ) -> None:
        self.route = route
        self.node = node
        self.consistency = consistency
        self.key = key
        self.priority = priority
        self.timeout = timeout
        self.reject = reject
        self.stale = stale
        self.transactions = transactions
        self.reason = reason

    def routed_as(self, cls: Class) -> Class:
        """The class as which a statement of this class is routed."""
        if self.route == "replica" and cls is not Class.SESSION:
            return Class.READ
        if self.route == "columnar" and cls is Class.READ:
            return Class.ANALYTIC
        return cls

    def effect(self) -> tuple[str, str, str, str, str, float, str, bool, str]:
        """All of it but the reason."""
        return (
            self.route,
            self.node,
            self.consistency,
            self.key,
            self.priority,
            self.timeout,
            self.reject,
            self.stale,
            self.transactions,
        )

    def __repr__(self) -> str:
        return f"Policy{(*self.effect(), self.reason)}"


DEFAULT: Final = Policy()
"""Of a statement that nobody says anything about."""


class Shadow:
    """What a shadow rule would have done, and whether that `differs` from what was done."""

    __slots__ = ("differs", "policy", "rule")

    def __init__(self, rule: str, policy: Policy, differs: bool) -> None:
        self.rule = rule
        self.policy = policy
        self.differs = differs


class Decision:
    """A policy, and what console, log and metrics tell of it.

    Attributes:
        rule: the name of the rule that held; "" is none.
        ignored: what a hint or setting asked for in vain, each with the reason.
        shadows: the shadow rules that held.
        noted: whether there is anything to be counted.
    """

    __slots__ = ("ignored", "noted", "policy", "rule", "shadows")

    def __init__(
        self, policy: Policy, rule: str = "", ignored: tuple[str, ...] = (), shadows: tuple[Shadow, ...] = ()
    ) -> None:
        self.policy = policy
        self.rule = rule
        self.ignored = ignored
        self.shadows = shadows
        self.noted = bool(rule or ignored or shadows)


NOTHING: Final = Decision(DEFAULT)


class CompiledRule:
    """A rule of the configuration, made ready."""

    __slots__ = (
        "application_name",
        "asks",
        "database",
        "final",
        "move_writes",
        "name",
        "patterns",
        "reject",
        "shadow",
        "shapes",
        "stale",
        "tables",
        "transactions",
        "user",
        "wants_tables",
    )

    def __init__(self, name: str, rule: Rule) -> None:
        self.name = name
        self.database = globs(rule.database)
        self.user = globs(rule.user)
        self.application_name = globs(rule.application_name)
        self.wants_tables = rule.table is not None
        self.tables = Tables(rule.table or ())
        self.shapes = frozenset(rule.shape) if rule.shape is not None else None
        self.patterns = [re.compile(one, re.IGNORECASE | re.DOTALL) for one in rule.pattern or ()]
        self.asks = Hints(
            route=rule.route or "",
            node=rule.node,
            consistency=rule.consistency or "",
            key=rule.consistency_key,
            priority=rule.priority or "",
            timeout=rule.timeout,
        )
        self.reject = rule.reject
        self.stale = rule.stale
        self.transactions = rule.transactions or ""
        self.move_writes = rule.move_writes
        self.final = rule.final
        self.shadow = rule.shadow

    def is_for(self, database: str, user: str, application_name: str) -> bool:
        """Whether it may hold for a statement of such a client."""
        return (
            _matches(self.database, database)
            and _matches(self.user, user)
            and _matches(self.application_name, application_name)
        )

    def is_found(self, text: str) -> bool:
        """Whether one of its patterns is in the text."""
        return any(pattern.search(text) is not None for pattern in self.patterns)

    def names(self, used: Iterable[tuple[str, str]]) -> bool:
        """Whether one of these tables is meant."""
        return any(self.tables.has(schema, name) for schema, name in used)


def _matches(condition: re.Pattern[str] | None, value: str) -> bool:
    return condition is None or condition.fullmatch(value) is not None


class Policies:
    """All that one configuration says; made anew with each.

    Remembers at most `clients` kinds of clients and `decisions` decisions and policies.
    """

    def __init__(self, config: Config, clients: int = MAX_CLIENTS, decisions: int = MAX_DECISIONS) -> None:
        self.limit = decisions
        self._clients = clients
        self.roles: Mapping[str, str] = {name: node.role for name, node in config.nodes.items()}
        self._rules = [CompiledRule(name, rule) for name, rule in config.rules.items()]
        self._by_client: dict[tuple[str, str, str], ClientPolicies] = {}
        self._by_rules: dict[tuple[str, ...], ClientPolicies] = {}
        self._known: dict[object, Policy] = {(DEFAULT.effect(), ""): DEFAULT}
        self._searching = [rule for rule in self._rules if rule.patterns]
        self._found: TextCache[frozenset[str]] = TextCache(2000, 512 * 1024)
        self.decisions: dict[Key, Decision] = {}  # of all ClientPolicies

    def of_client(self, database: str, user: str, application_name: str) -> ClientPolicies:
        """What may apply to such a client; one object for all to which the same rules do."""
        client = (database, user, application_name)
        found = self._by_client.get(client)
        if found is None:
            rules = [rule for rule in self._rules if rule.is_for(database, user, application_name)]
            names = tuple(rule.name for rule in rules)
            found = self._by_rules.get(names)
            if len(self._by_client) >= self._clients:
                self._by_client.clear()
                self._by_rules.clear()
            if found is None:
                found = self._by_rules[names] = ClientPolicies(self, rules)
            self._by_client[client] = found
        return found

    def one(self, policy: Policy) -> Policy:
        """The one object for equal policies."""
        key = (policy.effect(), policy.reason)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self.limit:
                self._known.clear()
                self._known[(DEFAULT.effect(), "")] = DEFAULT
            known = self._known[key] = policy
        return known

    def patterns_in(self, text: bytes) -> frozenset[str]:
        """Names of the rules one of whose patterns is in the text."""
        found = self._found.get(text)
        if found is None:
            readable = text[:MAX_SEARCHED].decode("utf-8", "replace")
            found = frozenset(rule.name for rule in self._searching if rule.is_found(readable))
            self._found.put(text, found)
        return found

    def join(self, one: Policy, other: Policy) -> Policy:
        """The policy of a batch of two texts: the stricter of each. Where they want different places it is the
        primary if one wants that, and else whatever the class says."""
        if one is other:
            return one
        if one.reject or other.reject:
            return one if one.reject else other
        joined = Policy(
            consistency=_stricter(one.consistency, other.consistency),
            key=one.key if one.key == other.key else "",
            priority=max(one.priority, other.priority, key=PRIORITIES.index),
            timeout=min(one.timeout or other.timeout, other.timeout or one.timeout),
            stale=one.stale and other.stale,
        )
        if joined.consistency == "key" and not joined.key:
            joined.consistency = "global"
        if one.route == other.route and one.node == other.node:
            joined.route, joined.node, joined.reason = one.route, one.node, one.reason
        elif one.route == "primary" or other.route == "primary":
            joined.route, joined.reason = "primary", JOINED
        return self.one(joined)


def _stricter(one: str, other: str) -> str:
    """The consistency that satisfies both; `global` does for all but `strong`."""
    if one == other:
        return one
    if one == "strong" or other == "strong":
        return "strong"
    if one == "eventual" or other == "eventual":
        return other if one == "eventual" else one
    return "global"


class ClientPolicies:
    """What may apply to clients of one kind.

    Attributes:
        plain: no rule can hold for them: without hint and settings, all their statements are NOTHING.
    """

    __slots__ = ("_rules", "_searches", "_wants_shape", "_wants_tables", "owner", "plain")

    def __init__(self, owner: Policies, rules: list[CompiledRule]) -> None:
        self.owner = owner
        self.plain = not rules
        self._rules = rules
        self._searches = any(rule.patterns for rule in rules)
        self._wants_tables = any(rule.wants_tables for rule in rules)
        self._wants_shape = any(rule.shapes is not None for rule in rules)

    def decide(self, text: bytes, found: Classification, hints: Hints | None, settings: Hints | None) -> Decision:
        """What is to be done with a statement. Remembered by the identity of all but the text: 0.1-0.2 us.

        `text`: without its hint; b"" if it can't be read (`routing.bind.readable`) or wasn't kept. `found`: what it is
        here, as bound. `settings`: by `sql.hints.of_settings`, of the startup packet and of what was SET since.
        """
        if self.plain and hints is None and settings is None:
            return NOTHING
        # Texts that differ in constants share a classification, and a pattern may tell them apart.
        patterns = self.owner.patterns_in(text) if self._searches and text else _NONE
        decisions = self.owner.decisions
        key = (self, found, hints, settings, patterns)
        decision = decisions.get(key)
        if decision is None:
            if len(decisions) >= self.owner.limit:
                decisions.clear()
            decision = decisions[key] = self._decide(text, found, hints, settings, patterns)
        return decision

    def _decide(
        self,
        text: bytes,
        found: Classification,
        hints: Hints | None,
        settings: Hints | None,
        patterns: frozenset[str],
    ) -> Decision:
        if text and found.text:
            text = found.text  # of all that share the classification the one that a parser has read
        used = tables(text) if self._wants_tables else frozenset()
        has_shape = self._wants_shape and found.statements == 1 and found.kind in SHAPED
        fingerprint = shape(text) if has_shape else ""
        deciding: CompiledRule | None = None
        shadows: list[CompiledRule] = []
        for rule in self._rules:
            if rule.patterns and rule.name not in patterns:
                continue
            if rule.shapes is not None and fingerprint not in rule.shapes:
                continue
            if rule.wants_tables and not rule.names(used):
                continue
            if rule.shadow:
                shadows.append(rule)
            else:
                deciding = rule
                break
        ignored: list[str] = []
        policy = self._weigh(deciding, found, hints, settings, ignored)
        seen = []
        for rule in shadows:
            would = self._weigh(rule, found, hints, settings, [])
            seen.append(Shadow(rule.name, would, would.effect() != policy.effect()))
        return Decision(policy, deciding.name if deciding is not None else "", tuple(ignored), tuple(seen))

    def _weigh(
        self,
        rule: CompiledRule | None,
        found: Classification,
        hints: Hints | None,
        settings: Hints | None,
        ignored: list[str],
    ) -> Policy:
        """The policy if this rule holds; what is asked for in vain is added to `ignored`."""
        if rule is not None and rule.reject:
            return self.owner.one(Policy(reject=rule.reject, reason=RULE))
        asked: list[tuple[str, Hints]] = []
        if rule is not None and rule.final:
            asked.append((RULE, rule.asks))
        if hints is not None:
            asked.append((HINT, hints))
        if settings is not None:
            asked.append((SETTING, settings))
        if rule is not None and not rule.final:
            asked.append((RULE, rule.asks))

        policy = Policy(priority="")
        for _, asks in asked:
            policy.consistency = policy.consistency or asks.consistency or ("key" if asks.key else "")
            policy.key = policy.key or asks.key
            policy.priority = policy.priority or asks.priority
            if asks.timeout and not 0 < policy.timeout <= asks.timeout:
                policy.timeout = asks.timeout
        policy.priority = policy.priority or "normal"
        if policy.consistency == "key" and not policy.key:
            policy.consistency = "session"
            ignored.append("consistency=key: there is no key")
        policy.stale = rule is not None and rule.stale and policy.consistency != "strong"
        policy.transactions = rule.transactions if rule is not None else ""
        self._place(policy, rule, found, asked, ignored)
        return self.owner.one(policy)

    def _place(
        self,
        policy: Policy,
        rule: CompiledRule | None,
        found: Classification,
        asked: list[tuple[str, Hints]],
        ignored: list[str],
    ) -> None:
        """Set the policy's place: the first that may be obeyed."""
        reads = found.cls is Class.READ or found.cls is Class.ANALYTIC
        moves = reads or (rule is not None and rule.move_writes and _may_move(found))
        for reason, asks in asked:
            if not asks.route and not asks.node:
                continue
            trouble = self._trouble(asks, moves, reads)
            if not trouble and policy.reason and reason == HINT:
                trouble = "the rule is final"
            elif not trouble and not policy.reason:
                policy.route, policy.node, policy.reason = asks.route, asks.node, reason
            if trouble and (reason == HINT or (reason == SETTING and trouble != _WRITE)):
                ignored.append(f"{_shown(asks)}: {trouble}")
        if not moves:
            policy.route = policy.node = policy.reason = ""
        elif policy.consistency == "strong" and policy.route != "primary":
            if policy.reason == HINT:
                ignored.append(f"{policy.route or policy.node}: consistency is strong")
            policy.route, policy.node, policy.reason = "primary", "", STRONG

    def _trouble(self, asks: Hints, moves: bool, reads: bool) -> str:
        """Why a place that is asked for can't be given, or ""."""
        role = ""
        if asks.node:
            role = self.owner.roles.get(asks.node, "")
            if not role:
                return "there is no such node"
            if asks.route and role != asks.route and role != "auto":
                return f"that node is {role}"
        for place in (asks.route, role):
            if (place == "replica" and not moves) or (place == "columnar" and not reads):
                return _WRITE
        return ""


Key = tuple[ClientPolicies, Classification, Hints | None, Hints | None, frozenset[str]]
_NONE: Final[frozenset[str]] = frozenset()
_WRITE: Final = "it is taken for a write"


def _may_move(found: Classification) -> bool:
    """Whether what is taken for a write may leave the primary at a rule's word: it stands alone, and nothing of the
    session or transaction hangs on it."""
    return (
        found.cls is Class.WRITE
        and found.statements == 1
        and not found.starts_transaction
        and not found.ends_transaction
    )


def _shown(asks: Hints) -> str:
    given = (("route", asks.route), ("node", asks.node))
    return " ".join(f"{name}={value}" for name, value in given if value)
