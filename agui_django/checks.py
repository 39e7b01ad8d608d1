"""System checks: what would otherwise show as a 500, a buffered stream or a lost run. Each comes with a hint.

E001 to E005, E010, E011, E013, E014 settings, E006 to E009 agents, E012 packages, W001 to W005 how the site is set up.
"""

from __future__ import annotations

import difflib
import sys
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connections, router
from django.urls import get_resolver
from django.utils.module_loading import import_string

from agui_django.conf import KEYS, NAME, UNSET, Defaults, user_settings

#: Settings that are numbers of something: below this they make no sense.
_LEAST: Mapping[str, float] = {
    "TIMEOUT": 0.001, "IDLE_TIMEOUT": 0.001, "CANCEL_GRACE": 0, "GRACE": 0, "FLUSH_INTERVAL": 0, "WRITE_DEADLINE": 1,
    "LEASE": 3, "PENDING_DEADLINE": 1, "MAX_BODY": 1024, "ATTACHMENT_SIZE": 1,
    "ATTACHMENT_INLINE": 0, "MAX_RUNS": 1, "MAX_RUNS_PER_USER": 1, "MAX_LOG": 1024, "MAX_STATE": 1024,
    "HEARTBEAT": 0.05, "QUEUE_LENGTH": 1, "DISCONNECT_GRACE": 0,
}  # fmt: skip

TOKENS = "rest_framework.authentication.TokenAuthentication"


@register("agui_django")
def check_settings(**_: Any) -> list[CheckMessage]:
    """`AGUI_DJANGO` holds known keys with values that fit."""
    written = getattr(django_settings, NAME, {})
    if not isinstance(written, Mapping):
        return [Error(f"{NAME} must be a dict.", hint=f"Write {NAME} = {{...}}.", id="agui_django.E001")]
    found = [*_unknown_keys(written)]
    hints = typing.get_type_hints(Defaults)
    for key, value in written.items():
        if key not in KEYS:
            continue
        wanted = _misfit(hints[key], value) or _out_of_range(key, value)
        if wanted:
            # The value itself is not shown: settings hold secrets, and logs are read by many.
            found.append(Error(f"{NAME}[{key!r}] must be {wanted}.", hint=_documented(key), id="agui_django.E003"))
        else:
            found.extend(_dotted_paths(key, value))
    return found


@register("agui_django")
def check_prices(**_: Any) -> list[CheckMessage]:
    """`PRICES` can be computed with."""
    from agui_django.runs.pricing import problems

    written = user_settings().get("PRICES")
    if not isinstance(written, Mapping):
        return []  # there are none, or check_settings tells
    return [
        Error(f"{NAME}['PRICES']: {problem}.", hint=_documented("PRICES"), id="agui_django.E013")
        for problem in problems(written)
    ]


@register("agui_django")
def check_authentication(**_: Any) -> list[CheckMessage]:
    """There is a way to log in: REST framework's authenticators can be imported, and there is one."""
    from rest_framework.settings import api_settings

    paths = user_settings().get("AUTHENTICATION_CLASSES")
    if paths is None:
        try:
            classes: Sequence[Any] = api_settings.DEFAULT_AUTHENTICATION_CLASSES
        except ImportError as error:
            return [
                Error(
                    f"REST_FRAMEWORK['DEFAULT_AUTHENTICATION_CLASSES'] cannot be imported: {error}",
                    hint="Correct the dotted path, or install the package that has the class.", id="agui_django.E005",
                )
            ]  # fmt: skip
    else:
        classes = [cls for path in paths if (cls := _import(path)) is not None] if _is_list(paths) else []
        if len(classes) < len(paths):
            return []  # told by check_settings
    found: list[CheckMessage] = []
    if not classes:
        found.append(
            Warning(
                "No authentication class is configured: every request to the agents answers 401.",
                hint=f"List one in {NAME}['AUTHENTICATION_CLASSES'], or leave that out to use REST framework's.",
                id="agui_django.W003",
            )
        )
    tokens = any(f"{cls.__module__}.{cls.__qualname__}" == TOKENS for cls in classes)
    if tokens and not apps.is_installed("rest_framework.authtoken"):
        found.append(
            Warning(
                "TokenAuthentication is configured but its table is not: tokens answer 500.",
                hint="Add 'rest_framework.authtoken' to INSTALLED_APPS and migrate.", id="agui_django.W004",
            )
        )  # fmt: skip
    return found


@register("agui_django")
def check_agents(**_: Any) -> list[CheckMessage]:
    """The agents' modules import, every name is registered once, and state schemas can be used."""
    from agui_django.agents import registry

    try:
        entries = registry.all_agents()
    except Exception as error:
        return [
            Error(
                f"An agents module cannot be imported: {type(error).__name__}: {error}",
                hint="Agents are imported from the agents module of each installed app. Make clients (and read API "
                "keys) inside the agent's function, not at the top of the module.",
                obj=_where(error), id="agui_django.E007",
            )
        ]  # fmt: skip
    found: list[CheckMessage] = [
        Error(
            f"The agent {conflict.name!r} is registered twice: by {conflict.first} and by {conflict.second}.",
            hint="Rename one of them; the first one holds.", id="agui_django.E006",
        )
        for conflict in registry.conflicts
    ]  # fmt: skip
    for entry in entries:
        schema = entry.options.state_schema
        if sys.version_info < (3, 12) and type(schema) is typing._TypedDictMeta:  # type: ignore[attr-defined]
            found.append(
                Error(
                    f"The state_schema of agent {entry.name!r} is a TypedDict from `typing`.",
                    hint="Before Python 3.12 pydantic needs the one from typing_extensions: "
                    "`from typing_extensions import TypedDict`.",
                    obj=entry.where, id="agui_django.E008",
                )
            )  # fmt: skip
        elif schema is not None and (broken := _no_schema(schema)):
            text = f"The state_schema of agent {entry.name!r} cannot be used: {broken}"
            found.append(Error(text, hint=_ANY_SCHEMA, obj=entry.where, id="agui_django.E008"))
    return found


_ANY_SCHEMA = "Give a TypedDict, a pydantic model or a JSON Schema."


def _no_schema(schema: Any) -> str:
    """What makes something no state schema; empty: it is one."""
    from agui_django.agents.state_schema import StateSchema

    try:
        StateSchema(schema)
    except TypeError as error:
        return str(error)
    return ""


@register("agui_django")
def check_agent_options(**_: Any) -> list[CheckMessage]:
    """What agents were registered with fits as the setting of that name has to."""
    from agui_django.agents import registry

    try:
        entries = registry.all_agents()
    except Exception:
        return []  # told by check_agents
    hints = typing.get_type_hints(Defaults)
    found: list[CheckMessage] = []
    for entry in entries:
        for option in fields(entry.options):
            key, value = option.name.upper(), getattr(entry.options, option.name)
            if key not in KEYS or value is UNSET:
                continue
            if wanted := _misfit(hints[key], value) or _out_of_range(key, value):
                text = f"The agent {entry.name!r} is registered with {option.name}={value!r}: it must be {wanted}."
                found.append(Error(text, hint=_documented(key), obj=entry.where, id="agui_django.E009"))
    return found


@register("agui_django")
def check_runner(**_: Any) -> list[CheckMessage]:
    """What the `RUNNER` needs is installed."""
    from agui_django.runs.runners import Runner

    path = user_settings().get("RUNNER")
    found = _import(path) if isinstance(path, str) else None
    if found is None or not _is_kind("RUNNER", found):
        return []  # told by check_settings, or there is none
    runner: type[Runner] = found
    problem = runner.problem()
    return [Error(f"{NAME}['RUNNER']: {problem}", hint=runner.hint, id="agui_django.E010")] if problem else []


@register("agui_django")
def check_api(**_: Any) -> list[CheckMessage]:
    """What the REST API needs is installed, where the site includes its addresses."""
    from agui_django.api.needs import missing

    wanted = missing()
    if not wanted:
        return []
    try:
        import_module(django_settings.ROOT_URLCONF)
    except Exception:
        return []  # told by Django's own checks
    if "agui_django.api.urls" not in sys.modules:
        return []
    return [
        Error(
            f"The REST API is included, but {' and '.join(wanted)} cannot be imported: it answers 500.",
            hint="pip install 'agui-django[api]'", id="agui_django.E012",
        )
    ]  # fmt: skip


@register("agui_django")
def check_copilotkit(**_: Any) -> list[CheckMessage]:
    """The agent that answers as CopilotKit's ``default`` is there, whether a setting or a mount names it."""
    from agui_django.agents import registry
    from agui_django.transports.copilotkit.calls import Mount

    try:
        known = [entry.name for entry in registry.all_agents()]
    except Exception:
        return []  # told by check_agents
    named = {f"{NAME}['COPILOTKIT_DEFAULT_AGENT']": user_settings().get("COPILOTKIT_DEFAULT_AGENT")}
    try:
        patterns = list(_patterns(get_resolver().url_patterns))
    except Exception:
        patterns = []  # told by Django's own checks
    for pattern in patterns:
        mount = getattr(pattern, "default_args", {}).get("mount")
        if isinstance(mount, Mount):
            named[f"copilotkit_urls(default_agent={mount.default_agent!r})"] = mount.default_agent
    return [
        Error(
            f"{where}: there is no agent {name!r}.",
            hint=_near(name, known, "Registered agents") + " CopilotKit's pages break without a default agent.",
            id="agui_django.E014",
        )
        for where, name in named.items()
        if isinstance(name, str) and name not in known
    ]


def _patterns(found: Sequence[Any]) -> Iterator[Any]:
    for each in found:
        yield from _patterns(each.url_patterns) if hasattr(each, "url_patterns") else [each]


@register("agui_django")
def check_server(**_: Any) -> list[CheckMessage]:
    """The site can be served by an ASGI server."""
    if getattr(django_settings, "ASGI_APPLICATION", None):
        return []
    return [
        Warning(
            "ASGI_APPLICATION is not set: under WSGI the agents answer 503.",
            hint="Set ASGI_APPLICATION = '<project>.asgi.application', put 'daphne' at the top of INSTALLED_APPS for "
            "runserver, and serve with daphne, uvicorn, or gunicorn with uvicorn workers.",
            id="agui_django.W001",
        )
    ]


@register("agui_django")
def check_database(**_: Any) -> list[CheckMessage]:
    """The database can be shared by the request's threads and the writer's."""
    from agui_django.models import Run

    alias = router.db_for_write(Run)
    connection = connections[alias]
    if connection.vendor != "sqlite":
        return []
    name = str(connection.settings_dict.get("NAME", ""))
    if name != ":memory:" and "mode=memory" not in name:
        return []
    return [
        Warning(
            f"The database {alias!r} is SQLite in memory, which threads cannot share.",
            hint="Use a file; in tests set DATABASES['default']['TEST'] = {'NAME': BASE_DIR / 'test.sqlite3'}.",
            id="agui_django.W002",
        )
    ]


@register("agui_django")
def check_storage(**_: Any) -> list[CheckMessage]:
    """There is a storage for the files of messages."""
    alias = user_settings().get("ATTACHMENT_STORAGE", Defaults.ATTACHMENT_STORAGE)
    known = getattr(django_settings, "STORAGES", {})
    if not isinstance(alias, str) or not isinstance(known, Mapping):
        return []  # told by check_settings, and by Django
    if alias not in known:
        return [
            Error(
                f"{NAME}['ATTACHMENT_STORAGE']: STORAGES has no {alias!r}.",
                hint="Add it to STORAGES, or name one that is there.", id="agui_django.E011",
            )
        ]  # fmt: skip
    return []


@register("agui_django", deploy=True)
def check_storage_place(**_: Any) -> list[CheckMessage]:
    """The files of messages are not kept among the site's own."""
    alias = user_settings().get("ATTACHMENT_STORAGE", Defaults.ATTACHMENT_STORAGE)
    known = getattr(django_settings, "STORAGES", {})
    if not isinstance(alias, str) or alias not in known:
        return []  # told by check_storage
    backend, options = known[alias].get("BACKEND"), known[alias].get("OPTIONS", {})
    files = "django.core.files.storage.FileSystemStorage"
    if backend != files or options.get("location") or django_settings.MEDIA_ROOT:
        return []
    return [
        Warning(
            f"The files of messages would be written to the server's working directory (storage {alias!r}).",
            hint=f"Add {{'BACKEND': {files!r}, 'OPTIONS': {{'location': ...}}}} to STORAGES under a name of its own, "
            f"a folder that no web server shows, and name it in {NAME}['ATTACHMENT_STORAGE'].",
            id="agui_django.W005",
        )
    ]


# ---- settings -------------------------------------------------------------------------------------------------------


def _unknown_keys(written: Mapping[str, Any]) -> Iterator[CheckMessage]:
    for key in written:
        if key not in KEYS:
            hint = _near(str(key).upper(), KEYS, "Known keys")
            yield Error(f"{NAME} has no setting {key!r}.", hint=hint, id="agui_django.E002")


def _near(name: str, known: Collection[str], what: str) -> str:
    """A hint for a name that is not known."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"{what}: {', '.join(sorted(known)) or 'none'}."


def _misfit(wanted: Any, value: Any) -> str:
    """What a value should have been; "" when it is."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        misfits = [_misfit(each, value) for each in arguments]
        return "" if "" in misfits else " or ".join(misfits)
    if origin is Literal:
        # not `in`: that takes True for 1, and raises for what cannot be hashed
        fits = any(type(value) is type(choice) and value == choice for choice in arguments)
        return "" if fits else f"one of {', '.join(map(repr, arguments))}"
    if origin is Mapping:
        return "" if isinstance(value, Mapping) else "a dict"
    if origin is tuple:
        fits = _is_list(value) and all(isinstance(item, str) for item in value)
        return "" if fits else "a list of strings"
    if wanted is float:
        return "" if isinstance(value, (int, float)) and not isinstance(value, bool) else "a number"
    if wanted is int:
        return "" if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if wanted is NoneType:
        return "" if value is None else "None"
    return "" if isinstance(value, wanted) else "a string"


def _out_of_range(key: str, value: Any) -> str:
    least = _LEAST.get(key)
    if least is None or value is None:
        return ""
    # `not (value >= least)` is also true of NaN
    return "" if value >= least else f"at least {least:g}"


def _dotted_paths(key: str, value: Any) -> Iterator[CheckMessage]:
    wanted = {
        "ACCESS_POLICY": "a subclass of agui_django.access.AccessPolicy",
        "AUTHENTICATION_CLASSES": "an authentication class of REST framework",
        "ADAPTERS": "a class with accepts() and run()",
        "RUNNER": "a subclass of agui_django.runs.runners.Runner",
        "TITLE": "a function of a thread and its messages",
    }.get(key)
    if wanted is None or value is None:
        return
    for path in [value] if isinstance(value, str) else value:
        found = _import(path)
        if found is None:
            yield Error(f"{NAME}[{key!r}]: {path!r} cannot be imported.", hint=f"It must name {wanted}.",
                        id="agui_django.E004")  # fmt: skip
        elif not _is_kind(key, found):
            yield Error(f"{NAME}[{key!r}]: {path!r} is not {wanted}.", hint=_documented(key), id="agui_django.E004")


def _is_kind(key: str, found: Any) -> bool:
    if key == "ACCESS_POLICY":
        from agui_django.access import AccessPolicy

        return isinstance(found, type) and issubclass(found, AccessPolicy)
    if key == "TITLE":
        return callable(found)
    if key == "RUNNER":
        from agui_django.runs.runners import Runner

        return isinstance(found, type) and issubclass(found, Runner)
    names = {"AUTHENTICATION_CLASSES": ("authenticate",), "ADAPTERS": ("accepts", "run")}.get(key, ())
    return isinstance(found, type) and all(callable(getattr(found, name, None)) for name in names)


def _import(path: str) -> Any:
    try:
        return import_string(path)
    except ImportError:
        return None


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _documented(key: str) -> str:
    return f"See {key} in the reference of settings; its default is {getattr(Defaults, key)!r}."


def _where(error: Exception) -> str | None:
    """The deepest file of a traceback: the line that needs a change."""
    trace, name = error.__traceback__, None
    while trace is not None:
        name, trace = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}", trace.tb_next
    return name
