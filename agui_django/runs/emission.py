"""How a run's events reach the log: the emitting half of `RunSession`.

Law: an event is verified, reduced, encoded and handed to the log when the call returns; what marks the run (an illegal
event, a limit) is remembered, whatever becomes of the exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from agui_django.agents.asking import json_default
from agui_django.agents.sink import READY, Event, Handle, Wire
from agui_django.agents.state import Snapshot, StateDocument
from agui_django.conf import settings
from agui_django.protocol.codec import encode
from agui_django.protocol.downgrade import needs_downgrade
from agui_django.protocol.errors import AgentFlood, AgUiError, LogLimit, RunClosed
from agui_django.protocol.json_patch import PatchError, apply_patch, json_equal, make_patch
from agui_django.protocol.normaliser import Normaliser
from agui_django.protocol.reducer import Reducer
from agui_django.runs.edits import Edit, mark
from agui_django.runs.setup import RunLog, RunSetup, milliseconds
from agui_django.runs.started import first_event

if TYPE_CHECKING:
    from agui_django.runs.threads import Inbox

logger = logging.getLogger("agui_django.runs")

_STATE_EVENTS = frozenset({"STATE_DELTA", "STATE_SNAPSHOT"})


class RunReducer(Reducer):
    """The reducer whose state is the live document: its edits are applied already, foreign ones are written into it."""

    def __init__(self, messages: Iterable[Wire], document: StateDocument, warn: Callable[[str], None]) -> None:
        """Start from the thread's messages."""
        super().__init__(messages, None, warn=warn)
        self._document = document

    def set_state(self, value: Any) -> None:
        """A STATE_SNAPSHOT of the agent."""
        self._document.replace_foreign(value)

    def patch_state(self, ops: list[dict[str, Any]]) -> bool:
        """A STATE_DELTA of the agent."""
        return self._document.apply_foreign(ops)


class Emission:
    """What a run emits. Everything happens in the loop's thread, unless a method says otherwise.

    Args:
        setup: what the run starts from.
        log: where its events go.
        state_schema: what the state always fits, or None.
        state: what the state is now.
        on_limit: called when the log is full.
        on_taken: called when the log is taken away.

    Attributes:
        count: how many events are recorded: the number of the last one.
        first_at: when the agent's first event came, by the loop's clock.
        closed: the run has ended, or was taken away; nothing more is emitted.
        limit, flood: what the log refused.
    """

    inbox: Inbox

    def __init__(
        self,
        setup: RunSetup,
        log: RunLog,
        *,
        state: Any,
        state_schema: Any = None,
        on_limit: Callable[[], None],
        on_taken: Callable[[], None],
    ) -> None:
        self.setup = setup
        self.log = log
        self.loop = asyncio.get_running_loop()
        self.thread = get_ident()
        self.closed = False
        self.count = 0
        self.first_at: float | None = None
        self.state_edited = False
        self.flood: AgentFlood | None = None
        self.limit: LogLimit | None = None
        self.document = StateDocument(
            state, on_edit=self._state_edited, schema=state_schema, default=json_default, most=settings.MAX_STATE
        )
        self.reducer = RunReducer(setup.messages, self.document, self.warn)
        self.normaliser = Normaliser(
            thread_id=setup.thread_id,
            run_id=setup.run_id,
            reducer=self.reducer,
            now=milliseconds,
            state=self.document.plain,
            default=json_default,
            warn=self.warn,
        )
        self._short = self.normaliser.piece
        self._append = log.append
        self._on_limit = on_limit
        self._on_taken = on_taken
        self._turn = _Turn(log)
        #: Something must be done before the next event: edits to emit, a thread's calls to take.
        self._busy = False
        self._dirty: dict[StateDocument, Callable[[Any], Wire]] = {}
        self._scheduled = False
        self._implicit: Any = None  # the short way into the message that yielded texts make

    def warn(self, text: str) -> None:
        """What was repaired or dropped."""
        logger.warning("Run %s of agent %s: %s", self.setup.address, self.setup.agent, text)

    def _absorb(self, event: Wire) -> None:
        """What the agent's own RUN_FINISHED or RUN_ERROR says."""
        raise NotImplementedError

    def _ended(self, message_id: str) -> None:
        """A message without a key has ended."""
        raise NotImplementedError

    def _late(self) -> None:
        """Something came after the end."""
        raise NotImplementedError

    # ---- the engine's first events -----------------------------------------------------------------------------------

    def start(self) -> None:
        """RUN_STARTED, and the state where it is not what the client holds."""
        first = self.setup.first or first_event(self.setup)
        self.normaliser.aside(first.wire)
        if self.setup.first is None:
            self._put(first.text, plain=first.plain, urgent=True)
        else:  # the log begins with it
            self.count = 1
        if self.setup.state_differs:
            self.append(self.normaliser.aside({"type": "STATE_SNAPSHOT", "snapshot": self.document.plain()}))

    # ---- the agent's events ------------------------------------------------------------------------------------------

    def yielded(self, event: Event) -> Awaitable[None]:
        """An event as an agent yields it: nothing may be open in its state now."""
        self.document.check_no_block_open()
        return self.emitted(event)

    def emitted(self, event: Event) -> Awaitable[None]:
        """An event of the agent: text goes to the implicit message, which another kind ends."""
        if isinstance(event, str):
            return self._implicitly(event)
        if self._implicit is not None:
            self.end_implicit()
        if self._busy:
            self._settle()
        elif not self.closed:
            text = self.normaliser.fast(event)
            if text is not None:
                return self._appended(text)
        kind = event.get("type") if isinstance(event, Mapping) else getattr(event, "type", None)
        if isinstance(kind, str) and kind in _STATE_EVENTS:
            with self.document.lock:  # no edit between ours and theirs
                self._settle()
                if self.document.pending:  # of a thread that has yet to say so
                    self._dirty[self.document] = _state_event
                    self._emit_edits()
                self.state_edited = True
                return self._record(self.normaliser.accept, event)
        ended = self.normaliser.own_terminal
        done = self._record(self.normaliser.accept, event)
        if ended is None and self.normaliser.own_terminal is not None:
            self._absorb(self.normaliser.own_terminal)
        return done

    def send(self, event: Wire) -> Awaitable[None]:
        """One of our own events."""
        if self._dirty:
            self._emit_edits()
        return self._record(self.normaliser.own, event)

    def send_closing(self, event: Wire) -> None:
        """The event that closes a block, also of a run that is lost; never raises."""
        self._close(self.normaliser.close_item, event)

    def _close(self, take: Callable[[Wire], list[Wire]], event: Wire) -> None:
        if self.closed:
            return
        try:
            self._emit_edits()
        except Exception:
            logger.debug("Edits before the end of a block were refused", exc_info=True)
        try:
            self.append(take(event))
        except (LogLimit, AgentFlood, RunClosed):
            logger.debug("The end of a block was refused", exc_info=True)

    def finish_subagent(self, event: Wire) -> None:
        """The event that ends a subagent that did what it had to; never raises."""
        self._close(self.normaliser.close_subagent, event)

    def stop_subagent(self, run_id: str, *, error: str | None = None) -> None:
        """End a subagent by an error, else as suspended, with all that it left open, innermost first; never raises."""
        suspended = self.suspensions() if error is None else None
        for event in self.normaliser.verifier.closing_events(error=error, suspended=suspended, subagent=run_id):
            closes = (
                self.normaliser.close_subagent if event["type"].startswith("SUBAGENT") else self.normaliser.close_item
            )
            self._close(closes, event)

    def suspensions(self) -> dict[str, list[str]]:
        """Of every open subagent, the ids of the questions that it asked."""
        raise NotImplementedError

    def handle(self, kind: str, item_id: str) -> Handle | None:
        """The short way for deltas of an open item."""
        return self.normaliser.delta_of(kind, item_id)

    def piece(self, handle: Any, delta: str) -> Awaitable[None]:
        """A delta on the short way; from any thread."""
        if self._busy or get_ident() != self.thread or self.closed:
            return self._piece(handle, delta)
        text = self._short(handle, delta)
        if text is None:
            return self._record(self.normaliser.own, handle.event(delta))
        # As `_put`: most events of a run come this way.
        try:
            self._append(text, plain=handle.plain)
        except (LogLimit, AgentFlood, RunClosed) as error:
            self._refused(text, handle.plain, error)
            raise
        self.count = count = self.count + 1
        return READY if count & 63 else self._turn

    def _piece(self, handle: Any, delta: str) -> Awaitable[None]:
        if get_ident() != self.thread:
            self.post(self.piece, handle, delta)
            return READY
        if self.closed:
            raise RunClosed
        self._settle()
        return self._record(self.normaliser.own, handle.event(delta))

    def _implicitly(self, text: str) -> Awaitable[None]:
        if self._implicit is not None and self._implicit.open:
            return self.piece(self._implicit, text) if text else READY
        if not text:
            return READY
        message_id = uuid4().hex
        self.send({"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "assistant"})
        done = self.send({"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": text})
        self._implicit = self.normaliser.delta_of("TEXT_MESSAGE_CONTENT", message_id)
        return done

    def end_implicit(self) -> None:
        """End the message that yielded texts made."""
        handle, self._implicit = self._implicit, None
        if handle is not None and handle.open:
            self.send_closing({"type": "TEXT_MESSAGE_END", "messageId": handle.id})
            self._ended(handle.id)

    def _record(self, take: Callable[[Any], list[Wire]], event: Any) -> Awaitable[None]:
        if self.closed:
            self._late()
            raise RunClosed
        wires = take(event)
        self.append(wires)
        if wires and self.first_at is None:
            self.first_at = self.loop.time()
        return self._turn if self.log.crowded() or not self.count & 63 else READY

    def append(self, wires: list[Wire], *, urgent: bool = False) -> None:
        """Hand events to the log; what it refuses marks the run."""
        for wire in wires:
            self._put(encode(wire), plain=not needs_downgrade(wire), urgent=urgent)

    def _appended(self, text: str) -> Awaitable[None]:
        self._put(text, plain=True)
        return self._turn if not self.count & 63 else READY

    def _put(self, text: str, *, plain: bool, urgent: bool = False) -> None:
        try:
            self.log.append(text, plain=plain, urgent=urgent)
        except (LogLimit, AgentFlood, RunClosed) as error:
            self._refused(text, plain, error)
            raise
        self.count += 1

    def _refused(self, text: str, plain: bool, error: LogLimit | AgentFlood | RunClosed) -> None:
        """The log does not take an event."""
        if isinstance(error, RunClosed):
            if not self.closed and self.normaliser.refusal is None:
                self.closed = True
                self._on_taken()
            return
        # The verifier and the reducer know this event: it is the last one on the room that is kept for the end.
        self._refuse(error)
        self.log.append(text, plain=plain)
        self.count += 1

    def _refuse(self, error: LogLimit | AgentFlood) -> None:
        self.normaliser.refuse(error)
        if isinstance(error, AgentFlood):
            self.flood = self.flood or error
        elif self.limit is None:
            self.limit = error
            self._on_limit()

    # ---- edits -------------------------------------------------------------------------------------------------

    def live(self, value: Any, emit: Callable[[Any], Wire]) -> StateDocument:
        """A document whose edits are emitted in time."""

        def edited() -> None:
            self._edited(document, emit)

        document = StateDocument(value, on_edit=edited, default=json_default)
        return document

    def _state_edited(self) -> None:
        self.state_edited = True
        self._edited(self.document, _state_event)

    def _edited(self, document: StateDocument, emit: Callable[[Any], Wire]) -> None:
        """A document was edited; in the editing thread."""
        if self.closed:
            return
        if get_ident() != self.thread:
            try:
                self.inbox.put(None, self._edited, (document, emit), {})
            except (RunClosed, asyncio.CancelledError):
                # The edit itself is made; whoever made it hears of the cancel at its next call.
                self.loop.call_soon_threadsafe(self._edited, document, emit)
            self._busy = True
            return
        self._dirty[document] = emit
        self._busy = True
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._loop_turned)

    def _loop_turned(self) -> None:
        self._scheduled = False
        if self._busy and not self.closed:
            try:
                self._settle()
            except Exception:
                # What marks the run is noted; an agent that emits nothing more hears of it at its end.
                logger.debug("Edits were refused", exc_info=True)

    def _settle(self) -> None:
        """Do what comes before the next event: what threads handed over, and the edits."""
        self._busy = False
        if self.inbox:
            self.inbox.drain()
        if self._dirty:
            self._emit_edits()

    def _emit_edits(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for document, emit in dirty.items():
            edits = document.take()
            if edits is not None:
                applied = document is self.document
                self._record(_Own(self.normaliser, applied), emit(edits))
            elif document.in_block:  # they leave when the block ends
                self._dirty[document] = emit
                self._busy = True

    def take_in(self, edit: Edit) -> bool | None:
        """Make an edit from outside in the live state, in place, and tell it.

        It is made as its patch says where that leads to what it means by now, else by difference.

        Returns:
            Whether it is done; False: a block of the agent's is open in another thread, try again; None: the run has
            ended, or ends.
        """
        document, normaliser = self.document, self.normaliser
        if not document.lock.acquire(blocking=False):
            return False
        try:
            self.settle()
            if self.closed or normaliser.own_terminal or normaliser.violation or normaliser.refusal:
                return None
            if document.pending or document.in_block:  # a thread has yet to say so
                return False
            now = document.plain()
            wanted = edit.on(now)
            changed = document.external(_steps(edit, now, wanted)) or []
        except AgUiError as error:
            if self.closed or normaliser.violation or normaliser.refusal:  # what waited was refused
                return None
            self.warn(f"Version {edit.version} of the state was not taken in: {error}")
            changed = []
        finally:
            document.lock.release()
        self.state_edited = True
        delta = {"type": "STATE_DELTA", "delta": changed, "metadata": mark(edit.version)}
        try:
            self.append(normaliser.aside(delta))
        except (LogLimit, AgentFlood, RunClosed):
            logger.debug("An edit came as the log was full", exc_info=True)
        return True

    def post(self, fn: Callable[..., Any], *args: Any) -> None:
        """Have the loop call this, in order; from any thread."""
        if get_ident() == self.thread:
            fn(*args)
            return
        self._busy = True
        self.inbox.put(None, fn, args, {})
        self._busy = True

    def settle(self) -> None:
        """Do what waits: what threads handed over, then edits."""
        if self._busy and not self.closed:
            self._settle()


class _Own:
    """`Normaliser.own` for edits."""

    __slots__ = ("_applied", "_normaliser")

    def __init__(self, normaliser: Normaliser, applied: bool) -> None:
        self._normaliser = normaliser
        self._applied = applied

    def __call__(self, event: Wire) -> list[Wire]:
        return self._normaliser.own(event, applied=self._applied)


class _Turn:
    """The awaitable of every 64th event, and of every one while the writer is behind."""

    __slots__ = ("_log",)

    def __init__(self, log: RunLog) -> None:
        self._log = log

    def __await__(self) -> Generator[Any, Any, None]:
        yield  # the loop's turn
        if self._log.crowded():
            yield from self._log.room().__await__()


def _steps(edit: Edit, now: Any, wanted: Any) -> list[Wire]:
    """The operations that turn what the state is now into what it is to be: those of the edit, if they do."""
    with contextlib.suppress(PatchError):
        if json_equal(apply_patch(now, edit.patch), wanted):
            return edit.patch
    return make_patch(now, wanted)


def _state_event(edits: Any) -> Wire:
    if isinstance(edits, Snapshot):
        return {"type": "STATE_SNAPSHOT", "snapshot": edits.value}
    return {"type": "STATE_DELTA", "delta": edits}
