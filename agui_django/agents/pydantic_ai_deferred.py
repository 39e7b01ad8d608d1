"""Calls that wait for somebody: pydantic-ai's deferred tools as our questions, and the answers back.

Law: an approval is for one call with exactly the arguments that were shown; what was approved is executed at most once,
through a claim. The page's calls and questions never end the same run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ToolCallPart, ToolReturn
from pydantic_core import to_jsonable_python

from agui_django.agents import once
from agui_django.agents.approvals import Approval, approval_key
from agui_django.agents.asking import Question
from agui_django.agents.calls import CANCELLED, ToolCall
from agui_django.agents.context import RunContext
from agui_django.agents.executing import suspends
from agui_django.agents.pydantic_ai_stream import Shown
from agui_django.protocol.codec import clean, decode
from agui_django.protocol.errors import Declined, OnceUnknown

Wire = dict[str, Any]


@dataclass(frozen=True)
class Marks:
    """How an agent's calls are asked about.

    Attributes:
        approvals: tool -> how a person is asked, where its function is marked `approval_required`.
        edit: the tools whose arguments a person may change.
        schemas: tool -> JSON Schema of its arguments.
    """

    approvals: Mapping[str, Approval]
    edit: frozenset[str]
    schemas: Mapping[str, Wire]

    def approval(self, tool: str, metadata: Mapping[str, Any]) -> Approval:
        """How a person is asked about a call."""
        marked = self.approvals.get(tool, Approval())
        message = metadata.get("message") or marked.message
        return Approval(message, marked.edit or tool in self.edit, marked.permission, marked.expires)


class Deferred:
    """The deferred calls of one run.

    Args:
        run: the run.
        marks: how is asked.
        page: names of the page's tools.
        shown: the run's ids.

    Attributes:
        results: what to go on with, or None.
        approved: pydantic-ai's call ids -> the keys that they may be executed under, once.
    """

    def __init__(self, run: RunContext[Any], marks: Marks, page: frozenset[str], shown: Shown) -> None:
        self.results: DeferredToolResults | None = None
        self.approved: dict[str, str] = {}
        self._run = run
        self._marks = marks
        self._page = page
        self._shown = shown

    # ---- at the end of a pass ----

    async def defer(self, requests: DeferredToolRequests) -> None:
        """Have what waits for the page done there, else ask.

        Raises:
            RunSuspended: always.
        """
        waiting = {
            self._shown.call(call.tool_call_id): {"kind": kind, **requests.metadata.get(call.tool_call_id, {})}
            for kind, calls in (("approval", requests.approvals), ("call", requests.calls))
            for call in calls
            if kind == "approval" or call.tool_name not in self._page
        }
        pending = {call.id: call for call in self._run.pending_calls}
        if waiting.keys() != pending.keys():  # the page comes first; the next pass has to know what else there is
            await self._kept(waiting)
            self._run.suspend()
        for call_id, about in waiting.items():
            self._ask(pending[call_id], about)
        self._run.suspend()

    # ---- at the beginning of a pass ----

    async def take(self) -> set[str]:
        """Read the answers to what this turn has left open; ids of the calls that stay in the history without a result.

        Raises:
            RunSuspended: somebody has to be waited for yet.
        """
        pending = {call.id: call for call in self._run.pending_calls}
        if not pending:
            return set()
        if any(call.name in self._page for call in pending.values()):
            self._run.suspend()
        results = DeferredToolResults()
        open_calls = await self._open(pending)
        questions = {call_id: (about, self._ask(pending[call_id], about)) for call_id, about in open_calls.items()}
        if any(not question.answered for _, question in questions.values()):
            self._run.suspend()
        for call_id, call in pending.items():
            if call_id not in questions:  # a pass that died in it; nobody was asked
                ToolCall(self._run._sink, call_id, call.name, frontend=False).fail(Declined(CANCELLED))
                continue
            about, question = questions[call_id]
            if about["kind"] == "approval":
                results.approvals[call_id] = self._approved(call, about, question)
            else:
                results.calls[call_id] = _result(question)
        if questions:
            self.results = results
        for call_id in questions:
            self._shown.ids[call_id] = call_id
        return set(questions)

    async def _open(self, pending: Mapping[str, ToolCall]) -> dict[str, Wire]:
        """The calls that were deferred, and what was said of them."""
        found: dict[str, Wire] = {}
        for call_id, call in pending.items():
            for kind in ("approval", "call"):
                if self._run.answer(_question_key(kind, call)) is not None:
                    found[call_id] = {"kind": kind}
        if found.keys() != pending.keys():
            # Asked for after the page's calls: what they are was kept when the model made them.
            kept = await self._kept({})
            found |= {call_id: about for call_id, about in kept.items() if call_id in pending}
        return found

    async def _kept(self, waiting: Mapping[str, Wire]) -> dict[str, Wire]:
        async def keep() -> dict[str, Any]:
            return dict(waiting)

        return await self._run.once(self._kept_key(), keep)

    def _kept_key(self) -> str:
        """The key under which the pass that made the last calls keeps what they are."""
        last = [each["id"] for each in self._run._sink.turn_messages() if each.get("toolCalls")][-1]
        return f"deferred:{last}"

    # ---- questions and answers ----

    def _ask(self, call: ToolCall, about: Mapping[str, Any]) -> Question[Any]:
        message, schema = about.get("message"), about.get("response_schema")
        permission = expires = None
        if about["kind"] == "approval":
            approval = self._marks.approval(call.name, about)
            message, schema = approval.question(call.name, call.args), self._schema(call.name, approval)
            permission, expires = approval.permission, approval.expires
        told = {name: value for name, value in about.items() if name not in ("kind", "message", "response_schema")}
        return self._run.ask(
            _question_key(about["kind"], call),
            reason="tool_call",
            message=message or f"Result of {call.name}?",
            response_schema=schema,
            tool_call_id=call.id,
            permission=permission,
            expires=expires,
            metadata=told or None,
        )

    def _schema(self, tool: str, approval: Approval) -> Wire:
        properties: Wire = {"approved": {"type": "boolean"}, "reason": {"type": "string"}}
        if approval.edit:
            properties["editedArgs"] = self._marks.schemas.get(tool, {"type": "object"})
        return {"type": "object", "properties": properties, "required": ["approved"], "additionalProperties": False}

    def _approved(self, call: ToolCall, about: Mapping[str, Any], question: Question[Any]) -> ToolApproved | ToolDenied:
        try:
            edited = self._marks.approval(call.name, about).allowed(question)
        except Declined as declined:
            return ToolDenied(str(declined))
        self.approved[call.id] = question.key
        if edited is None:
            return ToolApproved()
        self._shown.edited[call.id] = decode(edited)
        return ToolApproved(override_args=decode(edited))


def _result(question: Question[Any]) -> Any:
    """An answer as the result of a call that was carried out elsewhere."""
    try:
        return question.answer()
    except Declined:
        return ToolFailed(CANCELLED)


def _question_key(kind: str, call: ToolCall) -> str:
    key = approval_key(call.id, call.name, call.args_text)
    return key if kind == "approval" else f"result:{key.partition(':')[2]}"


@dataclass
class Carefully(AbstractCapability[Any]):
    """Executes what was approved at most once, and shows tools in traces.

    Args:
        run: the run.
        deferred: what was approved.
        shown: the run's ids.
    """

    run: RunContext[Any]
    deferred: Deferred
    shown: Shown
    flushed: bool = field(default=False, init=False)

    async def wrap_tool_execute(self, ctx: Any, *, call: ToolCallPart, tool_def: Any, args: Any, handler: Any) -> Any:
        """Around each call of a tool.

        Raises:
            RuntimeError: the tool left the run to ask.
        """
        sink = self.run._sink
        key = self.deferred.approved.get(call.tool_call_id)

        async def work() -> Any:
            with _asks_properly(call.tool_name):
                return await handler(args)

        with sink.executing(self.shown.call(call.tool_call_id), call.tool_name):
            if key is None:
                if self.run.resumed and not self.flushed:
                    # Should the process die now, the answers were used: what stands in the log says so.
                    await sink.flush()
                    self.flushed = True
                return await work()
            done: list[Any] = []

            async def kept_work() -> Any:
                done.append(await work())
                return _jsonable(done[0])

            self.shown.unknown.add(call.tool_call_id)
            try:
                kept = await once.perform(sink, key, kept_work)
            except Exception as error:
                if not done and not isinstance(error, OnceUnknown):
                    self.shown.unknown.discard(call.tool_call_id)
                raise
            return done[0] if done else kept


@contextmanager
def _asks_properly(tool: str) -> Iterator[None]:
    """A tool that suspends the run would have its answer lost: pydantic-ai does not call it again."""
    try:
        yield
    except BaseException as error:
        if not suspends(error):
            raise
        raise RuntimeError(
            f"{tool} suspended the run, but would not be called again with the answer: a tool asks with "
            "ApprovalRequired or CallDeferred."
        ) from error


def _jsonable(value: Any) -> Any:
    """A tool's value as it is kept for a pass that comes after a crash."""
    told = value.return_value if isinstance(value, ToolReturn) else value
    return clean(to_jsonable_python(told, fallback=str, bytes_mode="base64"))
