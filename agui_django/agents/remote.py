"""Any AG-UI endpoint as an agent: ``register("helper", RemoteAgent("https://…"))``. Needs ``agui_django[remote]``.

Law: what comes from there is foreign. It passes the same pipeline as any agent's events, connections go only where they
may, and everything is bounded: time, bytes, connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from inspect import isawaitable
from typing import Any
from urllib.parse import urljoin, urlsplit
from weakref import WeakKeyDictionary

try:
    import httpx
except ImportError as error:
    raise ImportError("Remote agents need httpx: pip install 'agui_django[remote]'") from error

from agui_django.agents.context import RunContext
from agui_django.agents.remote_hosts import GuardedTransport, Hosts
from agui_django.agents.remote_input import answers_for, messages_for, thread_id_of
from agui_django.agents.remote_stream import RemoteStream
from agui_django.client.conversation import ALWAYS
from agui_django.client.exchange import MAX_ERROR, PASSING, refused_by
from agui_django.client.older import numbers, prepare_input
from agui_django.protocol.codec import clean, encode
from agui_django.protocol.errors import ProtocolViolation, ProviderError
from agui_django.protocol.headers import retry_after

Wire = dict[str, Any]
OfRun = Callable[[RunContext[Any]], Any]

#: Seconds that telling a remote server to stop may take.
STOP = 2.0
#: Seconds in which an answer is to end behind its terminal event.
END = 0.1
LONGEST_WAIT = 30.0
UNAVAILABLE = "The remote agent is not available."
RATE_LIMITED = "The remote agent has too much to do; try again later."


class _Passing(Exception):
    """It may go well a moment later; `wait` seconds, where the server said so."""

    def __init__(self, error: ProviderError, wait: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = error.retry_after = wait


class RemoteAgent:
    """An AG-UI endpoint somewhere else as an agent of this site; shared by all runs.

    Its run is ours: log, cursors, questions, access, admin. Questions and answers pass in both directions, front-end
    tools are the page's, ids are kept. Errors: a server that is away, answers 5xx or breaks off is a `ProviderError`
    (``provider_unavailable``, for 429 ``provider_rate_limited``); what is no AG-UI is ``agent_protocol_error``; other
    refusals (401, 404, 422, a redirect) are bugs of the set-up and end as ``agent_exception``.

    Args:
        url: the endpoint, or a function of the run that gives it (then `hosts` has to name what it may give).
        headers: sent along: a mapping, or a function of the run, which may be a coroutine function.
        hosts: further host names (``*.example.com``), addresses and networks that may be connected to. The name in
            `url` always may. Addresses that are not public (private, loopback, link-local) are refused unless they or
            their network are named, whatever name led there. Redirects are never followed.
        forward: what else of the request goes along: ``state``, ``tools``, ``context``, ``forwardedProps`` (which the
            client may fill as it likes).
        forwarded_props: ``forwardedProps`` of your own, a mapping or a function of the run; they win.
        thread_id: a function of the run that names its thread there; default: a digest of scope and id, so that two
            users' threads never meet.
        files: send files that are kept here along, inside the messages.
        peer: the protocol version of a server from before 1.0.
        connect_timeout, first_event_timeout, idle_timeout: seconds to connect, until the first event, without a line.
        retries: how often to try again before the first event, where the server was away or said 429, 502, 503, 504.
            It may then do something twice, unless it knows a run that it was given before by its id (ours do).
        max_frame, max_stream: bytes of one event, and of the whole answer.
        connections: at once, per process and event loop; further runs wait for one as long as for a connection.
        verify: TLS: False, or an `ssl.SSLContext`.
    """

    def __init__(
        self,
        url: str | OfRun,
        *,
        headers: Mapping[str, str] | OfRun | None = None,
        hosts: Iterable[str] = (),
        forward: Iterable[str] = ("state", "tools", "context"),
        forwarded_props: Mapping[str, Any] | OfRun | None = None,
        thread_id: Callable[[RunContext[Any]], str] = thread_id_of,
        files: bool = True,
        peer: str | None = None,
        connect_timeout: float = 10.0,
        first_event_timeout: float = 60.0,
        idle_timeout: float = 120.0,
        retries: int = 0,
        max_frame: int = 8 * 1024 * 1024,
        max_stream: int = 256 * 1024 * 1024,
        connections: int = 100,
        verify: Any = True,
    ) -> None:
        hosts = list(hosts)
        if callable(url) and not hosts:
            raise TypeError("hosts has to name what a function may give as url.")
        self._url = url
        self._hosts = Hosts(hosts)
        if isinstance(url, str):
            self._hosts.allow_name(url)
        self._forward = frozenset(forward)
        if unknown := self._forward - {"state", "tools", "context", "forwardedProps"}:
            raise ValueError(f"forward: {', '.join(sorted(unknown))} is nothing that could be forwarded.")
        if peer is not None:
            numbers(peer)
        self._headers = headers
        self._props = forwarded_props
        self._thread_id = thread_id
        self._files = files
        self._peer = peer
        self._connect = connect_timeout
        self._first = first_event_timeout
        self._idle = idle_timeout
        self._retries = retries
        self._sizes = {"max_frame": max_frame, "max_stream": max_stream}
        self._connections = connections
        self._verify = verify
        self._lock = threading.Lock()
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    async def run(self, run: RunContext[Any]) -> AsyncIterator[Wire]:
        """One run: the remote one's events."""
        url = str(await _given(self._url, run))
        self._hosts.check_url(url)
        body = await self._body(run)
        headers = {
            **ALWAYS,
            "Content-Type": "application/json",
            **{name: str(value) for name, value in (await _given(self._headers, run) or {}).items()},
        }
        content = encode(clean(body)).encode()
        for attempt in range(self._retries + 1):
            stream = RemoteStream(
                (body["threadId"], body["runId"]),
                (str(run._setup.thread_id), run.run_id),
                warn=run.log.warning,
                **self._sizes,
            )
            request = self._pool().build_request("POST", url, content=content, headers=headers)
            try:
                async with aclosing(self._events(request, stream)) as events:
                    async for event in events:
                        yield event
                return
            except _Passing as failed:
                run.log.warning("The remote agent failed: %s", failed.__cause__ or failed)
                if stream.any or attempt == self._retries:
                    raise failed.error from failed.__cause__
                wait = 0.25 * 2**attempt if failed.wait is None else failed.wait
            await asyncio.sleep(min(wait, LONGEST_WAIT))

    async def aclose(self) -> None:
        """Close this loop's idle connections; the agent may be used again."""
        with self._lock:
            pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()

    # ---- the request ----

    async def _body(self, run: RunContext[Any]) -> Wire:
        given = run._setup.input
        props: Wire = dict(run.forwarded_props) if "forwardedProps" in self._forward else {}
        body: Wire = {
            "threadId": self._thread_id(run),
            "runId": run.run_id,
            "messages": await messages_for(run, files=self._files),
            "tools": list(given.get("tools") or ()) if "tools" in self._forward else [],
            "context": list(given.get("context") or ()) if "context" in self._forward else [],
            "forwardedProps": {**props, **(await _given(self._props, run) or {})},
        }
        if "state" in self._forward:
            body["state"] = run._sink.document.plain()
        if answers := answers_for(run):
            body["resume"] = answers
        return prepare_input(body, self._peer, run.log.warning)

    def _pool(self) -> httpx.AsyncClient:
        """The connections of the running loop: they belong to it."""
        loop = asyncio.get_running_loop()
        with self._lock:
            pool = self._pools.get(loop)
            if pool is None:
                limits = httpx.Limits(max_connections=self._connections, keepalive_expiry=30)
                pool = self._pools[loop] = httpx.AsyncClient(
                    transport=GuardedTransport(self._hosts, limits, self._verify),
                    # Silence is judged by lines: one byte now and then is none.
                    timeout=httpx.Timeout(None, connect=self._connect, pool=self._connect, write=self._first),
                    trust_env=False,
                    follow_redirects=False,
                )
            return pool

    # ---- the answer ----

    async def _events(self, request: httpx.Request, stream: RemoteStream) -> AsyncGenerator[Wire, None]:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._first
        response: httpx.Response | None = None
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._pool().send(request, stream=True)
            await self._check(response)
            chunks = response.aiter_raw()
            lines = stream.lines
            while not stream.ended:
                async with asyncio.timeout_at(deadline):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    raise _Passing(ProviderError(UNAVAILABLE)) from EOFError("The stream ended in mid-run.")
                for event in stream.feed(chunk):
                    yield event
                if stream.any and stream.lines > lines:
                    # Behind the yields: the time that our own log took is not the remote agent's.
                    deadline = clock() + self._idle
                lines = stream.lines
            await _drain(chunks)
        except (TimeoutError, httpx.TransportError) as error:
            raise _Passing(ProviderError(UNAVAILABLE)) from error
        except asyncio.CancelledError:
            await self._stop(request, response)
            raise
        finally:
            if response is not None:
                await response.aclose()

    async def _check(self, response: httpx.Response) -> None:
        status = response.status_code
        if status == 200:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            coding = response.headers.get("content-encoding", "identity").strip().lower()
            if kind != "text/event-stream" or coding not in ("", "identity"):
                raise ProtocolViolation("The remote agent's answer is no plain stream of events.")
            return
        refused = refused_by(status, response.headers, await self._told(response))
        if status == 429:
            raise _Passing(
                ProviderError(RATE_LIMITED, code="provider_rate_limited"), retry_after(response.headers)
            ) from refused
        if status in PASSING:
            raise _Passing(ProviderError(UNAVAILABLE), retry_after(response.headers)) from refused
        if status >= 500 or status in (408, 409, 425):
            raise ProviderError(UNAVAILABLE) from refused
        raise refused

    async def _told(self, response: httpx.Response) -> bytes:
        """What an error says, for the log; as far as it comes soon."""
        body = b""
        with suppress(TimeoutError, httpx.TransportError):
            async with asyncio.timeout(STOP):
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) >= MAX_ERROR:
                        break
        return body[:MAX_ERROR]

    async def _stop(self, request: httpx.Request, response: httpx.Response | None) -> None:
        """Where the server keeps runs as ours do, leaving is not stopping: say it."""
        named = response.headers.get("content-location", "") if response is not None else ""
        address = urljoin(str(request.url), named)
        if not named.endswith("/events") or urlsplit(address)[:2] != urlsplit(str(request.url))[:2]:
            return
        headers = {name: value for name, value in request.headers.items() if name not in ("content-length", "host")}
        with suppress(TimeoutError, httpx.TransportError):
            async with asyncio.timeout(STOP):
                answer = await self._pool().send(
                    self._pool().build_request("POST", address.removesuffix("events") + "cancel", headers=headers),
                    stream=True,
                )
                await answer.aclose()


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Let the answer end by itself, if it does so at once: then its connection can be used again."""
    with suppress(TimeoutError, httpx.TransportError):
        async with asyncio.timeout(END):
            async for chunk in chunks:
                if len(chunk) > MAX_ERROR:
                    return


async def _given(value: Any, run: RunContext[Any]) -> Any:
    """A value, or what a function of the run gives."""
    found = value(run) if callable(value) else value
    return await found if isawaitable(found) else found
