"""Which agents there are: `agent`, `register`, `get_agent`, and the `Adapter` protocol for frameworks' agents.

Law: the registry keeps (name, target, options) apart from the target; what was decorated stays what it was. Agents'
modules load on first use, never at start-up.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from ag_ui.core import AgentCapabilities
from django.utils.module_loading import autodiscover_modules

from agui_django.agents.context import RunContext
from agui_django.agents.retrying import Retry
from agui_django.agents.sink import Event
from agui_django.agents.sync import SyncRunContext
from agui_django.conf import UNSET, Unset, imported, settings
from agui_django.protocol.errors import NotFound

Shape = Literal["coroutine", "async generator", "function", "generator"]
Kind = Literal["coroutine", "async generator", "function", "generator", "class", "instance"]
Permission = str | Callable[[Any], bool | Awaitable[bool]] | None


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """How an agent was registered. The last eight are settings of that name; UNSET: the setting counts."""

    title: str = ""
    description: str = ""
    capabilities: AgentCapabilities | None = None
    permission: Permission = None
    state_schema: Any = None
    initial_state: Any = None
    retry: Retry | None = None
    timeout: float | Unset | None = UNSET
    idle_timeout: float | Unset | None = UNSET
    on_disconnect: str | Unset = UNSET
    disconnect_grace: float | Unset = UNSET
    busy: str | Unset = UNSET
    history: str | Unset = UNSET
    state_policy: str | Unset = UNSET
    open_interrupts: str | Unset = UNSET


@dataclass(frozen=True)
class AgentEntry:
    """One registered agent.

    Attributes:
        name: what the URL says.
        target: the very object that was registered.
        options: how it is to be run.
        where: ``module:qualname`` of the place that registered it.
    """

    name: str
    target: Any
    options: AgentOptions = field(default_factory=AgentOptions)
    where: str = ""

    @property
    def kind(self) -> Kind:
        """What was registered; a class and an instance have a ``run`` of any of the four shapes."""
        if inspect.isclass(self.target):
            return "class"
        if _is_function(self.target):
            return shape_of(self.target)
        return "instance"

    def make(self) -> Callable[..., Any]:
        """The callable for one run: of a class, the ``run`` of a new instance."""
        target: Any = self.target() if inspect.isclass(self.target) else self.target
        run: Callable[..., Any] = target if _is_function(target) else getattr(target, "run", target)
        return run

    @property
    def retry(self) -> Retry | None:
        """Whether the agent is called again: the option, else its own attribute."""
        own = self.options.retry or getattr(self.target, "retry", None)
        return own if isinstance(own, Retry) else None

    @property
    def capabilities(self) -> AgentCapabilities | None:
        """What the agent declares: the option, else what its adapter knows."""
        known = self.options.capabilities
        if known is None and callable(getattr(self.target, "capabilities", None)):
            known = self.target.capabilities()
        return known if isinstance(known, AgentCapabilities) else None


@dataclass(frozen=True)
class Conflict:
    """A name that two places registered; the first one holds."""

    name: str
    first: str
    second: str


class Adapter(Protocol):
    """What makes a framework's object an agent; listed in the setting ``ADAPTERS``.

    ``accepts`` looks at the object's module name and imports nothing. ``run`` has any of the shapes of an agent, takes
    the history from ``run.messages`` only, and closes what it opened upstream on CancelledError.
    """

    def __init__(self, obj: Any, **options: Any) -> None:
        """Wrap an object that `accepts` took."""

    @classmethod
    def accepts(cls, obj: Any) -> bool:
        """Whether this adapter runs such objects."""

    def capabilities(self) -> AgentCapabilities | None:
        """What the wrapped agent can do, as far as the framework tells."""

    def run(self, run: RunContext[Any]) -> Any:
        """Run once."""


class _CoroutineRun(Protocol):
    async def run(self, run: RunContext[Any], /) -> Any: ...


class _AsyncGeneratorRun(Protocol):
    def run(self, run: RunContext[Any], /) -> AsyncIterator[Event]: ...


class _FunctionRun(Protocol):
    def run(self, run: SyncRunContext[Any], /) -> Any: ...


#: Exact on purpose: a plain function that takes a RunContext, and a class without run(), are type errors.
A = TypeVar(
    "A",
    bound=Callable[["RunContext[Any]"], Awaitable[Any]]
    | Callable[["RunContext[Any]"], AsyncIterator[Event]]
    | Callable[["SyncRunContext[Any]"], Iterator[Event]]
    | Callable[["SyncRunContext[Any]"], Any]
    | Callable[[], _CoroutineRun]
    | Callable[[], _AsyncGeneratorRun]
    | Callable[[], _FunctionRun],
)

_lock = threading.RLock()
_entries: dict[str, AgentEntry] = {}
_discovered = False
#: Names registered from two places; the system check tells them.
conflicts: list[Conflict] = []


def agent(
    name: str,
    /,
    *,
    title: str = "",
    description: str = "",
    capabilities: AgentCapabilities | None = None,
    permission: Permission = None,
    state_schema: type | dict[str, Any] | None = None,
    initial_state: dict[str, Any] | Callable[[], dict[str, Any]] | None = None,
    retry: Retry | None = None,
    timeout: float | Unset | None = UNSET,
    idle_timeout: float | Unset | None = UNSET,
    on_disconnect: Literal["continue", "cancel"] | Unset = UNSET,
    disconnect_grace: float | Unset = UNSET,
    busy: Literal["reject", "cancel", "queue"] | Unset = UNSET,
    history: Literal["verified", "client", "server"] | Unset = UNSET,
    state_policy: str | Unset = UNSET,
    open_interrupts: Literal["reject", "cancel"] | Unset = UNSET,
) -> Callable[[A], A]:
    """Register a function or a class as an agent; the decorated object is returned as it is.

    Args:
        name: the last part of the agent's URL.
        title: for people; default: the name.
        description: for people.
        capabilities: what clients are told the agent can do.
        permission: a Django permission, or a callable that takes the user; None: whoever the AccessPolicy lets in.
        state_schema: TypedDict, pydantic model or JSON Schema that the shared state always fits.
        initial_state: the state of a thread that has none, or a callable that makes it.
        retry: whether it is called again where it fails before its first event; default: the attribute ``retry`` of the
            class or object.
        timeout: seconds a run may take. This and the following: left out, the setting of that name counts.
        idle_timeout: seconds a run may go without emitting anything.
        on_disconnect: what becomes of the run when nobody watches it any more.
        disconnect_grace: seconds it then lives on, where it is to be cancelled.
        busy: what a request meets while a run of the thread is active.
        history: whose history counts.
        state_policy: whose state a run starts from.
        open_interrupts: what a request without answers does to open questions.
    """
    options = AgentOptions(
        title=title,
        description=description,
        capabilities=capabilities,
        permission=permission,
        state_schema=state_schema,
        initial_state=initial_state,
        retry=retry,
        timeout=timeout,
        idle_timeout=idle_timeout,
        on_disconnect=on_disconnect,
        disconnect_grace=disconnect_grace,
        busy=busy,
        history=history,
        state_policy=state_policy,
        open_interrupts=open_interrupts,
    )

    def decorate(target: A) -> A:
        _add(AgentEntry(name, target, options, f"{target.__module__}:{_qualname(target)}"))
        return target

    return decorate


def register(name: str, target: Any, /, **options: Any) -> AgentEntry:
    """Register anything that runs: a function, a class, a shared stateless instance, or a framework's agent.

    Args:
        name: the last part of the agent's URL.
        target: the object; what has no ``run`` and is no function is offered to the setting ``ADAPTERS``.
        options: as for `agent`; what `agent` does not know is passed to the adapter.

    Raises:
        TypeError: the object cannot be run, or an option is unknown.
    """
    known = {key: options.pop(key) for key in [*options] if key in AgentOptions.__dataclass_fields__}
    module = sys._getframe(1).f_globals.get("__name__", "")
    where = f"{getattr(target, '__module__', module) if _is_function(target) else module}:{_qualname(target)}"
    adapted = target if _runs(target) else _adapt(target, options)
    if adapted is target and options:
        raise TypeError(f"register() got unknown options: {', '.join(sorted(options))}")
    entry = AgentEntry(name, adapted, AgentOptions(**known), where)
    _add(entry)
    return entry


def get_agent(name: str) -> AgentEntry:
    """The agent of that name.

    Raises:
        NotFound: there is none.
    """
    discover()
    entry = _entries.get(name)
    if entry is None:
        raise NotFound("There is no such agent.")
    return entry


def all_agents() -> list[AgentEntry]:
    """Every registered agent, by name."""
    discover()
    with _lock:
        return [_entries[name] for name in sorted(_entries)]


def discover() -> None:
    """Import the agents' modules of the installed apps, once.

    An exception in one of them is raised to whoever needed it, every time: a missing API key must not break
    ``migrate``, nor hide afterwards.
    """
    global _discovered
    if _discovered:
        return
    with _lock:
        if not _discovered:
            autodiscover_modules(settings.AGENTS_MODULE)
            _discovered = True


def swap(name: str, entry: AgentEntry | None) -> AgentEntry | None:
    """Put another entry under a name, or none; gives the one that was there. For tests."""
    discover()
    with _lock:
        held = _entries.pop(name, None)
        if entry is not None:
            _entries[name] = entry
        return held


def shape_of(target: Callable[..., Any]) -> Shape:
    """How a callable is driven: decorators that keep ``__wrapped__`` and partials are looked through."""
    bare = inspect.unwrap(target)
    while isinstance(bare, functools.partial):
        bare = inspect.unwrap(bare.func)
    if not inspect.isroutine(bare) and not inspect.isclass(bare) and callable(bare):
        bare = type(bare).__call__
    if inspect.iscoroutinefunction(bare):
        return "coroutine"
    if inspect.isasyncgenfunction(bare):
        return "async generator"
    return "generator" if inspect.isgeneratorfunction(bare) else "function"


def _add(entry: AgentEntry) -> None:
    with _lock:
        held = _entries.get(entry.name)
        if held is not None and held.where != entry.where:
            conflict = Conflict(entry.name, held.where, entry.where)
            if conflict not in conflicts:
                conflicts.append(conflict)
            return
        _entries[entry.name] = entry


def _is_function(target: Any) -> bool:
    return inspect.isroutine(target) or isinstance(target, functools.partial)


def _runs(target: Any) -> bool:
    if _is_function(target):
        return True
    return callable(getattr(target, "run", None)) and not _adapter_for(target)


def _adapter_for(target: Any) -> type[Adapter] | None:
    for path in settings.ADAPTERS:
        adapter: type[Adapter] = imported(path)
        if adapter.accepts(target):
            return adapter
    return None


def _adapt(target: Any, options: dict[str, Any]) -> Any:
    adapter = _adapter_for(target)
    if adapter is not None:
        return adapter(target, **options)
    if callable(target) and not inspect.isclass(target):
        return target
    raise TypeError(
        f"{_qualname(target)} cannot be run as an agent: it is no function, has no run(), and no adapter takes it."
    )


def _qualname(target: Any) -> str:
    while isinstance(target, functools.partial):
        target = target.func
    named = target if hasattr(target, "__qualname__") else type(target)
    return str(named.__qualname__)
