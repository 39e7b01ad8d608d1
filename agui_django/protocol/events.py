"""The 31 event types of AG-UI 1.1 and the shapes they are made of, as data.

Law: tables only, no behaviour. `enforcement` compiles them into checks, `chunks` and `verifier` read the families.
Written by hand from the JSON schema of specification 1.1; a test compares them with it field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

#: Integers outside this range do not survive a JSON number's round trip.
MAX_INT: Final = 9007199254740991


# ---- the vocabulary of shapes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value without described insides: string, integer, count, boolean, any, not-null, object or pointer."""

    name: str


@dataclass(frozen=True, slots=True)
class Const:
    """Exactly this string; anything else is malformed."""

    value: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a closed set of strings.

    The processing model calls another string unrecognised (it should be stripped), and every client refuses it. Where
    a family's own page repeats the rule (`REASONING_ENCRYPTED_VALUE.subtype`) `strips` follows the page; elsewhere we
    follow the clients.
    """

    values: frozenset[str]
    strips: bool = False


@dataclass(frozen=True, slots=True)
class ListOf:
    """An array whose unrecognised elements are dropped."""

    item: Shape
    min_items: int = 0


@dataclass(frozen=True, slots=True)
class TextOr:
    """A string, or a list."""

    parts: ListOf


@dataclass(frozen=True, slots=True)
class Obj:
    """An object: required and optional members. `open` objects keep members they do not describe."""

    name: str
    required: Mapping[str, Shape]
    optional: Mapping[str, Shape] = field(default_factory=dict)
    open: bool = False


@dataclass(frozen=True, slots=True)
class Tagged:
    """A union whose members are told apart by the string under `tag`; an unknown tag is unrecognised material."""

    name: str
    tag: str
    members: Mapping[str, Obj]


Shape = Leaf | Const | Choice | ListOf | TextOr | Obj | Tagged

STR: Final = Leaf("string")
INT: Final = Leaf("integer")
COUNT: Final = Leaf("count")
BOOL: Final = Leaf("boolean")
ANY: Final = Leaf("any")
NOT_NULL: Final = Leaf("not-null")
OBJECT: Final = Leaf("object")
POINTER: Final = Leaf("pointer")

_SUBAGENT: Final[Mapping[str, Shape]] = {"subagentRunId": STR}


# ---- content parts, messages ---------------------------------------------------------------------------------------

SOURCES: Final = Tagged(
    "PartSource",
    "type",
    {
        "data": Obj("DataSource", {"type": Const("data"), "value": STR, "mimeType": STR}),
        "url": Obj("UrlSource", {"type": Const("url"), "value": STR}, {"mimeType": STR}),
        "file": Obj("FileSource", {"type": Const("file"), "value": STR}, {"provider": STR, "mimeType": STR}),
    },
)


def _media(name: str, kind: str) -> Obj:
    return Obj(name, {"type": Const(kind), "source": SOURCES}, {"id": STR, "metadata": NOT_NULL})


PARTS: Final = Tagged(
    "ContentPart",
    "type",
    {
        "text": Obj("TextPart", {"type": Const("text"), "text": STR}, {"id": STR, "metadata": NOT_NULL}),
        "image": _media("ImagePart", "image"),
        "audio": _media("AudioPart", "audio"),
        "video": _media("VideoPart", "video"),
        "document": _media("DocumentPart", "document"),
    },
)
CONTENT: Final = TextOr(ListOf(PARTS))

_SEALED: Final[Mapping[str, Shape]] = {"encryptedValue": STR, "encryptedValueType": STR}
TOOL_CALL: Final = Obj(
    "ToolCall",
    {
        "id": STR,
        "type": Const("function"),
        "function": Obj("FunctionCall", {"name": STR, "arguments": STR}),
    },
    {**_SEALED, "metadata": OBJECT},
)

_MESSAGE: Final[Mapping[str, Shape]] = {**_SUBAGENT, "metadata": OBJECT}
_SPOKEN: Final[Mapping[str, Shape]] = {**_MESSAGE, **_SEALED, "name": STR}

MESSAGES: Final = Tagged(
    "Message",
    "role",
    {
        "developer": Obj("DeveloperMessage", {"id": STR, "role": Const("developer"), "content": STR}, _SPOKEN),
        "system": Obj("SystemMessage", {"id": STR, "role": Const("system"), "content": STR}, _SPOKEN),
        "assistant": Obj(
            "AssistantMessage",
            {"id": STR, "role": Const("assistant")},
            {**_SPOKEN, "content": STR, "toolCalls": ListOf(TOOL_CALL)},
        ),
        "user": Obj("UserMessage", {"id": STR, "role": Const("user"), "content": CONTENT}, _SPOKEN),
        "tool": Obj(
            "ToolMessage",
            {"id": STR, "role": Const("tool"), "content": CONTENT, "toolCallId": STR},
            {**_MESSAGE, **_SEALED, "error": STR},
        ),
        "activity": Obj(
            "ActivityMessage",
            {"id": STR, "role": Const("activity"), "activityType": STR, "content": OBJECT},
            _MESSAGE,
        ),
        "reasoning": Obj(
            "ReasoningMessage", {"id": STR, "role": Const("reasoning"), "content": STR}, {**_MESSAGE, **_SEALED}
        ),
    },
)
TEXT_ROLES: Final = Choice(frozenset({"developer", "system", "assistant", "user"}))

# ---- JSON Patch, run input, outcomes -------------------------------------------------------------------------------


def _operation(op: str, **more: Shape) -> Obj:
    # Open: RFC 6902 section 4 has members that an operation does not define ignored.
    return Obj(f"{op.title()}Operation", {"op": Const(op), "path": POINTER, **more}, open=True)


PATCH: Final = ListOf(
    Tagged(
        "JsonPatchOperation",
        "op",
        {
            "add": _operation("add", value=ANY),
            "remove": _operation("remove"),
            "replace": _operation("replace", value=ANY),
            "move": _operation("move", **{"from": POINTER}),
            "copy": _operation("copy", **{"from": POINTER}),
            "test": _operation("test", value=ANY),
        },
    )
)

TOOL: Final = Obj("Tool", {"name": STR, "description": STR}, {"parameters": NOT_NULL, "metadata": OBJECT})
CONTEXT: Final = Obj("Context", {"description": STR, "value": STR})
RESUME_ENTRY: Final = Obj(
    "ResumeEntry",
    {"interruptId": STR, "status": Choice(frozenset({"resolved", "cancelled"}))},
    {"payload": NOT_NULL, "metadata": OBJECT},
)
RUN_INPUT: Final = Obj(
    "RunAgentInput",
    {"threadId": STR, "runId": STR, "messages": ListOf(MESSAGES)},
    {
        "protocolVersion": STR,
        "parentRunId": STR,
        "state": NOT_NULL,
        "tools": ListOf(TOOL),
        "context": ListOf(CONTEXT),
        "forwardedProps": NOT_NULL,
        "resume": ListOf(RESUME_ENTRY),
    },
)
INTERRUPT: Final = Obj(
    "Interrupt",
    {"id": STR, "reason": STR},
    {
        **_SUBAGENT,
        "message": STR,
        "toolCallId": STR,
        "responseSchema": OBJECT,
        "expiresAt": STR,
        "metadata": OBJECT,
    },
)
OUTCOMES: Final = Tagged(
    "RunFinishedOutcome",
    "type",
    {
        "success": Obj("RunFinishedSuccessOutcome", {"type": Const("success")}, {"pendingToolCallIds": ListOf(STR)}),
        "interrupt": Obj(
            "RunFinishedInterruptOutcome",
            {"type": Const("interrupt"), "interrupts": ListOf(INTERRUPT, min_items=1)},
        ),
        "cancelled": Obj("RunFinishedCancelledOutcome", {"type": Const("cancelled")}),
    },
)
SUBAGENT_OUTCOMES: Final = Tagged(
    "SubagentFinishedOutcome",
    "type",
    {
        "success": Obj("SubagentFinishedSuccessOutcome", {"type": Const("success")}),
        "suspended": Obj(
            "SubagentFinishedSuspendedOutcome", {"type": Const("suspended")}, {"interruptIds": ListOf(STR)}
        ),
    },
)
_COUNTS: Final = (
    "inputTokens",
    "outputTokens",
    "totalTokens",
    "reasoningTokens",
    "cachedInputTokens",
    "cacheWriteInputTokens",
)
USAGE: Final = ListOf(Obj("TokenUsage", {}, {"provider": STR, "model": STR, **dict.fromkeys(_COUNTS, COUNT)}))

# ---- the events ----------------------------------------------------------------------------------------------------

_BASE: Final[Mapping[str, Shape]] = {"timestamp": INT, "rawEvent": NOT_NULL, "metadata": OBJECT}


def _event(type: str, required: Mapping[str, Shape], owned: bool = True, **optional: Shape) -> Obj:
    name = "".join(word.title() for word in type.split("_")) + "Event"
    return Obj(name, {"type": Const(type), **required}, {**_BASE, **(_SUBAGENT if owned else {}), **optional})


_ID: Final[Mapping[str, Shape]] = {"messageId": STR}
_CALL: Final[Mapping[str, Shape]] = {"toolCallId": STR}
_RUN: Final[Mapping[str, Shape]] = {"threadId": STR, "runId": STR}
_STEP: Final[Mapping[str, Shape]] = {"stepName": STR}
_ACTIVITY: Final[Mapping[str, Shape]] = {"messageId": STR, "activityType": STR}
_SEALED_ENTITY: Final = Choice(frozenset({"tool-call", "message"}), strips=True)

#: type -> its shape, in the schema's order.
EVENTS: Final[Mapping[str, Obj]] = {
    shape.required["type"].value: shape  # type: ignore[union-attr]  # every event's type is a Const
    for shape in (
        _event("TEXT_MESSAGE_START", _ID, role=TEXT_ROLES, name=STR),
        _event("TEXT_MESSAGE_CONTENT", {**_ID, "delta": STR}),
        _event("TEXT_MESSAGE_END", _ID),
        _event("TEXT_MESSAGE_CHUNK", {}, messageId=STR, role=TEXT_ROLES, delta=STR, name=STR),
        _event("TOOL_CALL_START", {**_CALL, "toolCallName": STR}, parentMessageId=STR),
        _event("TOOL_CALL_ARGS", {**_CALL, "delta": STR}),
        _event("TOOL_CALL_END", _CALL),
        _event("TOOL_CALL_CHUNK", {}, toolCallId=STR, toolCallName=STR, parentMessageId=STR, delta=STR),
        _event("TOOL_CALL_RESULT", {**_ID, **_CALL, "content": CONTENT}, role=Const("tool")),
        _event("STATE_SNAPSHOT", {"snapshot": ANY}),
        _event("STATE_DELTA", {"delta": PATCH}),
        _event("MESSAGES_SNAPSHOT", {"messages": ListOf(MESSAGES)}, owned=False),
        _event("ACTIVITY_SNAPSHOT", {**_ACTIVITY, "content": OBJECT}, replace=BOOL),
        _event("ACTIVITY_DELTA", {**_ACTIVITY, "patch": PATCH}),
        _event("RAW", {"event": ANY}, source=STR),
        _event("CUSTOM", {"name": STR, "value": ANY}),
        _event("RUN_STARTED", _RUN, owned=False, protocolVersion=STR, parentRunId=STR, input=RUN_INPUT),
        _event("RUN_FINISHED", _RUN, owned=False, result=NOT_NULL, outcome=OUTCOMES, usage=USAGE),
        _event("RUN_ERROR", {"message": STR}, owned=False, code=STR, usage=USAGE),
        _event("STEP_STARTED", _STEP),
        _event("STEP_FINISHED", _STEP),
        _event("REASONING_START", _ID),
        _event("REASONING_MESSAGE_START", {**_ID, "role": Const("reasoning")}),
        _event("REASONING_MESSAGE_CONTENT", {**_ID, "delta": STR}),
        _event("REASONING_MESSAGE_END", _ID),
        _event("REASONING_MESSAGE_CHUNK", {}, messageId=STR, delta=STR),
        _event("REASONING_END", _ID),
        _event(
            "REASONING_ENCRYPTED_VALUE",
            {"subtype": _SEALED_ENTITY, "entityId": STR, "encryptedValue": STR},
            encryptedValueType=STR,
        ),
        _event(
            "SUBAGENT_STARTED",
            {**_SUBAGENT, "name": STR},
            owned=False,
            description=STR,
            parentSubagentRunId=STR,
            parentToolCallId=STR,
            parentMessageId=STR,
        ),
        _event("SUBAGENT_FINISHED", _SUBAGENT, owned=False, result=NOT_NULL, outcome=SUBAGENT_OUTCOMES),
        _event("SUBAGENT_ERROR", {**_SUBAGENT, "message": STR}, owned=False, code=STR),
    )
}
EVENT_TYPES: Final = tuple(EVENTS)


# ---- families: what identifies, opens, continues and closes (events/index.mdx) --------------------------------------


class Family(NamedTuple):
    """One kind of item that is opened, perhaps continued, and closed."""

    kind: str
    id_field: str
    opens: str
    continues: str
    closes: str
    chunk: str = ""


FAMILIES: Final[Mapping[str, Family]] = {
    family.kind: family
    for family in (
        Family("text", "messageId", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
               "TEXT_MESSAGE_CHUNK"),
        Family("tool_call", "toolCallId", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_CHUNK"),
        Family("reasoning", "messageId", "REASONING_START", "", "REASONING_END"),
        Family("reasoning_message", "messageId", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT",
               "REASONING_MESSAGE_END", "REASONING_MESSAGE_CHUNK"),
        Family("step", "stepName", "STEP_STARTED", "", "STEP_FINISHED"),
        Family("subagent", "subagentRunId", "SUBAGENT_STARTED", "", "SUBAGENT_FINISHED"),
    )
}  # fmt: skip

#: The events that come in hundreds per run -> the field that names what they continue.
DELTAS: Final[Mapping[str, str]] = {f.continues: f.id_field for f in FAMILIES.values() if f.continues}
#: The compact spellings -> the family they stand for.
CHUNKS: Final[Mapping[str, Family]] = {f.chunk: f for f in FAMILIES.values() if f.chunk}
TERMINAL: Final = frozenset({"RUN_FINISHED", "RUN_ERROR"})
