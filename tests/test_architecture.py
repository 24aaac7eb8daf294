"""What may import what, and the house rules that a program can check.  ARCHITECTURE.md says why."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "penstock"
NATIVE = ROOT / "native"
FUNCTION_LINES = 70
FUNCTION_BRANCHES = 20
FILE_LINES = 900
COLUMNS = 100
VAGUE_NAMES = {"one", "told", "found", "known"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class May(NamedTuple):
    """What a module may import: of ours anywhere in it, of the world when it is imported."""

    ours: str
    world: str


TABLE = {
    "errors": May(ours="", world=""),
    "words": May(ours="", world=""),
    "installed": May(ours="", world=""),
    "safe.*": May(ours="installed safe.*", world="ctypes"),
    "log.*": May(ours="errors safe.* log.*", world="numpy"),
    "places.*": May(ours="errors safe.* log.* places.*", world=""),
    "recording.*": May(ours="errors installed safe.* log.* places.* recording.*", world="ctypes"),
    "runs.*": May(ours="errors safe.* log.* places.* recording.* runs.*", world="numpy duckdb"),
    "explain.*": May(
        ours="errors words safe.* log.* places.* recording.* runs.* explain.*", world="numpy duckdb"
    ),
    "views.*": May(
        ours="errors words safe.* explain.report.* explain.live.* explain.compare explain.fleet"
        " views.*",
        world="",
    ),
    "interop.*": May(
        ours="errors words safe.* log.* runs.* explain.* views.* interop.*", world="tensorboard"
    ),
    "feed.*": May(ours="errors safe.* places.* feed.*", world="numpy"),
    "stage.*": May(
        ours="errors words installed safe.* log.* places.* explain.questions stage.*",
        world="numpy duckdb",
    ),
    "save.*": May(ours="errors installed safe.* places.* recording.* runs.* save.*", world="numpy"),
    "adapters.*": May(
        ours="errors recording.* feed.* stage.* save.* adapters.*", world="its framework"
    ),
    "trial.*": May(
        ours="__init__ errors words safe.* log.* places.* runs.* explain.* feed.* trial.*",
        world="numpy",
    ),
    "cli.*": May(ours="*", world="click"),
    "api": May(ours="places.* runs.* explain.* views.notebook", world=""),
    "__init__": May(ours="errors recording.recorder", world=""),
    "__main__": May(ours="cli", world=""),
}

# Edges beside the table, each with its reason.  A package's own __init__ may always name its parts.
LATE = {
    # A window begins: frameworks that are imported already are wrapped now.  Never at import.
    ("__init__", "adapters"),
    # `penstock.feed.Feed` after `import penstock`: imported when it is asked for.
    ("__init__", "feed"),
    ("__init__", "save"),
    ("__init__", "stage"),
    ("__init__", "api"),
}

# Of the standard library: what the table names because it costs, or because it starts something.
COSTLY = {"ctypes", "multiprocessing", "asyncio"}

MODULES = sorted(SOURCE.rglob("*.py"))
LABORATORY = sorted(
    path for folder in ("src", "benchmarks") for path in (ROOT / "lab" / folder).rglob("*.py")
)
C_FILES = sorted([*NATIVE.glob("*.c"), *NATIVE.glob("*.h")])
COPIER_FILES = sorted([*(NATIVE / "copier").glob("*.c"), *(NATIVE / "copier").glob("*.h")])
FEED_FILES = sorted([*(NATIVE / "feed").glob("*.c"), *(NATIVE / "feed").glob("*.h")])
PROGRAM_FILES = sorted(
    path
    for folder in ("ahead", "attach", "beside", "container")
    for path in (NATIVE / folder).glob("*.[ch]")
)


def name_of(path: Path) -> str:
    """`views/html.py` is views.html, `views/__init__.py` is views, the package itself is
    __init__."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def row_of(module: str) -> str:
    """The line of the table that a module falls under."""
    for row in TABLE:
        if row == module or (row.endswith(".*") and f"{module}.".startswith(row[:-1])):
            return row
    raise AssertionError(
        f"{module} has no line in the import table: add it to ARCHITECTURE.md and here"
    )


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the tree of a file, which several tests read."""
    return ast.parse(path.read_text())


class Import(NamedTuple):
    name: str  # dotted, absolute
    line: int
    is_late: bool  # inside a function, or for the type checker only


def imports_of(path: Path, typing: bool = True) -> Iterator[Import]:
    """Yield the imports of a module.  typing: those for the type checker alone, too."""
    nodes: list[tuple[ast.AST, bool]] = [
        (node, False) for node in parsed(path).body if typing or not _is_typing(node)
    ]
    while nodes:
        node, is_late = nodes.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, is_late)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: imports are absolute here"
            yield from _imports_from(node, is_late)
        else:
            is_late = is_late or _is_typing(node) or isinstance(node, FUNCTIONS)
            nodes += [(inner, is_late) for inner in ast.iter_child_nodes(node)]


def _imports_from(node: ast.ImportFrom, is_late: bool) -> Iterator[Import]:
    """`from penstock.views import html` names penstock.views.html, `from penstock.errors import
    RunError` a module."""
    assert node.module is not None
    for alias in node.names:
        name = f"{node.module}.{alias.name}"
        path = SOURCE.parent / name.replace(".", "/")
        is_module = path.is_dir() or path.with_suffix(".py").exists()
        yield Import(name if is_module else node.module, node.lineno, is_late)


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def may_import_ours(importer: str, imported: str) -> bool:
    if importer == imported or (importer, imported) in LATE:
        return True
    may = TABLE[row_of(importer)].ours
    if may == "*" or imported in may.split():
        return True
    return any(row.endswith(".*") and f"{imported}.".startswith(row[:-1]) for row in may.split())


def test_a_module_imports_what_the_table_lets_it() -> None:
    for path in MODULES:
        importer = name_of(path)
        for found in imports_of(path):
            top, _, rest = found.name.partition(".")
            where = f"{path.relative_to(ROOT)}:{found.line}"
            if top == "penstock":
                imported = rest or "__init__"
                assert may_import_ours(importer, imported), (
                    f"{where}: {importer} may not import {imported}"
                )
            elif not found.is_late and (top not in sys.stdlib_module_names or top in COSTLY):
                may = TABLE[row_of(importer)].world.split()
                of = importer.rpartition(".")[2].partition("_")[0]  # torch_feed is torch's
                is_framework = "framework" in may and top == of
                assert top in may or is_framework, f"{where}: {top} belongs inside the function"


def test_the_code_map_names_every_module_in_rows_that_can_be_read() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    code_map = text[text.index("## Code map") : text.index("## What may import what")]
    rows = re.findall(r"^\| `.*$", code_map, re.MULTILINE)
    assert max(map(len, rows)) <= 450
    named = {
        (row[3:].replace(".", "`").split("`")[1], word.rpartition(".")[2])
        for row in rows
        if row.startswith("| `penstock.")
        for word in re.findall(r"`([\w.]+)`", row)
    }
    for path in (ROOT / "src" / "penstock").rglob("*.py"):
        wing, *inner = path.relative_to(ROOT / "src" / "penstock").with_suffix("").parts
        stem = inner[-1] if inner else wing
        assert stem.startswith("__") or (wing, stem) in named, path


def test_the_table_in_the_text_is_the_table_here() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    told: dict[str, May] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        modules = re.findall(r"`([^`]+)`", cells[0])
        if line.startswith("|") and len(cells) == 3 and set(modules) & set(TABLE):
            told |= {module: May(*map(_words, cells[1:])) for module in modules}
    assert told == TABLE


def _words(cell: str) -> str:
    return cell.replace("`", "").replace(",", "").removeprefix("–")


def test_importing_penstock_loads_nothing_heavy_and_starts_nothing() -> None:
    program = """
import os, signal, sys, threading

class Watched(dict):
    def __init__(self, environ): super().__init__(environ); self.readers = set()
    def note(self): self.readers.add(sys._getframe(2).f_globals.get("__name__", ""))
    def get(self, *args): self.note(); return super().get(*args)
    def __getitem__(self, key): self.note(); return super().__getitem__(key)
    def __contains__(self, key): self.note(); return super().__contains__(key)

handlers = [signal.getsignal(number) for number in range(1, signal.NSIG)]
os.environ = watched = Watched(os.environ)
import penstock
heavy = {"numpy", "torch", "tensorflow", "duckdb", "tensorboard", "jax", "ctypes", "rich", "click"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert "librec" not in open("/proc/self/maps").read()
assert threading.active_count() == 1
assert handlers == [signal.getsignal(number) for number in range(1, signal.NSIG)]
readers = {name for name in watched.readers if name.startswith("penstock")}
assert not readers, f"{readers} read the environment at import"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_module_opens_with_what_it_is_and_lists_what_it_offers() -> None:
    for path in MODULES:
        tree = parsed(path)
        assert ast.get_docstring(tree), f"{path.name} does not say what it knows"
        assert path.stem not in ("utils", "util", "common", "helpers", "base", "manager")
        names = [name.id for node in tree.body for name in _assigned(node)]
        assert "__all__" in names, f"{path.relative_to(ROOT)} has no __all__"


def _assigned(node: ast.stmt) -> list[ast.Name]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    return [target for target in targets if isinstance(target, ast.Name)]


def test_no_imports_run_in_a_circle_also_inside_functions() -> None:
    """For the type checker alone a module may name a module above it."""
    modules = {name_of(path) for path in MODULES}
    edges: dict[str, set[str]] = {}
    for path in MODULES:
        importer = name_of(path)
        names = (part.name.removeprefix("penstock.") for part in imports_of(path, typing=False))
        late = {imported for late_importer, imported in LATE if late_importer == importer}
        edges[importer] = {name for name in names if name in modules - late} - {importer}
    tuple(graphlib.TopologicalSorter(edges).static_order())  # CycleError names the circle


@pytest.mark.parametrize("wing", ["", "save"])
def test_no_wings_import_each_other_in_a_circle(wing: str) -> None:
    """Also no folders of a wing."""
    place = SOURCE / wing
    edges: dict[str, set[str]] = {}
    for path in place.rglob("*.py"):
        importer = name_of(path)
        late = {imported for late_importer, imported in LATE if late_importer == importer}
        names = {part.name.removeprefix("penstock.") for part in imports_of(path, typing=False)}
        inner = {name.removeprefix(f"{wing}.") for name in names - late if name.startswith(wing)}
        folder = importer.removeprefix(f"{wing}.").partition(".")[0]
        folders = {name.partition(".")[0] for name in inner}
        known = {
            name for name in folders if (place / name).is_dir() or (place / f"{name}.py").exists()
        }
        if path.parent != SOURCE or path.stem != "__init__":
            edges.setdefault(folder, set()).update(known - {folder})
    tuple(graphlib.TopologicalSorter(edges).static_order())


def test_a_public_class_name_stands_for_one_class() -> None:
    places: dict[str, list[str]] = {}
    for path in [*MODULES, *LABORATORY]:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_names_are_nouns_of_the_matter() -> None:
    for path in [*MODULES, *LABORATORY, *(ROOT / "lab" / "tests").glob("*.py")]:
        for node in ast.walk(parsed(path)):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            assert _bound_by(node) not in VAGUE_NAMES, f"{where}: {_bound_by(node)}"


def _bound_by(node: ast.AST) -> str | None:
    """Return the name that a node binds or reads: a variable, a parameter, an error, a function, a
    class in small letters, an import, a match or an attribute."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.alias):
        return node.asname
    if isinstance(node, ast.ClassDef):
        return node.name.lower()
    if isinstance(
        node,
        ast.ExceptHandler | ast.FunctionDef | ast.AsyncFunctionDef | ast.MatchAs | ast.MatchStar,
    ):
        return node.name
    return None


def test_the_top_of_the_package_is_a_list_of_wings() -> None:
    loose = [path.name for path in SOURCE.iterdir() if path.suffix in (".py", ".typed")]
    assert len(loose) <= 10, loose
    wings = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert wings <= {row.partition(".")[0] for row in TABLE}


def test_nothing_in_the_package_knows_the_laboratory() -> None:
    for path in MODULES:
        for found in imports_of(path):
            assert not found.name.startswith("penstock_lab"), f"{path}:{found.line}"


def test_only_the_command_line_exits() -> None:
    for path in MODULES:
        if name_of(path).split(".")[0] == "cli":
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("sys.exit", "exit", "print"), (
                    f"{path}:{node.lineno}: {called}"
                )


PYTHON_FILES = sorted(
    path for folder in ("src", "tests", "lab") for path in (ROOT / folder).rglob("*.py")
)


def test_a_python_function_fits_one_screen() -> None:
    for path in PYTHON_FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                assert lines <= FUNCTION_LINES, (
                    f"{path}:{node.lineno}: {node.name} has {lines} lines"
                )


def test_a_file_of_the_package_has_at_most_nine_hundred_lines() -> None:
    files = [*MODULES, *NATIVE.rglob("*.[ch]"), *LABORATORY]
    for path in files:
        lines = len(path.read_text().splitlines())
        where = str(path.relative_to(SOURCE if path in MODULES else ROOT))
        assert lines <= FILE_LINES, f"{where} has {lines} lines"


def test_no_function_has_more_than_twenty_branches() -> None:
    """Counted as lizard counts: 1, and 1 for each if, loop, except, finally, `and` and `or`."""
    for path in [*MODULES, *LABORATORY]:
        where = str(path.relative_to(SOURCE if path in MODULES else ROOT))
        functions = [
            node
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        over = {node.name for node in functions if _branches(node) > FUNCTION_BRANCHES}
        assert not over, f"{where}: {over}"


def _branches(function: ast.AST) -> int:
    """Return the complexity of a function, with that of lambdas and comprehensions in it, and
    without that of functions in it."""
    branches, rest = 1, list(ast.iter_child_nodes(function))
    while rest:
        node = rest.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        rest += ast.iter_child_nodes(node)
        if isinstance(node, ast.BoolOp):
            branches += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            branches += 1 + len(node.ifs)
        elif isinstance(node, ast.Try):
            branches += bool(node.finalbody)
        elif isinstance(
            node, ast.If | ast.IfExp | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler
        ):
            branches += 1
    return branches


def test_c_fits_the_screen_and_opens_with_what_it_knows() -> None:
    for path in [*C_FILES, *FEED_FILES, *COPIER_FILES, *PROGRAM_FILES]:
        lines = path.read_text().splitlines()
        says = [path, path.with_suffix(".h")]  # where a header is, it says it for both
        assert any(file.exists() and file.read_text().startswith("/*") for file in says), path.name
        opened = None
        for number, line in enumerate(lines, 1):
            assert len(line) <= COLUMNS, f"{path.name}:{number} has {len(line)} columns"
            if line == "{":
                opened = number
            elif line == "}" and opened is not None:
                assert number - opened < FUNCTION_LINES, (
                    f"{path.name}:{opened}: too long a function"
                )
                opened = None


# Inside someone else's call, and after a fork beside other threads: nothing that allocates,
# formats, locks through libc or prints.  Names that begin a longer one (hook_fprintf) and members
# (real.fopen) are not calls.
FORBIDDEN_CALLS = {
    "formats": "printf fprintf dprintf vprintf vfprintf snprintf sprintf vsnprintf perror strerror",
    "locks": r"pthread_mutex_\w+ pthread_rwlock_\w+ pthread_cond_\w+ pthread_spin_\w+ call_once "
    r"mtx_\w+ sem_wait sem_timedwait sem_post flockfile puts fputs fwrite fflush fclose dlopen "
    "dlmopen dlclose lockf flock",
    "allocates": "fopen fdopen opendir fdopendir readdir scandir getline setenv getaddrinfo qsort",
    "ends the program": "exit _exit abort assert",
    "looks up": "realpath getcwd getpwnam getpwuid localtime",
}
# Nor does a hook have such a name, so the bare word counts: (malloc)(10), or make = malloc.
FORBIDDEN_WORDS = {
    "allocates": "malloc calloc realloc reallocarray free posix_memalign aligned_alloc memalign "
    "valloc pvalloc strdup strndup asprintf vasprintf",
}
# Every other file of the recorder is on the hot path, a new file too.
OUTSIDE_OF_CALLS = {
    "faults": "runs beside the job, in a process of its own",
    "faults_file": "runs beside the job",
    "faults_seen": "runs beside the job",
}
INSIDE_A_CALL = [path for path in C_FILES if path.stem not in OUTSIDE_OF_CALLS]

# Functions of the other files with such calls, each with its reason.
_OF_THE_APPLICATION = "called by the launcher or the application itself, by no hook: a mutex"
_OF_THE_START = "a part of penstock_start: no window is open"
FUNCTIONS_OUTSIDE = {
    "clock.c": {"find_clock": "the first reading, as a recording starts: no slot is patched yet"},
    "hooks_metadata.c": {"disguise_real": "like realpath(3), returns memory that the caller frees"},
    "patch.c": {
        "patch_setup": "sorts the hooks once, as a recording starts",
        "original_of": "finds a function behind a stub, as a recording starts",
        "find_late_originals": "a handle of each library, once: as a recording starts, or in the "
        "program's first dlsym after a dlopen: in a call of the loader, in none that moves bytes",
    },
    "recorder.c": {
        "lock_window": "before a fork: no window may begin or end meanwhile",
        "unlock_window": "after the fork, and the end of lock_window",
        "measure_event": _OF_THE_START,
        "resolve": _OF_THE_START,
        "penstock_start": _OF_THE_APPLICATION,
        "penstock_attach": "called by the injector: formats a note",
        "penstock_staged": _OF_THE_APPLICATION,
        "penstock_burst": _OF_THE_APPLICATION,
        "penstock_pause": _OF_THE_APPLICATION,
        "penstock_resume": _OF_THE_APPLICATION,
        "penstock_stop": _OF_THE_APPLICATION,
        "begin_process": "the constructor, before main: notes why a tier is lost",
    },
}


def _forbidden_in(code: str) -> str | None:
    code = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', code)
    for names, after in ((FORBIDDEN_CALLS, r"\s*\("), (FORBIDDEN_WORDS, r"\b")):
        for harm, words in names.items():
            found = re.search(rf"(?<![\w.])(?<!->)(?:{'|'.join(words.split())}){after}", code)
            if found:
                return f"{found[0]}...) {harm}"
    return None


@pytest.mark.parametrize(
    "code",
    [
        "return malloc(10);", "return (malloc)(10);", "make = malloc;", "#define MAKE malloc",
        "if (1>malloc(3))", "fwrite(at, 1, n, file);", "lockf(fd, F_LOCK, 0);", "sem_post(&one);",
    ],
)  # fmt: skip
def test_a_forbidden_call_is_seen(code: str) -> None:
    assert _forbidden_in(code)
    assert not _forbidden_in('real.fopen(path); x->free(y); hook_fprintf(z); note("malloc(");')


@pytest.mark.parametrize("path", INSIDE_A_CALL, ids=lambda path: path.name)
def test_c_inside_a_call_neither_allocates_nor_formats_nor_locks(path: Path) -> None:
    code = _without_comments(path.read_text())
    for name in FUNCTIONS_OUTSIDE.get(path.name, {}):
        function = re.search(
            rf"^[a-z_][^\n;]*\b{name}\([^;{{]*\n{{\n.*?^}}$", code, re.DOTALL | re.M
        )
        assert function, f"{path.name}: {name} is gone"
        assert _forbidden_in(function[0]), f"{path.name}: {name} needs no exception"
        code = code.replace(function[0], "")
    found = _forbidden_in(code)
    assert not found, f"{path.name}: {found}"


@pytest.mark.parametrize("path", C_FILES, ids=lambda path: path.name)
def test_the_recorder_prints_nothing_starts_no_thread_and_handles_one_signal(path: Path) -> None:
    code = _without_comments(path.read_text())
    if path.name == "guard.c":
        assert set(re.findall(r"\bSIG[A-Z]{3,}\b", code)) == {"SIGBUS"}
        code = code.replace("sigaction(", "")
    found = re.search(
        r'(?<![\w.>"])(?:printf|puts|perror|syslog|pthread_create|sigaction|signal)\s*\(', code
    )
    assert not found, f"{path.name}: {found and found[0]}"


def _without_comments(code: str) -> str:
    return re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL)


def test_the_offset_of_a_mapping_by_number_is_64_bits_wide() -> None:
    """The last of seven arguments of syscall() lies on the stack, where an int fills half a slot.

    The kernel read the other half too, as clang compiles it: it mapped a file beyond its end, and
    programs died of SIGBUS as the recorder began.
    """
    wide = ("0L", "log_unit_offset(*unit)")
    for path in NATIVE.rglob("*.[ch]"):
        for call in _without_comments(path.read_text()).split("(SYS_mmap,")[1:]:
            arguments = call[: call.index(";")]
            assert re.search(rf", (?:{'|'.join(map(re.escape, wide))})\)", arguments), path.name


def test_elf_is_known_to_the_patcher_alone() -> None:
    for path in C_FILES:
        is_patcher = path.name.startswith("patch")
        knows_elf = re.search(r"#include <(?:elf|link)\.h>", path.read_text())
        assert is_patcher or not knows_elf, f"{path.name} includes {knows_elf and knows_elf[0]}"


def test_the_reader_and_the_planner_agree_with_the_header() -> None:
    from penstock.feed import plan, read

    header = (NATIVE / "feed" / "feed.h").read_text()
    numbers = {name: int(n) for name, n in re.findall(r"(FEED_\w+)(?: =)? (\d+)", header)}
    assert numbers["FEED_PAGE"] == plan.PAGE_BYTES
    assert {name: numbers[f"FEED_{name.upper()}"] for name in read.ENGINES} == read.ENGINES
    for flag in ("TRY_MEMORY", "WHOLE_FILES", "STAY_DEEP"):
        assert numbers[f"FEED_{flag}"] == getattr(read, flag)
    sizes = dict(re.findall(r"sizeof\(struct (\w+)\) == (\d+)", header))
    assert int(sizes["feed_request"]) == read.REQUEST.itemsize
    assert int(sizes["feed_tally"]) == read.TALLY.itemsize
    for kind, layout in (("feed_request", read.REQUEST), ("feed_tally", read.TALLY)):
        body = re.search(rf"struct {kind} {{(.*?)}};", header, re.DOTALL)
        assert body
        code = _without_comments(body[1])
        names = [
            name.strip()
            for line in re.findall(r"u?int\d+_t ([^;]+);", code)
            for name in line.split(",")
        ]
        assert names == list(layout.names or ())


def test_numbers_that_python_repeats_are_those_of_the_header() -> None:
    from penstock.recording import recorder

    header = (NATIVE / "events.h").read_text()
    numbers = {name: int(number) for number, name in re.findall(r"X\((\d+), (\w+),", header)}
    assert (numbers["STEP"], numbers["SPAN"]) == (recorder.OP_STEP, recorder.OP_SPAN)


@pytest.mark.parametrize(
    "library", ["rec", "feed", "copier", "inject", "enter", "probe", "faultwatch", "readahead"]
)
def test_both_builds_of_a_library_use_the_same_flags(library: str) -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    make = (ROOT / "Makefile").read_text()
    compiled = re.search(rf"target_compile_options\(\s*{library} PRIVATE (.*)\)", cmake)
    linked = re.search(rf"target_link_options\({library} PRIVATE (.*)\)", cmake)
    assert compiled
    assert linked or library in ("inject", "probe", "faultwatch")  # a program: nothing is exported
    for flag in f"{compiled[1]} {linked[1] if linked else ''}".split():
        assert flag in make, f"the Makefile does not know {flag}"
