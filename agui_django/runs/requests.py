"""What is asked of the store, and what it answers: plain values that pass between transports, engine and store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from agui_django.agents.state_schema import StateSchema
from agui_django.conf import settings
from agui_django.protocol.errors import AgUiError, InvalidInput
from agui_django.protocol.run_input import RunInput
from agui_django.runs.setup import RunSetup, Wire

if TYPE_CHECKING:
    from agui_django.models import Interrupt, Run
    from agui_django.runs.attachments import Upload
    from agui_django.runs.started import FirstEvent

Kind = Literal["created", "queued", "busy", "attached", "joined", "hydration", "kept", "refused"]


@dataclass(frozen=True)
class AgentPolicy:
    """What the store has to know of an agent.

    Attributes:
        initial_state: the state of a new thread, or a function that makes it.
        state_schema: what a state always fits, or None.
    """

    name: str
    history: str = "verified"
    state_policy: str = "client"
    busy: str = "reject"
    queue_length: int = 10
    open_interrupts: str = "reject"
    client_roles: tuple[str, ...] = ("user", "tool")
    initial_state: Any = None
    state_schema: Any = None

    @classmethod
    def of(cls, entry: Any) -> AgentPolicy:
        """The policy of a registry entry: its options, else the settings."""
        initial = getattr(entry.options, "initial_state", None)
        return cls(
            name=entry.name,
            history=settings.for_agent(entry, "HISTORY"),
            state_policy=settings.for_agent(entry, "STATE_POLICY"),
            busy=settings.for_agent(entry, "BUSY"),
            queue_length=settings.QUEUE_LENGTH,
            open_interrupts=settings.for_agent(entry, "OPEN_INTERRUPTS"),
            client_roles=tuple(settings.CLIENT_ROLES),
            initial_state=initial if isinstance(initial, dict) or callable(initial) else None,
            state_schema=getattr(entry.options, "state_schema", None),
        )

    def first_state(self) -> Any:
        """The state a new thread of this agent starts from."""
        initial: Mapping[str, Any] | Callable[[], Any] | None = self.initial_state
        return (initial() if callable(initial) else initial) or {}

    def check_state(self, state: Any, own: Any = None) -> None:
        """Refuse a client's state that the agent's schema does not allow; without one, what is no object.

        Args:
            state: what was sent.
            own: what the thread has; where an agent made that an array or a scalar, a client may send such, too.

        Raises:
            InvalidInput: its `fields` say what is wrong where.
        """
        if self.state_schema is None:
            if not isinstance(state, dict) and (own is None or isinstance(own, dict)):
                raise InvalidInput(
                    "The state is malformed.", fields=[{"path": "/state", "message": "must be an object"}]
                )
            return
        try:
            schema = StateSchema(self.state_schema)
        except TypeError:  # no fault of the client: its run tells it
            return
        if wrong := schema.errors(state):
            fields = [{**field, "path": f"/state{field['path']}"} for field in wrong]
            raise InvalidInput("The state does not fit the agent's schema.", fields=fields)


@dataclass(frozen=True)
class Given:
    """An answer that the site's own code takes for questions of a run.

    Attributes:
        run: the run that asked.
        entry: the answer as a resume entry, without the question's id.
        interrupt: primary key of the question; None: all of the run that are open.
        by: who answers, a user or None.
    """

    run: UUID
    entry: Wire
    interrupt: int | None = None
    by: Any = None

    def means(self, interrupt: int, status: str) -> bool:
        """Whether a question of the run is meant."""
        return status == "open" if self.interrupt is None else interrupt == self.interrupt


@dataclass
class StartRequest:
    """A request for a run, authenticated and parsed.

    Attributes:
        scope: the tenancy key that the thread's id is looked up in.
        owner: who owns a thread that has to be made; a user or None.
        user: whom the run is for.
        actor: who asked for it, where that is somebody else.
        agent: a registry entry, or an `AgentPolicy`.
        run_input: the checked input.
        claim: the process that will execute the run at once; empty: it is stored as pending, for whoever claims it.
        first_event: makes the event that is stored with a run that is executed at once.
        extra: plain JSON, shown to the agent as ``run.extra``.
        resumed_run: the interrupted run that a resume from the server answers; from a client it is found by its ids.
        may_answer: asked for each question that the request answers; in a database thread. None: all of them.
        may_give_up: the same for each that it cancels; None: as for answers.
        attachments_at: what clients find in front of an attachment's id; empty: the site's addresses say it.
        upload: the files of its messages, once they are stored.
        given: answers that the site's own code takes: the run is opened once they are complete.
        answerers: who answered which question (by its id), where the answers are of several people.
    """

    scope: str
    owner: Any
    user: Any
    agent: Any
    run_input: RunInput
    actor: Any = None
    transport: str = "sse"
    extra: Mapping[str, Any] = field(default_factory=dict)
    language: str = ""
    time_zone: str = ""
    claim: str = ""
    first_event: Callable[[RunSetup], FirstEvent] | None = None
    resumed_run: Run | None = None
    origin: Literal["client", "server"] = "client"
    may_answer: Callable[[Interrupt], bool] | None = None
    may_give_up: Callable[[Interrupt], bool] | None = None
    attachments_at: str = ""
    upload: Upload | None = None
    given: Given | None = None
    answerers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def policy(self) -> AgentPolicy:
        """What the store has to know of the agent."""
        return self.agent if isinstance(self.agent, AgentPolicy) else AgentPolicy.of(self.agent)

    def permits(self, interrupt: Interrupt, *, cancels: bool) -> bool:
        """Whether who sent it may answer a question, or cancel it; in a database thread."""
        may = self.may_give_up if cancels and self.may_give_up is not None else self.may_answer
        return may is None or may(interrupt)


@dataclass(frozen=True)
class Asked:
    """A request for a run, and whether who sent it may start one."""

    request: StartRequest
    allowed: bool | Awaitable[bool]


@dataclass
class Hydration:
    """A thread's present, to be restated.

    Attributes:
        messages: the wire messages in play.
        state: plain JSON.
        interrupts: the wire interrupts that wait for an answer.
        run_id: the client's id of the run that is restated: the one that asked, else the latest; "" without runs.
        active: the run that holds the thread now, None when it is idle.
    """

    thread_id: str
    run_id: str
    messages: list[Wire]
    state: Any
    interrupts: list[Wire]
    active: Run | None = None


@dataclass
class Opened:
    """What became of a `StartRequest`.

    Attributes:
        kind: ``created``: a new run (`run`, `setup`). ``queued``: a new run that waits its turn; follow `run`.
            ``busy``: nothing was stored, `run` has to be cancelled first. ``attached``: a repeat; follow `run` from its
            start.
            ``joined``: a client without history met an active run; `run`, and `hydration` is what the thread held when
            it began. ``hydration``: no run; restate `hydration`. ``kept``: an answer was kept until the others
            are there. ``refused``: tell `error` as the stream's only event.
        closed: primary keys of the questions that were closed for good, other than by answers that a run carries.
        warnings: what of the request was dropped or ignored, for the log.
    """

    kind: Kind
    run: Run | None = None
    setup: RunSetup | None = None
    hydration: Hydration | None = None
    error: AgUiError | None = None
    closed: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
