"""docs/howto/interrupts.md: its code does what the page says."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group

from agui_django import RunContext, signals
from agui_django.models import Interrupt, Run
from agui_django.runs import supervisor
from agui_django.runs.database import get_pool
from agui_django.runs.start import astart_run, start_run
from agui_django.testing import override_agent
from tests.parts import ROOT

PAGE = (ROOT / "docs" / "howto" / "interrupts.md").read_text()
ANSWERING, POLICY, MAIL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def executed(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "shop.questions"}
    exec(code, names)
    return names


async def refund(run: RunContext) -> None:
    answer = run.interrupt(
        "refund", message="Refund 40 €?", permission="" if run.text == "small" else "shop.approve_refund"
    )
    await run.say(f"Refunded {answer.get('amount', 40)} €.")


def approver(make: Any, name: str) -> Any:
    user = make(name, email=f"{name}@example.org")
    user.groups.add(Group.objects.get_or_create(name="approvers")[0])
    return user


def test_a_command(agui_runtime: None, ada: Any) -> None:
    names = executed(ANSWERING)
    with override_agent("refund", refund):
        start_run("refund", "t", "small", ada)
        names["approve_small_refunds"]()
    row = Interrupt.objects.get()
    assert (row.status, row.answered_by) == ("resolved", None)


@pytest.mark.asyncio
async def test_a_view_and_a_policy(agui_runtime: None, ada: Any, django_user_model: Any, settings: Any) -> None:
    names = executed(ANSWERING)
    kim = await get_pool().run(approver, django_user_model.objects.create_user, "kim")
    policy = executed(POLICY)["Policy"]()
    with override_agent("refund", refund):
        await astart_run("refund", "t", "small", ada)
        row = await Interrupt.objects.select_related("run", "thread").aget()
        assert await get_pool().run(policy.may_answer, ada, row) is False
        assert await get_pool().run(policy.may_answer, kim, row) is True
        row.run.agent = "other"
        assert await get_pool().run(policy.may_answer, ada, row) is True
        run = await names["approve"](row, ada)
        await supervisor.settle()
    assert (await Run.objects.aget(pk=run)).status == "finished"
    assert '"channel":"phone"' in (await Interrupt.objects.aget()).response


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore:.*default mailer")  # of coming Djangos, for sites without MAILERS
async def test_an_email_when_approval_is_needed(
    agui_runtime: None, ada: Any, django_user_model: Any, mailoutbox: list[Any]
) -> None:
    for name in ("kim", "lee"):
        await get_pool().run(approver, django_user_model.objects.create_user, name)
    receiver = executed(MAIL)["mail_approvers"]
    try:
        with override_agent("refund", refund):
            await astart_run("refund", "t", "small", ada)
            await astart_run("refund", "u", "large", ada)
            await supervisor.settle()
    finally:
        signals.interrupt_opened.disconnect(receiver)
    (mail,) = mailoutbox
    assert mail.subject == "Approval needed: Refund 40 €?"
    assert sorted(mail.to) == ["kim@example.org", "lee@example.org"]
    assert mail.body == "Asked by ada, thread u. Until: no end."


@pytest.mark.parametrize("code", [ANSWERING, POLICY, MAIL])
def test_names_exist(code: str) -> None:
    for module, names in re.findall(r"^from (agui_django[\w.]*) import (.*)$", code, re.MULTILINE):
        found = __import__(module, fromlist=["x"])
        assert all(hasattr(found, name.strip()) for name in names.split(","))
