"""Each row of the fault table names tests that exist, and each fault that was promised has a row."""

from __future__ import annotations

import ast
import re

import pytest

from tests.parts import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text()
TABLE = PAGE.partition("| Fault |")[2].partition("\n\n")[0].split("\n")[2:]

PROMISED = [
    "middle of a message", "middle of a tool call", "between a commit and its wake-up",
    "between the wake-up and the send",
    "during a resume", "of a worker", "`SIGSTOP` past the lease, then `SIGCONT`", "Redis is killed and started again",
    "Redis is flushed", "PostgreSQL hangs for ten seconds", "PostgreSQL is restarted", "disk is full", "`SIGTERM` with",
    "one byte a second", "re-joins 50 times", "200 clients follow one run", "race for the same thread",
    "an answer to the same question", "stop the same run",
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: re.sub(r"\W+", "-", row.split("|")[1])[:60])
def test_a_row_names_tests_that_exist(row: str) -> None:
    fault, seen, stored, tests = (cell.strip() for cell in row.strip("|").split("|"))
    assert fault and seen and stored
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
    assert named
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions, f"{path} has no {name}"


@pytest.mark.parametrize("fault", PROMISED)
def test_a_promised_fault_has_a_row(fault: str) -> None:
    assert [row for row in TABLE if fault in row.split("|")[1]]
