"""A graph's interrupts as the run's questions, and their answers as what it is resumed with.

Law: which of its interrupts wait for an answer the graph's checkpoint says, never the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from langgraph.types import Command, Interrupt, StateSnapshot

from agui_django.agents.context import RunContext
from agui_django.agents.langgraph_lanes import Lanes
from agui_django.agents.langgraph_stream import Origin, jsonable
from agui_django.agents.sink import Answer
from agui_django.protocol.errors import Declined

Wire = dict[str, Any]
Ask = Callable[["Interrupt[Any]"], Mapping[str, Any]]

#: The entry of a checkpoint's metadata that says which turn made it.
TURN: Final = "agui_turn"
_GO_ON: Final = {"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]}


def question_of(interrupt: Interrupt[Any]) -> Wire:
    """What ``run.ask`` is given for an interrupt, as the default of `LangGraphAgent`'s ``question``.

    A text is the message. Of a mapping, ``message`` (or ``question``), ``reason`` and ``response_schema`` are taken; a
    schema that ``interrupt()`` was given counts, too. What is no text goes whole into the metadata, as ``value``.
    """
    value = interrupt.value
    if isinstance(value, str):
        about: Wire = {"message": value}
    else:
        about = {"metadata": {"value": jsonable(value)}}
        if isinstance(value, Mapping):
            told = {"message": value.get("message", value.get("question")), "reason": value.get("reason")}
            about |= {name: text for name, text in told.items() if isinstance(text, str)}
            if isinstance(value.get("response_schema"), Mapping):
                about["response_schema"] = dict(value["response_schema"])
    schema = getattr(interrupt, "response_schema", None)
    if isinstance(schema, Mapping):
        about["response_schema"] = dict(schema)
    return about


class Questions:
    """The questions of one graph in one run.

    Args:
        run: the run.
        ask: what is asked for an interrupt.
        declined: what an interrupt is resumed with whose question was cancelled or has expired; None: the run ends.
        breakpoints: whether the graph stops without being asked (``interrupt_before``, ``interrupt_after``).
    """

    def __init__(
        self, run: RunContext[Any], ask: Ask, declined: Callable[[Answer], Any] | None, *, breakpoints: bool
    ) -> None:
        self._run = run
        self._ask = ask
        self._declined = declined
        self._breakpoints = breakpoints

    def goes_on(self, state: StateSnapshot | None) -> bool:
        """Whether the graph stands where an earlier run of this turn left it.

        Raises:
            RuntimeError: it was answered, but does not: the checkpoints were lost.
        """
        stands = state is not None and self._run.resumed and bool(state.next)
        if stands and state is not None and dict(state.metadata or {}).get(TURN) == self._run.turn:
            return True
        now = {entry["interruptId"] for entry in self._run._setup.resume}
        if any(answer.interrupt_id in now and _is_ours(answer) for answer in self._run.answers.values()):
            raise RuntimeError(
                "The graph has no checkpoint of what was asked: interrupt() needs a checkpointer, one that outlives "
                "the process and is the same in all of them."
            )
        return False

    def resume(self, state: StateSnapshot, update: Wire) -> Command[Any] | bool | None:
        """What the graph is given: its answers; None where it just goes on; False where nothing was answered.

        Args:
            state: where it stands.
            update: what was edited in the shared state meanwhile.

        Raises:
            Declined: a question was cancelled or has expired, or it was not to go on.
        """
        answers = {interrupt.id: self._answer(interrupt.id) for interrupt in state.interrupts}
        if state.interrupts:
            values = {id: self._value(answer) for id, answer in answers.items() if answer is not None}
            return Command(resume=values, update=update or None) if values else False
        if not self._breakpoints:
            return None  # it failed when it had taken the answers
        answer = self._answer(_breakpoint(state))
        if answer is None:
            return False
        value = self._value(answer)
        if not isinstance(value, Mapping) or value.get("approved") is not True:
            raise Declined("Not approved.")
        return None

    def put(self, state: StateSnapshot, lanes: Lanes, origins: Mapping[str, Origin], pending: Sequence[str]) -> bool:
        """Ask what waits; gives whether something does.

        Args:
            state: where the graph stands.
            lanes: its subagents: each asks its own questions.
            origins: where the interrupts came from, as far as that is known.
            pending: the ids of the graph's own calls without a result.
        """
        sole = pending[0] if len(pending) == len(state.interrupts) == 1 else None
        for interrupt in state.interrupts:
            origin = origins.get(interrupt.id, Origin())
            lane = lanes.at(origin.path)
            key, number = interrupt.id, 0
            while key in lane.answers:  # older versions give all interrupts of a task one id
                number += 1
                key = f"{interrupt.id}:{number}"
            # With the call in the question, nobody but the tool can give that its result.
            call_id = origin.call_id or sole
            about = {} if call_id is None else {"tool_call_id": call_id, "reason": "tool_call"}
            lane.ask(key, **{**about, **self._ask(interrupt)})
        if state.next and not state.interrupts and self._breakpoints:
            nodes = ", ".join(state.next)
            self._run.ask(
                _breakpoint(state),
                message=f"Go on with {nodes}?",
                reason="breakpoint",
                response_schema=_GO_ON,
                metadata={"next": list(state.next)},
            )
        return bool(state.interrupts) or (self._breakpoints and bool(state.next))

    def _answer(self, id: str) -> Answer | None:
        """The last answer to an interrupt in this turn, wherever it was asked."""
        found = [answer for answer in self._run.answers.values() if _native(answer) == id]
        return found[-1] if found else None

    def _value(self, answer: Answer) -> Any:
        if answer.status == "resolved":
            return answer.value
        if self._declined is None:
            raise Declined(f"The question was {answer.status}.")
        return self._declined(answer)


def _breakpoint(state: StateSnapshot) -> str:
    return f"breakpoint-{state.config['configurable']['checkpoint_id']}"


def _native(answer: Answer) -> str:
    """The interrupt's id in a question's key, which may have a lane before and a number behind it."""
    return answer.key.rpartition("/")[2].partition(":")[0]


def _is_ours(answer: Answer) -> bool:
    native = _native(answer)
    return native.startswith("breakpoint-") or (len(native) == 32 and set(native) <= set("0123456789abcdef"))
