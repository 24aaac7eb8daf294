"""Secrets of the command line reach no file; a report for strangers names nothing of the user's."""

import json
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from penstock.explain.report import from_json
from penstock.explain.report.anonymous import anonymous
from penstock.recording.launch import without_secrets

ROOT = Path(__file__).parent.parent
PENSTOCK = Path(sys.executable).with_name("penstock")
SECRETS = ("TOPSECRET", "hunter2", "user:pw", "abcdef0123")
COMMAND = (
    *("train", "--api-key=TOPSECRET", "--token", "hunter2", "--epochs", "3"),
    "https://user:pw@host/x?X-Amz-Signature=abcdef0123&part=2",
)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("--api-key=TOP --lr=0.1", "--api-key=… --lr=0.1"),
        # Values with spaces and commas, inside quotes of their own.
        ("""'{"password": "a b, c", "x": 1}'""", """'{"password": "…", "x": 1}'"""),
        ("""--dsn='host=h password="a b" user=y'""", """--dsn='host=h password="…" user=y'"""),
        ('''"d['token'] = 'a b'; x=1"''', '''"d['token'] = '…'; x=1"'''),
        ("""'("password", "a b")'""", """'("password", "…")'"""),
        ("""'login(password = "a")'""", """'login(password = "…")'"""),
        # Passwords in a URL that are not escaped as they should be.
        (
            "s3://AK:a/b+c@bucket/x db://u:p?w@h/d db://u:p#w@h/d",
            "s3://…@bucket/x db://…@h/d db://…@h/d",
        ),
        ("http://host:8080/a@b http://[::1]:80/a@b", "http://host:8080/a@b http://[::1]:80/a@b"),
        ("--ssh '-----BEGIN RSA PRIVATE KEY----- MII'", "--ssh …"),
        ("--token hunter2 --epochs 3", "--token … --epochs 3"),
        ("--use-token --epochs 3", "--use-token --epochs 3"),
        ("--hf_token -x", "--hf_token …"),
        ("HF_TOKEN=hf_x wandb.api_key=z a.b=3", "HF_TOKEN=… wandb.api_key=… a.b=3"),
        ("--password 1234 --passphrase x --pass y", "--password … --passphrase … --pass …"),
        ("--tokenizer gpt2 --keyword x --author me", "--tokenizer gpt2 --keyword x --author me"),
        ("--max-tokens 4096 --tokens abc", "--max-tokens 4096 --tokens …"),
        ("https://u:p@h/a?sig=Q&x=1#f", "https://…@h/a?sig=…&x=1#f"),
        ("s3://bucket/key/part-1.tar ssh://me@h/p", "s3://bucket/key/part-1.tar ssh://…@h/p"),
        ("x?X-Amz-Credential=A&X-Goog-Date=B&C=D", "x?X-Amz-Credential=…&X-Goog-Date=…&C=D"),
        ("-H 'Authorization: Bearer A B'", "-H 'Authorization: …'"),
        ("""-d '{"api_key": "S", "n": 3}'""", """-d '{"api_key": "…", "n": 3}'"""),
        ("sh -c 'run --token T --n 3; KEY=v x'", "sh -c 'run --token … --n 3; KEY=… x'"),
        ("--pwd /work -- -x '' ü", "--pwd /work -- -x '' ü"),
        ("curl -u me:pw --proxy-user=a:b h", "curl -u … --proxy-user=… h"),
        ("docker run -u 1000:1000 --user 5:6 x", "docker run -u 1000:1000 --user 5:6 x"),
        (f"login ghp_{'x' * 36} AKIA{'X' * 16}", "login … …"),
        (f"login {'eyJ' + 'h' * 40}.{'p' * 20}.s-_ hf_{'y' * 34}", "login … …"),
        ("sk-learn hf_transfer eyJ akia", "sk-learn hf_transfer eyJ akia"),
        (f"x:ghp_{'x' * 36},y", "x:…,y"),
    ],
)
def test_values_of_secrets_are_hidden_and_others_are_kept(said: str, kept: str) -> None:
    assert without_secrets(shlex.split(said)) == shlex.split(kept)


def test_names_can_be_added_and_all_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--licence", "X", "--my-pin=7", "--token", "T"]
    monkeypatch.setenv("PENSTOCK_SECRETS", "licence,pin")
    assert without_secrets(words) == ["--licence", "…", "--my-pin=…", "--token", "…"]
    monkeypatch.setenv("PENSTOCK_KEEP_ARGV", "1")
    assert without_secrets(words) == words


def test_a_word_that_is_cut_or_not_text_does_no_harm() -> None:
    for word in (b"\xff\xfe=\x80", b"--token=" + b"x" * 5000, b"://@", b"=", b":", b"\xe2\x80"):
        (kept,) = without_secrets([word.decode(errors="surrogateescape")])
        assert b"xxx" not in kept.encode(errors="surrogateescape")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("secrets")
    (place / "train").write_text("#!/bin/sh\ncat /etc/hostname > out\ncat out\n")
    (place / "train").chmod(0o755)
    for name, more in (("run", ()), ("kept", ("--keep-argv",))):
        subprocess.run(
            [PENSTOCK, "run", "-q", *more, "-o", name, "./train", *COMMAND[1:]],
            cwd=place, check=True, capture_output=True, timeout=120,
            env={"PATH": "/usr/bin:/bin", "AWS_SECRET_ACCESS_KEY": "FROMTHEENVIRONMENT"},
        )  # fmt: skip
    for words in (
        ["report", "run", "-o", "r.html"],
        ["report", "run", "--json"],
        ["timeline", "run", "-o", "t.json"],
        ["reduce", "run", "-o", "r.reduced"],
    ):
        done = subprocess.run(
            [PENSTOCK, *words], cwd=place, check=True, capture_output=True, timeout=120
        )
        (place / f"{words[0]}.out").write_bytes(done.stdout)
    return place


def holding(place: Path, text: str) -> list[str]:
    found = [path for path in place.rglob("*") if path.is_file()]
    return [path.name for path in found if text.encode() in path.read_bytes()]


def test_no_file_of_a_run_and_no_view_holds_a_secret(runs: Path) -> None:
    for secret in SECRETS:
        names = holding(runs / "run", secret) + [
            path.name
            for path in runs.iterdir()
            if path.is_file() and secret.encode() in path.read_bytes()
        ]
        assert names == [], secret
    assert holding(runs, "FROMTHEENVIRONMENT") == []
    assert "--epochs 3" in json.loads((runs / "report.out").read_text())["command"]


def test_arguments_are_kept_where_that_is_asked_for(runs: Path) -> None:
    for secret in SECRETS:
        names = holding(runs / "kept", secret)
        assert "run.json" in names
        assert any(name.endswith(".events") for name in names), secret


def test_the_page_about_sharing_lists_the_names_that_the_recorder_knows() -> None:
    source = (ROOT / "native/secrets.c").read_text()
    page = (ROOT / "docs/sharing.md").read_text()
    for array in ("SECRET", "HARMLESS", "WHOLE"):
        listed = re.search(rf"\b{array}\[\] = {{(.*?)}};", source, re.DOTALL)
        assert listed
        for name in re.findall(r'"([^"]+)"', listed[1]):
            assert f"`{name}`" in page, name


# --- a report for strangers ----------------------------------------------------------------------


def test_an_anonymous_report_names_nothing_and_keeps_its_shape(runs: Path) -> None:
    words = [PENSTOCK, "report", "run", "--anonymous"]
    done = subprocess.run([*words, "--json"], cwd=runs, capture_output=True, text=True, check=True)
    subprocess.run([*words, "-o", "anonymous.html"], cwd=runs, capture_output=True, check=True)
    plain = json.loads((runs / "report.out").read_text())
    folders = {part for part in runs.parts[2:] if len(part) > 2}  # a letter alone stands anywhere
    private = {*folders, "train", plain["host"]}
    for text in (done.stdout, (runs / "anonymous.html").read_text()):
        assert [name for name in private if re.search(rf"(?<!\w){re.escape(name)}\b", text)] == []
    hidden = json.loads(done.stdout)
    assert hidden["run"] == "RUN"
    assert from_json(done.stdout).verdict.level == plain["verdict"]["level"]
    for before, after in zip(plain["tables"], hidden["tables"], strict=True):
        assert len(before["rows"]) == len(after["rows"])
        for place, column in enumerate(before["columns"]):
            if column["unit"] == "path":
                rows = zip(before["rows"], after["rows"], strict=True)
                pairs = [(a[place] or "", b[place] or "") for a, b in rows]
                assert all(a.count("/") == b.count("/") for a, b in pairs)
                assert len(dict(pairs)) == len({b for _, b in pairs})


def test_the_same_name_gets_the_same_pseudonym_everywhere(runs: Path) -> None:
    report = from_json((runs / "report.out").read_text())
    once, again = anonymous(report), anonymous(report)
    assert once == again
    assert once.host == "host1"
    assert once.folder.startswith("/tmp/")
    assert str(runs) not in once.folder
    files = {str(row[0]) for row in once.table("files").rows}
    folders = {str(row[0]) for row in once.table("directories").rows}
    assert any(name.startswith(f"{once.folder}/") for name in files), (once.folder, files)
    assert once.folder in folders


# --- metrics -------------------------------------------------------------------------------------


def test_metrics_name_no_command_and_are_told_to_no_other_name() -> None:
    pytest.importorskip("prometheus_client")
    from penstock.views.metrics import Metrics

    with Metrics("127.0.0.1:0") as served:
        url, port = f"http://{served.address}/metrics", served.address.rpartition(":")[2]
        for host, status in (
            (f"127.0.0.1:{port}", 200),
            (f"localhost:{port}", 200),
            (f"[::1]:{port}", 200),
            ("evil.example", 421),
            (f"127.0.0.1.evil.example:{port}", 421),
        ):
            try:
                asked = urllib.request.Request(url, headers={"Host": host})
                with urllib.request.urlopen(asked, timeout=30) as answer:
                    assert answer.status == status, host
            except urllib.error.HTTPError as error:
                assert error.code == status, host  # noqa: PT017


def test_a_command_line_that_another_tool_recorded_is_imported_without_secrets(
    tmp_path: Path,
) -> None:
    from penstock.interop.dftracer import import_traces
    from penstock.runs.run import open_run

    events = [
        {"ph": "M", "pid": 1, "tid": 1, "name": name, "args": {"name": value, "value": key}}
        for name, key, value in (
            ("SH", "c1", "python t.py --password hunter2 --db s3://k:hunter2@b/x"),
            ("FH", "f1", "/data/a"),
            ("HH", "h1", "host"),
        )
    ]
    start = {"ph": "X", "pid": 1, "tid": 1, "cat": "dftracer", "name": "start", "ts": 1, "dur": 0}
    read = {"ph": "X", "pid": 1, "tid": 1, "cat": "POSIX", "name": "read", "ts": 5, "dur": 3}
    events.append({**start, "args": {"cmd_hash": "c1", "exec_hash": "f1", "hhash": "h1"}})
    events.append({**read, "args": {"fhash": "f1", "ret": 10, "hhash": "h1"}})
    trace = tmp_path / "a.pfw"
    trace.write_text("[\n" + "\n".join(json.dumps({"id": n, **e}) for n, e in enumerate(events)))
    folder = import_traces([trace], tmp_path / "run")
    with open_run(folder) as run:
        (command,) = run.connection.execute("SELECT command FROM processes").fetchone()
    assert "t.py" in command
    assert holding(tmp_path / "run", "hunter2") == []
