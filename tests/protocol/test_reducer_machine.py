"""Whatever stream the verifier passes, the reducer applies; cut anywhere, what was held so far goes on the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, precondition, rule

from agui_django.protocol.reducer import Reducer
from tests.protocol.test_verifier import LegalStreams as _LegalStreams

TYPES = {"TEXT_MESSAGE_CONTENT": "messageId", "REASONING_MESSAGE_CONTENT": "messageId", "TOOL_CALL_ARGS": "toolCallId"}


class _Reduced(_LegalStreams):
    """The streams of the verifier's machine; every delta is another text, and a call's id is no message's."""

    def __init__(self) -> None:
        super().__init__()
        self.reducer = Reducer(warn=pytest.fail)
        self.restarted = Reducer(warn=pytest.fail)
        self.events: list[dict[str, Any]] = []
        self.said: dict[str, str] = {}

    def feed(self, event: dict[str, Any]) -> None:
        super().feed(event)
        event = copy.deepcopy(event)
        if event["type"] in ("STATE_DELTA", "ACTIVITY_SNAPSHOT"):
            return  # test_json_patch and test_reducer have those
        if "toolCallId" in event:
            event["toolCallId"] = f"call-{event['toolCallId']}"
        if event["type"] in TYPES:
            event["delta"] = f"{len(self.events)} "
            name = event[TYPES[event["type"]]]
            self.said[name] = self.said.get(name, "") + event["delta"]
        self.events.append(event)
        before = copy.deepcopy(event)
        self.reducer.apply(event)
        self.restarted.apply(event)
        assert event == before

    @precondition(lambda self: not self.over)
    @rule()
    def cut(self) -> None:
        """Somebody joins here, with what is held now."""
        held = self.reducer.messages
        self.restarted = Reducer(held, self.reducer.state, warn=pytest.fail)
        assert self.restarted.messages == held

    @invariant()
    def nothing_is_lost(self) -> None:
        messages = self.reducer.messages
        told = {message["id"]: message["content"] for message in messages if message.get("content")}
        told |= {
            call["id"]: call["function"]["arguments"]
            for message in messages
            for call in message.get("toolCalls", ())
            if call["function"]["arguments"]
        }
        assert {name: told.get(name) for name in self.said} == self.said
        assert self.restarted.messages == messages
        assert self.restarted.state == self.reducer.state

    @invariant()
    def reading_it_again_gives_the_same(self) -> None:
        if self.over:
            again = Reducer(warn=pytest.fail)
            for event in self.events:
                again.apply(event)
            assert again.messages == self.reducer.messages


_Reduced.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestReducedStreams = _Reduced.TestCase
