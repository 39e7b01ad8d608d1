"""The shapes of answers. Names are the protocol's (``threadId``, ``runId``); ``id`` is the row's own key.

Law: a serializer reads columns and annotations only, never a relation that its query has not brought along.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from agui_django.api.fields import DraftOrNull, Key, Moment, Wire, WireObject, WireObjectOrNull
from agui_django.models import Feedback, Interrupt, Run, StateVersion


class Shape(serializers.Serializer[Any]):
    """A shape that is only written."""


def _whole(**options: Any) -> serializers.IntegerField:
    return serializers.IntegerField(read_only=True, **options)


def _text(**options: Any) -> serializers.CharField:
    return serializers.CharField(read_only=True, **options)


def _uuid(**options: Any) -> serializers.UUIDField:
    return serializers.UUIDField(read_only=True, **options)


class AgentShape(Shape):
    """An agent that the caller may run."""

    name = _text()
    title = _text()
    description = _text()
    url = _text(help_text="Where its runs are started.", allow_null=True)
    capabilities = serializers.DictField(required=False, help_text="What it declares that it can do.")


class MatchShape(Shape):
    """Where a thread matches a search; HTML, with ``<mark>`` around what was looked for."""

    title = _text()
    text = _text(help_text="A part of the newest message that matches; empty where only the title does.")
    messageId = _text(source="message_id")


class ThreadShape(Shape):
    """A conversation."""

    id = _whole(source="pk", help_text="Its key in this API.")
    threadId = _text(source="thread_id", help_text="The id as the client gave it.")
    agent = _text(help_text="The agent of the latest run.")
    title = _text()
    archived = serializers.BooleanField(read_only=True)
    owner = Key(source="owner_id")
    lastWords = _text(source="last_words", help_text="The start of the latest text message.")
    stateVersion = _whole(source="state_version")
    inputTokens = _whole(source="input_tokens")
    outputTokens = _whole(source="output_tokens")
    activeRun = _uuid(source="active_run", allow_null=True, help_text="The run that is running or about to.")
    openInterrupts = _whole(source="waiting", help_text="Questions that wait for an answer.")
    forkedFrom = _whole(source="forked_from_id", allow_null=True)
    metadata = WireObject()
    match = MatchShape(read_only=True, allow_null=True, help_text="Of a search.")
    createdAt = Moment(source="created_at")
    updatedAt = Moment(source="updated_at")


class AlternativeShape(Shape):
    """One way in which a conversation went, or goes, on."""

    run = _uuid(allow_null=True, help_text="Names it for a restore; null: it is in play.")
    madeBy = _uuid(source="made_by", allow_null=True, help_text="The run that brought its first message.")
    inPlay = serializers.BooleanField(source="in_play", read_only=True)
    messages = _whole(source="count")
    firstWords = _text(source="first_words")
    stateVersion = _whole(source="state_version", allow_null=True, help_text="That of the state when it ended.")
    createdAt = Moment(source="created_at")


class PointShape(Shape):
    """A place behind which a conversation went on in several ways."""

    messageId = _text(source="message_id", help_text="The message it lies behind; empty: the beginning.")
    within = _uuid(allow_null=True, help_text="The branch that this message is in itself; null: it is in play.")
    alternatives = AlternativeShape(many=True, read_only=True, help_text="Oldest first.")


class PointsShape(Shape):
    """The branches of a thread."""

    results = PointShape(many=True, read_only=True)


class GivenFeedbackShape(Shape):
    """What somebody thinks of a message."""

    rating = serializers.ChoiceField(choices=Feedback.Rating.values, read_only=True)
    text = _text()


class FeedbackShape(GivenFeedbackShape):
    """The same, with whose it is."""

    id = _whole(source="pk")
    message = _whole(source="message_id")
    user = Key(source="user_id")
    createdAt = Moment(source="created_at")
    updatedAt = Moment(source="updated_at")


class MessageShape(Shape):
    """A message of a thread."""

    id = _whole(source="pk", help_text="Its key in this API.")
    messageId = _text(source="message_id")
    role = _text()
    message = WireObject(source="wire", help_text="The message as the protocol has it.")
    run = _uuid(source="run_id", allow_null=True, help_text="The run that brought or made it.")
    supersededBy = _uuid(
        source="superseded_by_id", allow_null=True, help_text="The run that took it out of play; null: it is in play."
    )
    feedback = GivenFeedbackShape(source="own_feedback", read_only=True, allow_null=True, help_text="The caller's own.")
    createdAt = Moment(source="created_at")


class StateVersionShape(Shape):
    """A version of a thread's state, without the state."""

    version = _whole()
    origin = serializers.ChoiceField(choices=StateVersion.Origin.values, read_only=True)
    run = _uuid(source="run_id", allow_null=True)
    createdAt = Moment(source="created_at")


# Inside allOf: drf-spectacular names the choices of a field by its component, and here two share them.
@extend_schema_field({"allOf": [{"type": "string", "enum": Run.Status.values}]})
class RunStatus(serializers.ChoiceField):
    """Where a run is in its life."""


class RunShape(Shape):
    """A run of an agent."""

    id = _uuid(source="pk", help_text="Its address.")
    runId = _text(source="run_id", help_text="The id as the client gave it; not unique.")
    thread = _whole(source="thread_id")
    threadId = _text(source="thread.thread_id")
    agent = _text()
    user = Key(source="user_id", help_text="Whom it runs for.")
    actor = Key(source="actor_id", help_text="Who started it, where that is somebody else.")
    status = RunStatus(choices=Run.Status.values, read_only=True)
    outcome = WireObjectOrNull(help_text="That of the terminal event.")
    errorCode = _text(source="error_code")
    errorReference = _text(source="error_reference", help_text="Names the failure in the server's log.")
    endReason = _text(source="end_reason")
    cancelRequested = _text(source="cancel_requested")
    transport = _text()
    inputTokens = _whole(source="input_tokens")
    cachedTokens = _whole(source="cached_tokens")
    outputTokens = _whole(source="output_tokens")
    reasoningTokens = _whole(source="reasoning_tokens")
    model = _text(help_text="The models of its usage, joined by ' + '.")
    cost = serializers.DecimalField(
        None, 9, read_only=True, allow_null=True, help_text="Fixed when it ended; null: it is not priced."
    )
    currency = _text(help_text="Of the cost, such as USD.")
    pricedOn = serializers.DateField(
        source="priced_on",
        read_only=True,
        allow_null=True,
        help_text="Of the oldest price in the cost; null: it is the agent's own figure.",
    )
    toolCalls = _whole(source="tool_calls")
    openInterrupts = _whole(source="open_interrupts", help_text="Questions that it ended with.")
    lastSeq = _whole(source="last_seq", help_text="The number of its last event; exact once it has ended.")
    resumedRun = _uuid(source="resumed_run_id", allow_null=True)
    createdAt = Moment(source="created_at")
    startedAt = Moment(source="started_at", allow_null=True)
    finishedAt = Moment(source="finished_at", allow_null=True)
    firstEventMs = _whole(source="first_event_ms", allow_null=True)
    durationMs = _whole(source="duration_ms", allow_null=True)


#: What lists of runs leave in the database.
HEAVY = ("input", "result", "usage", "once", "extra", "error_text", "traceback")


class WholeRunShape(RunShape):
    """A run with what lists leave out."""

    protocolVersion = _text(source="protocol_version")
    result = Wire(help_text="That of the terminal event.")
    usage = Wire(help_text="That of the terminal event.")
    input = WireObjectOrNull(help_text="The accepted input, without messages and state.")


class InterruptShape(Shape):
    """A question that a run asked and ended with."""

    id = _whole(source="pk", help_text="Its key in this API.")
    interruptId = _text(source="interrupt_id")
    thread = _whole(source="thread_id")
    threadId = _text(source="thread.thread_id")
    run = _uuid(source="run_id")
    agent = _text(source="run.agent")
    reason = _text()
    message = _text()
    toolCallId = _text(source="tool_call_id")
    responseSchema = Wire(source="response_schema", help_text="The JSON Schema that an answer has to fit.")
    metadata = WireObjectOrNull()
    status = serializers.ChoiceField(choices=Interrupt.Status.values, read_only=True)
    expired = serializers.BooleanField(read_only=True, help_text="It can be cancelled, but no longer be resolved.")
    expiresAt = Moment(source="expires_at", allow_null=True)
    draft = DraftOrNull(help_text="The answer that waits for those of the run's other questions.")
    response = Wire(help_text="The answer that closed it.")
    answeredBy = Key(source="answered_by_id")
    answeredRun = _uuid(source="answered_run_id", allow_null=True)
    seenBy = Key(source="seen_by_id")
    seenAt = Moment(source="seen_at", allow_null=True)
    createdAt = Moment(source="created_at")
    closedAt = Moment(source="closed_at", allow_null=True)


class AnsweredShape(Shape):
    """What became of an answer."""

    interrupt = InterruptShape(read_only=True)
    complete = serializers.BooleanField(read_only=True, help_text="False: it waits for those of the other questions.")
    run = _uuid(allow_null=True, help_text="The run that carries the answers.")


class EventShape(Shape):
    """An event of a run."""

    seq = _whole(help_text="Its number in the run.")
    event = extend_schema_field({"type": "object", "additionalProperties": True})(serializers.JSONField)(read_only=True)


class EventPageShape(Shape):
    """Events of a run."""

    results = EventShape(many=True, read_only=True)
    next = _text(allow_null=True, help_text="Where there are more now.")
    lastSeq = _whole(help_text="The number of the last event that is committed.")
    ended = serializers.BooleanField(read_only=True, help_text="Whether there will be no more.")


class UsageShape(Shape):
    """What runs used."""

    runs = _whole()
    failed = _whole()
    inputTokens = _whole()
    cachedTokens = _whole()
    outputTokens = _whole()
    reasoningTokens = _whole()
    toolCalls = _whole()
    durationMs = _whole()
    cost = serializers.DictField(
        child=serializers.DecimalField(None, 9), read_only=True, help_text="By currency, of the runs that are priced."
    )
    notPriced = _whole(help_text="Runs that used tokens and are not priced.")


class UsageGroupShape(UsageShape):
    """The same for a group; its names are those that were asked for."""

    day = serializers.DateField(required=False)
    agent = serializers.CharField(required=False)
    model = serializers.CharField(required=False)
    user = Key(read_only=False, required=False)


class UsageReportShape(Shape):
    """Usage by groups, and in all."""

    since = serializers.DateField(read_only=True)
    until = serializers.DateField(read_only=True, help_text="The last day that is counted.")
    timeZone = _text()
    by = serializers.ListField(child=serializers.CharField(), read_only=True)
    results = UsageGroupShape(many=True, read_only=True)
    complete = serializers.BooleanField(read_only=True, help_text="False: there are more groups than are listed.")
    total = UsageShape(read_only=True)


class CancelShape(Shape):
    """What became of a wish to cancel."""

    run = _uuid()
    runId = _text()
    cancelling = serializers.BooleanField(read_only=True, help_text="False: it has ended already.")


class FaultShape(Shape):
    """What was wrong where."""

    path = _text()
    message = _text()


class ErrorBodyShape(Shape):
    """An error."""

    code = _text()
    message = _text()
    fields = FaultShape(many=True, read_only=True)  # type: ignore[assignment]
    reference = _text(help_text="Names it in the server's log.")


class ErrorShape(Shape):
    """The body of every error."""

    error = ErrorBodyShape(read_only=True)


@cache
def page_of(shape: type[Shape], name: str) -> type[Shape]:
    """The shape of a page of these."""
    members = {
        "results": shape(many=True, read_only=True),
        "next": _text(allow_null=True, help_text="The address of the next page."),
        "previous": _text(allow_null=True),
        "__doc__": f"A page of {name}.",
        "__module__": __name__,
    }
    return type(f"{name}PageShape", (Shape,), members)
