"""Channels' own layer in memory, which also keeps a list of what was sent; it may be told to fail, or to hang."""

from __future__ import annotations

import asyncio
from typing import Any

from channels.layers import InMemoryChannelLayer


class CountingLayer(InMemoryChannelLayer):  # type: ignore[misc]
    """See the module."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.down = self.hangs = False

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        await self._passes()
        self.sent.append((group, message))
        await super().group_send(group, message)

    async def send(self, channel: str, message: dict[str, Any]) -> None:
        await self._passes()
        self.sent.append((channel, message))
        await super().send(channel, message)

    async def group_add(self, group: str, channel: str) -> None:
        await self._passes()
        await super().group_add(group, channel)

    async def _passes(self) -> None:
        if self.down:
            raise OSError("nobody is there")
        if self.hangs:
            await asyncio.Event().wait()
