"""`penstock mcp`, asked by the client of the official SDK, as a coding agent would."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK
from penstock.interop import agents

pytest.importorskip("mcp")

MS = 1_000_000
Call = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from test_compare import write_run

    folder = tmp_path_factory.mktemp("agents")
    (folder / "runs").mkdir()
    write_run(folder / "runs" / "before", 40)
    write_run(folder / "runs" / "after", 4)
    (folder / "secret.txt").write_text("secret words")
    return folder / "runs"


def asked(folder: Path, calls: Sequence[Call], *words: str) -> tuple[list[str], list[Any]]:
    """Return the names of the tools, and the answers: JSON, or the text of an error."""
    import anyio
    from mcp import ClientSession, StdioServerParameters, stdio_client

    async def session() -> tuple[list[str], list[Any]]:
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "penstock", "mcp", str(folder), *words]
        )
        answers: list[Any] = []
        async with stdio_client(server) as (read, write), ClientSession(read, write) as client:
            await client.initialize()
            tools = [tool.name for tool in (await client.list_tools()).tools]
            for name, arguments in calls:
                answer: Any = await client.call_tool(name, arguments)
                text = answer.content[0].text
                answers.append(text if answer.is_error else json.loads(text))
        return tools, answers

    return anyio.run(session)


@pytest.fixture(scope="module")
def answers(runs: Path) -> tuple[list[str], list[Any]]:
    return asked(
        runs,
        [
            ("report", {"run": "before"}),
            ("findings", {"run": "before"}),
            ("sql", {"run": "before", "query": "select count(*) as n from events"}),
            ("sql", {"run": "before", "query": "from range(100000000)", "rows": 3}),
            ("compare", {"a": "before", "b": "after"}),
            ("check", {"run": "before", "max_stall_percent": 10}),
            ("runs", {}),
            ("report", {"run": "../"}),
            ("sql", {"run": "before", "query": "drop table events"}),
            ("sql", {"run": "before", "query": "select 1) limit 1; drop table events; --"}),
            ("sql", {"run": "before", "query": "select * from read_text('../secret.txt')"}),
            ("report", {"run": "absent"}),
        ],
    )


def test_the_tools_answer_an_agent_as_the_commands_answer_a_user(
    runs: Path, answers: tuple[list[str], list[Any]]
) -> None:
    tools, (report, findings, counted, _, compared, checked, fleet, *_) = answers
    assert sorted(tools) == ["check", "compare", "findings", "report", "runs", "sql"]
    said = subprocess.run(
        [PENSTOCK, "report", runs / "before", "--json"], check=True, capture_output=True, text=True
    )
    truth = json.loads(said.stdout)
    verdict = truth["verdict"]
    assert report["verdict"] == f"{verdict['headline']}: {verdict['sentence']}"
    assert [one["rule"] for one in findings["findings"]] == [
        one["rule"] for one in truth["findings"]
    ]
    assert counted["columns"] == ["n"]
    assert counted["rows"][0][0] > 0
    assert compared["headline"].startswith("B is ")
    (limit,) = checked["limits"]
    assert (limit["key"], limit["state"]) == ("stall", "passed")
    assert (fleet["n_runs"], fleet["n_without"]) == (0, 2)  # an agent's question writes nothing


def test_an_answer_is_bounded_in_rows_and_says_so(answers: tuple[list[str], list[Any]]) -> None:
    assert answers[1][3] == {"columns": ["range"], "rows": [[0], [1], [2]], "more_rows": True}


def test_an_agent_reads_no_file_outside_and_changes_nothing(
    answers: tuple[list[str], list[Any]],
) -> None:
    outside, drop, two, foreign, absent = answers[1][7:]
    assert "outside" in outside
    for refused in (drop, two, foreign):
        assert isinstance(refused, str)
        assert "secret words" not in refused
    assert isinstance(absent, str)
    assert "Traceback" not in "".join((outside, drop, two, foreign, absent))


def test_a_query_ends_at_its_limit_of_time(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "QUERY_S", 0.2)
    tools = agents.Tools(runs)
    begin_s = time.monotonic()
    with pytest.raises(agents.PenstockError, match="longer than"):
        tools.sql(
            "before", "select sum(a.range * b.range) from range(10000000) a, range(1000000) b"
        )
    assert time.monotonic() - begin_s < 60


def test_a_long_answer_is_cut_and_says_so(runs: Path) -> None:
    query = "select repeat('x', 10000) as x, range from range(1000)"
    answer = agents.Tools(runs).sql("before", query, rows=1000)
    assert len(answer) <= agents.MOST_ANSWER
    assert "ask for less" in json.loads(answer)["cut"]


def test_replays_are_offered_on_request(runs: Path) -> None:
    calls: list[Call] = [("whatif", {"run": "before"}), ("whatif", {"run": "before", "threads": 2})]
    tools, (unnamed, replayed) = asked(runs, calls, "--trials")
    assert "whatif" in tools
    assert "name a change" in unnamed
    assert isinstance(replayed, str)  # the files of this run exist nowhere
