"""A small AG-UI client on the protocol core, for tests, scripts and other services. Needs httpx, and no Django.

Law: what a run's events make of messages and state is what the official client makes of them; a broken connection to
an endpoint of ours loses no event and doubles none.
"""

from __future__ import annotations

try:
    import httpx as _httpx  # noqa: F401
except ImportError as error:
    raise ImportError("The AG-UI client needs httpx: pip install 'agui_django[remote]'") from error

from agui_django.client.aio import AsyncClient, AsyncRun
from agui_django.client.errors import ClientError, Refused, RunFailed, StreamRefused, Unreachable
from agui_django.client.sync import Client, Run

__all__ = [
    "AsyncClient",
    "AsyncRun",
    "Client",
    "ClientError",
    "Refused",
    "Run",
    "RunFailed",
    "StreamRefused",
    "Unreachable",
]
