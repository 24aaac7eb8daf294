"""MLPerf Storage's workloads: DLIO's utilisation, samples that it can read, and what AU shows."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_lab_studies import penstock, result_of, study_page

from fixtures import PENSTOCK
from penstock.errors import RunError
from penstock.feed import open_index
from penstock_lab import mlperf, pipeline, storage
from penstock_lab.mlperf import WORKLOADS, MlperfSettings
from penstock_lab.pipeline import PipelineJob, PipelineResult
from penstock_lab.places import Place
from slowtier import needs_fuse, nothing_stays  # noqa: F401 - a fixture


def test_utilisation_counts_from_the_end_of_the_first_step() -> None:
    done = PipelineResult(ends_s=[100.0, 102.0, 103.0, 106.0])
    # Three steps of a second each in the six seconds behind the first.
    assert mlperf.utilisation(done, 1.0) == pytest.approx(0.5)
    assert mlperf.utilisation(done, 1.0, skipped=2) == pytest.approx(0.5)
    assert mlperf.utilisation(done, 1.0, skipped=3) == pytest.approx(1 / 3)
    assert mlperf.utilisation(done, 1.0, skipped=4) is None


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("accelerator", mlperf.ACCELERATORS)
def test_a_smaller_scale_asks_for_as_many_bytes_a_second(name: str, accelerator: str) -> None:
    workload = WORKLOADS[name]
    published = workload.batch * workload.sample_bytes / workload.compute_s[accelerator]
    for scale, (batch, divisor, steps) in workload.sizes.items():
        compute_s = mlperf._compute_s(workload, accelerator, scale)
        assert batch * workload.sample_bytes / divisor / compute_s == pytest.approx(published)
        sizes = mlperf._sizes(workload, scale, 1)
        assert len(sizes) == batch * steps
        # Some of unet3d's would be negative; the cut-off makes the mean a little larger.
        assert np.mean(sizes) == pytest.approx(workload.sample_bytes / divisor, rel=0.01)
        assert np.std(sizes) == pytest.approx(workload.deviation_bytes / divisor, rel=0.1)


def test_the_kept_result_says_what_was_done_as_the_study_says_it() -> None:
    kept = json.loads((study_page.EXPERIMENTS / "mlperf" / "mlperf.json").read_bytes())
    said = [mlperf._told(workload, kept["scale"]) for workload in WORKLOADS.values()]
    assert kept["remarks"][1:] == said
    assert said[0].startswith("unet3d: 32 steps, each of 1 sample where 7 are published; ")
    assert said[1].startswith("resnet50: 25 steps, each of 400 samples as published; ")


def samples(name: str, folder: Path) -> list[Path]:
    made = mlperf._made(WORKLOADS[name], folder, MlperfSettings("ci"), None)
    return [folder / "data" / path for path in made]


def test_samples_are_what_dlio_reads(tmp_path: Path) -> None:
    unet3d, cosmoflow = samples("unet3d", tmp_path), samples("cosmoflow", tmp_path)
    sizes = mlperf._sizes(WORKLOADS["unet3d"], "ci", 1)
    for path, size in zip(unet3d, sizes, strict=True):
        with np.load(path) as archive:
            array = archive["x"]
            assert (array.dtype, array.ndim, array.shape[2]) == (np.uint8, 3, 1)
            assert 0 <= size - array.size < 2 * size**0.5 + 1  # the largest square below
    tf = pytest.importorskip("tensorflow")
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "size": tf.io.FixedLenFeature([], tf.int64),
    }
    read = [
        tf.io.parse_single_example(record, features)
        for path in cosmoflow
        for record in tf.data.TFRecordDataset(str(path))
    ]
    wanted = mlperf._sizes(WORKLOADS["cosmoflow"], "ci", 1)
    assert [len(example["image"].numpy()) for example in read] == wanted
    assert len({example["image"].numpy() for example in read}) == len(read)


def test_records_are_spread_over_as_many_files_as_threads_read(tmp_path: Path) -> None:
    workload = WORKLOADS["resnet50"]
    files = samples("resnet50", tmp_path)
    assert [len(open_index(path)) for path in files] == [75] * workload.threads


@pytest.mark.parametrize("loader", ["torch", "tf.data"])
def test_nothing_is_read_before_a_job_begins(tmp_path: Path, loader: str) -> None:
    pytest.importorskip("torch" if loader == "torch" else "tensorflow")
    files = [tmp_path / str(number) for number in range(8)]

    def now_there() -> None:
        for file in files:
            file.write_bytes(b"late")

    job = PipelineJob(tuple(map(str, files)), threads=2, batch=4, prefetch=1, loader=loader)
    assert pipeline.trained(job, now_there).samples == 8


def test_records_of_many_files_are_read_once_and_only_whole_batches_count(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    files = tuple(map(str, samples("resnet50", tmp_path)))
    job = PipelineJob(
        files, threads=8, batch=128, prefetch=2, loader="tfrecord", calls=8, buffer=2,
        record_bytes=114_660,
    )  # fmt: skip
    done = pipeline.trained(job)
    assert done.samples == 4 * 128  # of 600
    assert done.read_bytes == 512 * 114_660
    assert done.step_bytes == [128 * 114_660] * 4


def test_files_come_in_dlios_order() -> None:
    """The sampler's work: seed NumPy's global generator, shuffle a list of numbers."""
    files = [Path(f"img_{number}") for number in range(40)]
    state = np.random.get_state()
    np.random.seed(7)
    numbers = list(range(40))
    np.random.shuffle(numbers)
    np.random.set_state(state)
    order = mlperf._ordered(WORKLOADS["unet3d"], files, 7)
    assert order == [files[number] for number in numbers] != files
    assert mlperf._ordered(WORKLOADS["resnet50"], files, 7) == files


DLIO = """#!/bin/sh
read -r went && echo "it read its standard input: $went"
printf '%s\\n' "$@" > asked
for word; do case $word in hydra.run.dir=*) folder=${word#*=};; esac; done
mkdir -p "$folder"
echo '{"metric": {"train_au_mean_percentage": 42.5,
  "train_throughput_mean_samples_per_second": 10}}' > "$folder/summary.json"
echo '{"1": {"proc": {"block1": [9, 9, 9, 9, 9, 0.01, 0.02, 0.03]}}}' > "$folder/0_output.json"
"""


def by_dlio(folder: Path, program: str) -> dict[str, Any]:
    dlio = folder / "dlio_benchmark"
    dlio.write_text(program)
    dlio.chmod(0o755)
    settings = MlperfSettings("ci", dlio=str(dlio))
    files = mlperf._made(WORKLOADS["unet3d"], folder, settings, None)
    place = Place("disk", folder / "data")
    return mlperf._by_dlio(place, folder, files, WORKLOADS["unet3d"], "h100", settings)


def test_dlio_is_asked_for_the_same_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    row = by_dlio(tmp_path, DLIO)
    assert (row["au"], row["images_hz"]) == (pytest.approx(0.425), 10)
    # Four processes with a batch each, and the first step: then three steps of 20 ms.
    assert row["au_settled"] == pytest.approx(0.323 / 7 / 16 / 0.02)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0] == "workload=unet3d_h100"
    assert f"++workload.dataset.data_folder={tmp_path}/data/unet3d-ci-1" in asked
    assert "++workload.dataset.num_files_train=24" in asked
    assert f"++workload.train.computation_time={0.323 / 7 / 16}" in asked
    assert not (tmp_path / "dlio").exists()


def test_a_dlio_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="dlio_benchmark: no MPI here"):
        by_dlio(tmp_path, "#!/bin/sh\necho no MPI here >&2\nexit 1\n")


def test_a_dlio_that_is_not_there_is_told_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dlio = f"{tmp_path}/dlio_benchmark"
    assert penstock("bench", "mlperf", f"{tmp_path}/new", "--dlio", dlio) == 2
    assert f"--dlio needs {dlio}, and there is no such program" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_dlio_is_held_against_itself_as_ours_is_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def run(by: str) -> dict[str, float]:
        seen.append(by)
        return {"au": (0.6, 0.6, 0.5, 0.4)[len(seen) - 1], "target": 0.9}

    monkeypatch.setattr(mlperf, "_made", lambda *arguments: ())
    monkeypatch.setattr(mlperf, "_by_pipeline", lambda *arguments: run("ours"))
    monkeypatch.setattr(mlperf, "_by_dlio", lambda *arguments: run("dlio"))
    monkeypatch.setattr(storage, "ceilings_of", lambda *arguments: {"disk": 4e9})
    settings = MlperfSettings("ci", ("disk",), 1, 1, ("unet3d",), ("h100",), "dlio_benchmark")
    result = mlperf.measured(tmp_path, settings)
    assert seen == ["dlio", "dlio", "ours", "dlio"]  # the first for nothing
    assert {point["by"]: (point["au"], point["against_dlio"]) for point in result.points} == {
        "dlio_benchmark": (0.6, None),
        "penstock": (0.5, pytest.approx(0.5 / 0.6)),
        "dlio_benchmark again": (0.4, pytest.approx(0.4 / 0.6)),
    }
    # A batch of 1 of 146.6 MB for each seventh of 0.323 s: the base of AU, and of the ceiling's
    # share.
    asked_bps = 146_600_628 * 7 / 0.323
    assert [point["of_ceiling"] for point in result.points] == [
        pytest.approx(au * asked_bps / 4e9) for au in (0.6, 0.5, 0.4)
    ]
    ((_, _, said),) = study_page._mlperf(result.points, {})
    assert said == "50 %; 0.833 times dlio_benchmark's, which run again gives 0.667 times its own"


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.experiment(study="mlperf")
@needs_fuse
def test_the_workload_that_asks_for_most_waits_most(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorflow")
    command = [PENSTOCK, "bench", "mlperf", tmp_path, "--scale", "ci", "--repeats", "1"]
    command += ["--on", "latency", "--accelerator", "h100"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = result_of(tmp_path, "mlperf")
    points = {point["factors"]["workload"]: point["values"] for point in result["points"]}
    for values in points.values():
        assert 0 < values["au"] <= 1
        assert values["resident"] < 0.02
    # 3.2 GB/s of a tier of 1 GB/s: two thirds and more are waited for, whatever the machine.
    assert points["unet3d"]["au"] < 0.4
    assert points["unet3d"]["au"] < points["resnet50"]["au"]
