"""docs/FORMAT.md, native/events.h and log.py say the same."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from logwriter import text
from penstock.log import faults, layout, texts
from penstock.runs import schema

ROOT = Path(__file__).parent.parent
FORMAT = (ROOT / "docs" / "FORMAT.md").read_text(encoding="utf-8")
EVENTS_H = (ROOT / "native" / "events.h").read_text(encoding="utf-8")
STRUCTS = {
    "log_header": layout.HEADER,
    "block": layout.BLOCK,
    "event": layout.EVENT,
    "event_rest": layout.REST,
    "text": layout.TEXT,
    "connection_record": layout.CONNECTION,
    "request_record": layout.REQUEST,
    "calls_counter": layout.CALLS,
    "access_counter": layout.ACCESS,
    "faults_header": faults.HEADER,
    "chunk": faults.CHUNK,
    "fault_file": faults.FILE,
    "fault_image": faults.IMAGE,
    "fault": faults.FAULT,
    "fault_counts": faults.COUNTS,
    "faults_state": faults.STATE,
}


def fields_of(dtype: np.dtype) -> list[tuple[str, int, int]]:
    """(name, offset, bytes) of each field, and of the whole."""
    fields = [(name, dtype.fields[name][1], dtype.fields[name][0].itemsize) for name in dtype.names]
    return [*fields, ("whole", 0, dtype.itemsize)]


def table_of(dtype: np.dtype) -> str:
    """A struct as FORMAT.md shows it."""
    lines = ["| offset | type | field |", "| ---: | --- | --- |"]
    for name in dtype.names:
        kind, offset = dtype.fields[name][:2]
        if kind.base.names:
            shown = f"{kind.shape[0]} × (i64 value, u64 calls)"
        elif kind.kind in "SV" and not kind.shape:
            shown = f"{kind.itemsize} bytes"
        else:
            shown = f"{kind.base.kind}{kind.base.itemsize * 8}"
            shown = f"{kind.shape[0]} × {shown}" if kind.shape else shown
        lines.append(f"| {offset} | {shown} | {name} |")
    return "\n".join([*lines, f"| {dtype.itemsize} | | *end* |"])


def constant(name: str) -> int:
    """A number that events.h defines, by #define or in an enum."""
    match = re.search(rf"\b{name}\s*(?:=|\s)\s*\(?(~?\d\w*)", EVENTS_H)
    assert match, name
    return int(match[1].rstrip("u"), 0)


@pytest.mark.skipif(not shutil.which("gcc"), reason="asks a C compiler for the layout")
@pytest.mark.parametrize("struct", STRUCTS)
def test_the_reader_lays_out_a_struct_as_the_compiler_does(struct, tmp_path):
    fields = fields_of(STRUCTS[struct])
    lines = "".join(
        f'printf("{name} %zu %zu\\n", offsetof(struct {struct}, {name}), '
        f"sizeof(((struct {struct} *)0)->{name}));"
        for name, _, _ in fields[:-1]
    )
    program = tmp_path / "layout.c"
    program.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n#include <events.h>\nint main(void) {{ {lines}"
        f' printf("whole 0 %zu\\n", sizeof(struct {struct})); }}\n'
    )
    subprocess.run(
        ["gcc", "-I", ROOT / "native", "-o", tmp_path / "layout", program], check=True, timeout=240
    )
    said = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout
    laid_out = [(name, int(at), int(size)) for name, at, size in map(str.split, said.splitlines())]
    # The compiler may pad the end of the header's struct; its page ends later anyway.
    if struct == "log_header":
        assert laid_out[-1][2] - fields[-1][2] < 8
        laid_out, fields = laid_out[:-1], fields[:-1]
    assert laid_out == fields


@pytest.mark.parametrize("struct", STRUCTS)
def test_every_field_of_a_struct_is_known_to_the_reader(struct):
    body = re.search(rf"\nstruct {struct} {{(.*?)\n}};", EVENTS_H, re.DOTALL)
    assert body
    text = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    text = re.sub(r"struct {.*?}", "uint64_t", text, flags=re.DOTALL)
    names = re.findall(r"(\w+)(?:\[\w+\])*\s*[,;]", text)
    assert names == list(STRUCTS[struct].names)


def test_the_ops_of_the_reader_are_those_of_the_recorder():
    ops = re.findall(r"X\((\d+), (\w+), (\w+), (\w+)\)", EVENTS_H)
    assert [(str(op.number), op.name.upper(), op.layer, op.group) for op in layout.OPS] == ops


def test_the_numbers_of_the_reader_are_those_of_the_recorder():
    assert constant("LOG_VERSION") == texts.VERSION
    assert constant("LOG_HEADER_BYTES") == texts.HEADER_BYTES
    assert constant("LOG_UNIT_BYTES") == texts.UNIT_BYTES
    assert constant("BLOCK_MAGIC") == texts.BLOCK_MAGIC
    assert f'LOG_MAGIC "{texts.MAGIC.decode()}"' in EVENTS_H
    assert constant("OP_REST") == layout.REST_OP
    assert constant("EVENT_LONG_BIT") == layout.LONG_BIT
    assert constant("EVENT_LONG_SHIFT") == layout.LONG_SHIFT
    for kind, number in (("EVENTS", 1), ("CALLS", 2), ("ACCESS", 3)):
        assert constant(f"BLOCK_{kind}") == getattr(texts, f"{kind}_BLOCK") == number
    for kind in ("FILE", "NAME", "NOTE", "OBJECT", "CONNECTION", "REQUEST"):
        assert constant(f"TEXT_{kind}") == getattr(texts, f"{kind}_TEXT")
    for number, phase in layout.PHASES.items():
        assert constant(f"NET_{phase.upper().replace(' ', '_')}") == number
    for flag, number in layout.CONNECTION_FLAGS.items():
        assert constant(f"CONNECTION_{flag.upper()}") == number
    for flag, number in layout.REQUEST_FLAGS.items():
        assert constant(f"REQUEST_{flag.upper()}") == number
    assert layout.CONNECTION.itemsize == texts.CONNECTION_BYTES
    assert layout.REQUEST.itemsize == texts.MORE_BYTES[texts.REQUEST_TEXT]
    for number, state in layout.STATES.items():
        assert constant(f"LOG_{state.upper()}") == number
    for number, origin in layout.ORIGINS.items():
        assert constant(f"ORIGIN_{origin.upper()}") == number
    assert constant("FAULTS_VERSION") == faults.VERSION
    assert constant("FAULTS_HEADER_BYTES") == faults.HEADER_BYTES
    assert constant("FAULT_WAITED_NS") == faults.WAITED_NS
    assert f'FAULTS_MAGIC "{faults.MAGIC.decode()}"' in EVENTS_H
    for kind in ("FILE", "IMAGES", "FAULTS", "COUNTS", "STATE"):
        assert constant(f"CHUNK_{kind}") == getattr(faults, f"{kind}_CHUNK")
    for kind in ("MINOR", "MAJOR"):
        assert constant(f"FAULT_{kind}") == getattr(faults, kind)
    for number, clock in layout.CLOCKS.items():
        assert constant(f"CLOCK_{clock.upper()}") == number


@pytest.mark.parametrize("struct", STRUCTS)
def test_the_document_shows_a_struct_as_it_is_read(struct):
    assert table_of(STRUCTS[struct]) in FORMAT


def test_the_document_lists_every_op():
    for op in layout.OPS:
        assert f"\n| {op.number} | {op.name} | {op.layer} | {op.group} |\n" in FORMAT


def test_the_document_shows_the_tables_as_they_are():
    assert schema.describe_tables().strip() in FORMAT


@pytest.mark.parametrize("size", [texts.CONNECTION_BYTES, texts.OLDER_CONNECTION_BYTES])
def test_a_connection_of_an_older_log_has_no_handshake(size: int) -> None:
    record = np.zeros(1, layout.CONNECTION)
    record["received"], record["handshake"] = 7, 5
    head = bytearray(text(texts.CONNECTION_TEXT, 3, ""))
    head[:4] = (len(head) + size).to_bytes(4, "little")
    (read,) = texts.texts_in(bytes(head) + record.tobytes()[:size])
    connection = np.frombuffer(read.more, layout.CONNECTION)
    assert connection["received"] == 7
    assert connection["handshake"] == (5 if size == texts.CONNECTION_BYTES else 0)
