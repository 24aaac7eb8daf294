"""Samples of the host beside a run, against what was read and what devices counted."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pagecache import kept
from penstock.cli.stage import tiers_list
from penstock.errors import LogError
from penstock.explain.findings import judge
from penstock.explain.measures import measure
from penstock.explain.report import report_of
from penstock.places import registry, tiers
from penstock.recording import machine, system
from penstock.views import html, terminal
from synthetic import MS, Synthetic, training_job

S = 1000 * MS

# Reads a file whose pages are not in memory, and takes more than a second: the sampler sees it.
READ_COLD = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
while os.read(fd, 1 << 20):
    time.sleep(float(sys.argv[2]))
"""


def written(path: Path, size: int) -> Path:
    with open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    return path


def test_the_jobs_account_tells_what_came_from_devices(
    recorded: Callable[..., Any], work: Path
) -> None:
    path = written(work / "data.bin", 48 << 20)
    run = recorded(READ_COLD, args=[path, "0"])
    known = measure(run).devices
    ((moved,),) = run.sql("SELECT sum(moved_bytes)::BIGINT FROM events WHERE path = ?", [str(path)])
    assert moved == 48 << 20
    if known.job_read_bytes is None or known.job_read_bytes < moved // 2:
        pytest.skip("this file system keeps in memory what it was told to drop")
    # Besides the file some of the interpreter's own may have been out of memory.
    assert 0.95 * moved <= known.job_read_bytes <= 1.05 * moved + (20 << 20)
    assert known.read_amplification.state == "derived"
    # A second time it lies in memory: nothing comes from a device.
    with kept(path):
        again = recorded("open(__import__('sys').argv[1], 'rb').read()", args=[path])
    warm = measure(again).devices
    assert warm.job_read_bytes < 0.05 * moved
    assert warm.read_amplification.value < 0.1


@pytest.fixture
def own_disk(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A block device that nobody else reads: (its name, where it is mounted)."""
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    if os.geteuid() or not shutil.which("losetup") or not shutil.which("mkfs.ext4"):
        pytest.skip("needs root, losetup and mkfs.ext4 for a device of its own")
    with open(image, "wb") as file:
        file.truncate(96 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    made = subprocess.run(["losetup", "-f", "--show", image], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no loop device here: {made.stderr.strip()}")
    device = made.stdout.strip()
    try:
        subprocess.run(["mount", device, mount], check=True)
        yield Path(device).name, mount
    finally:
        subprocess.run(["umount", mount], check=False)
        subprocess.run(["losetup", "-d", device], check=False)


def test_what_a_session_reads_cold_is_what_the_block_device_gives(
    own_disk: tuple[str, Path], recorded: Callable[..., Any]
) -> None:
    name, mount = own_disk
    path = written(mount / "data.bin", 48 << 20)
    # Twice as long as a second takes to come round, and more: one sample at least lies inside.
    run = recorded(READ_COLD, args=[path, "0.06"])
    ((moved, first_ns, last_ns),) = run.sql(
        "SELECT sum(moved_bytes)::BIGINT, min(start_ns), max(start_ns + duration_ns) FROM events"
        " WHERE path = ? AND op = 'read'",
        [str(path)],
    )
    samples = run.sql(
        "SELECT at_ns, value FROM system WHERE device = ? AND quantity = 'read_bytes'"
        " ORDER BY at_ns",
        [name],
    )
    assert len(samples) >= 3  # at the begin, each second, at the end
    read = samples[-1][1] - samples[0][1]
    assert read == pytest.approx(moved, rel=0.05)
    # The bandwidth of the seconds between, read-ahead aside: both by the same clock.
    inside = [(at, value) for at, value in samples if first_ns <= at <= last_ns]
    (at, value), (later, more) = inside[0], samples[-1]
    ((meanwhile,),) = run.sql(
        "SELECT sum(moved_bytes)::BIGINT FROM events WHERE path = ? AND op = 'read'"
        " AND start_ns BETWEEN ? AND ?",
        [str(path), at, later],
    )
    ahead = 8 << 20  # what the kernel may have read ahead by then
    assert abs((more - value) - meanwhile) <= 0.05 * moved + ahead


NVML = """
#include <stddef.h>
struct utilization { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(size_t)(i + 1); return 0; }
int nvmlDeviceGetUtilizationRates(void *h, struct utilization *u)
{ u->gpu = 30 * (unsigned)(size_t)h; u->memory = 5; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, struct memory *m)
{ m->total = 80; m->used = 20; m->free = 60; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, void *infos)
{ int is_too_small = *n < 3; (void)h; *n = 3; return is_too_small && !infos ? 7 : 2; }
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="compiles a library that stands for NVML")
def test_accelerators_are_sampled_through_nvml(
    recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    source = tmp_path / "nvml.c"
    source.write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    run = recorded_command(
        [sys.executable, "-c", "pass"], environment={"LD_LIBRARY_PATH": str(tmp_path)}
    )
    rows = run.sql(
        "SELECT DISTINCT device, quantity, value FROM system"
        " WHERE kind = 'accelerator' ORDER BY ALL"
    )
    assert rows == [
        ("0", "busy_share", 0.3),
        ("0", "memory_share", 0.25),
        ("0", "processes", 3.0),
        ("1", "busy_share", 0.6),
        ("1", "memory_share", 0.25),
        ("1", "processes", 3.0),
    ]


def job_on_a_host() -> Synthetic:
    """Ten seconds, 100 MB/s from the disk, of which the job asked for half."""
    run = Synthetic()
    run.file("/data/a.bin", size=500_000_000)
    for second in range(10):
        run.call(
            "read",
            second * S,
            (second + 1) * S - MS,
            path="/data/a.bin",
            moved=50_000_000,
            offset=0,
        )
        run.wait(second * S, second * S + S // 2, second)
        run.step(second * S + S // 2, (second + 1) * S, second)
    run.process(1, end=10 * S)
    for second in range(11):
        read = 7_000_000_000 + second * 100_000_000
        run.sample(second * S, "disk", "vda", read_bytes=read, written_bytes=5)
        run.sample(second * S, "processors", busy_s=2.0 * second, iowait_s=0, idle_s=6.0 * second)
        run.sample(second * S, "memory", total_bytes=100, available_bytes=75)
        run.sample(second * S, "accelerator", "0", busy_share=0.4, memory_share=0.5)
    run.sample(0, "job", read_bytes=1000)
    run.sample(10 * S, "job", read_bytes=1000 + 1_000_000_000)
    return run


def test_the_report_draws_the_host_and_tells_the_read_amplification() -> None:
    measures = measure(job_on_a_host())
    assert measures.devices.disk_read_bytes == 1_000_000_000
    assert measures.devices.disk_written_bytes == 0
    assert measures.devices.read_amplification.value == 2.0
    report = report_of(measures)
    facts = {fact.key: fact for fact in report.reading}
    assert facts["read_amplification"].number.value == 2.0
    (disk,) = report.picture("system").series
    assert disk.label == "read from disks"
    assert disk.values[:10] == (1e8,) * 10
    host = {one.label: one.values[3] for one in report.picture("host").series}
    assert host == {"CPUs busy": 0.25, "memory in use": 0.25, "accelerator 0 busy": 0.4}
    assert not [gap for gap in report.gaps if gap.what in ("accelerator", "page cache")]
    text = terminal.render(report, 100)
    assert "read from disks" in text
    page = html.render(report)
    assert 'data-chart="system"' in page
    assert 'data-chart="host"' in page


def test_mapped_files_leave_the_read_amplification_open() -> None:
    run = job_on_a_host()
    run.fault("/data/a.bin", S, 50 * MS)
    measures = measure(run)
    assert measures.devices.read_amplification.state == "not measured"
    told = "device bytes per byte requested"
    (gap,) = [gap for gap in report_of(measures).gaps if gap.what == told]
    assert "mapped files" in gap.why


def test_samples_are_read_as_written_and_damage_without_checksums_is_passed_over(
    tmp_path: Path,
) -> None:
    with_sampler = system.Sampler(tmp_path)
    with_sampler.sample()
    with_sampler.sample()
    with_sampler.close()
    (path,) = tmp_path.glob("*.system")
    boot_id, host, samples = system.read_system(path)
    assert len(boot_id) == 32
    assert {one.kind for one in samples} >= {"memory", "processors", "job"}
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines)[:-9])
    assert system.read_system(path)[2] == samples[: len(samples) // 2]
    lines = [b"%s}\n" % line.rpartition(b',"crc32":')[0] for line in lines]
    lines[0] = lines[0].replace(b'"format":2', b'"format":1')
    path.write_bytes(b"".join([*lines, b'{"ns": -1}\n', b"[[[\n", lines[1][: len(lines[1]) // 2]]))
    assert system.read_system(path) == (boot_id, host, samples)
    hostile = {"ns": 5, "disk": {"x" * 500: [1, "a", None, -4, 1e400]}, "job": 7, "memory": [[]]}
    path.write_bytes(lines[0] + json.dumps(hostile).encode() + b"\n")
    assert [(one.quantity, len(one.device)) for one in system.read_system(path)[2]] == [
        ("reads", 64)
    ]
    for head, said in ((b"{}", "no samples"), (b'{"format": 3}', "upgrade"), (b"", "no samples")):
        path.write_bytes(head)
        with pytest.raises(LogError, match=said):
            system.read_system(path)


# What lies beneath: texts as kernels and Lustre's own program print them.

MOUNTSTATS = """\
device sysfs mounted on /sys with fstype sysfs
device fs1:/data mounted on /mnt/my\\040data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576,wsize=1048576
\tage:\t172800
\tcaps:\tcaps=0xfffbc0bf,wtmult=512,dtsize=1048576
\tevents:\t57 1126 4 39 20 35 1339 2 0 18 0 39 0 0 33 2 0 39 0 0 1 0 0 0 0 0 0
\tbytes:\t2097152 81920 0 0 1048576 81920 256 20
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 0 0 2 0 0 1030 1030 0 1030 0 2 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 40 43 0 7520 1053216 12 320 335 0
\t       WRITE: 10 10 0 84120 1760 1 25 27 0
device fs2:/cut mounted on /cut with fstype nfs statvers=1.1
\tbytes:\t1 2
"""

GETSTRIPE = """\
/scratch/data
stripe_count:  4 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1 pool:          flash
"""

COMPOSITE = """\
/scratch
  lcm_layout_gen:    0
  lcm_entry_count:   2
    lcme_extent.e_start: 0
    lcme_extent.e_end:   4194304
      stripe_count:  1       stripe_size:   1048576       pattern:       raid0
    lcme_extent.e_start: 4194304
    lcme_extent.e_end:   EOF
      stripe_count:  -1       stripe_size:   4194304       pattern:       raid0
"""


def test_nfs_counters_are_those_of_the_server() -> None:
    assert machine.nfs_mounts(MOUNTSTATS) == {"/mnt/my data": [1048576, 81920, 40, 10, 3, 320]}
    assert machine.nfs_mounts("device with fstype nfs\n\tREAD: x") == {}


def test_striping_is_told_in_words() -> None:
    assert machine.striping(GETSTRIPE) == "striped over 4 targets by 1 MiB, pool flash"
    assert machine.striping(COMPOSITE) == "striped over all targets by 4 MiB"
    assert machine.striping("lfs: not found") == ""


def test_limits_and_counters_of_a_control_group_are_read_by_device() -> None:
    text = "8:0 rbps=2097152 wbps=max riops=max wiops=120\n253:0 rbps=max wbps=max\n"
    assert machine.limits_of(text) == {
        "8:0": "limited by its control group to rbps=2097152 wiops=120"
    }
    text = "8:0 rbytes=10 wbytes=20 rios=3 wios=4 dbytes=0 dios=0\n7:0 rbytes=x\n\n"
    assert machine.group_moved(text) == {"8:0": [10, 20, 3, 4]}


def test_version_1_of_control_groups_is_read_by_device_too() -> None:
    moved = "8:0 Read 10\n8:0 Write 20\n8:0 Total 30\n7:0 Read 1\nTotal 31\n"
    requests = "8:0 Read 3\n8:0 Write 4\n8:0 Total 7\n"
    assert machine.group_moved_v1(moved, requests) == {"8:0": [10, 20, 3, 4]}
    texts = {"rbps": "8:0 2097152\n", "wbps": "", "riops": "", "wiops": "8:0 120\n7:0 5\nx\n"}
    assert machine.limits_of_v1(texts) == {
        "8:0": "limited by its control group to rbps=2097152 wiops=120",
        "7:0": "limited by its control group to wiops=5",
    }


@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_what_the_smallest_control_group_around_leaves(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "/proc/meminfo": "MemTotal:       16777216 kB\n",
        "/proc/self/cgroup": ["", "4:cpu,memory:/job/step\n0::/\n", "0::/job/step\n"][version],
    }
    top = tmp_path / ("memory" if version == 1 else "")
    (top / "job" / "step").mkdir(parents=True)
    name = "memory.limit_in_bytes" if version == 1 else "memory.max"
    nothing = "9223372036854771712" if version == 1 else "max"
    for folder, limit in (("job/step", nothing), ("job", str(4 << 30)), (".", nothing)):
        (top / folder / name).write_text(f"{limit}\n")
    real = machine._text
    monkeypatch.setattr(machine, "GROUPS", str(tmp_path))
    monkeypatch.setattr(machine, "_text", lambda path: texts.get(path) or real(path))
    assert dict(machine.facts())["memory_bytes"] == str(4 << 30)


@pytest.mark.parametrize("version", [1, 2])
def test_the_smallest_cpu_quota_around_is_how_many_cpus_there_are(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"/proc/self/cgroup": ["", "3:cpuacct:/\n2:cpu:/job/step\n", "0::/job/step\n"][version]}
    top = tmp_path / ("cpu" if version == 1 else "")
    (top / "job" / "step").mkdir(parents=True)
    (tmp_path / "cpuacct").mkdir(exist_ok=True)
    for folder, quota in (("job/step", 300_000), ("job", 150_000), (".", None)):
        if version == 1:
            (top / folder / "cpu.cfs_quota_us").write_text(f"{quota or -1}\n")
            (top / folder / "cpu.cfs_period_us").write_text("100000\n")
        else:
            (top / folder / "cpu.max").write_text(f"{quota or 'max'} 100000\n")
    real = machine._text
    monkeypatch.setattr(machine, "GROUPS", str(tmp_path))
    monkeypatch.setattr(machine, "_text", lambda path: texts.get(path) or real(path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 5, 6})
    machine._own_quota.cache_clear()
    assert machine.cpu_quota() == (1.5, f"{top}/job")
    assert machine.cpus() == f"4\t63\t1.5\t{top}/job"
    assert dict(machine.facts())["cpu quota"] == "1.5"
    (top / "job" / "cpu.max").write_text("max 100000\n")
    (top / "job" / "cpu.cfs_quota_us").write_text("-1\n")
    quota = machine.cpu_quota()
    assert quota is not None
    assert quota[0] == 3


def test_without_a_quota_nothing_is_said_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "GROUPS", str(tmp_path))
    machine._own_quota.cache_clear()
    assert machine.cpu_quota() is None
    assert machine.cpus().endswith("\t\t")
    assert "cpu quota" not in dict(machine.facts())


def test_how_often_a_quota_stopped_a_group_is_read_of_both_versions(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("nr_periods 9\nnr_throttled 3\nthrottled_time 2500000000\n")
    assert machine.throttled(str(tmp_path)) == (3, 2.5)
    (tmp_path / "cpu.stat").write_text("usage_usec 7\nnr_throttled 4\nthrottled_usec 1500000\n")
    assert machine.throttled(str(tmp_path)) == (4, 1.5)
    (tmp_path / "cpu.stat").write_text("usage_usec 7\n")  # the root of version 2
    assert machine.throttled(str(tmp_path)) is None


def cpus_of(*told: tuple[str, str], **notes: str) -> Any:
    """Of a job with a main process for each of `told`: its host and what it says of its CPUs."""
    run = Synthetic()
    for number, (host, value) in enumerate(told, 1):
        run.process(number, end=S, host=host, rank=number - 1)
        run.step(0, S // 2, 0, process=number)
        run.note("cpus of process", value, process=number)
    if not told:
        run.process(1, end=S)
    for key, value in notes.items():
        run.note(key.replace("_", " "), value, None)
    return measure(run).machine


@pytest.mark.parametrize(
    ("told", "notes", "cpus", "quota"),
    [
        ([], {"cpus": "8"}, 8, None),
        ([], {"cpus": "8", "cpu_quota": "1.5"}, 1.5, 1.5),
        ([], {"cpus": "2", "cpu_quota": "4"}, 2, None),
        ([("a", "4\tf\t\t")], {"cpus": "16"}, 4, None),  # bound by what the launcher started
        ([("a", "4\tf\t\t"), ("a", "4\tf\t\t")], {}, 4, None),  # shared
        ([("a", "4\tf\t\t"), ("a", "4\tf0\t\t")], {}, 8, None),  # each its own
        ([("a", "4\tf\t\t"), ("b", "4\tf\t\t")], {}, 8, None),  # of two hosts
        ([("a", "4\tf\t0.5\t/x"), ("a", "4\tf\t0.5\t/x")], {}, 0.5, 0.5),
        ([("a", "4\tf\t1.5\t/x"), ("a", "4\tf\t1.5\t/y")], {}, 3, 3),
        ([("a", "2\t3\t8\t/x")], {}, 2, None),
        ([("a", "much")], {"cpus": "3"}, 3, None),
    ],
)
def test_the_cpus_of_a_job_are_those_that_its_processes_may_use(
    told: list[tuple[str, str]], notes: dict[str, str], cpus: float, quota: float | None
) -> None:
    seen = cpus_of(*told, **notes)
    assert (seen.cpus, seen.quota_cpus) == (cpus, quota)


class Sys:
    """A /sys of our own: devices, what they are made of, their controllers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("block", "class/block", "dev/block", "devices"):
            (root / folder).mkdir(parents=True)

    def add(self, name: str, numbers: str, *, of: str = "", made_of: str = "") -> None:
        """of: the device that it is a partition of."""
        folder = self.root / "devices" / of / name
        folder.mkdir(parents=True)
        (self.root / "class/block" / name).symlink_to(folder)
        (self.root / "dev/block" / numbers).symlink_to(folder)
        if of:
            (folder / "partition").write_text("1\n")
            return
        (self.root / "block" / name).symlink_to(folder)
        (folder / "slaves").mkdir()
        for one in made_of.split():
            (folder / "slaves" / one).touch()

    def controller(self, name: str, transport: str, model: str = "Fast", below: str = "") -> None:
        folder = self.root / "block" / name / "device" / below
        folder.mkdir(parents=True)
        (folder / "transport").write_text(f"{transport}\n")
        (self.root / "block" / name / "device" / "model").write_text(f"{model}   \n")


@pytest.mark.parametrize(
    ("device", "is_offered"),
    [("1:1", True), ("1:2", False), ("1:3", True), ("1:4", False), ("1:5", True), ("1:6", False),
     ("1:7", False), ("9:9", False)],
)  # fmt: skip
def test_nvme_of_this_node_is_found_whatever_lies_between(
    device: str, is_offered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Sys(tmp_path / "sys")
    made.add("nvme0n1", "1:0")
    made.add("nvme0n1p2", "1:1", of="nvme0n1")
    made.controller("nvme0n1", "pcie")
    made.add("nvme1n1", "1:2")
    made.controller("nvme1n1", "tcp")  # over fabrics
    made.add("nvme2n1", "1:5")
    made.controller("nvme2n1", "pcie", below="nvme2")  # of several paths
    made.add("md0", "1:3", made_of="nvme0n1p2 nvme2n1")
    made.add("dm-0", "1:4", made_of="md0 nvme1n1")
    made.add("nvme3n1", "1:6")
    made.controller("nvme3n1", "pcie", "Amazon Elastic Block Store")
    made.add("sda", "1:7")
    monkeypatch.setattr(machine, "SYS", str(made.root))
    monkeypatch.setattr(machine, "LEAST_FREE_BYTES", 1)
    place = str(tmp_path)
    mounts = [(f"{place}/none", "xfs", "/dev/x", device), (place, "xfs", "/dev/x", device)]
    found = machine.flash(mounts)
    assert [one[0] for one in found] == [place] * is_offered
    assert machine.flash([(place, "nfs", "server:/x", device)]) == []
    monkeypatch.setattr(machine, "LEAST_FREE_BYTES", 1 << 62)
    assert machine.flash(mounts) == []


def test_a_finding_that_wants_a_tier_names_the_nodes_own_nvme() -> None:
    def says(**notes: str) -> set[str]:
        run = training_job(40, read_ms=30, decode_ms=1)
        for key, value in notes.items():
            run.note(key, value)
        return {
            remedy.says
            for finding in judge(measure(run)).findings
            for remedy in finding.remedies
            if "first name a folder" in remedy.says
        }

    offered = says(flash=f"/local\tnvme0n1\t{900 << 30}")
    assert offered
    for text in offered:
        assert "first name a folder on /local, NVMe of this node (nvme0n1, 966 GB free)" in text
        assert "`penstock tiers add fast FOLDER`" in text
    # The data lies there already; and nobody noted any.
    there = says(flash=f"/scratch\tnvme0n1\t{900 << 30}", mount="/scratch\txfs\t/dev/nvme0n1")
    for texts in (there, says()):
        assert texts
        assert all("first name a folder there:" in text for text in texts)


def test_the_report_tells_what_lies_beneath_a_mount() -> None:
    run = job_on_a_host()
    run.note("mount", "/data\tnfs4\tfs1:/data")
    run.note("beneath", "/data\tstriped over 4 targets by 1 MiB")
    at_begin = {"read_bytes": 5, "reads": 1, "writes": 0, "sent_again": 0, "reads_ms": 7}
    at_end = {
        "read_bytes": 5 + 10**9,
        "reads": 1001,
        "writes": 0,
        "sent_again": 2,
        "reads_ms": 8007,
    }
    run.sample(0, "nfs", "/data", **at_begin)
    run.sample(10 * S, "nfs", "/data", **at_end)
    (row,) = [row for row in measure(run).storage if row.mount == "/data"]
    assert row.beneath == (
        "striped over 4 targets by 1 MiB; the server gave 1,000 MB in 1,000 reads of 8.0 ms, "
        "2 requests were sent again"
    )
    table = report_of(measure(run)).table("storage")
    assert row.beneath in table.rows[0]


def waiting_job(waits: list[tuple[float, float]], busy: list[float]) -> Synthetic:
    """Ten seconds of steps with waits (from, to) in s; busy is what each second's sample tells."""
    run = Synthetic()
    run.wait(0, MS, 0)
    for number, (start, end) in enumerate(waits):
        run.step(int((waits[number - 1][1] if number else 0.001) * S), int(start * S), number)
        run.wait(int(start * S), int(end * S), number + 1)
    run.step(int(waits[-1][1] * S), 10 * S, len(waits))
    run.process(1, end=10 * S)
    run.sample(MS, "accelerator", "0", busy_share=0.0, memory_share=0.5)
    for second, share in enumerate(busy):
        run.sample((second + 1) * S, "accelerator", "0", busy_share=share, memory_share=0.5)
    return run


def test_whole_seconds_of_waiting_tell_exactly_how_idle_the_accelerator_was() -> None:
    """It waits through the 3rd, 4th and 5th second, and works 20 % of the 4th: idle 2.8 s of 3."""
    run = waiting_job([(2, 5)], [1.0, 1.0, 0.0, 0.2, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    known = measure(run).idle_waiting
    assert known.accelerators == 1
    assert known.wait_s == pytest.approx(3.0)
    assert known.share == pytest.approx((2.8 / 3, 2.8 / 3))
    (fact,) = [one for one in report_of(measure(run)).stretches if one.key == "accelerator_idle"]
    assert (fact.number.value, fact.number.state) == (pytest.approx(2.8 / 3), "derived")
    assert fact.remark == "1 accelerator by NVML"
    assert "idle while waiting" in terminal.render(report_of(measure(run)), 100)


def test_of_a_second_that_is_waited_in_part_the_bounds_are_told() -> None:
    """It waits 0.5 s of a second in which the accelerator works 0.7 s: idle 0 to 0.3 s of the wait;
    and 0.5 s of one in which it works 0.2 s: idle 0.3 to 0.5 s."""
    run = waiting_job([(3.2, 3.7), (6.5, 7.0)], [1, 1, 1, 0.7, 1, 1, 0.2, 1, 1, 1])
    known = measure(run).idle_waiting
    assert known.wait_s == pytest.approx(1.0)
    assert known.idle_least_s == pytest.approx(0.3)
    assert known.idle_most_s == pytest.approx(0.8)
    (fact,) = [one for one in report_of(measure(run)).stretches if one.key == "accelerator_idle"]
    assert fact.remark == "at least, 80 % at most, 1 accelerator by NVML"


def test_accelerators_that_nobody_used_do_not_count() -> None:
    run = waiting_job([(2, 4)], [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    for second in range(11):
        run.sample(max(MS, second * S), "accelerator", "1", busy_share=0.0, memory_share=0.0)
    known = measure(run).idle_waiting
    assert known.accelerators == 1
    assert known.share == pytest.approx((1.0, 1.0))


def test_without_samples_nothing_is_said_of_idle_accelerators() -> None:
    run = waiting_job([(2, 4)], [])
    known = measure(run).idle_waiting
    assert (known.share, known.accelerators) == (None, 0)
    assert not [one for one in report_of(measure(run)).stretches if one.key == "accelerator_idle"]


def test_tiers_list_tells_of_nvme_that_holds_no_tier_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tiers.mount_of(tmp_path).point
    monkeypatch.setenv("PENSTOCK_TIERS", str(tmp_path / "tiers.json"))
    monkeypatch.setattr(
        machine, "flash", lambda: [("/local", "nvme0n1", 900 << 30), (mount, "nvme1n1", 1 << 40)]
    )
    said = CliRunner().invoke(tiers_list, []).output
    assert "no tier yet" in said
    assert "/local is on NVMe of this node (nvme0n1, 966 GB free)" in said
    assert "(nvme1n1" in said
    registry.add("fast", tmp_path)
    said = CliRunner().invoke(tiers_list, []).output
    assert "(nvme0n1" in said
    assert "(nvme1n1" not in said
