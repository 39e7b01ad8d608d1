"""Following a thread: its present restated, then whatever runs in it, one run after the other.

Law: a feed is a cursor, as a follower of a run is. It never opens a run inside one that it has not ended, and where it
cannot tell exactly what comes next it restates the present. What it costs is the size of that, whatever the past.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from agui_django.conf import settings
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import CursorGone
from agui_django.runs import reading, recorder, supervisor
from agui_django.runs.broadcaster import broadcaster
from agui_django.runs.database import get_pool
from agui_django.runs.polling import poller
from agui_django.runs.present import at_rest, joined
from agui_django.runs.reading import Cursor, MaySee, Next, Now
from agui_django.runs.stream import Follow, Frame, shaped

#: Messages above which a present is encoded in a thread: the loop has other clients.
MANY = 200


class Feed:
    """The events of a thread, as batches of frames whose numbers are cursors: ``<run uuid>:<seq>``.

    It begins behind the cursor it is given, exactly; without one (or with one that is not known any more) with the
    thread's present as snapshots. Only the last frame of a restatement has a number. Then it goes on with the run that
    is active and every later one. An empty batch is a sign of life after ``HEARTBEAT`` seconds of silence. It ends when
    the thread is deleted, when this process drains, and when a run is given up without a terminal event.

    Args:
        thread: the thread's primary key.
        after: the cursor; empty: none.
        legacy: shape events for clients from before 1.0.
        until_idle: end as soon as nothing runs.
        may_see: asked about each run, in a database thread; the feed ends before one that is not for this watcher.

    Attributes:
        cursor: the place behind the last frame with a number; None before the first.
    """

    def __init__(
        self,
        thread: int,
        after: str = "",
        *,
        legacy: bool = False,
        until_idle: bool = False,
        may_see: MaySee | None = None,
    ) -> None:
        """Nothing is read before the first batch is asked for."""
        self.cursor = Cursor.of(after)
        self._thread = thread
        self._legacy = legacy
        self._until_idle = until_idle
        self._may_see = may_see
        self._follow: Follow | None = None
        self._began: Next | None = None  # the run that is followed from its first event on
        self._stopped_at: Cursor | None = None  # where following the last run ended
        self._restate = self.cursor is None
        self._told = True  # the watcher knows how the last run ended, or need not
        #: The version of the state that the watcher was told at rest; None: what the last run left.
        self._held = None if self.cursor is None else self.cursor.state
        self._edited = False

    def close(self) -> None:
        """Stop watching: the one who followed has gone."""
        if self._follow is not None:
            self._follow.close()

    def __aiter__(self) -> Feed:
        """Batches are taken once."""
        return self

    async def __anext__(self) -> Sequence[Frame]:
        """The next batch."""
        try:
            while True:
                if self._restate:
                    return await self._present()
                if self._edited:
                    if frames := await self._state():
                        return frames
                    continue
                if self._follow is None:
                    if not await self._ahead():
                        return []
                    continue
                try:
                    batch = await anext(self._follow)
                except StopAsyncIteration:
                    self._follow, self._stopped_at = None, self.cursor
                    continue
                except CursorGone:  # compacted
                    if self._follow.moved:
                        # Inside of what was told a restatement would be a run inside a run: the next stream begins so.
                        raise StopAsyncIteration from None
                    self._jump()
                    continue
                if not batch:
                    return []
                if frames := self._framed(batch):
                    return frames
        except reading.Hidden:
            raise StopAsyncIteration from None

    # ---- a run ----------------------------------------------------------------------------------------------------

    def _framed(self, batch: Sequence[Frame]) -> Sequence[Frame]:
        """Events of the run that is followed, under their cursors; none where the present has to be restated."""
        assert self.cursor is not None  # noqa: S101 - a run is followed
        began, self._began = self._began, None
        uuid = self.cursor.run if began is None else began.uuid
        if began is not None and "input" not in decode(batch[0][1]):
            self._jump()
            return []
        frames: list[Frame] = [(f"{uuid}:{number}", text, plain) for number, text, plain in batch]
        if began is not None and began.edit is not None:
            # Its client knows the state that it has edited. Under one cursor: none without the other.
            edit = f'{{"type":"STATE_SNAPSHOT","snapshot":{began.edit}}}'
            frames[:1] = [(0, batch[0][1], batch[0][2]), (frames[0][0], edit, True)]
        self.cursor = Cursor(uuid, int(batch[-1][0]))
        return list(shaped(frames)) if self._legacy else frames

    def _jump(self) -> None:
        self._follow = self._began = None
        self._restate, self._told = True, False

    # ---- between runs ---------------------------------------------------------------------------------------------

    async def _ahead(self) -> bool:
        """Find what comes behind the cursor, and wait for it; False after a while of silence."""
        deadline = time.monotonic() + settings.HEARTBEAT
        # Before the read: a hint that comes while it is under way is not lost.
        subscription = broadcaster.subscribe(self._thread)
        try:
            while True:
                at = None if self.cursor is None else self.cursor.run
                ahead = await get_pool().read(reading.read_ahead, self._thread, at, self._may_see)
                if not ahead.here:
                    self._restate, self._told = True, True
                    return True
                if self.cursor is not None and self._goes_on(self.cursor, ahead.last_seq):
                    return True
                if ahead.next is not None:
                    self._begin(ahead.next)
                    return True
                if ahead.version != (ahead.left if self._held is None else self._held):
                    self._edited = True
                    return True
                if self._until_idle or supervisor.draining():
                    raise StopAsyncIteration
                poller.ensure()
                if not await subscription.wait(deadline - time.monotonic()):
                    return False
        finally:
            subscription.close()

    def _goes_on(self, cursor: Cursor, last_seq: int | None) -> bool:
        """Whether the run of the cursor has more to tell, which is then followed."""
        stuck = self._stopped_at == cursor
        if last_seq is None:
            if stuck:  # given up, or this process drains: the end comes from elsewhere, if ever
                raise StopAsyncIteration
        elif cursor.seq == last_seq:
            return False
        elif cursor.seq > last_seq:  # a place that is none
            self._restate = True
            return True
        elif stuck:  # its rows are gone
            self._jump()
            return True
        self._follow, self._held = Follow(cursor.run, cursor.seq, last=last_seq, exact=True), None
        return True

    def _begin(self, run: Next) -> None:
        if run.jumps:
            self._jump()
            return
        if self.cursor is None:
            self.cursor = Cursor(run.uuid, 0)
        self._began = run
        # Where the thread was edited before it, its log tells the state.
        self._follow, self._held = Follow(run.uuid, last=run.last_seq, exact=True), None

    # ---- the present ----------------------------------------------------------------------------------------------

    async def _present(self) -> Sequence[Frame]:
        """The thread as it stands, as frames."""
        while True:
            now = await get_pool().read(reading.read_now, self._thread, self._may_see)
            if now is None or (supervisor.draining() and not now.active):
                raise StopAsyncIteration
            found = await (self._joined(now) if now.active else self._at_rest(now))
            if found is not None:
                break
        self._restate, self._told = False, True
        return self._placed(now, *found)

    async def _state(self) -> Sequence[Frame]:
        """The state of a thread that was edited at rest, in a run of its own: nothing is told outside of one."""
        self._edited = False
        now = await get_pool().read(reading.read_now, self._thread, self._may_see)
        if now is None:
            raise StopAsyncIteration
        found = None if now.active else await self._at_rest(now, state_only=True)
        return [] if found is None else self._placed(now, *found)

    def _placed(self, now: Now, texts: list[str], seq: int) -> Sequence[Frame]:
        """A restatement; its last frame has the place behind it."""
        self._held = None if now.active else now.thread.state_version
        if now.run is None:
            self.cursor = None
            return [(0, text, True) for text in texts]
        self.cursor = Cursor(now.run.pk, seq, None if now.thread.base_version is None else self._held)
        return [*((0, text, True) for text in texts[:-1]), (str(self.cursor), texts[-1], True)]

    async def _joined(self, now: Now) -> tuple[list[str], int] | None:
        """A run in its middle: as its own process holds it, else as its rows tell."""
        assert now.run is not None  # noqa: S101 - it is active
        here = recorder.get(now.run.pk)
        present = None if here is None else await here.present()
        if present is None:
            present = await get_pool().read(reading.read_active, now)
        if present is None:
            return None
        self._follow = Follow(now.run.pk, present.seq, exact=True)
        make = partial(joined, now.thread.thread_id, now.run.run_id, present, legacy=self._legacy)
        if len(present.messages) > MANY:
            return await asyncio.get_running_loop().run_in_executor(None, make), present.seq
        return make(), present.seq

    async def _at_rest(self, now: Now, *, state_only: bool = False) -> tuple[list[str], int] | None:
        """A thread in which nothing runs."""
        rest = await get_pool().read(partial(reading.read_rest, told=self._told, state_only=state_only), now)
        if rest is None:
            return None
        thread, run = now.thread, now.run
        make = partial(
            at_rest, thread.thread_id, run.run_id if run is not None else "", rest.messages, rest.state, rest.terminal,
            legacy=self._legacy,
        )  # fmt: skip
        last_seq = run.last_seq if run is not None else 0
        if self._legacy and len(rest.messages) > MANY:
            return await asyncio.get_running_loop().run_in_executor(None, make), last_seq
        return make(), last_seq


def follow_thread(
    thread: int, after: str = "", *, legacy: bool = False, until_idle: bool = False, may_see: MaySee | None = None
) -> Feed:
    """Follow a thread; see `Feed`."""
    return Feed(thread, after, legacy=legacy, until_idle=until_idle, may_see=may_see)


def nothing_comes(thread: int, after: str, may_see: MaySee | None = None) -> bool:
    """Whether a cursor is at the end of a thread in which nothing runs; call in a database thread."""
    cursor = Cursor.of(after)
    if cursor is None:
        return False
    try:
        ahead = reading.read_ahead(thread, cursor.run, may_see)
    except reading.Hidden:
        return True
    held = ahead.left if cursor.state is None else cursor.state
    return ahead.here and ahead.last_seq == cursor.seq and ahead.next is None and ahead.version == held
