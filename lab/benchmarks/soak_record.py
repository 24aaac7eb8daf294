"""Keep the results of the save soaks in docs/save-soak.json and show the results in docs/save.md.

The module knows the two files, and no soak.
"""

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from bars import ROOT, machine

__all__ = ["FAILED", "PAGE", "RESULTS", "code_of", "page_of", "record"]

RESULTS = ROOT / "docs" / "save-soak.json"
PAGE = ROOT / "docs" / "save.md"
TABLE_BEGINS, TABLE_ENDS = "<!-- soak -->\n", "<!-- /soak -->\n"

FAILED = "soaks that failed"
OLDER, OLDER_FAILED = "on older code", "failed on older code"
# The layouts of soak_units.py.
UNITS = (
    "three files", "two files, same names", "folder", "Trainer", "HF shards, index",
    "HF shards, no index", "Accelerate",
    "Lightning", "DCP, FSDP2", "DeepSpeed-like", "Megatron-like", "Keras .weights.h5",
    "Keras .keras", "TF checkpoint", "SavedModel", "SavedModel, same name", "Orbax",
)  # fmt: skip
# All rows, with the name of the count in the soak and the wanted number, the soak's default.
WANTED = {
    "kills": ("kills", 1000), "damage": ("damaged", 1000), "power ext4": ("cuts", 36),
    "power xfs": ("cuts", 36), "full tmpfs": ("rounds", 200), "full ext4": ("rounds", 200),
    "full xfs": ("rounds", 200), "gone": ("most seconds", 3600), "burst": ("kills", 1000),
    "damage hdf5": ("damaged", 300), "burst programs": ("rounds", 64),
    **{f"units: {name}": ("rounds", 125) for name in UNITS},
}  # fmt: skip


def record(
    name: str, seed: int, rows: dict[str, dict[str, Any]], failure: str = "", code: str = ""
) -> None:
    """Add the counts of a soak to the kept counts of the same code, and write the page's table.
    code: the digest of the code under test; default: of the present code."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    code = code or code_of(name)
    for row, counted in rows.items():
        before = kept.get(key_of(name, row), {})
        if before.get("code") != code:
            before = {"counts": _older(before, key_of(name, row)), "seeds": []}
        counts = dict(before["counts"])
        for key, value in counted.items():
            counts[key] = max(counts.get(key, 0), value) if key.startswith("most ") else (
                counts.get(key, 0) + value
            )  # fmt: skip
        why = {"failure": failure or before.get("failure", "")}
        kept[key_of(name, row)] = (why if any(why.values()) else {}) | {
            "counts": counts, "seeds": [*before["seeds"], seed], "code": code,
            "day": str(datetime.now(UTC).date()), "machine": machine().partition(", load")[0],
        }  # fmt: skip
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page_of(PAGE.read_text(), kept))


def _older(before: dict[str, Any], key: str) -> dict[str, int]:
    """Return the counts of all older states of the code, as a sum."""
    counts, (what, _) = before.get("counts", {}), WANTED.get(key, ("", 0))
    if what.startswith("most "):
        return {}
    older = {OLDER: counts.get(what, 0), OLDER_FAILED: counts.get(FAILED, 0)}
    older = {name: value + counts.get(name, 0) for name, value in older.items()}
    return {name: value for name, value in older.items() if value}


def key_of(name: str, row: str) -> str:
    """Return the name of a row: `full ext4`, `units: Trainer`."""
    return f"units: {row}" if name == "units" else f"{name} {row}".strip()


def code_of(soak: str) -> str:
    """Return the digest of all code under test in a soak.  The module for --burst-buffer counts
    only in the soak `burst`: no other module imports save/burst/."""
    package = ROOT / "src" / "penstock"
    files = sorted(path for part in ("save", "places") for path in (package / part).rglob("*.py"))
    if soak == "burst":
        files += [ROOT / "native" / "burst.c", ROOT / "native" / "hook_open.h"]
    else:
        files = [path for path in files if path.parent != package / "save" / "burst"]
    # Computes the cost of a save; touches no file.
    files.remove(package / "save" / "training" / "lost.py")
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def page_of(page: str, kept: dict[str, dict[str, Any]]) -> str:
    """Return docs/save.md with the table of the soaks' results."""
    head, _, rest = page.partition(TABLE_BEGINS)
    _, _, tail = rest.partition(TABLE_ENDS)
    rows = [
        "| soak | done | what was done | failed | code | day |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
    ]
    for name in sorted({*kept, *WANTED}):
        key, wanted = WANTED.get(name, ("", 0))
        if name not in kept:
            rows.append(f"| {name} | 0 of {wanted:,} {key} | not run | | | |\n")
            continue
        result = kept[name]
        counts = ", ".join(
            f"{what} {value:,}" for what, value in result["counts"].items() if what != FAILED
        )
        done = f"{result['counts'].get(key, 0):,} of {wanted:,} {key.removeprefix('most ')}"
        failed = result["counts"].get(FAILED, 0)
        why = f": {result['failure']}".replace("|", "/").replace("\n", " ") if failed else ""
        rows.append(
            f"| {name} | {done if wanted else ''} | {counts} | {failed}{why} | {result['code']} | "
            f"{result['day']} |\n"
        )
    machines = "\n\n".join(sorted({result["machine"] for result in kept.values()}))
    return "".join([head, TABLE_BEGINS, *rows, "\n", machines, "\n", TABLE_ENDS, tail])
