"""Made-up conversations that look as a site's do: the rows of threads, with runs of every status, by model.

Law: what lists, pages and charts read is as runs leave it: orders, keys, fingerprints, sums.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, Final
from uuid import UUID

from django.db import models

from agui_django.agents.costs import Cost, OwnCosts
from agui_django.models import Feedback, Interrupt, Message, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.codec import encode
from agui_django.runs.ledger import STEP, fingerprint, state_digest, token_totals
from agui_django.runs.pricing import columns, price_of
from agui_django.runs.setup import Failure

Row = dict[str, Any]

#: Tables in the order in which they refer to each other.
MODELS: Final[tuple[type[models.Model], ...]] = (
    Thread, Run, RunEvents, StateVersion, Message, Interrupt, Feedback,
)  # fmt: skip

#: As in a language: a few words stand everywhere, most of them nowhere else.
COMMON: Final = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were her all she there would their we him been has when who will more no if out so said what up its about "
    "order invoice kettle parcel refund address delivery customer Größe café schema python question please thanks today"
)
WORDS: Final = [*COMMON.split(), *(f"word{number}" for number in range(20_000))]
#: The second word is half as frequent as the first, the third a third ...
OFTEN: Final = list(accumulate(1 / (rank + 1) for rank in range(len(WORDS))))
#: Texts that are said again and again; how busy each hour of a day is; how long runs take at most.
TEXTS, HOURS, LONGEST = 4000, [1, 1, 1, 1, 1, 2, 3, 5, 8, 10, 10, 9, 8, 9, 10, 10, 9, 7, 5, 4, 3, 3, 2, 1], 60_000
#: Minutes between the runs of a thread, at most; days for which a question stays open.
BETWEEN, OPEN = 90, 3
TOOLS: Final = ("lookup_order", "search", "refund_payment", "send_mail")
#: A model, how often it is used, and what a million tokens cost where the site has no price; the last one has none.
MODELS_USED: Final = (("acme-small", 12, ("0.25", "2")), ("acme-large", 5, ("3", "15")), ("acme-new", 1, None))
FAILURES: Final = [
    (Failure(code, "", f"{kind}: {text}" if kind else text, kind=kind, place=place), weight)
    for code, kind, place, text, weight in (
        ("agent_exception", "TimeoutError", "shop/tools.py lookup_order", "The shop did not answer in 3 seconds.", 40),
        ("agent_exception", "KeyError", "shop/agents.py refund", "'invoice'", 12),
        ("agent_exception", "ValueError", "shop/agents.py Support.run", "No address in 'Hauptstraße'.", 6),
        ("timeout", "RunTimeout", "", "It took longer than 600 seconds.", 8),
        ("rate_limited", "AgentError", "shop/models.py complete", "The model is busy.", 20),
        ("state_invalid", "StateInvalid", "shop/agents.py plan", "/step: 12 is more than the maximum of 10", 3),
        ("run_abandoned", "", "", "Its claim was '...'.", 4),
    )
]


@dataclass
class Story:
    """Makes threads.

    Args:
        owners: keys of the users whose threads they are.
        agents: names.
        now: the end of the time that is filled.
        days: its length.
        seed: the same makes the same of an empty database.
        keys: the first free keys of threads and of messages.
    """

    owners: Sequence[Any]
    agents: Sequence[str]
    now: datetime
    days: int
    seed: int
    keys: tuple[int, int]

    def __post_init__(self) -> None:
        """What is drawn from again and again is made once."""
        # What is added to a database is other than what is there.
        self.dice = random.Random(f"{self.seed} {self.keys}")  # noqa: S311 - made-up texts
        self.thread_key, self.message_key = self.keys
        self.texts = [self._words(self.dice.randrange(5, 60)) for _ in range(TEXTS)]
        self.titles = [self._words(5) for _ in range(TEXTS)]
        self.failures = [failure for failure, _ in FAILURES]
        self.fingerprints = [fingerprint(failure) for failure in self.failures]

    def _words(self, count: int) -> str:
        return " ".join(self.dice.choices(WORDS, cum_weights=OFTEN, k=count))

    def threads(self, runs: int, messages: int) -> Iterator[dict[type[models.Model], list[Row]]]:
        """The rows of a thread after the other.

        Args:
            runs: how many there are in all threads.
            messages: the same; those that are left over go to the first runs.
        """
        each, more = divmod(messages, runs)
        counts: list[int] = []
        left = runs
        while left:
            counts.append(min(self.dice.choice((1, 2, 3, 4, 4, 5, 6, 7)), left))
            left -= counts[-1]
        # Rows lie in a table in the order in which they were made, by which a window of time is read.
        moments = sorted(self.moment() for _ in counts)
        made = 0
        for count, moment in zip(counts, moments, strict=True):
            yield _Conversation(self, moment, [each + (number < more) for number in range(made, made + count)]).rows
            made += count

    def moment(self) -> datetime:
        """When a thread begins: more often by day."""
        day = self.now - timedelta(days=self.dice.randrange(self.days))
        hour = self.dice.choices(range(24), HOURS)[0]
        moment = day.replace(hour=hour) + timedelta(seconds=self.dice.uniform(-1800, 1800))
        return moment if moment < self.now else moment - timedelta(days=1)


class _Conversation:
    """The rows of one thread."""

    def __init__(self, story: Story, began: datetime, lengths: list[int]) -> None:
        self.story, self.dice = story, story.dice
        self.rows: dict[type[models.Model], list[Row]] = {model: [] for model in MODELS}
        self.key, self.owner = story.thread_key, self.dice.choice(story.owners)
        story.thread_key += 1
        self.agent, self.name = self.dice.choice(story.agents), str(UUID(int=self.dice.getrandbits(128), version=4))
        self.at = began
        self.order = 0
        self.last: Row | None = None
        for number, length in enumerate(lengths):
            self.run(number, length, last=number == len(lengths) - 1)
            self.at += timedelta(minutes=self.dice.uniform(0.2, BETWEEN))
            if self.at > story.now:
                self.at = self.rows[Run][-1]["created_at"] + (story.now - self.rows[Run][-1]["created_at"]) / 2
        runs, said = self.rows[Run], self.rows[Message]
        state = {"order": self.dice.randrange(10_000), "step": len(runs)}
        self.rows[Thread].append(
            {
                "id": self.key, "scope": f"user:{self.owner}", "thread_id": self.name, "owner_id": self.owner,
                "agent": self.agent, "title": self.dice.choice(story.titles), "archived": self.dice.random() < 0.1,
                "state": encode(state), "state_version": 1,
                "last_words": said[-1]["search_text"][:200] if said else "",
                "created_at": began, "updated_at": runs[-1]["finished_at"] or runs[-1]["created_at"],
                **{name: sum(run[name] for run in runs) for name in ("input_tokens", "output_tokens")},
            }
        )  # fmt: skip
        self.rows[StateVersion].append(
            {
                "thread_id": self.key, "run_id": runs[-1]["uuid"], "version": 1, "state": encode(state),
                "digest": state_digest(state), "origin": "agent", "created_at": runs[-1]["created_at"],
            }
        )  # fmt: skip

    def run(self, number: int, length: int, *, last: bool) -> None:
        """A run, its log, what it said, and what it asked."""
        dice, address = self.dice, UUID(int=self.dice.getrandbits(128), version=4)
        status = self._status(last)
        took = min(LONGEST, int(dice.lognormvariate(8, 0.8)))
        ended = self.at + timedelta(milliseconds=took)
        active = status in ("queued", "pending", "running")
        usage = self._usage(length)
        row: Row = {
            "uuid": address, "thread_id": self.key, "run_id": f"run-{number}", "digest": "", "agent": self.agent,
            "user_id": self.owner, "status": status, "transport": dice.choice(("sse", "sse", "sse", "websocket")),
            "protocol_version": "1.1", "input": '{"tools":[],"context":[],"forwardedProps":{}}', "turn": address.hex,
            "created_at": self.at, "started_at": None if status in ("queued", "pending") else self.at,
            "heartbeat": self.at, "finished_at": None if active else ended, "duration_ms": None if active else took,
            "first_event_ms": None if active else min(took, int(dice.lognormvariate(6, 0.6))),
            "tool_calls": max(0, length - 2) // 2, "last_seq": 0 if active else 4, "usage": encode(usage),
            "resumed_run_id": None, **token_totals(usage), **_cost(usage),
        }  # fmt: skip
        if status == "failed":
            place = dice.choices(range(len(FAILURES)), [weight for _, weight in FAILURES])[0]
            failure = self.story.failures[place]
            row |= {
                "error_code": failure.code, "error_text": failure.text, "error_reference": address.hex[:12],
                "error_place": f"{failure.kind} {failure.place}".strip(),
                "error_fingerprint": self.story.fingerprints[place],
                "traceback": f"Traceback (most recent call last):\n{failure.text}\n",
            }  # fmt: skip
        elif status == "cancelled":
            row["end_reason"] = dice.choice(("user", "user", "disconnect", "staff"))
        if self.last is not None and self.last["status"] == "interrupted":
            row |= {"resumed_run_id": self.last["uuid"], "turn": self.last["turn"]}
            self.rows[Interrupt][-1] |= {
                "status": "resolved", "answered_by_id": self.owner, "answered_run_id": address, "closed_at": self.at,
                "response": '{"interruptId":"q1","status":"resolved","payload":true}',
            }  # fmt: skip
        self.rows[Run].append(row)
        if not active:
            self._log(row)
        self._say(row, length)
        if status == "interrupted":
            self._ask(row)
        self.last = row

    def _status(self, last: bool) -> str:
        if last and self.story.now - self.at < timedelta(minutes=30) and self.dice.random() < 0.2:
            return self.dice.choice(("running", "running", "pending", "queued"))
        if last and self.story.now - self.at < timedelta(days=OPEN) and self.dice.random() < 0.15:
            return "interrupted"  # what staff find in the inbox
        return self.dice.choices(("finished", "failed", "cancelled", "interrupted"), (88, 6, 3, 3))[0]

    def _usage(self, length: int) -> list[Row]:
        if not length:
            return []
        dice = self.dice
        model = dice.choices(MODELS_USED, [weight for _, weight, _ in MODELS_USED])[0][0]
        given, made = dice.randrange(200, 8000), dice.randrange(20, 900)
        return [
            {
                "provider": "acme", "model": model, "inputTokens": given, "outputTokens": made,
                "totalTokens": given + made, "cachedInputTokens": int(given * dice.choice((0, 0.5, 0.8))),
                "reasoningTokens": made // 3,
            }
        ]  # fmt: skip

    def _log(self, run: Row) -> None:
        at = int(run["created_at"].timestamp() * 1000)
        end = at + run["duration_ms"]
        ids = f'"threadId":"{self.name}","runId":"{run["run_id"]}"'
        terminal = {
            "failed": f'{{"type":"RUN_ERROR","message":"Something went wrong.","code":"{run.get("error_code")}"',
            "cancelled": f'{{"type":"RUN_FINISHED",{ids},"outcome":{{"type":"cancelled"}}',
        }.get(run["status"], f'{{"type":"RUN_FINISHED",{ids}')
        text = (
            f'{{"type":"RUN_STARTED",{ids},"timestamp":{at}}}\n'
            f'{{"type":"STEP_STARTED","stepName":"answer","timestamp":{at + run["first_event_ms"]}}}\n'
            f'{{"type":"STEP_FINISHED","stepName":"answer","timestamp":{end}}}\n'
            f'{terminal},"timestamp":{end}}}'
        )
        self.rows[RunEvents].append({"run_id": run["uuid"], "first_seq": 1, "last_seq": 4, "text": text})

    def _say(self, run: Row, length: int) -> None:
        """The user's message, pairs of a call and its result, the answer; what is regenerated supersedes the last."""
        said = self.rows[Message]
        again = len(said) > 1 and said[-1]["role"] == "assistant" and self.dice.random() < 0.03
        if again:
            said[-1] |= {"superseded_by_id": run["uuid"], "behind": said[-2]["id"]}
        for place in range(length):
            role = "assistant"
            if place == 0 and not again:
                role = "user"
            elif 0 < place < length - 1:
                role = "tool" if place % 2 == 0 else "assistant"
            self._message(run, role, calls=role == "assistant" and 0 < place < length - 2)
        if length > 1 and self.dice.random() < 0.03:
            rating = self.dice.choice((Feedback.Rating.UP, Feedback.Rating.DOWN)).value
            self.rows[Feedback].append(
                {"thread_id": self.key, "message_id": said[-1]["id"], "user_id": self.owner, "rating": rating}
            )

    def _message(self, run: Row, role: str, *, calls: bool) -> None:
        said, text = self.rows[Message], self.dice.choice(self.story.texts)
        name, self.order = f"m{len(said)}", self.order + STEP
        if calls:
            # What a call is about is no text that is searched.
            tool, text = self.dice.choice(TOOLS), ""
            call = f'{{"id":"c{len(said)}","type":"function","function":{{"name":"{tool}","arguments":"{{}}"}}}}'
            wire = f'{{"id":"{name}","role":"assistant","toolCalls":[{call}]}}'
        elif role == "tool":
            wire = f'{{"id":"{name}","role":"tool","toolCallId":"c{len(said) - 1}","content":"{text}"}}'
        else:
            wire = f'{{"id":"{name}","role":"{role}","content":"{text}"}}'
        said.append(
            {
                "id": self.story.message_key, "thread_id": self.key, "message_id": name, "role": role, "wire": wire,
                "search_text": text, "order": self.order, "run_id": run["uuid"], "superseded_by_id": None,
                "behind": None, "created_at": run["created_at"],
            }
        )  # fmt: skip
        self.story.message_key += 1

    def _ask(self, run: Row) -> None:
        run["open_interrupts"] = 1
        tool, asked = self.dice.choice(TOOLS), run["finished_at"]
        message = f"May I use {tool}?"
        expires = asked + timedelta(hours=self.dice.choice((1, 24))) if self.dice.random() < 0.4 else None
        late = self.story.now - asked > timedelta(days=OPEN) or (expires is not None and expires < self.story.now)
        wire = encode({"id": "q1", "reason": "confirmation", "message": message})
        run["outcome"] = f'{{"type":"interrupt","interrupts":[{wire}]}}'
        self.rows[Interrupt].append(
            {
                "thread_id": self.key, "run_id": run["uuid"], "interrupt_id": "q1", "key": "q1", "message": message,
                "reason": "confirmation", "wire": wire, "status": "expired" if late else "open", "expires_at": expires,
                "response_schema": '{"type":"boolean"}', "created_at": asked, "closed_at": asked if late else None,
                "answered_by_id": None, "answered_run_id": None, "response": "",
            }
        )  # fmt: skip


def _cost(usage: list[Row]) -> Row:
    """By the site's prices, else by made-up ones, as if the agent had said so."""
    if not usage:
        return {"model": "", "cost_nanos": None, "currency": "", "priced_on": None}
    (entry,), own = usage, OwnCosts()
    amounts = next(amounts for model, _, amounts in MODELS_USED if model == entry["model"])
    if amounts is not None and price_of(entry["provider"], entry["model"]) is None:
        given, made = (float(amount) / 1_000_000 for amount in amounts)
        own.add(Cost(round(entry["inputTokens"] * given + entry["outputTokens"] * made, 9), "USD"), entry)
    return {"cost_nanos": None, "currency": "", "priced_on": None, **columns(usage, own)}
