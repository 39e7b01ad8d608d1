"""The asynchronous client: `AsyncClient` and `AsyncRun`. The same names as the synchronous one, to be awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any

import httpx

from agui_django.client.conversation import Conversation, RunView, resume_entries
from agui_django.client.exchange import MAX_ERROR, Exchange, refused_by, unreachable
from agui_django.client.older import Wire


class AsyncClient(Conversation):
    """One conversation with one agent, from asynchronous code. See `Conversation` for the other arguments.

    Args:
        url: the agent's address.
        http: an httpx client to share; it is not closed here.
        timeout: seconds of silence after which a connection counts as broken; or an `httpx.Timeout`.
        conversation: as for `Conversation`.
    """

    def __init__(
        self,
        url: str,
        *,
        http: httpx.AsyncClient | None = None,
        timeout: float | httpx.Timeout = 60.0,
        **conversation: Any,
    ) -> None:
        super().__init__(url, **conversation)
        self._owned = http is None
        self._http = httpx.AsyncClient() if http is None else http
        self._timeout = timeout if isinstance(timeout, httpx.Timeout) else httpx.Timeout(timeout, connect=10.0)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give the connections back."""
        if self._owned:
            await self._http.aclose()

    def run(
        self,
        text: str | list[Any] | None = None,
        *,
        tool_results: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        forwarded_props: Mapping[str, Any] | None = None,
    ) -> AsyncRun:
        """A run; nothing is sent before its first event is asked for.

        Args:
            text: what the user says: text, or content parts; None: nothing new.
            tool_results: what the calls gave that this side executes, by call id.
            run_id: names the run; default: a new name.
            forwarded_props: further properties for the agent.
        """
        exchange = self._start(text, tool_results=tool_results, run_id=run_id, forwarded_props=forwarded_props)
        return AsyncRun(self, exchange)

    def resume(self, answers: Mapping[str, Any], *, cancel: Iterable[str] = (), run_id: str | None = None) -> AsyncRun:
        """A run that answers the questions of the last one; all of them, or the server refuses.

        Args:
            answers: by interrupt id.
            cancel: the ids of the questions that are given up.
            run_id: as for `run`.
        """
        return AsyncRun(self, self._start(None, resume=resume_entries(answers, cancel), run_id=run_id))

    def follow(self, after: str = "", *, until_idle: bool = False) -> AsyncRun:
        """The thread as it is, then whatever runs in it, until it is closed. Endpoints of this app only.

        Args:
            after: a `cursor`: only what came behind it.
            until_idle: end as soon as nothing runs.
        """
        return AsyncRun(self, self._followed(after, until_idle=until_idle), keeps_cursor=True)

    async def hydrate(self) -> AsyncRun:
        """Take over what the server holds of the thread; of a run that is active the rest, too.

        Raises:
            Refused: code ``not_found``: there is no such thread.
        """
        return await self.follow(until_idle=True).wait()


class AsyncRun(RunView, AsyncIterator[Wire]):
    """The events of a run, or of a thread that is followed; each comes once. May be used as a context manager."""

    def __init__(self, client: AsyncClient, exchange: Exchange, *, keeps_cursor: bool = False) -> None:
        super().__init__(client, exchange)
        self._client = client
        self._keeps_cursor = keeps_cursor
        self._events = self._read()

    def __aiter__(self) -> AsyncRun:
        return self

    async def __anext__(self) -> Wire:
        event = await anext(self._events)
        if self._keeps_cursor:
            self._client._cursor = self._exchange.cursor
        return event

    async def __aenter__(self) -> AsyncRun:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave; the run goes on at the server, unless its site ends what nobody watches."""
        await self._events.aclose()

    async def wait(self) -> AsyncRun:
        """Read it to its end.

        Raises:
            RunFailed: it ended with RUN_ERROR.
            ClientError: see `errors`.
        """
        async for _ in self:
            pass
        self.raise_for_error()
        return self

    async def cancel(self) -> bool:
        """Have the run stopped, also from another task; its last events still come. False: the server cannot."""
        url = self._client._stop_url(self._exchange)
        if url is None:
            return False
        client = self._client
        try:
            answer = await client._http.post(
                url, headers=client._sent_headers(), timeout=client._timeout, follow_redirects=False
            )
        except httpx.TransportError as error:
            raise unreachable(error) from error
        if answer.status_code >= 300:
            raise refused_by(answer.status_code, answer.headers, answer.content[:MAX_ERROR])
        return True

    async def _read(self) -> AsyncGenerator[Wire, None]:
        exchange, client = self._exchange, self._client
        pause: float | None = 0.0
        while pause is not None:
            await asyncio.sleep(pause)
            call = exchange.call()
            try:
                async with client._http.stream(
                    call.method,
                    call.url,
                    content=call.body,
                    headers={**client._sent_headers(), **call.headers},
                    timeout=client._timeout,
                    follow_redirects=False,
                ) as response:
                    if not exchange.opened(response.status_code, response.headers):
                        pause = exchange.refusal(response.status_code, response.headers, await _head(response))
                        continue
                    async for chunk in response.aiter_raw():
                        for event in exchange.feed(chunk):
                            yield event
                pause = exchange.over()
            except httpx.TransportError as error:
                pause = exchange.over(error, never_sent=isinstance(error, httpx.ConnectError | httpx.ConnectTimeout))


async def _head(response: httpx.Response) -> bytes:
    """What an error says, up to a limit."""
    body = b""
    with contextlib.suppress(httpx.TransportError):
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) >= MAX_ERROR:
                break
    return body[:MAX_ERROR]
