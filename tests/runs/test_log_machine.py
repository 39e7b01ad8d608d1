"""Whatever happens to runs: re-reading the log gives the thread, and what a follower saw is never lost."""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from agui_django.models import Run, RunEvents
from agui_django.protocol.codec import encode
from agui_django.protocol.errors import RunClosed
from agui_django.protocol.json_patch import json_equal
from agui_django.protocol.reducer import Reducer
from agui_django.protocol.verifier import SequenceVerifier
from agui_django.runs import recorder as recorders
from agui_django.runs.database import get_pool
from agui_django.runs.recorder import Recorder
from agui_django.runs.requests import Opened
from agui_django.runs.setup import Closing
from tests.runs.given import Given, user

_threads = itertools.count(1)


#: What is recorded went through the normaliser, which leaves no NUL and no half of a surrogate pair.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)


class Log(RuleBasedStateMachine):
    """One thread; a model of what must be stored beside what is."""

    given: Given

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.thread_id = f"machine{next(_threads)}"
        self.ids = itertools.count(1)
        self.opened: Opened | None = None
        self.recorder: Recorder | None = None
        self.reducer = Reducer([], {})
        self.events: list[dict[str, Any]] = []
        self.shown: list[str] = []
        self.message: str | None = None
        self.taken = False

    def teardown(self) -> None:
        if self.recorder is not None:
            self.cut()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def do(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 20))

    # ---- what happens ----

    @precondition(lambda self: self.recorder is None)
    @rule(greets=st.booleans())
    def open(self, greets: bool) -> None:
        message = user(f"u{next(self.ids)}")
        request = self.given.request(threadId=self.thread_id, messages=[message])
        self.opened = self.do(self.given.store.aopen_run(request))
        assert self.opened.kind == "created"
        assert self.opened.setup is not None
        assert self.opened.setup.messages == [*self.reducer.messages, message]
        assert json_equal(self.opened.setup.state, self.reducer.state)
        self.reducer = Reducer(self.opened.setup.messages, self.opened.setup.state)
        self.before = self.reducer.state

        async def make() -> Recorder:
            return Recorder(self.opened.run, self.opened.setup)  # type: ignore[union-attr, arg-type]

        self.recorder = self.do(make())
        self.events, self.shown, self.message, self.taken = [], [], None, False
        started = {"type": "RUN_STARTED", "threadId": self.thread_id, "runId": self.opened.run.run_id}  # type: ignore[union-attr]
        self.emit({**started, "input": {"messages": [message]}}, urgent=greets)

    def emit(self, event: dict[str, Any], *, urgent: bool = False) -> None:
        assert self.recorder is not None
        try:
            self.recorder.append(encode(event), plain=True, urgent=urgent)
        except RunClosed:
            assert self.taken
            return
        self.events.append(event)
        self.reducer.apply(event)

    @precondition(lambda self: self.recorder is not None)
    @rule(pieces=st.lists(TEXT, min_size=1, max_size=30), urgent=st.booleans())
    def speak(self, pieces: list[str], urgent: bool) -> None:
        if self.message is None:
            self.message = f"m{next(self.ids)}"
            self.emit({"type": "TEXT_MESSAGE_START", "messageId": self.message, "role": "assistant"})
        for piece in pieces:
            self.emit({"type": "TEXT_MESSAGE_CONTENT", "messageId": self.message, "delta": piece}, urgent=urgent)

    @precondition(lambda self: self.message is not None)
    @rule()
    def stop_speaking(self) -> None:
        self.emit({"type": "TEXT_MESSAGE_END", "messageId": self.message})
        self.message = None

    @precondition(lambda self: self.recorder is not None)
    @rule(value=st.integers(0, 3))
    def set_state(self, value: int) -> None:
        self.emit({"type": "STATE_SNAPSHOT", "snapshot": {"k": value}})

    @precondition(lambda self: self.recorder is not None)
    @rule(result=st.booleans())
    def call(self, result: bool) -> None:
        call, parent = f"c{next(self.ids)}", self.message
        opener = {"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": "f"}
        self.emit({**opener, "parentMessageId": parent} if parent else opener)
        self.emit({"type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": "{}"})
        self.emit({"type": "TOOL_CALL_END", "toolCallId": call})
        self.emit({"type": "TOOL_CALL_RESULT", "messageId": f"r{call}", "toolCallId": call, "content": "ok"})

    @precondition(lambda self: self.recorder is not None)
    @rule()
    def flush(self) -> None:
        assert self.recorder is not None
        try:
            self.do(self.settled(self.recorder))
        except RunClosed:
            assert self.taken
            return
        if not self.taken:
            assert self.recorder.committed == len(self.events)

    @staticmethod
    async def settled(recorder: Recorder) -> None:
        await recorder.flush()

    @precondition(lambda self: self.recorder is not None and not self.taken)
    @rule()
    def pass_time(self) -> None:
        self.do(asyncio.sleep(0.015))

    @precondition(lambda self: self.recorder is not None and not self.taken)
    @rule()
    def take_away(self) -> None:
        """Another process takes the run: from here on not one row more."""
        self.taken = True
        self.in_pool(lambda: Run.objects.filter(pk=self.run_pk).update(claim="thief"))
        self.stored_when_taken = self.log()

    # ---- how it ends ----

    @precondition(lambda self: self.recorder is not None and not self.taken)
    @rule(failed=st.booleans())
    def close(self, failed: bool) -> None:
        if self.message is not None:
            self.stop_speaking()
        ids = {"threadId": self.thread_id, "runId": self.opened.run.run_id}  # type: ignore[union-attr]
        terminal = {"type": "RUN_ERROR", "message": "x"} if failed else {"type": "RUN_FINISHED", **ids}
        touched = set(self.reducer.touched)
        closing = Closing(
            status="failed" if failed else "finished", terminal=terminal, spent=True, state=self.reducer.state,
            messages=[message for message in self.reducer.messages if message["id"] in touched],
            state_changed=not json_equal(self.before, self.reducer.state),
        )  # fmt: skip
        recorder, self.recorder = self.recorder, None
        self.events.append(terminal)
        assert self.do(recorder.close(closing)) is True  # type: ignore[union-attr]
        self.check_ended()

    @precondition(lambda self: self.recorder is not None)
    @rule()
    def cut(self) -> None:
        """The process dies here; later another one finds the run."""
        recorder, self.recorder, self.message = self.recorder, None, None
        assert recorder is not None
        # What is under way may or may not get through, as in life; nothing new is written.
        recorder.lose(RunClosed("killed"))
        recorders.recorders.pop(recorder.uuid, None)
        get_pool().submit_writer(int).result()
        old = timezone.now() - timedelta(hours=1)
        self.in_pool(lambda: Run.objects.filter(pk=self.run_pk).update(claim="dead", heartbeat=old))
        survived = self.log()
        assert survived[: len(self.shown)] == self.shown, "a follower saw what was not stored"
        assert survived == [encode(event) for event in self.events[: len(survived)]]
        assert self.in_pool(lambda: self.given.store.reap(self.run_pk)) is True
        self.reducer = Reducer(self.opened.setup.messages, self.opened.setup.state)  # type: ignore[union-attr]
        self.events = [json.loads(text) for text in self.log()]
        assert [encode(event) for event in self.events[: len(survived)]] == survived
        for event in self.events:
            self.reducer.apply(event)
        self.taken = False
        self.check_ended()

    # ---- what must hold ----

    @invariant()
    def what_is_shown_is_stored(self) -> None:
        if self.recorder is None:
            return
        seen = len(self.shown)
        tail = self.recorder.tail_from(seen)
        assert tail is not None
        assert [seq for seq, _, _ in tail] == list(range(seen + 1, seen + 1 + len(tail)))
        self.shown += [text for _, text, _ in tail]
        stored = self.log()
        assert stored[: len(self.shown)] == self.shown
        assert stored == [encode(event) for event in self.events[: len(stored)]]
        if self.taken:
            assert stored == self.stored_when_taken

    def check_ended(self) -> None:
        """The rows are what the log gives, from whichever end one reads them."""
        assert self.log() == [encode(event) for event in self.events]
        verifier = SequenceVerifier(producer=True, thread_id=self.thread_id)
        for event in self.events:
            verifier.feed(event)
        assert verifier.terminal is not None
        shown = self.in_pool(lambda: self.given.store.hydrate(self.given.scope, self.thread_id))
        assert shown.messages == self.reducer.messages
        assert json_equal(shown.state, self.reducer.state)
        replayed = Reducer(self.opened.setup.messages, self.opened.setup.state)  # type: ignore[union-attr]
        for event in self.events:
            replayed.apply(event)
        assert replayed.messages == shown.messages

    # ---- helpers ----

    @property
    def run_pk(self) -> Any:
        return self.opened.run.pk  # type: ignore[union-attr]

    def in_pool(self, function: Any) -> Any:
        return get_pool().run_sync(function)

    def log(self) -> list[str]:
        def read() -> list[str]:
            rows = RunEvents.objects.filter(run=self.run_pk).order_by("first_seq")
            return [line for row in rows for line in row.text.split("\n")]

        return self.in_pool(read)


@pytest.mark.timeout(300)
def test_the_log_machine(given: Given) -> None:
    def machine() -> Log:
        made = Log()
        made.given = given
        return made

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
