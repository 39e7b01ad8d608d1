"""The relay: hints between the processes of a site, over its channel layer (``CHANNEL_LAYERS["default"]``).

Law: what comes is a hint and nothing more. The rows tell what happened, so a layer that is down, full or absent costs
time (`polling` looks once a second), never an event. A run that nobody follows from elsewhere costs its process nothing
per flush: who follows says so to the process that executes it, and again as long as it follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from typing import Any
from uuid import UUID

from django.conf import settings as django_settings
from django.db import Error

from agui_django.runs import nudges, supervisor
from agui_django.runs.broadcaster import Key, broadcaster
from agui_django.runs.claims import process_name
from agui_django.runs.database import get_pool
from agui_django.runs.polling import poller

logger = logging.getLogger("agui_django.runs")

#: Seconds after which a process says again what it follows. A layer that forgot everything has learnt it then.
RENEW = 10.0
#: Seconds for which a process is told about a run it said it follows, and keeps groups that nobody needs any more.
KEEP = 30.0
#: Seconds that the layer has for an answer.
PATIENCE = 5.0
#: Seconds until a failing layer is tried again: the first time, and at most.
PAUSE, LONGEST_PAUSE = 0.25, 5.0


class Relay:
    """One process's end. It lives in the loop that first needed it; every public method may be called from any thread.

    Followers' runs and threads are joined as groups. Who executes a run is in its claim: that process hears of the
    interest through its own group, and from then on tells the follower's channel, one message for all that moved.
    """

    def __init__(self) -> None:
        """Nothing is imported or connected before there is something to tell or to hear."""
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._layer: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._due = asyncio.Event()
        self._channel = ""
        self._broken = False
        self._failed = self._renewal = 0.0
        #: What is followed here and when it was last asked for; what of it the layer knows, and the executing process.
        self._followed: dict[Key, float] = {}
        self._joined: set[Key] = set()
        self._announced: set[UUID] = set()
        #: Channels of other processes that follow runs of this one, and until when.
        self._followers: dict[UUID, dict[str, float]] = {}
        #: What to tell, and whether to everybody: of a run that is executed here those who follow it have said so.
        self._moved: dict[Key, bool] = {}
        self._asked: set[UUID] = set()

    # ---- what this process does -----------------------------------------------------------------------------------

    def follow(self, key: Key) -> None:
        """Somebody here waits for a run or a thread."""
        if not self._here():
            return
        new = key not in self._followed
        self._followed[key] = time.monotonic()
        if new:
            self._kick()

    def tell(self, key: Key) -> None:
        """A run or a thread moved here, and that is committed."""
        elsewhere = key not in poller.executing
        if (elsewhere or key in self._followers) and self._here():
            self._move(key, to_all=elsewhere)

    def look(self, run: UUID) -> None:
        """A run that another process executes was asked to stop, or has an edit to take in; that is committed."""
        if self._here():
            self._asked.add(run)
            self._kick()

    def _here(self) -> bool:
        """Whether there is a layer, and this process is connected to it from now on."""
        if not getattr(django_settings, "CHANNEL_LAYERS", None):
            return False
        with self._lock:
            if self._alive():
                return True
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:  # no place to live; the poll of the others finds it
                return False
            layer, channel = _layer(), self._channel
            if layer is None:
                return False
            same = layer is self._layer and self._pid == os.getpid()
            self._reset()
            self._loop, self._layer = loop, layer
            # A process with one loop after the other (a worker's tasks) leaves no trail of channels.
            self._channel = channel if same else ""
            self._tasks = [
                supervisor.start(self._speak(layer), name="agui relay, speaking", service=True),
                supervisor.start(self._listen(layer), name="agui relay, listening", service=True),
            ]
            return True

    def _alive(self) -> bool:
        alive = self._loop is not None and not self._loop.is_closed() and self._pid == os.getpid()
        return alive and not any(task.done() for task in self._tasks)

    def _move(self, key: Key, *, to_all: bool) -> None:
        with self._lock:
            self._moved[key] = to_all or self._moved.get(key, False)
        self._kick()

    def _kick(self) -> None:
        loop = self._loop
        if loop is not None and not self._due.is_set():
            try:
                loop.call_soon_threadsafe(self._due.set)
            except RuntimeError:  # closed just now
                return

    # ---- speaking -------------------------------------------------------------------------------------------------

    async def _speak(self, layer: Any) -> None:
        pause = PAUSE
        while True:
            try:
                async with asyncio.timeout(max(self._renewal - time.monotonic(), 0)):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            try:
                await self._turn(layer)
                pause = PAUSE
            except Exception as error:
                self._fails(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _turn(self, layer: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            with self._lock:
                moved, self._moved = self._moved, {}
            await self._wake(layer, moved)
            if not self._channel:
                self._channel = await layer.new_channel()
            if time.monotonic() >= self._renewal:
                await self._renew(layer)
            for key in set(self._followed) - self._joined:
                await layer.group_add(nudges.group("key", key), self._channel)
                self._joined.add(key)
        asked, self._asked = self._asked, set()
        new = {key for key in list(self._followed) if isinstance(key, UUID)} - self._announced
        if not asked and not new:
            return
        # What is not claimed yet tells its group when it is.
        self._announced |= new
        try:
            claims = await get_pool().run(nudges.read_claims, asked | new)
        except Error:  # not the layer's fault, and the poll meets it, too
            return
        async with asyncio.timeout(PATIENCE):
            await self._ask(layer, claims, asked, new)

    async def _wake(self, layer: Any, moved: dict[Key, bool]) -> None:
        """Say that rows moved: to the channels that follow, and to a group where they are not known."""
        from channels.exceptions import ChannelFull

        to: dict[str, list[str]] = {}
        for key, to_all in moved.items():
            if to_all:
                message = {"type": nudges.WAKE, "keys": [nudges.written(key)], "open": True}
                await layer.group_send(nudges.group("key", key), {**message, "by": process_name()})
            elif isinstance(key, UUID):
                for channel in self._followers.get(key, ()):
                    to.setdefault(channel, []).append(nudges.written(key))
        for channel, keys in to.items():
            for part in nudges.parts(keys):
                # One that is full has enough to read; its poll finds the rest.
                with contextlib.suppress(ChannelFull):
                    await layer.send(channel, {"type": nudges.WAKE, "keys": part, "by": process_name()})

    async def _ask(self, layer: Any, claims: dict[UUID, str], asked: set[UUID], new: set[UUID]) -> None:
        """Tell the processes that execute runs to look at them, or that they are followed here."""
        processes: dict[str, list[str]] = {}
        for run, claim in claims.items():
            if claim != process_name() and run in new:
                processes.setdefault(claim, []).append(nudges.written(run))
        for claim, keys in processes.items():
            for part in nudges.parts(keys):
                message = {"type": nudges.WATCH, "keys": part, "channel": self._channel, "by": process_name()}
                await layer.group_send(nudges.group("process", claim), message)
        for claim in {claims[run] for run in asked & claims.keys()}:
            await layer.group_send(nudges.group("process", claim), {"type": nudges.STOP, "by": process_name()})

    async def _renew(self, layer: Any) -> None:
        """Say everything again, and forget what is over."""
        now = time.monotonic()
        await layer.group_add(nudges.group("process", process_name()), self._channel)
        for key in broadcaster.watched():
            self._followed[key] = now
        for key in [key for key, asked in list(self._followed.items()) if asked < now - KEEP]:
            del self._followed[key]
            if key in self._joined:
                self._joined.discard(key)
                await layer.group_discard(nudges.group("key", key), self._channel)
        for run, channels in list(self._followers.items()):
            self._followers[run] = left = {channel: until for channel, until in channels.items() if until > now}
            if not left:
                del self._followers[run]
        self._joined.clear()
        self._announced.clear()
        self._renewal = now + RENEW
        if self._broken and self._failed < now - RENEW / 2:
            self._broken = False
            logger.warning("The channel layer is back")

    def _fails(self, error: Exception) -> None:
        """Tell it once, and say everything again when the layer is back."""
        self._failed, self._renewal = time.monotonic(), 0.0
        if not self._broken:
            self._broken = True
            logger.warning("The channel layer fails; runs of other processes are read once a second: %r", error)

    # ---- listening ------------------------------------------------------------------------------------------------

    async def _listen(self, layer: Any) -> None:
        pause = PAUSE
        while True:
            # A connection that died without a word is given up after a while.
            patience = asyncio.timeout(KEEP)
            try:
                self._channel = self._channel or await layer.new_channel()
                async with patience:
                    message = await layer.receive(self._channel)
                pause = PAUSE
            except Exception as error:
                if patience.expired():
                    continue
                self._fails(error)
                self._kick()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                try:
                    self._hear(message)
                except (KeyError, TypeError, ValueError):
                    logger.warning("The channel layer brought a message that is none of ours", exc_info=True)

    def _hear(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if message.get("by") == process_name():
            return
        if kind == nudges.WAKE:
            for text in message["keys"]:
                key = nudges.read(text)
                broadcaster.publish(key, relay=False)
                if isinstance(key, UUID) and message.get("open") and key in self._followed:
                    # Claimed just now, perhaps: who executes it does not know of us.
                    self._announced.discard(key)
                    self._kick()
        elif kind == nudges.WATCH:
            until = time.monotonic() + KEEP
            for text in message["keys"]:
                run = nudges.read(text)
                if isinstance(run, UUID):
                    self._followers.setdefault(run, {})[str(message["channel"])] = until
                    # What was committed between its look at the rows and this.
                    self._move(run, to_all=False)
        elif kind == nudges.STOP:
            poller.hurry()


def _layer() -> Any:
    """The site's channel layer, None where there is no default one."""
    from channels.layers import get_channel_layer

    return get_channel_layer()


relay = Relay()
broadcaster.on_follow.append(relay.follow)
broadcaster.on_publish.append(relay.tell)
