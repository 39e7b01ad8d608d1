"""The synchronous client: `Client` and `Run`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import httpx

from agui_django.client.conversation import Conversation, RunView, resume_entries
from agui_django.client.exchange import MAX_ERROR, Exchange, refused_by, unreachable
from agui_django.client.older import Wire


class Client(Conversation):
    """One conversation with one agent, from synchronous code. See `Conversation` for the other arguments.

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
        http: httpx.Client | None = None,
        timeout: float | httpx.Timeout = 60.0,
        **conversation: Any,
    ) -> None:
        super().__init__(url, **conversation)
        self._owned = http is None
        self._http = httpx.Client() if http is None else http
        self._timeout = timeout if isinstance(timeout, httpx.Timeout) else httpx.Timeout(timeout, connect=10.0)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        if self._owned:
            self._http.close()

    def run(
        self,
        text: str | list[Any] | None = None,
        *,
        tool_results: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        forwarded_props: Mapping[str, Any] | None = None,
    ) -> Run:
        """A run; nothing is sent before its first event is asked for.

        Args:
            text: what the user says: text, or content parts; None: nothing new.
            tool_results: what the calls gave that this side executes, by call id.
            run_id: names the run; default: a new name.
            forwarded_props: further properties for the agent.
        """
        exchange = self._start(text, tool_results=tool_results, run_id=run_id, forwarded_props=forwarded_props)
        return Run(self, exchange)

    def resume(self, answers: Mapping[str, Any], *, cancel: Iterable[str] = (), run_id: str | None = None) -> Run:
        """A run that answers the questions of the last one; all of them, or the server refuses.

        Args:
            answers: by interrupt id.
            cancel: the ids of the questions that are given up.
            run_id: as for `run`.
        """
        return Run(self, self._start(None, resume=resume_entries(answers, cancel), run_id=run_id))

    def follow(self, after: str = "", *, until_idle: bool = False) -> Run:
        """The thread as it is, then whatever runs in it, until it is closed. Endpoints of this app only.

        Args:
            after: a `cursor`: only what came behind it.
            until_idle: end as soon as nothing runs.
        """
        return Run(self, self._followed(after, until_idle=until_idle), keeps_cursor=True)

    def hydrate(self) -> Run:
        """Take over what the server holds of the thread; of a run that is active the rest, too.

        Raises:
            Refused: code ``not_found``: there is no such thread.
        """
        return self.follow(until_idle=True).wait()


class Run(RunView, Iterator[Wire]):
    """The events of a run, or of a thread that is followed; each comes once. May be used as a context manager."""

    def __init__(self, client: Client, exchange: Exchange, *, keeps_cursor: bool = False) -> None:
        super().__init__(client, exchange)
        self._client = client
        self._keeps_cursor = keeps_cursor
        self._events = self._read()

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Wire:
        event = next(self._events)
        if self._keeps_cursor:
            self._client._cursor = self._exchange.cursor
        return event

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave; the run goes on at the server, unless its site ends what nobody watches."""
        self._events.close()

    def wait(self) -> Run:
        """Read it to its end.

        Raises:
            RunFailed: it ended with RUN_ERROR.
            ClientError: see `errors`.
        """
        for _ in self:
            pass
        self.raise_for_error()
        return self

    def cancel(self) -> bool:
        """Have the run stopped, also from another thread; its last events still come. False: the server cannot."""
        url = self._client._stop_url(self._exchange)
        if url is None:
            return False
        client = self._client
        try:
            answer = client._http.post(
                url, headers=client._sent_headers(), timeout=client._timeout, follow_redirects=False
            )
        except httpx.TransportError as error:
            raise unreachable(error) from error
        if answer.status_code >= 300:
            raise refused_by(answer.status_code, answer.headers, answer.content[:MAX_ERROR])
        return True

    def _read(self) -> Generator[Wire, None, None]:
        exchange, client = self._exchange, self._client
        pause: float | None = 0.0
        while pause is not None:
            time.sleep(pause)
            call = exchange.call()
            try:
                with client._http.stream(
                    call.method,
                    call.url,
                    content=call.body,
                    headers={**client._sent_headers(), **call.headers},
                    timeout=client._timeout,
                    follow_redirects=False,
                ) as response:
                    if not exchange.opened(response.status_code, response.headers):
                        pause = exchange.refusal(response.status_code, response.headers, _head(response))
                        continue
                    for chunk in response.iter_raw():
                        yield from exchange.feed(chunk)
                pause = exchange.over()
            except httpx.TransportError as error:
                pause = exchange.over(error, never_sent=isinstance(error, httpx.ConnectError | httpx.ConnectTimeout))


def _head(response: httpx.Response) -> bytes:
    """What an error says, up to a limit."""
    body = b""
    with contextlib.suppress(httpx.TransportError):
        for chunk in response.iter_raw():
            body += chunk
            if len(body) >= MAX_ERROR:
                break
    return body[:MAX_ERROR]
