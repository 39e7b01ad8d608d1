"""What both clients are: one conversation with one agent, and how its requests are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from uuid import uuid4

from pydantic import BaseModel

from agui_django.client.exchange import Exchange, FollowExchange, Limits, RunExchange
from agui_django.client.fold import Fold, Outcome
from agui_django.client.older import Wire, numbers, prepare_input
from agui_django.protocol.codec import clean, encode

Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]

#: What a request always says. Compressed streams are refused: a few bytes can become gigabytes.
ALWAYS = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}


class Conversation:
    """One conversation with one agent; one run at a time.

    Args:
        url: the agent's address.
        thread_id: names the conversation; default: a new one.
        messages: what was said before, as wire dicts or official models.
        state: the shared state.
        tools: the tools that this side executes.
        context: what the agent is to know about this side.
        headers: sent with every request (``Authorization``); a mapping, or a callable that gives one each time.
        peer: the protocol version of a server from before 1.0, such as ``"0.0.57"``.
        site: the address that `follow` and `hydrate` ask below; default: where ``agents/<name>`` begins in `url`.
        limits: sizes and reconnects.

    Attributes:
        thread_id: its name.
        warnings: what was dropped, stripped or not applied so far.
    """

    def __init__(
        self,
        url: str,
        *,
        thread_id: str | None = None,
        messages: Iterable[Any] = (),
        state: Any = None,
        tools: Iterable[Any] = (),
        context: Iterable[Any] = (),
        headers: Headers | None = None,
        peer: str | None = None,
        site: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("The agent's address must begin with http:// or https://.")
        if peer is not None:
            numbers(peer)
        self.url = url
        self.thread_id = thread_id or uuid4().hex
        self.tools = list(tools)
        self.context = list(context)
        self.warnings: list[str] = []
        self._headers = headers
        self._peer = peer
        self._site = site
        self._limits = limits or Limits()
        # Held as they were given (they may have parts from before 1.0), until a run has begun.
        self._given: list[Wire] = [_plain(message) for message in messages]
        self._state = _plain(state)
        self._fold: Fold | None = None
        self._cursor = ""

    # ---- what is held ----

    @property
    def messages(self) -> list[Wire]:
        """The conversation as it stands, as wire dicts; live while a run is read."""
        return self._given if self._fold is None else self._fold.messages

    @property
    def state(self) -> Any:
        """The shared state as it stands; assign to send another one with the next run."""
        return self._state if self._fold is None else self._fold.state

    @state.setter
    def state(self, value: Any) -> None:
        self._given, self._state, self._fold = self.messages, _plain(value), None

    @property
    def cursor(self) -> str:
        """The place behind the last event that `follow` handed out; keep it to go on from there."""
        return self._cursor

    # ---- requests ----

    def _start(
        self,
        text: Any,
        *,
        tool_results: Mapping[str, Any] | None = None,
        resume: Sequence[Wire] = (),
        run_id: str | None = None,
        forwarded_props: Mapping[str, Any] | None = None,
    ) -> RunExchange:
        messages = list(self.messages)
        for call_id, value in (tool_results or {}).items():
            content = value if isinstance(value, str) else encode(clean(value))
            messages.append({"id": uuid4().hex, "role": "tool", "toolCallId": call_id, "content": content})
        if text is not None:
            messages.append({"id": uuid4().hex, "role": "user", "content": _plain(text)})
        body: Wire = {
            "threadId": self.thread_id,
            "runId": run_id or uuid4().hex,
            # Activities are for people; a server does not take them back (events/activity).
            "messages": [message for message in messages if message["role"] != "activity"],
            "tools": [_plain(tool) for tool in self.tools],
            "context": [_plain(item) for item in self.context],
            "forwardedProps": _plain(forwarded_props or {}),
        }
        if self.state is not None:
            body["state"] = self.state
        if resume:
            body["resume"] = [_plain(entry) for entry in resume]
        sent = prepare_input(body, self._peer, self.warnings.append)
        fold = self._new_fold(messages, self.state)
        return RunExchange(self.url, encode(clean(sent)).encode(), fold, self._limits, begun=lambda: self._adopt(fold))

    def _followed(self, after: str, *, until_idle: bool) -> FollowExchange:
        held = (self.messages, self.state) if after else ((), None)
        fold = self._new_fold(*held)
        return FollowExchange(
            urljoin(self._below(), "threads/events"),
            {"threadId": self.thread_id},
            fold,
            self._limits,
            begun=lambda: self._adopt(fold),
            after=after,
            until_idle=until_idle,
        )

    def _new_fold(self, messages: Iterable[Mapping[str, Any]], state: Any) -> Fold:
        return Fold(messages, state, thread_id=self.thread_id, peer=self._peer, warnings=self.warnings)

    def _adopt(self, fold: Fold) -> None:
        """A run has begun: what it makes of the conversation is the conversation. One that was refused changes none."""
        self._fold = fold

    def _below(self) -> str:
        if self._site is not None:
            return self._site.rstrip("/") + "/"
        head, found, _ = urlsplit(self.url).path.rpartition("/agents/")
        if not found:
            raise ValueError("The agent's address holds no /agents/: say where the site is (site=…).")
        return urljoin(self.url, f"{head}/")

    def _sent_headers(self) -> dict[str, str]:
        given = self._headers() if callable(self._headers) else self._headers
        return {**ALWAYS, **(given or {})}

    def _stop_url(self, exchange: Exchange) -> str | None:
        """Where a run is stopped: beside its events."""
        location = exchange.location
        if location is None or not location.endswith("/events"):
            return None
        return quote(location.removesuffix("events") + "cancel", safe=":/%?&=+,;@!$'()*~-._[]")


class RunView:
    """What is known of a run, or of a thread that is followed."""

    def __init__(self, conversation: Conversation, exchange: Exchange) -> None:
        self._conversation = conversation
        self._exchange = exchange
        self._fold = exchange.fold
        self._before = {message["id"] for message in self._fold.messages}

    @property
    def messages(self) -> list[Wire]:
        """The whole conversation as it stands."""
        return self._fold.messages

    @property
    def new_messages(self) -> list[Wire]:
        """What has come since the request."""
        return [message for message in self._fold.messages if message["id"] not in self._before]

    @property
    def text(self) -> str:
        """What the agent has said in words since the request, message by message."""
        said = (m.get("content") for m in self.new_messages if m["role"] == "assistant")
        return "\n\n".join(text for text in said if isinstance(text, str) and text)

    @property
    def state(self) -> Any:
        """The shared state as it stands."""
        return self._fold.state

    @property
    def outcome(self) -> Outcome | None:
        """How the last run ended: success, interrupt, cancelled or error; None: it has not."""
        return self._fold.outcome

    @property
    def result(self) -> Any:
        """What its RUN_FINISHED carries."""
        return self._fold.result

    @property
    def interrupts(self) -> list[Wire]:
        """The questions that it ended with."""
        return self._fold.interrupts

    @property
    def pending_calls(self) -> list[str]:
        """The ids of the tool calls that wait for this side."""
        return self._fold.pending_calls

    @property
    def usage(self) -> list[Wire]:
        """Token usage, per provider and model."""
        return self._fold.usage

    @property
    def error(self) -> Wire | None:
        """The RUN_ERROR event, where it ended with one."""
        return self._fold.error

    @property
    def run_errors(self) -> list[Wire]:
        """Every RUN_ERROR event of the stream."""
        return self._fold.run_errors

    @property
    def cursor(self) -> str:
        """The place behind the last event that was handed out."""
        return self._exchange.cursor

    @property
    def location(self) -> str | None:
        """The address of the run's events, where the server keeps them."""
        return self._exchange.location

    def raise_for_error(self) -> None:
        """Raise `RunFailed` where the last run has ended with RUN_ERROR."""
        self._fold.raise_for_error()


def resume_entries(answers: Mapping[str, Any], cancel: Iterable[str]) -> list[Wire]:
    """The entries of a resume: answers by interrupt id, and ids of questions that are given up."""
    given: list[Wire] = [
        {"interruptId": key, "status": "resolved", **({} if value is None else {"payload": value})}
        for key, value in answers.items()
    ]
    return [*given, *({"interruptId": key, "status": "cancelled"} for key in cancel)]


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value
