"""One run while its agent works: the engine's side of a `RunContext`.

Law: whoever calls, from whatever thread, what happens happens in the loop, in the caller's order.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from typing import Any, NoReturn, TypeVar

from django.conf import settings as django_settings

from agui_django.agents.context import RunContext
from agui_django.agents.costs import Cost, OwnCosts
from agui_django.agents.sink import CallFollower, OnceClaim, Wire
from agui_django.protocol.errors import RunSuspended
from agui_django.runs import attachments
from agui_django.runs.emission import Emission
from agui_django.runs.followed_calls import FollowedCalls
from agui_django.runs.hints import Hints
from agui_django.runs.present import Present
from agui_django.runs.setup import RunLog, RunSetup
from agui_django.runs.telemetry import RunTrace
from agui_django.runs.threads import STALL, Inbox, RunThread

T = TypeVar("T")

logger = logging.getLogger("agui_django.runs")


class RunSession(Emission):
    """The `RunSink` of one run. Everything happens in the loop's thread, unless a method says otherwise."""

    def __init__(self, setup: RunSetup, log: RunLog, **how: Any) -> None:
        """See `Emission`."""
        super().__init__(setup, log, **how)
        self.logger = logger
        self.keys: set[str] = set()
        self.prefix = ""
        self.result: Any = None
        self.cancelled: str | None = None
        self.suspended = False
        self.followed: FollowedCalls | None = None
        self.trace: RunTrace | None = None
        self.questions: dict[str, tuple[Wire, str]] = {}
        self.claimed = False
        self.approvals: dict[str, Any] = {}
        self.usage: dict[tuple[Any, Any], Wire] = {}
        #: Tokens that were reported in a total only, neither as input nor as output.
        self._unsplit: dict[tuple[Any, Any], int] = {}
        self.costs = OwnCosts()
        self.tool_names = frozenset(tool["name"] for tool in setup.input.get("tools") or ())
        self.inbox = Inbox(self.loop, self._rung)
        self.run_thread = RunThread()
        self.context: RunContext[Any] = RunContext(self)
        self.hints = Hints(self) if django_settings.DEBUG else None
        if self.hints is not None:
            self.document.copied = self.hints.copied

    @property
    def acted(self) -> bool:
        """Whether something was done that cannot be taken back: an event of the agent, or a claim."""
        return self.first_at is not None or self.claimed

    def begin_again(self) -> None:
        """Forget what a call of the agent has left, of which nothing was seen; what it used stays counted."""
        self.keys.clear()
        self.questions.clear()
        self.approvals.clear()
        self.result, self.suspended, self.followed = None, False, None

    # ---- threads ----------------------------------------------------------------------------------------------

    def _rung(self) -> None:
        """Threads have handed something over."""
        if self.closed:
            self.inbox.close()
        elif self.log.crowded() and self.cancelled is None:
            self._busy = True
            self.loop.call_later(STALL, self._rung)
        else:
            self._busy = True
            self._loop_turned()

    def call(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Have the loop call this, in order, and wait for what it gives; from any thread."""
        if get_ident() == self.thread:
            if self._busy and not self.closed:
                self._settle()
            return fn(*args, **kwargs)
        future: Future[T] = Future()
        self.inbox.put(future, fn, args, kwargs)
        return future.result()

    def wait(self, fn: Callable[[], Awaitable[T]], *, check: bool = True) -> T:
        """Wait in a thread for something that the loop waits for."""
        if check:
            self.inbox.check()

        async def waiting() -> T:
            return await fn()

        return asyncio.run_coroutine_threadsafe(waiting(), self.loop).result()

    def check(self) -> None:
        """Raise RunCancelled if the run is cancelled; from any thread."""
        if get_ident() != self.thread:
            self.inbox.check()
        elif self.cancelled is not None:
            raise asyncio.CancelledError(self.cancelled)

    async def in_thread(self, fn: Callable[[], T]) -> T:
        """Run a synchronous function in the run's own thread."""

        def work() -> tuple[int, T | None, BaseException | None]:
            self.inbox.enter()
            try:
                return get_ident(), fn(), None
            except BaseException as error:  # what a future cannot carry (StopIteration) is carried beside it
                return get_ident(), None, error

        thread, value, error = await self.run_thread.run(work)
        if self._busy and not self.closed:
            self._settle()  # what the thread emitted comes before what follows here
        error = self.inbox.leave(thread) if error is None else error
        if error is not None:
            if isinstance(error, StopIteration):
                raise RuntimeError("A synchronous function raised StopIteration.") from error
            raise error
        return value  # type: ignore[return-value]  # there is no error, so it is fn's

    def present(self) -> Present | None:
        """What the events so far make; None where the documents are ahead of them, or there is nothing to join."""
        verifier, document = self.normaliser.verifier, self.document
        if self._busy or self._dirty or not self.count or verifier.terminal is not None:
            return None
        if not document.lock.acquire(blocking=False):  # a thread is writing
            return None
        try:
            if document.pending or document.in_block:
                return None
            state = document.plain()
        finally:
            document.lock.release()
        return Present(self.count, self.reducer.messages, state, [item.opening() for item in verifier.open_items()])

    async def flush(self) -> None:
        """Until all so far is stored and visible."""
        if self._busy:
            self._settle()
        await self.log.flush()

    def attachment(self, part: Wire) -> Awaitable[bytes]:
        """The bytes of a message's part: its own, or those of a file of the thread."""
        return attachments.content(getattr(self.setup.ledger, "thread", None), part)

    # ---- what was said, asked, used ----------------------------------------------------------------------------------

    def messages(self) -> list[Wire]:
        """The thread's messages now."""
        self.settle()
        return self.reducer.messages

    def message(self, message_id: str) -> Wire | None:
        """One of them."""
        return self.reducer.message(message_id)

    def call_of(self, call_id: str) -> Wire | None:
        """A tool call of the messages now."""
        return self.reducer.tool_call(call_id)

    def result_of(self, call_id: str) -> Wire | None:
        """The tool message that answers a call."""
        return next((m for m in self.reducer.messages if m["role"] == "tool" and m["toolCallId"] == call_id), None)

    def turn_messages(self, subagent: str | None = None) -> list[Wire]:
        """What the agent, or one of its subagents, has said behind the last message of the user, and every result."""
        said = self._said()
        return [message for message in said if message.get("subagentRunId") == subagent or message["role"] == "tool"]

    def _said(self) -> list[Wire]:
        messages = self.messages()
        for index in range(len(messages) - 1, -1, -1):
            if messages[index]["role"] == "user":
                return messages[index + 1 :]
        return messages

    def follow_calls(self, follower: CallFollower) -> None:
        """Tell somebody of the tool calls from now on."""
        if self.followed is None:
            self.followed = FollowedCalls(self)
        self.followed.add(follower)

    def traced(self, trace: RunTrace) -> None:
        """Have the tool calls from now on traced."""
        self.trace = trace
        self.reducer.watch_calls(trace.told)

    def executing(self, call_id: str, tool: str) -> AbstractContextManager[None]:
        """Around the execution of a tool's function; from any thread."""
        return nullcontext() if self.trace is None else self.trace.executing(call_id, tool)

    def ask(self, key: str, interrupt: Wire, permission: str) -> None:
        """Note a question; the run ends with it."""
        self.questions[key] = (interrupt, permission)

    def asked(self) -> set[str]:
        """The keys of the questions so far."""
        return set(self.questions)

    def withdraw(self, keys: set[str]) -> None:
        """Take questions back."""
        for key in keys:
            del self.questions[key]

    # ---- once per turn -----------------------------------------------------------------------------------------------

    async def claim_once(self, key: str) -> OnceClaim:
        """Claim something that happens once per turn."""
        found = await self.log.claim_once(OnceClaim(key, secrets.token_hex(8)))
        self.claimed = self.claimed or found.state == "mine"
        return found

    def settle_once(self, claim: OnceClaim, text: str | None) -> Awaitable[None]:
        """Keep a claim's value, or release it; with the events so far."""
        if self._busy and not self.closed:
            self._settle()
        return self.log.settle_once(claim, text)

    def suspensions(self) -> dict[str, list[str]]:
        """Of every open subagent, the ids of the questions that it asked."""
        asked: dict[str, list[str]] = {
            item.id: [] for item in self.normaliser.verifier.open_items() if item.kind == "subagent"
        }
        for question, _ in self.questions.values():
            if question.get("subagentRunId") in asked:
                asked[question["subagentRunId"]].append(question["id"])
        return asked

    def suspend(self) -> NoReturn:
        """Leave the function, where something outside can bring it back."""
        if not self.questions and not any(
            name in self.tool_names or call_id.startswith(f"{self.setup.turn}:") for call_id, name in self._open_calls()
        ):
            raise RuntimeError("suspend(): nothing was asked, and no call waits for the page.")
        self.suspended = True
        raise RunSuspended

    def _open_calls(self) -> list[tuple[str, str]]:
        messages = self._said()
        answered = {message["toolCallId"] for message in messages if message["role"] == "tool"}
        return [
            (call["id"], call["function"]["name"])
            for message in messages
            for call in message.get("toolCalls") or ()
            if call["id"] not in answered
        ]

    def _absorb(self, event: Wire) -> None:
        """What the agent's own RUN_FINISHED or RUN_ERROR says."""
        self.result = event.get("result", self.result)
        for entry in event.get("usage") or ():
            self.add_usage(entry)
        outcome = event.get("outcome") or {}
        for interrupt in outcome.get("interrupts", ()):
            self.questions.setdefault(interrupt["id"], (interrupt, ""))

    def add_usage(self, entry: Wire, cost: Cost | None = None) -> None:
        """Sum up; a count that nobody reported stays absent (events/lifecycle.mdx, token usage)."""
        if cost is not None:
            self.costs.add(cost, entry)
        key = entry.get("provider"), entry.get("model")
        total = self.usage.setdefault(key, {name: entry[name] for name in ("provider", "model") if name in entry})
        for name, count in entry.items():
            if name not in ("provider", "model", "totalTokens"):
                total[name] = total.get(name, 0) + count
        split = [entry[name] for name in ("inputTokens", "outputTokens") if name in entry]
        if "totalTokens" in entry and len(split) < 2:
            self._unsplit[key] = self._unsplit.get(key, 0) + max(entry["totalTokens"] - sum(split), 0)
        if key in self._unsplit or ("inputTokens" in total and "outputTokens" in total):
            known = total.get("inputTokens", 0) + total.get("outputTokens", 0)
            total["totalTokens"] = known + self._unsplit.get(key, 0)

    # ---- for the developer -------------------------------------------------------------------------------------------

    def hint(self, text: str, *args: Any) -> None:
        """Tell the developer, where DEBUG is on."""
        if self.hints is not None:
            self.hints.tell(text, *args)

    def _ended(self, message_id: str) -> None:
        self.repeated(message_id)

    def _late(self) -> None:
        if self.hints is not None:
            self.hints.late()

    def repeated(self, message_id: str) -> None:
        """A message without a key has ended."""
        if self.hints is not None:
            self.hints.ended(message_id)
