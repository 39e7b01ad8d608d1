"""Registration: what is kept, what conflicts, when modules load."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from agui_django import RunContext, SyncRunContext, agent, get_agent, register
from agui_django.agents import registry
from agui_django.agents.registry import AgentEntry, AgentOptions, all_agents, shape_of
from agui_django.conf import UNSET
from agui_django.protocol.errors import NotFound
from agui_django.testing import ScriptedAgent, override_agent, run_agent


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_entries", {})
    monkeypatch.setattr(registry, "conflicts", [])
    monkeypatch.setattr(registry, "_discovered", True)


def test_the_decorated_object_is_returned_as_it_is():
    async def support(run: RunContext) -> None: ...

    assert agent("support", title="Support", timeout=120)(support) is support
    entry = get_agent("support")
    assert entry.target is support
    assert entry.kind == "coroutine"
    assert entry.where.endswith(":test_the_decorated_object_is_returned_as_it_is.<locals>.support")
    assert (entry.options.title, entry.options.timeout, entry.options.busy) == ("Support", 120, UNSET)


def test_classes_and_instances():
    @agent("cls")
    class Support:
        async def run(self, run: RunContext) -> None: ...

    register("instance", Support(), title="One for all")
    assert [entry.kind for entry in all_agents()] == ["class", "instance"]
    assert get_agent("cls").make().__self__ is not get_agent("cls").make().__self__
    assert get_agent("instance").make().__self__ is get_agent("instance").make().__self__
    assert get_agent("instance").options.title == "One for all"


def test_an_unknown_name():
    with pytest.raises(NotFound):
        get_agent("nobody")


def test_a_name_from_two_places_is_a_conflict_and_the_same_place_replaces():
    def one(run: SyncRunContext) -> int:
        return 1

    def two(run: SyncRunContext) -> int:
        return 2

    agent("a")(one)
    agent("a", title="again")(one)
    assert registry.conflicts == []
    assert get_agent("a").options.title == "again"
    agent("a")(two)
    agent("a")(two)
    [conflict] = registry.conflicts
    assert (conflict.first.split(".")[-1], conflict.second.split(".")[-1]) == ("one", "two")
    assert get_agent("a").target is one


def test_what_cannot_run_is_refused():
    with pytest.raises(TypeError, match="cannot be run"):
        register("x", object())
    with pytest.raises(TypeError, match="unknown options: colour"):
        register("x", ScriptedAgent([]), colour="red")


class Framework:
    """An object of somebody else's framework."""


class FrameworkAdapter:
    """Runs it."""

    def __init__(self, obj: Any, **options: Any) -> None:
        self.obj = obj
        self.options = options

    @classmethod
    def accepts(cls, obj: Any) -> bool:
        return type(obj).__name__ == "Framework"

    def capabilities(self) -> None:
        return None

    async def run(self, run: RunContext) -> Any:
        return self.options


@pytest.mark.asyncio
async def test_adapters_are_asked(settings: Any):
    settings.AGUI_DJANGO = {"ADAPTERS": [f"{__name__}.FrameworkAdapter"]}
    register("f", Framework(), title="F", model="m")
    entry = get_agent("f")
    assert entry.options.title == "F"
    assert entry.capabilities is None
    assert (await run_agent("f")).result == {"model": "m"}


def test_shapes():
    async def coroutine(run: Any) -> None: ...
    async def generator(run: Any) -> Any:
        yield

    def function(run: Any) -> None: ...
    def sync_generator(run: Any) -> Any:
        yield

    class Callable_:
        async def __call__(self, run: Any) -> None: ...

    assert [shape_of(fn) for fn in (coroutine, generator, function, sync_generator, Callable_())] == [
        "coroutine", "async generator", "function", "generator", "coroutine"
    ]  # fmt: skip


def test_override_agent_puts_it_back():
    async def real(run: RunContext) -> None: ...

    agent("support", title="Real", timeout=5)(real)
    with override_agent("support", ScriptedAgent([]), timeout=1) as entry:
        assert get_agent("support") is entry
        assert (entry.options.title, entry.options.timeout) == ("Real", 1)
        assert all_agents() == [entry]
    assert get_agent("support").target is real
    with override_agent("new", ScriptedAgent([])):
        assert get_agent("new").kind == "instance"
    with pytest.raises(NotFound):
        get_agent("new")


def test_a_broken_agents_module_is_told_every_time(monkeypatch: pytest.MonkeyPatch, settings: Any):
    monkeypatch.setattr(registry, "_discovered", False)
    calls: list[str] = []

    def broken(name: str) -> None:
        calls.append(name)
        raise ImportError("no API key")

    monkeypatch.setattr(registry, "autodiscover_modules", broken)
    settings.AGUI_DJANGO = {"AGENTS_MODULE": "bots"}
    for _ in range(2):
        with pytest.raises(ImportError):
            all_agents()
    assert calls == ["bots", "bots"]


def test_importing_the_package_loads_no_agents_and_no_models():
    code = "import agui_django, sys; print([m for m in sys.modules if m.startswith(('agui_django.', 'ag_ui'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_a_list():
    import agui_django

    assert sorted(agui_django.__all__) == agui_django.__all__
    for name in agui_django.__all__:
        assert getattr(agui_django, name) is not None
    with pytest.raises(AttributeError):
        _ = agui_django.nothing  # type: ignore[attr-defined]


def test_an_entry_of_nothing_but_a_target():
    entry = AgentEntry("a", lambda run: None)
    assert entry.options == AgentOptions()
    assert entry.kind == "function"
