"""The `AGUI_DJANGO` setting: one frozen typed class of defaults, read lazily, read again on ``setting_changed``.

Unknown keys and bad values are told by the system checks; reading a setting here never raises for them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

NAME = "AGUI_DJANGO"

MB = 1024 * 1024


class Unset(enum.Enum):
    """The type of `UNSET`."""

    UNSET = "unset"


#: An agent's option that was left out: the setting of that name counts.
UNSET: Final = Unset.UNSET


@dataclass(frozen=True)
class Defaults:
    """Every key of ``AGUI_DJANGO`` with its default; the text under a key is its documentation."""

    AUTHENTICATION_CLASSES: tuple[str, ...] | None = None
    """Dotted paths of REST framework authentication classes; None: those of ``REST_FRAMEWORK``."""

    ACCESS_POLICY: str = "agui_django.access.AccessPolicy"
    """Dotted path of the class that says who is calling, whose threads they see and what they may do."""

    HISTORY: Literal["verified", "client", "server"] = "verified"
    """Whose history counts. ``verified``: the stored one, new messages appended. ``client``: the client's list is taken
    whole, so a client can rewrite what an agent said. ``server``: only the new turn is read from the request."""

    STATE_POLICY: Literal["client", "server"] = "client"
    """Whose shared state a run starts from when the client sent one. ``server``: the client's state is ignored once the
    thread has its own, which stops clients from editing it."""

    BUSY: Literal["reject", "cancel", "queue"] = "reject"
    """A request for a thread with an active run: refused with 409, or the active run is cancelled, or it waits."""

    QUEUE_LENGTH: int = 10
    """Runs that may wait behind a thread's active one, with ``BUSY`` ``queue``; one more answers 409."""

    OPEN_INTERRUPTS: Literal["reject", "cancel"] = "reject"
    """A request without answers while questions are open: refused, as the specification demands, or they are
    cancelled."""

    CLIENT_ROLES: tuple[str, ...] = ("user", "tool")
    """Roles of new messages that a request may bring. Letting ``assistant`` or ``system`` in lets a client put words
    into the mouth of the agent or the site."""

    ON_DISCONNECT: Literal["continue", "cancel"] = "continue"
    """What becomes of a run that a client started when nobody watches it any more, in whichever process and by whatever
    transport; a run that the site started itself goes on in any case."""

    DISCONNECT_GRACE: float = 5.0
    """Seconds that a run lives on after its last watcher has left, with ``ON_DISCONNECT`` ``cancel``: a page that is
    loaded again is back in time. At least three where the last ones watched in another process."""

    TIMEOUT: float | None = 600.0
    """Seconds a run may take; None: no limit."""

    IDLE_TIMEOUT: float | None = None
    """Seconds a run may go without emitting anything; None: no limit."""

    CANCEL_GRACE: float = 5.0
    """Seconds a cancelled agent has to clean up before it is cancelled again and then abandoned."""

    GRACE: float = 20.0
    """Seconds running runs have at SIGTERM before they are cancelled."""

    FLUSH_INTERVAL: float = 0.05
    """Seconds at most between an event and its commit, which makes it visible."""

    WRITE_DEADLINE: float = 30.0
    """Seconds of failing writes after which a run is given up and its followers are cut."""

    LEASE: float = 30.0
    """Seconds without a sign of life after which an active run counts as lost with its process."""

    PENDING_DEADLINE: float = 30.0
    """Seconds after which a pending run that nobody claimed counts as lost. With a ``RUNNER`` this is how long a run
    may wait for a free worker."""

    MAX_BODY: int = 40 * MB
    """Bytes of a request body; larger ones answer 413. The default lets a file of 20 MB in, which is a third larger as
    base64."""

    ATTACHMENT_INLINE: int = MB
    """Bytes up to which a file stays inside its message. Larger ones go to the file storage, and messages, logs and
    clients hold an address instead."""

    ATTACHMENT_SIZE: int = 20 * MB
    """Bytes of one file in a message; larger ones answer 413. ``MAX_BODY`` limits all of a request together."""

    ATTACHMENT_TYPES: tuple[str, ...] = (
        "image/*", "audio/*", "video/*", "text/plain", "text/csv", "text/markdown", "application/pdf",
        "application/json", "application/rtf", "application/msword", "application/vnd.*",
    )  # fmt: skip
    """Media types of the files that new messages may bring, inside of them or above ``ATTACHMENT_INLINE``; others
    answer 415. ``*`` at the end of an entry stands for any rest. The type is the one the client declares."""

    ATTACHMENT_STORAGE: str = "default"
    """Alias in Django's ``STORAGES`` of where files are kept. They are given out by an address of this app, to whom may
    see their thread: take a storage that nothing else serves, not one below ``MEDIA_URL``."""

    ATTACHMENT_URL: str | None = None
    """What clients find in front of a file's id, such as ``https://api.example.org/agui/attachments/`` for pages of
    another origin. None: the path of the request that brought the file, without a host."""

    MAX_STATE: int = 1 * MB
    """Bytes of a thread's shared state as JSON. A client's larger one answers 413; an agent's edit that would go beyond
    changes nothing and raises ``StateTooLarge`` (code ``state_too_large``)."""

    MAX_RUNS: int | None = 1000
    """Active runs per process; one more answers 429. None: no limit."""

    MAX_RUNS_PER_USER: int | None = None
    """Active runs per user and process; one more answers 429. None: no limit."""

    MAX_LOG: int = 64 * MB
    """Bytes of a run's log; an agent that goes beyond ends with code ``log_limit``."""

    HEARTBEAT: float = 15.0
    """Seconds of silence after which a stream carries a comment, so that proxies keep it open."""

    AGENTS_MODULE: str = "agents"
    """Name of the module in each installed app that registers agents."""

    ADAPTERS: tuple[str, ...] = ()
    """Dotted paths of adapter classes that `register` asks whether they take an object."""

    PRICES: Mapping[str, Mapping[str, Any]] | None = None
    """What models cost: by the model's name as agents report it (``"gpt-5-mini"``, or with its provider,
    ``"openai/gpt-5-mini"``; ``*`` at the end stands for any rest) a dict with ``input`` and ``output``, amounts per
    million tokens, ``currency`` (``"USD"``), and ``date``, the day of the price list (``"2026-11-01"``).
    ``cached_input`` and ``cache_write_input`` may be added; without them such tokens cost as other input. Amounts are
    numbers, or texts such as ``"0.25"``. A run's cost is computed when it closes and stays as it is; without a price
    for each of its models the run is not priced."""

    TITLE: str | None = None
    """Dotted path of a function of a thread and its messages (wire dicts) that gives the thread's title, synchronous or
    not. It is called once the first turn has ended, outside of any transaction, and has a minute; when it fails or
    gives an empty text it is asked again after the next turn. None, and until then: the first user message."""

    RUNNER: str | None = None
    """Dotted path of the class that hands pending runs to workers, such as ``agui_django.runs.runners.CeleryRunner``;
    None: the web process executes them."""

    COPILOTKIT_DEFAULT_AGENT: str | None = None
    """Name of the registered agent that CopilotKit's components find as ``default``, which they ask for unless they are
    told another one. None: the agent of that very name, or the only one there is."""

    COPILOTKIT_LICENSE_STATUS: Literal["valid", "unknown", "none", "expiring", "expired", "invalid"] | None = None
    """What ``/info`` tells CopilotKit's components of the site's licence for CopilotKit's paid features; None: nothing,
    as CopilotKit's own open-source runtime does. See the how-to on CopilotKit."""


KEYS: Final = frozenset(field.name for field in fields(Defaults))


def user_settings() -> Mapping[str, Any]:
    """What the site wrote; ``{}`` when it is missing or no dict (the checks say so)."""
    value = getattr(django_settings, NAME, None)
    return value if isinstance(value, Mapping) else {}


@cache
def _current() -> Defaults:
    given = {key: value for key, value in user_settings().items() if key in KEYS}
    for key in ("AUTHENTICATION_CLASSES", "CLIENT_ROLES", "ADAPTERS", "ATTACHMENT_TYPES"):
        if isinstance(given.get(key), list):
            given[key] = tuple(given[key])
    return Defaults(**given)


@cache
def imported(path: str) -> Any:
    """The object behind a dotted path, imported once.

    Raises:
        ImportError: there is none.
    """
    return import_string(path)


class Settings:
    """The settings in force. Attributes are those of `Defaults`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_current(), name)

    def for_agent(self, entry: Any, name: str) -> Any:
        """A setting as it counts for an agent: the option it was registered with, else the setting.

        Args:
            entry: a registry entry; its ``options`` hold the lower-case name, `UNSET` where it was left out.
            name: the setting's name, such as ``"TIMEOUT"``.
        """
        value = getattr(entry.options, name.lower(), UNSET)
        return getattr(_current(), name) if value is UNSET else value


def _reload(*, setting: str, **_: Any) -> None:
    if setting == NAME:
        _current.cache_clear()


setting_changed.connect(_reload, dispatch_uid="agui_django.conf")

if TYPE_CHECKING:

    class _TypedSettings(Defaults, Settings):
        """What type checkers see: the defaults' fields and the methods of `Settings`."""

    settings: _TypedSettings
else:
    settings = Settings()
