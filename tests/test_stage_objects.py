"""The objects that a run fetched, as a plan: against the log of their server."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import cli
from penstock.errors import QueryError
from penstock.stage.objects import object_plan
from penstock_lab.objects import Asked, ObjectServer
from synthetic import MS, Synthetic

FETCHING = """
import http.client, os, sys
PORT = int(sys.argv[1])
def get(to, key, part=None):
    headers = {"Range": f"bytes={part[0]}-{part[1]}"} if part else {}
    while True:
        to.request("GET", f"/data/{key}", headers=headers)
        answer = to.getresponse()
        answer.read()
        if answer.status < 300:
            return
def epoch():
    to = http.client.HTTPConnection("localhost", PORT)
    for key in range(4):
        get(to, key)
    for n in range(4):
        get(to, "shard", (16384 * n, 16384 * n + 16383))
child = os.fork()
epoch()
if child:
    os.waitpid(child, 0)
    epoch()
"""


def test_a_plan_of_objects_has_the_bytes_that_the_server_sent(
    recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for number in range(4):
        (tmp_path / "data" / str(number)).write_bytes(bytes(1000 * (number + 1)))
    (tmp_path / "data" / "shard").write_bytes(bytes(1 << 20))
    program = tmp_path / "job.py"
    program.write_text(FETCHING)

    def choose(asked: Asked) -> str:
        return "503" if asked.number == 5 else ""

    with ObjectServer(tmp_path, 0.002, choose=choose, keep=True) as server:
        run = recorded_command([sys.executable, program, str(server.port)])
        asked = Counter(row.path.rstrip("/") for row in server.served)
        sent_bytes = server.counts.bytes
    plan = object_plan(run)
    assert {row.path: row.requests for row in plan.objects} == asked
    assert {row.path: row.times for row in plan.objects if "shard" not in row.path} == {
        f"/data/{key}": 3 for key in range(4)
    }
    assert {row.processes for row in plan.objects} == {2}
    assert plan.fetched_bytes == 3 * (10_000 + 65_536) <= sent_bytes
    [shard] = [row for row in plan.objects if "shard" in row.path]
    assert (shard.size_bytes, shard.fetched_bytes) == (1 << 20, 3 * 65_536)
    assert plan.again_bytes == 20_000  # of a shard, less was read than its size
    output = tmp_path / "objects.jsonl"
    said = CliRunner().invoke(cli, ["stage", "objects", str(run.folder), "-o", str(output)])
    assert said.exit_code == 0
    assert said.output.startswith(f"5 objects at localhost:{server.port}, 1.06 MB; fetched 227 kB")
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["path"] for line in lines][:2] == ["/data/shard", "/data/3"]
    facts = CliRunner().invoke(cli, ["stage", "objects", str(run.folder), "--json"]).output
    assert json.loads(facts)["again_bytes"] == 20_000


def test_sums_and_runs_without_requests_are_said() -> None:
    run = Synthetic()
    run.process(1, end=100 * MS)
    run.request(0, 10 * MS, "/a", size=500, thread=1)
    run.requested("store.example:443", 50 * MS, 9 * MS, requests=7)
    run.connection  # noqa: B018
    plan = object_plan(run.run)
    assert (len(plan.objects), plan.summed, plan.again_bytes) == (1, 7, 0)
    empty = Synthetic()
    empty.process(1, end=100 * MS)
    empty.connection  # noqa: B018
    with pytest.raises(QueryError, match="no request for an object was recorded"):
        object_plan(empty.run)
