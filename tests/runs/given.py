"""The store as a test uses it: requests in, rows out. Everything runs in the pool's threads, as in a server."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from django.db import connections

from agui_django.models import Interrupt, Message, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.codec import encode
from agui_django.protocol.run_input import build_run_input
from agui_django.runs.claims import process_name
from agui_django.runs.closing import close
from agui_django.runs.database import get_pool
from agui_django.runs.ledger import state_digest
from agui_django.runs.requests import AgentPolicy, Opened, StartRequest
from agui_django.runs.setup import Closing, Wire
from agui_django.runs.store import ThreadStore
from agui_django.runs.writer import Row

T = TypeVar("T")
_numbers = itertools.count(1)


def user(message_id: str, content: Any = "hi") -> Wire:
    return {"id": message_id, "role": "user", "content": content}


def says(message_id: str, content: str) -> Wire:
    return {"id": message_id, "role": "assistant", "content": content}


def calls(message_id: str, *call_ids: str) -> Wire:
    made = [{"id": key, "type": "function", "function": {"name": "front", "arguments": "{}"}} for key in call_ids]
    return {"id": message_id, "role": "assistant", "toolCalls": made}


def tool(message_id: str, call_id: str, content: str = "ok") -> Wire:
    return {"id": message_id, "role": "tool", "toolCallId": call_id, "content": content}


def resolved(interrupt_id: str, payload: Any = True) -> Wire:
    return {"interruptId": interrupt_id, "status": "resolved", "payload": payload}


def cancelled(interrupt_id: str) -> Wire:
    return {"interruptId": interrupt_id, "status": "cancelled"}


class Given:
    """One user's threads."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.scope = f"user:{owner.pk}"
        self.store = ThreadStore()

    # ---- asking ----

    def request(self, policy: AgentPolicy | None = None, **body: Any) -> StartRequest:
        number = next(_numbers)
        claim = body.pop("claim", process_name())
        extra = {key: body.pop(key) for key in ("actor", "may_answer", "may_give_up") if key in body}
        data = {
            "threadId": "t1", "runId": f"run{number}", "messages": [user(f"user{number}")],
            "tools": [{"name": "front", "description": "", "parameters": {}}], "context": [], "forwardedProps": {},
            **body,
        }  # fmt: skip
        return StartRequest(
            scope=self.scope, owner=self.owner, user=self.owner, agent=policy or AgentPolicy("echo"),
            run_input=build_run_input(data), claim=claim, **extra,
        )  # fmt: skip

    def open(self, policy: AgentPolicy | None = None, **body: Any) -> Opened:
        return self.do(self.store.open_run, self.request(policy, **body))

    def finish(self, opened: Opened, *, status: Any = "finished", **values: Any) -> bool:
        """End a run as the writer would, its events in one row."""
        assert opened.run is not None
        assert opened.setup is not None
        run = opened.run
        ids = {"threadId": opened.setup.thread_id, "runId": run.run_id}
        terminal = {"type": "RUN_FINISHED", **ids}
        if status == "failed":
            terminal = {"type": "RUN_ERROR", "message": "x"}
        log = [{"type": "RUN_STARTED", **ids}, terminal]
        row = Row(1, len(log), "\n".join(map(encode, log)), True)
        closing = Closing(status=status, terminal=terminal, **{"spent": True, **values})
        return self.do(close, run.uuid, run.claim, opened.setup.ledger, [row], len(log), closing)

    def turn(self, *messages: Wire, says: list[Wire] | None = None, **body: Any) -> Run:
        """A whole run: the user's messages, and what the agent made of them."""
        opened = self.open(messages=list(messages), **body)
        assert opened.kind == "created"
        assert self.finish(opened, messages=says or [])
        assert opened.run is not None
        return opened.run

    def asked(self, *interrupts: Wire, run_id: str = "asking", messages: list[Wire] | None = None) -> Opened:
        """A run that ended with questions."""
        opened = self.open(runId=run_id, messages=[user("u1")])
        wires = [{"reason": "confirmation", **wire} for wire in interrupts]
        assert self.finish(opened, status="interrupted", interrupts=wires, messages=messages or [])
        return opened

    # ---- looking ----

    def do(self, function: Callable[..., T], *args: Any) -> T:
        return get_pool().run_sync(function, *args)

    @property
    def thread(self) -> Thread:
        return Thread.objects.get(scope=self.scope, thread_id="t1")

    @property
    def ids(self) -> list[str]:
        return list(Message.objects.filter(thread=self.thread).in_play().values_list("message_id", flat=True))

    @property
    def wires(self) -> list[Wire]:
        rows = Message.objects.filter(thread=self.thread).in_play()
        return [json.loads(wire) for wire in rows.values_list("wire", flat=True)]

    @property
    def open_ids(self) -> list[str]:
        rows = Interrupt.objects.filter(thread=self.thread).open()
        return list(rows.order_by("position").values_list("interrupt_id", flat=True))

    def run(self, opened: Opened) -> Run:
        assert opened.run is not None
        return Run.objects.get(pk=opened.run.pk)

    def log(self, run: Any) -> list[Wire]:
        rows = RunEvents.objects.filter(run=run).order_by("first_seq")
        lines = [line for row in rows for line in row.text.split("\n")]
        seqs = [seq for row in rows for seq in range(row.first_seq, row.last_seq + 1)]
        assert seqs == list(range(1, len(lines) + 1)), "the log's numbers have gaps"
        return [json.loads(line) for line in lines]

    def stored(self, *messages: Wire, state: Any = None) -> Thread:
        """A thread as a former version of this app, or an import, left it: no runs, order numbers without gaps."""
        thread = Thread.objects.create(
            scope=self.scope, thread_id="t1", owner=self.owner, agent="echo", state=encode(state or {}),
            state_version=1 if state else 0,
        )  # fmt: skip
        if state:
            StateVersion.objects.create(
                thread=thread, version=1, state=encode(state), digest=state_digest(state), origin="agent"
            )
        for order, message in enumerate(messages, start=1):
            Message.objects.create(
                thread=thread, message_id=message["id"], role=message["role"], wire=encode(message), order=order
            )
        return thread


class Statements:
    """Counts the SQL statements of all connections of this process, whichever thread executes them."""

    def __init__(self) -> None:
        self.sql: list[str] = []

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if not sql.startswith("BEGIN"):  # SQLite's goes through the cursor, PostgreSQL's does not
            self.sql.append(sql)
        return execute(sql, params, many, context)

    def __len__(self) -> int:
        return len(self.sql)

    def of(self, table: str) -> list[str]:
        return [sql for sql in self.sql if f'"{table}"' in sql]


@contextlib.contextmanager
def counted() -> Iterator[Statements]:
    """Count what the pool's threads execute inside the block. BEGIN and COMMIT are not counted."""
    pool, statements = get_pool(), Statements()
    pool.run_sync(_connect)
    pool.submit_writer(_connect).result()
    wrapped = list(pool._opened)
    for connection in wrapped:
        connection.execute_wrappers.append(statements)
    try:
        yield statements
    finally:
        for connection in wrapped:
            connection.execute_wrappers.remove(statements)


def _connect() -> None:
    connections[get_pool().alias].ensure_connection()
