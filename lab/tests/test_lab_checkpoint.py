"""`penstock bench checkpoint`: every way saves as stated, and the saved state is read back."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from test_lab_studies import result_of

from fixtures import PENSTOCK
from penstock.errors import TierError
from penstock.places import tiers
from penstock_lab import beside, checkpoint
from penstock_lab.checkpoint import CheckpointRun, CheckpointSettings, Saved, measure, summaries_of
from slowtier import needs_fuse, nothing_stays  # noqa: F401 - a fixture

pytest.importorskip("torch")

SMALL = CheckpointSettings(n_steps=8, every=4, compute_s=0.005, scale=0.004, repeats=1)


def run(way: str, repeat: int, total_s: float, *blocks_s: float) -> CheckpointRun:
    saves = tuple(Saved(20 * n, n, block_s, block_s) for n, block_s in enumerate(blocks_s, 1))
    return CheckpointRun(way, repeat, total_s, 1.0, 100, 0, saves, ())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[CheckpointRun]]:
    folder = tmp_path_factory.mktemp("bench")
    slow = folder / "slow tier"
    (slow / "penstock-bench").mkdir(parents=True)
    (slow / "penstock-bench" / "mine").write_text("x")
    return folder / "out", slow, measure(folder / "out", SMALL, slow)


def test_every_way_saves_and_is_read_back_by_torch_alone(
    measured: tuple[Path, Path, list[CheckpointRun]],
) -> None:
    """measure() itself refuses a run whose newest checkpoint is not the last step's."""
    _, _, runs = measured
    assert {each_run.way for each_run in runs} == set(checkpoint.WAYS)
    for each_run in runs:
        steps = [] if each_run.way == "none" else [4, 8]
        assert [save.step for save in each_run.saves] == steps
        assert each_run.loaded_step == (8 if steps else 0)
        assert all(0 < save.block_s <= each_run.total_s for save in each_run.saves)
        # The three copies of 1/250 of AlexNet, and a file's overhead.
        assert not steps or each_run.size_bytes == pytest.approx(
            checkpoint.STATE_BYTES / 250, rel=0.05
        )
        late = each_run.way in ("drain", "checkpointer")
        assert all((save.durable_s > save.block_s) or not late for save in each_run.saves)


def test_no_product_of_a_step_is_slower_than_the_others() -> None:
    """A power of the matrix has no numbers too small to be normal, however many products."""
    import torch

    product = matrix = checkpoint._matrix(torch)
    for _ in range(1000):
        product = product @ matrix
    assert product.min() > 1e-6
    assert product.max() < 1


def test_what_is_written_between_two_looks_is_in_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with an end before the second look."""
    written = iter([0.0, 5e6, 9e6])
    monkeypatch.setattr(checkpoint._Sampler, "_to_slow", lambda _: next(written))
    monkeypatch.setattr(checkpoint, "SAMPLE_S", 60.0)
    begin_unix_s = time.time()
    with checkpoint._Sampler(tmp_path, None) as sampler:
        while not sampler._rows:
            time.sleep(0.001)
        first_s = sampler._rows[0][0]
    (sample,) = sampler.samples(begin_unix_s)
    lasted_s = sample.at_s + begin_unix_s - first_s
    assert sample.slow_bps * lasted_s == pytest.approx(5e6)


def test_runs_are_kept_and_nothing_else_stays(
    measured: tuple[Path, Path, list[CheckpointRun]],
) -> None:
    folder, slow, runs = measured
    assert {path.name for path in folder.iterdir()} == {"runs.jsonl", "settings.json"}
    assert [*slow.rglob("*")] == [slow / "penstock-bench", slow / "penstock-bench" / "mine"]
    with (folder / "runs.jsonl").open("a") as file:
        file.write('{"way": "none", "cut o')  # as left by a kill
    assert measure(folder, SMALL, slow) == runs
    with pytest.raises(TierError, match="other settings"):
        measure(folder, replace(SMALL, every=2), slow)


def test_the_slow_tier_is_the_users(tmp_path: Path) -> None:
    mine = tmp_path / "slow" / "penstock-bench-slow" / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("x")
    with pytest.raises(TierError, match="was not made by penstock bench"):
        measure(tmp_path / "out", replace(SMALL, ways=("slow",)), tmp_path / "slow")
    assert mine.read_text() == "x"
    assert [*(tmp_path / "slow").iterdir()] == [mine.parent]


def test_tiers_on_one_device_need_the_room_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    both = checkpoint.needed_bytes(SMALL, tmp_path, slow)
    monkeypatch.setattr(tiers, "free_bytes", lambda _: 0.8 * both)
    with pytest.raises(TierError, match="out: needs 21"):
        measure(tmp_path / "out", SMALL, slow)
    assert [*tmp_path.rglob("*")] == [slow]
    monkeypatch.setattr(tiers, "device_of", str)  # a device each
    assert checkpoint.needed_bytes(SMALL, tmp_path, slow) == both / 2
    monkeypatch.setattr(tiers, "free_bytes", lambda place: both * (0.4, 0.8)[place != slow])
    with pytest.raises(TierError, match="slow: needs 10"):
        measure(tmp_path / "out", SMALL, slow)
    assert [*tmp_path.rglob("*")] == [slow]


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ('{"study": "read", "scale": "ci"}', "or of another study; name another folder"),
        ('{"study": "checkp', "is cut off"),
        ("[]", "is cut off, or no study's"),
    ],
)
def test_a_folder_of_another_study_or_without_settings_is_refused(
    head: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "settings.json").write_text(head)
    (tmp_path / "runs.jsonl").write_text('{"place": "disk"}\n')
    with pytest.raises(TierError, match=said):
        measure(tmp_path, SMALL)
    assert (tmp_path / "settings.json").read_text() == head
    assert len([*tmp_path.iterdir()]) == 2


def test_results_are_a_table_a_file_of_numbers_and_a_picture(
    measured: tuple[Path, Path, list[CheckpointRun]], tmp_path: Path
) -> None:
    folder, _, runs = measured
    machine = checkpoint.machine_of(folder)
    assert machine["slow tier"] == "given, on the device of the fast one: no slower than it"
    written = checkpoint.write_results(tmp_path, runs, machine)
    assert [path.name for path in written] == [
        f"checkpoint.{ending}" for ending in ("json", "csv", "md", "png")
    ]
    value = json.loads((tmp_path / "checkpoint.json").read_text())
    assert [point["factors"]["way"] for point in value["points"]] == list(checkpoint.WAYS)
    again = checkpoint.write_results(tmp_path / "again", runs, machine)
    comparison = beside.compared(written[0], again[0])
    assert {difference.measure for difference in comparison.differences} >= {
        "loop",
        "a save blocks",
    }
    assert {difference.verdict for difference in comparison.differences} == {"same"}
    assert len((tmp_path / "checkpoint.csv").read_text().splitlines()) == 1 + 1 + 4 * 2
    assert (tmp_path / "checkpoint.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "checkpoint.md").read_text()
    assert all(f"| {way} |" in text for way in checkpoint.WAYS)


def test_overhead_is_paired_and_a_gain_is_no_larger_than_the_noise_allows() -> None:
    runs = [
        run("none", 0, 10.0), run("none", 1, 10.4),
        run("slow", 0, 15.0, 2.5, 2.5), run("slow", 1, 15.4, 2.5, 2.5),
        run("checkpointer", 0, 10.1, 0.05, 0.05), run("checkpointer", 1, 10.5, 0.05, 0.05),
    ]  # fmt: skip
    none, slow, ours = summaries_of(runs)
    assert (none.overhead_s, none.gain) == (None, None)
    assert slow.overhead_s == pytest.approx(5.0)
    assert slow.gain == pytest.approx(1.0)
    assert ours.overhead_s == pytest.approx(0.1)
    assert ours.gain == pytest.approx(5.0 / 0.2)  # quiet runs differ by 0.2 s from their middle
    assert ours.save_s == pytest.approx(0.05)


@needs_fuse
def test_the_command_makes_a_slow_tier_of_its_own(
    tmp_path: Path,
    nothing_stays: None,  # noqa: F811
) -> None:
    import subprocess

    finished = subprocess.run(
        [PENSTOCK, "bench", "checkpoint", tmp_path / "out", "--ways", "slow",
         "--scale", "0.01", "--steps", "4", "--every", "2", "--compute", "5ms", "--asleep",
         "--repeats", "1"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert "a FUSE tier of" in finished.stdout
    value = json.loads((tmp_path / "out" / "checkpoint.json").read_text())
    by_way = {point["factors"]["way"]: point["values"] for point in value["points"]}
    assert by_way["slow"]["overhead_s"] is None  # without a run without saves
    assert by_way["slow"]["block_s"] > 0
    seconds = [sample["slow_bps"] for sample in value["runs"][0]["trace"]]
    assert sum(seconds) > 0  # the tier counted the bytes that arrived, in however short a time


@pytest.mark.slow
@pytest.mark.experiment(study="checkpoint")
@needs_fuse
def test_a_save_to_the_slow_tier_blocks_longest(tmp_path: Path) -> None:
    import subprocess

    command = [PENSTOCK, "bench", "checkpoint", tmp_path, "--scale", "0.1", "--steps", "10"]
    command += ["--every", "5", "--compute", "50ms", "--asleep", "--repeats", "1", "--ratio", "8"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=480)
    assert finished.returncode == 0, finished.stderr
    result = result_of(tmp_path, "checkpoint")
    by_way = {point["factors"]["way"]: point["values"] for point in result["points"]}
    assert set(by_way) == set(checkpoint.WAYS)
    # Eight times as slow: saves that block for the fast tier alone, or for memory, block less.
    for way in ("fast", "drain", "checkpointer"):
        assert by_way[way]["block_s"] < by_way["slow"]["block_s"]
    # A save blocks no less than the time of its tier: not stated for memory.
    assert by_way["none"]["of_ceiling"] is by_way["checkpointer"]["of_ceiling"] is None
    assert 0 < by_way["slow"]["of_ceiling"] < 1.5
    for way in ("slow", "drain", "checkpointer"):  # whole on the slow tier, sooner or later
        assert by_way[way]["durable_at_s"] > 0
    assert by_way["none"]["block_s"] == 0


def test_what_cannot_be_measured_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TierError, match="no such way"):
        measure(tmp_path, CheckpointSettings(ways=("fastest",)))
    with pytest.raises(TierError, match="there is none"):
        measure(tmp_path, CheckpointSettings(n_steps=10, every=20))
    with pytest.raises(TierError, match="can be used there"):
        measure(tmp_path / "new", CheckpointSettings(scale=1e6))
    assert not (tmp_path / "new").exists()
