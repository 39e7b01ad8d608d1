from __future__ import annotations

import sys
import threading
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
import typing_extensions
from django.core.checks import run_checks
from django.urls import include, path

from agui_django import checks
from agui_django.agents import registry
from agui_django.agents.registry import AgentEntry, AgentOptions, Conflict
from agui_django.copilotkit import copilotkit_urls

Found = Callable[[], list[tuple[str, str]]]


@pytest.fixture
def found() -> Found:
    """What our checks say: ids and texts; each has a hint."""

    def look() -> list[tuple[str, str]]:
        messages = [m for m in run_checks() if str(m.id).startswith("agui_django.")]
        assert all(message.hint for message in messages)
        return [(str(message.id), message.msg) for message in messages]

    return look


FILES = {"BACKEND": "django.core.files.storage.FileSystemStorage"}


def test_the_demo_site_is_clean(found: Found) -> None:
    assert found() == []


def test_no_dict(found: Found, settings: Any) -> None:
    settings.AGUI_DJANGO = [("TIMEOUT", 3)]
    assert found() == [("agui_django.E001", "AGUI_DJANGO must be a dict.")]


def test_unknown_key_names_the_near_one(settings: Any) -> None:
    settings.AGUI_DJANGO = {"TIMEOUTS": 3}
    [message] = checks.check_settings()
    assert (message.id, message.hint) == ("agui_django.E002", "Did you mean 'TIMEOUT'?")


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("HISTORY", "mine", "one of 'verified', 'client', 'server'"),
        ("ON_DISCONNECT", True, "one of 'continue', 'cancel'"),
        ("BUSY", ["reject"], "one of 'reject', 'cancel', 'queue'"),
        ("TIMEOUT", "10", "a number or None"),
        ("TIMEOUT", 0, "at least 0.001"),
        ("TIMEOUT", float("nan"), "at least 0.001"),
        ("MAX_BODY", 1.5, "a whole number"),
        ("MAX_BODY", True, "a whole number"),
        ("MAX_RUNS", 0, "at least 1"),
        ("ATTACHMENT_INLINE", -1, "at least 0"),
        ("ATTACHMENT_SIZE", 0, "at least 1"),
        ("ATTACHMENT_TYPES", "image/*", "a list of strings"),
        ("ATTACHMENT_STORAGE", None, "a string"),
        ("ATTACHMENT_URL", 1, "a string or None"),
        ("CLIENT_ROLES", "user", "a list of strings"),
        ("CLIENT_ROLES", [1], "a list of strings"),
        ("AGENTS_MODULE", None, "a string"),
    ],
)
def test_bad_values(key: str, value: Any, wanted: str, settings: Any) -> None:
    settings.AGUI_DJANGO = {key: value}
    [message] = checks.check_settings()
    assert (message.id, message.msg) == ("agui_django.E003", f"AGUI_DJANGO[{key!r}] must be {wanted}.")


@pytest.mark.parametrize(
    ("storages", "alias", "problem", "deployed"),
    [
        ({"default": FILES}, None, None, "agui_django.W005"),
        ({"default": FILES}, "files", "agui_django.E011", None),
        ({"default": FILES, "files": {**FILES, "OPTIONS": {"location": "/srv/x"}}}, "files", None, None),
        ({"default": FILES, "files": {"BACKEND": "some.S3"}}, "files", None, None),
        ({"default": FILES, "files": FILES}, "files", None, "agui_django.W005"),
    ],
)
def test_the_storage_of_files(
    storages: Any, alias: str | None, problem: str | None, deployed: str | None, settings: Any
) -> None:
    settings.STORAGES = {**storages, "staticfiles": settings.STORAGES["staticfiles"]}
    settings.AGUI_DJANGO = {} if alias is None else {"ATTACHMENT_STORAGE": alias}
    assert [message.id for message in checks.check_storage()] == ([problem] if problem else [])
    assert [message.id for message in checks.check_storage_place()] == ([deployed] if deployed else [])
    settings.MEDIA_ROOT = "/srv/media"
    assert checks.check_storage_place() == []


def test_a_bad_value_is_not_shown(settings: Any) -> None:
    settings.AGUI_DJANGO = {"TIMEOUT": "secret-value"}
    [message] = checks.check_settings()
    assert "secret-value" not in str(message)


@pytest.mark.parametrize("value", [None, 5, 0.5])
def test_good_values(value: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {"TIMEOUT": value, "CLIENT_ROLES": ["user"], "AUTHENTICATION_CLASSES": None}
    assert checks.check_settings() == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ACCESS_POLICY", "nowhere.Policy"),
        ("ACCESS_POLICY", "agui_django.access.get_policy"),
        ("ACCESS_POLICY", "agui_django.access.Caller"),
        ("AUTHENTICATION_CLASSES", ["rest_framework.authentication.NoSuchAuthentication"]),
        ("AUTHENTICATION_CLASSES", ["collections.OrderedDict"]),
        ("ADAPTERS", ["collections.OrderedDict"]),
        ("RUNNER", "nowhere"),
    ],
)
def test_dotted_paths(key: str, value: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {key: value}
    assert [message.id for message in checks.check_settings()] == ["agui_django.E004"]


def test_rest_frameworks_own_classes_cannot_be_imported(settings: Any) -> None:
    settings.REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": ["nowhere.Authentication"]}
    assert [message.id for message in checks.check_authentication()] == ["agui_django.E005"]


def test_nobody_can_log_in(settings: Any) -> None:
    settings.AGUI_DJANGO = {"AUTHENTICATION_CLASSES": []}
    assert [message.id for message in checks.check_authentication()] == ["agui_django.W003"]


def test_tokens_without_their_table(settings: Any) -> None:
    settings.AGUI_DJANGO = {"AUTHENTICATION_CLASSES": ["rest_framework.authentication.TokenAuthentication"]}
    assert checks.check_authentication() == []
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "rest_framework.authtoken"]
    assert [message.id for message in checks.check_authentication()] == ["agui_django.W004"]


def test_an_agent_registered_twice(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "conflicts", [Conflict("support", "shop.agents:support", "help.agents:support")])
    [(identity, text)] = found()
    assert identity == "agui_django.E006"
    assert "shop.agents:support" in text
    assert "help.agents:support" in text


def test_an_agents_module_that_fails(found: Found, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("project.failing_agents")
    monkeypatch.setattr(registry, "_discovered", False)

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            if name == module.__name__:
                raise KeyError("OPENAI_API_KEY")

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    settings.AGUI_DJANGO = {"AGENTS_MODULE": "failing_agents"}
    [(identity, text)] = found()
    assert identity == "agui_django.E007"
    assert "KeyError" in text


def test_a_state_schema_from_typing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old(typing.TypedDict):
        a: int

    class New(typing_extensions.TypedDict):
        a: int

    entries = [AgentEntry(kind.__name__, None, AgentOptions(state_schema=kind)) for kind in (Old, New)]
    monkeypatch.setattr(registry, "all_agents", lambda: entries)
    told = [message.id for message in checks.check_agents()]
    assert told == (["agui_django.E008"] if sys.version_info < (3, 12) else [])


def test_a_state_schema_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:

    schemas = {"fine": {"type": "object"}, "odd": {"type": "objekt"}, "lock": type(threading.Lock()), "none": None}
    entries = [AgentEntry(name, None, AgentOptions(state_schema=schema)) for name, schema in schemas.items()]
    monkeypatch.setattr(registry, "all_agents", lambda: entries)
    told = checks.check_agents()
    assert [message.id for message in told] == ["agui_django.E008"] * 2
    assert ["'odd'" in message.msg for message in told] == [True, False]


def test_no_asgi_application(found: Found, settings: Any) -> None:
    settings.ASGI_APPLICATION = None
    assert [identity for identity, _ in found()] == ["agui_django.W001"]


@pytest.mark.parametrize("name", [":memory:", "file:memorydb_default?mode=memory&cache=shared"])
def test_sqlite_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import connections

    connection = connections["default"]
    if connection.vendor != "sqlite":
        pytest.skip("the tests run on another database")
    monkeypatch.setitem(connection.settings_dict, "NAME", name)
    assert [message.id for message in checks.check_database()] == ["agui_django.W002"]


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("QUEUE_LENGTH", 0, "at least 1"),
        ("QUEUE_LENGTH", None, "a whole number"),
        ("DISCONNECT_GRACE", -1, "at least 0"),
        ("DISCONNECT_GRACE", "5", "a number"),
        ("PENDING_DEADLINE", 0, "at least 1"),
    ],
)
def test_bad_values_of_policies(key: str, value: Any, wanted: str, settings: Any) -> None:
    settings.AGUI_DJANGO = {key: value}
    [message] = checks.check_settings()
    assert (message.id, message.msg) == ("agui_django.E003", f"AGUI_DJANGO[{key!r}] must be {wanted}.")


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("busy", "wait", "one of 'reject', 'cancel', 'queue'"),
        ("on_disconnect", "stop", "one of 'continue', 'cancel'"),
        ("disconnect_grace", -1, "at least 0"),
        ("timeout", 0, "at least 0.001"),
    ],
)
def test_bad_options_of_an_agent(option: str, value: Any, wanted: str) -> None:
    held = registry.swap("odd", AgentEntry("odd", print, AgentOptions(**{option: value}), "here:odd"))
    try:
        [message] = checks.check_agent_options()
    finally:
        registry.swap("odd", held)
    assert (message.id, message.obj) == ("agui_django.E009", "here:odd")
    assert message.msg.endswith(f"it must be {wanted}.")


def test_runners_say_what_they_lack(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from agui_django.runs import runners

    def told(name: str) -> list[str]:
        settings.AGUI_DJANGO = {"RUNNER": f"agui_django.runs.runners.{name}Runner"}
        assert checks.check_settings() == []
        found = checks.check_runner()
        assert all(message.id == "agui_django.E010" and "workers" in str(message.hint) for message in found)
        return [message.msg.partition(": ")[2] for message in found]

    assert told("Celery") == []
    assert told("Procrastinate") == ["'procrastinate.contrib.django' is not in INSTALLED_APPS."]
    assert told("DjangoTasks") == ["TASKS names no backend that has workers."]
    settings.TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
    assert told("DjangoTasks") == []
    monkeypatch.setattr(runners, "find_spec", lambda name: None)
    assert told("Celery") == ["celery is not installed."]
    assert told("Procrastinate") == ["procrastinate is not installed."]


@pytest.mark.parametrize("path", ["agui_django.runs.runners.get_runner", "collections.OrderedDict"])
def test_a_runner_is_a_runner(path: str, settings: Any) -> None:
    settings.AGUI_DJANGO = {"RUNNER": path}
    [message] = checks.check_settings()
    assert (message.id, message.msg) == (
        "agui_django.E004",
        f"AGUI_DJANGO['RUNNER']: {path!r} is not a subclass of agui_django.runs.runners.Runner.",
    )
    assert checks.check_runner() == []


@pytest.mark.parametrize(
    ("named", "hint"),
    [("ecko", "Did you mean 'echo'?"), ("something else", "Registered agents: "), ("default", "Registered agents: ")],
)
def test_copilotkits_default_agent_is_there(named: str, hint: str, found: Found, settings: Any) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "COPILOTKIT_DEFAULT_AGENT": named}
    assert found() == [("agui_django.E014", f"AGUI_DJANGO['COPILOTKIT_DEFAULT_AGENT']: there is no agent {named!r}.")]
    [message] = checks.check_copilotkit()
    assert str(message.hint).startswith(hint)


def test_the_default_agent_of_every_mount_is_there(
    found: Found, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = types.ModuleType("mounted_urls")
    patterns = [
        *copilotkit_urls("one", default_agent="plan"),
        path("in/", include(copilotkit_urls("two", default_agent="x"))),
    ]
    monkeypatch.setattr(urls, "urlpatterns", patterns, raising=False)
    monkeypatch.setitem(sys.modules, "mounted_urls", urls)
    settings.ROOT_URLCONF = "mounted_urls"
    assert found() == [("agui_django.E014", "copilotkit_urls(default_agent='x'): there is no agent 'x'.")]
