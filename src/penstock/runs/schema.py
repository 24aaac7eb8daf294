"""The tables of a run, column by column.  Knows no engine."""

__all__ = [
    "BESIDE_LIBRARY",
    "EXAMINING_OPS",
    "TABLES",
    "describe_tables",
]

# {table: {column: (type, meaning)}}. All times are nanoseconds since the run's start, the earliest
# start of a recorded process.  NULL means "not known", never zero.
TABLES: dict[str, dict[str, tuple[str, str]]] = {
    "events": {
        "process": ("INTEGER", "which process called; see processes"),
        "thread": ("INTEGER", "which thread called; see threads"),
        "layer": (
            "VARCHAR",
            "posix, stdio or process; stdio calls POSIX inside: never add the two",
        ),
        "op": ("VARCHAR", "which call: read, pread, fopen …"),
        "op_group": (
            "VARCHAR",
            "what a wait for it is put down to: read, write, metadata, process",
        ),
        "file": ("INTEGER", "the file; see files.  NULL where the log does not say which"),
        "path": ("VARCHAR", "the file's path"),
        "path_class": ("VARCHAR", "data, output, library, system or penstock"),
        "file_kind": ("VARCHAR", "regular, directory, pipe …; see files.kind"),
        "other_path": ("VARCHAR", "the second file of a rename, link or copy"),
        "start_ns": ("BIGINT", "ns from the run's start to the call"),
        "duration_ns": ("BIGINT", "ns the call took; NULL: in flight when the log ends"),
        "offset_bytes": ("BIGINT", "where in the file, in bytes; NULL: unknown or no meaning"),
        "asked_bytes": ("BIGINT", "bytes asked for, at most 1 TiB; the length of a mapping"),
        "moved_bytes": ("BIGINT", "bytes read or written; 0 for calls that move none"),
        "result": (
            "BIGINT",
            "what else came of it: entries (readdir, list), the child's pid (fork, spawn, exec), "
            "the address (mmap, munmap, msync), the new descriptor (dup); of a read from a "
            "connection 3: the first bytes of an answer, 4: later ones",
        ),
        "errno": ("SMALLINT", "0: the call succeeded"),
        "step": ("INTEGER", "the training step that was under way in the process that trains"),
        "served_from": (
            "VARCHAR",
            "the tier that the open file was on: its staged copy, or a burst buffer; NULL: itself",
        ),
    },
    "files": {
        "file": (
            "INTEGER",
            "number of the path in this run; a path has a second one where its copy was opened",
        ),
        "path": (
            "VARCHAR",
            "absolute path as opened, without . and .. and //; bytes that are no UTF-8 as \\xff; "
            "relative where the folder it starts from is not known",
        ),
        "resolved_path": (
            "VARCHAR",
            "where the kernel found it at the first open, if it was opened",
        ),
        "path_class": ("VARCHAR", "data, output, library, system or penstock; see PATH_RULES"),
        "kind": (
            "VARCHAR",
            "regular, directory, pipe, socket, terminal, device, other; unknown: never opened",
        ),
        "device": ("BIGINT", "st_dev at the first open"),
        "inode": ("BIGINT", "st_ino at the first open"),
        "served_from": (
            "VARCHAR",
            "the tier it was opened on: its staged copy, or a burst buffer; NULL: itself",
        ),
        "size_bytes": (
            "BIGINT",
            "the largest size in bytes that is known: st_size at each process's first open, as the "
            "kernel had cached it, or where a read, write or truncation ended; what appends add is "
            "not known",
        ),
    },
    "processes": {
        "process": ("INTEGER", "number of the process image in this run, by start"),
        "pid": ("BIGINT", "the kernel's process id on its host"),
        "ppid": ("BIGINT", "pid of its parent at start"),
        "parent": ("INTEGER", "the parent's process, if it was recorded"),
        "host": ("VARCHAR", "name of the machine"),
        "rank": ("INTEGER", "rank in the job, if there is one"),
        "local_rank": ("INTEGER", "rank on its host, if there is one"),
        "world_size": ("INTEGER", "how many ranks the job has, if its launcher says so"),
        "origin": ("VARCHAR", "how its recording began: run, record, fork, exec or attach"),
        "executable": ("VARCHAR", "path of the program"),
        "command": ("VARCHAR", "its arguments, quoted for a shell"),
        "folder": ("VARCHAR", "working directory at start"),
        "start_ns": ("BIGINT", "ns from the run's start to the recording's start"),
        "end_ns": (
            "BIGINT",
            "ns from the run's start to the recording's end; of a killed process when "
            "`penstock run` saw it end, else the latest moment its log knows; NULL: running",
        ),
        "state": ("VARCHAR", "running, killed, stopped, exited, execed, failed or unknown"),
        "reason": (
            "VARCHAR",
            "why the recording failed, what ended the process, or what is not known of its end",
        ),
        "status": ("INTEGER", "its exit status, −N: signal N ended it; NULL: not known"),
        "read_ns": (
            "BIGINT",
            "ns from the run's start to when the log of a running process was read; NULL: it ended",
        ),
        "folded_events": ("BIGINT", "calls past the budget that live on only in counters"),
        "lost_events": ("BIGINT", "calls of which only this count is left"),
        "unseen_calls": (
            "BIGINT",
            "recorded calls whose contents were not seen (io_uring, cuFile)",
        ),
        "attach_ns": ("BIGINT", "ns the recorder's start took"),
        "slots": ("BIGINT", "import slots patched"),
        "log": ("VARCHAR", "name of its log in the run folder"),
        "is_torn": ("BOOLEAN", "the log is cut"),
        "damaged_units": ("INTEGER", "64 KiB units of the log that could not be read"),
        "waits_from_ns": (
            "BIGINT",
            "waits of this many ns and longer are in blocked; NULL: its waits were not recorded",
        ),
        "own_calls": (
            "BIGINT",
            "system calls of the recorder's own after its start; NULL: not counted",
        ),
        "own_ns": ("BIGINT", "ns they took, with the recorder's work between them"),
    },
    "threads": {
        "thread": ("INTEGER", "number of the thread in this run"),
        "process": ("INTEGER", "its process"),
        "tid": ("BIGINT", "the kernel's thread id"),
        "name": ("VARCHAR", "its latest name"),
        "is_main": ("BOOLEAN", "the process's first thread"),
    },
    "blocked": {
        "process": ("INTEGER", "the process that waited"),
        "thread": ("INTEGER", "the thread that waited"),
        "op": (
            "VARCHAR",
            "which call: sem_wait, cond_wait, futex, poll, select, epoll, sleep, waitpid, join, "
            "mutex, barrier, receive (recv, accept, connect), send, resolve (getaddrinfo), signal, "
            "sync (an accelerator's runtime), collective (MPI)",
        ),
        "op_group": (
            "VARCHAR",
            "wait, sleep, sync, exchange (collectives), or interpreter lock (CPython's cond_wait)",
        ),
        "object": (
            "VARCHAR",
            "base name of the program or library that called; of a wait in libstdc++, its caller's",
        ),
        "object_path": ("VARCHAR", "path of that program or library"),
        "address": (
            "BIGINT",
            "address of the semaphore, condition variable, futex, mutex or barrier; of a join, the "
            "thread's pthread_t; NULL: the call has none",
        ),
        "descriptor": (
            "VARCHAR",
            "what poll, select, epoll, receive or send waited for, such as socket:HOST:PORT or "
            "pipe: (the descriptor that was ready, else the first one; of epoll the connection "
            "that brought the next bytes); NULL: not known",
        ),
        "waker": (
            "INTEGER",
            "the thread of this process that ended the wait; NULL: not known, or several may have",
        ),
        "received_bytes": (
            "BIGINT",
            "of poll, select, epoll, receive and send: bytes that the thread received by recv, "
            "less those that it sent, since its last recorded wait in one of them; NULL: another "
            "call",
        ),
        "phase": (
            "VARCHAR",
            "what a wait for a connection waited for: connect, send, first byte (of the answer to "
            "what was sent), transfer (later bytes); NULL: another wait, or not known",
        ),
        "start_ns": ("BIGINT", "ns from the run's start to the call"),
        "duration_ns": ("BIGINT", "ns the call took; NULL: in flight when the log ends"),
        "errno": ("SMALLINT", "0: the call succeeded; 110 (ETIMEDOUT): its time was up"),
        "step": ("INTEGER", "the training step that was under way in the process that trains"),
    },
    "blocked_totals": {
        "process": ("INTEGER", "the process that waited"),
        "op": ("VARCHAR", "which call; see blocked"),
        "op_group": ("VARCHAR", "see blocked"),
        "object": ("VARCHAR", "see blocked"),
        "calls": ("BIGINT", "waits past the trace budget, which have no row in blocked"),
        "errors": ("BIGINT", "waits among them with an errno"),
        "duration_ns": ("BIGINT", "sum of ns in these waits"),
        "max_duration_ns": ("BIGINT", "ns of the longest"),
        "first_ns": ("BIGINT", "ns from the run's start to the first wait"),
        "last_ns": ("BIGINT", "ns from the run's start to the end of the last wait"),
    },
    "connections": {
        "process": ("INTEGER", "the process whose calls are counted; see processes"),
        "connection": ("BIGINT", "number of the connection in its process"),
        "connections": (
            "BIGINT",
            "1; of a row that sums connections past the first 10,000 of its process: how many",
        ),
        "endpoint": (
            "VARCHAR",
            "HOST:PORT, the host as getaddrinfo was asked for it, else as a TLS client named it, "
            "else its address; "
            "accepted:PORT of one that was accepted at this port",
        ),
        "peer_address": ("VARCHAR", "address of the other end"),
        "peer_port": ("INTEGER", "port of the other end"),
        "local_address": ("VARCHAR", "address of this end"),
        "local_port": ("INTEGER", "port of this end"),
        "is_accepted": ("BOOLEAN", "TRUE: the other end connected"),
        "is_earlier": (
            "BOOLEAN",
            "TRUE: opened before the recording or by another process: counted from its first use "
            "here",
        ),
        "is_loopback": ("BOOLEAN", "TRUE: the other end is on this host, by its address"),
        "peer_process": (
            "INTEGER",
            "the recorded process at the other end; NULL: none of this run",
        ),
        "object": ("VARCHAR", "base name of the program or library that connected or accepted"),
        "opened_ns": ("BIGINT", "ns from the run's start to the connect; NULL: not seen"),
        "connect_ns": (
            "BIGINT",
            "ns until it could send, of a sum the mean; NULL: not seen, or never",
        ),
        "handshake_ns": (
            "BIGINT",
            "ns of the TLS handshake after that, of a sum the sum; NULL: none was seen to its end",
        ),
        "closed_ns": (
            "BIGINT",
            "ns from the run's start to the close; NULL: still open, or killed",
        ),
        "counted_ns": ("BIGINT", "ns from the run's start to when the numbers of this row were so"),
        "received_bytes": ("BIGINT", "bytes received by recorded calls"),
        "sent_bytes": ("BIGINT", "bytes sent by recorded calls"),
        "receives": ("BIGINT", "calls that received bytes"),
        "sends": ("BIGINT", "calls that sent bytes"),
        "answers": (
            "BIGINT",
            "how often bytes came after a send: of HTTP/1.1 the requests, handshakes included",
        ),
        "first_byte_ns": ("BIGINT", "sum of ns from a send's end to the first bytes after it"),
        "transfer_ns": ("BIGINT", "sum of ns from these to the last bytes before the next send"),
        "waited_connect_ns": ("BIGINT", "sum of ns that threads were blocked until it was open"),
        "waited_send_ns": ("BIGINT", "sum of ns that threads were blocked in sends"),
        "waited_first_byte_ns": ("BIGINT", "sum of ns that threads were blocked for first bytes"),
        "waited_transfer_ns": ("BIGINT", "sum of ns that threads were blocked for later bytes"),
        "kernel_received_bytes": (
            "BIGINT",
            "bytes received since it was opened, by the kernel (TCP_INFO); NULL: not asked",
        ),
        "kernel_sent_bytes": (
            "BIGINT",
            "bytes that the other end acknowledged, by the kernel; NULL: not asked",
        ),
        "rtt_ns": ("BIGINT", "ns of the kernel's latest round-trip time; NULL: not asked"),
        "min_rtt_ns": ("BIGINT", "ns of the kernel's shortest round-trip time; NULL: not asked"),
        "retransmits": ("BIGINT", "segments that the kernel sent again; NULL: not asked"),
    },
    "requests": {
        "process": ("INTEGER", "the process that asked; see processes"),
        "thread": ("INTEGER", "the thread that asked; NULL: not known"),
        "request": ("BIGINT", "number of the request in its process"),
        "connection": (
            "BIGINT",
            "number of its connection in its process, see connections; NULL: not known",
        ),
        "client": ("VARCHAR", "the library whose adapter saw it: http.client, aiohttp, httpx …"),
        "endpoint": ("VARCHAR", "HOST:PORT that was asked, as the program named the host"),
        "method": ("VARCHAR", "GET, HEAD, PUT …"),
        "operation": (
            "VARCHAR",
            "GET, PUT, HEAD, LIST, DELETE, or the client's own name of it; a GET whose query asks "
            "for a listing is LIST",
        ),
        "bucket": ("VARCHAR", "bucket or container, where the client names one; NULL: not known"),
        "path": (
            "VARCHAR",
            "path as sent, up to the first of ? # ; and at most 1,024 bytes; NULL: the row "
            "stands for several",
        ),
        "status": ("SMALLINT", "status of the answer; NULL: none came"),
        "error": ("VARCHAR", "name of the exception that ended it; NULL: none was seen"),
        "start_ns": (
            "BIGINT",
            "ns from the run's start to its begin; a connect inside the request is part of it",
        ),
        "first_byte_ns": (
            "BIGINT",
            "ns from its begin to the first byte of its answer; NULL: none came",
        ),
        "duration_ns": (
            "BIGINT",
            "ns from its begin until the program had read the body or met the error; of a part, to "
            "its last read",
        ),
        "received_bytes": (
            "BIGINT",
            "bytes of the answer's body that were read, compressed as sent, without chunk sizes",
        ),
        "sent_bytes": ("BIGINT", "bytes of its own body; NULL: not known"),
        "range_offset_bytes": ("BIGINT", "bytes before the range it asked for; NULL: no range"),
        "range_bytes": ("BIGINT", "bytes in that range; NULL: no range, or up to the end"),
        "object_bytes": ("BIGINT", "bytes of the whole object; NULL: not known"),
        "attempt": ("INTEGER", "how many tries of the same request its client had made before"),
        "backoff_ns": ("BIGINT", "ns that the client slept after the try before"),
        "is_part": ("BOOLEAN", "TRUE: the body was not read to its end"),
        "is_operation": (
            "BOOLEAN",
            "TRUE: one call of a client whose own requests and retries are not seen",
        ),
        "step": ("INTEGER", "the training step that was under way in the process that trains"),
        "batch": ("BIGINT", "the batch that its thread was to fetch; NULL: not known"),
        "requests": (
            "BIGINT",
            "1; past 50,000 of a process one row stands for several of an endpoint, operation and "
            "status: bytes, durations and back-off are then sums",
        ),
    },
    "spans": {
        "process": ("INTEGER", "which process"),
        "thread": ("INTEGER", "which thread"),
        "kind": (
            "VARCHAR",
            "window, step or span; account: of the call of this thread that began when it does, "
            "a: ns of it on a CPU, b: ns ready to run without one",
        ),
        "name": ("VARCHAR", "what the stretch is called: data wait, fetch, checkpoint …"),
        "index": ("BIGINT", "number of the step or batch"),
        "a": ("BIGINT", "first number, by name: docs/FORMAT.md"),
        "b": ("BIGINT", "second number, by name: docs/FORMAT.md"),
        "start_ns": ("BIGINT", "ns from the run's start"),
        "duration_ns": ("BIGINT", "ns; NULL: not ended when the log ends"),
    },
    "counters": {
        "process": ("INTEGER", "which process"),
        "file": ("INTEGER", "which file; NULL: not known"),
        "path": ("VARCHAR", "the file's path"),
        "path_class": ("VARCHAR", "data, output, library, system or penstock"),
        "layer": ("VARCHAR", "posix, stdio or process"),
        "op": ("VARCHAR", "which call"),
        "calls": ("BIGINT", "finished calls"),
        "errors": ("BIGINT", "of them with an errno"),
        "asked_bytes": ("BIGINT", "sum of bytes asked for"),
        "moved_bytes": ("BIGINT", "sum of bytes read or written"),
        "duration_ns": ("BIGINT", "sum of ns in these calls"),
        "max_duration_ns": ("BIGINT", "ns of the longest"),
        "first_ns": ("BIGINT", "ns from the run's start to the first call"),
        "last_ns": ("BIGINT", "ns from the run's start to the end of the last call"),
        "max_end_bytes": ("BIGINT", "highest byte touched plus one"),
        "sequential": ("BIGINT", "accesses at offset 0, or at or after the end of the one before"),
        "consecutive": ("BIGINT", "accesses at offset 0, or exactly at the end of the one before"),
        "switches": ("BIGINT", "accesses after one the other way"),
        "unaligned": ("BIGINT", "accesses at an offset that is no multiple of 4096"),
        "empty": ("BIGINT", "accesses that moved nothing: reads at the end of the file"),
        "bucket_0": ("BIGINT", "accesses of 1–100 bytes"),
        "bucket_1": ("BIGINT", "accesses of 101–1024 bytes"),
        "bucket_2": ("BIGINT", "accesses of 1025–10240 bytes"),
        "bucket_3": ("BIGINT", "accesses of 10241–102400 bytes"),
        "bucket_4": ("BIGINT", "accesses of 102401–1048576 bytes"),
        "bucket_5": ("BIGINT", "accesses of 1048577–4194304 bytes"),
        "bucket_6": ("BIGINT", "accesses of 4194305–10485760 bytes"),
        "bucket_7": ("BIGINT", "accesses of 10485761–104857600 bytes"),
        "bucket_8": ("BIGINT", "accesses of 104857601–1073741824 bytes"),
        "bucket_9": ("BIGINT", "accesses of more bytes"),
        "sizes": (
            'STRUCT("value" BIGINT, calls BIGINT)[]',
            "the commonest byte counts of an access, at most four",
        ),
        "strides": (
            'STRUCT("value" BIGINT, calls BIGINT)[]',
            "the commonest distances in bytes from the end before to the begin, at most four",
        ),
        "folded": ("BOOLEAN", "some of these calls live on only in counters"),
    },
    "faults": {
        "process": ("INTEGER", "which process; NULL: it left no log"),
        "thread": ("INTEGER", "which thread; NULL: it made no recorded call"),
        "file": ("INTEGER", "the mapped file; see files"),
        "path": ("VARCHAR", "the file's path"),
        "path_class": ("VARCHAR", "data, output, library, system or penstock"),
        "kind": ("VARCHAR", "major: the page was read for it; minor: it was there, or on its way"),
        "start_ns": ("BIGINT", "ns from the run's start to the fault"),
        "duration_ns": ("BIGINT", "ns the thread stood still; NULL: its begin was not seen"),
        "offset_bytes": ("BIGINT", "where in the file the page lies, in bytes"),
    },
    "fault_counts": {
        "process": ("INTEGER", "which process; NULL: it left no log"),
        "file": ("INTEGER", "the mapped file; NULL: memory without a file"),
        "path": ("VARCHAR", "the file's path"),
        "path_class": ("VARCHAR", "data, output, library, system or penstock"),
        "major": ("BIGINT", "page faults for which a page was read"),
        "minor": ("BIGINT", "the others"),
        "waited": ("BIGINT", "minor ones of 10 µs and more: the page was on its way (read-ahead)"),
        "major_ns": ("BIGINT", "sum of ns in the major ones"),
        "minor_ns": ("BIGINT", "sum of ns in the minor ones"),
        "waited_ns": ("BIGINT", "sum of ns in those that waited"),
        "max_ns": ("BIGINT", "ns of the longest"),
        "kept": ("BIGINT", "how many of them are in faults; the others are only counted"),
    },
    "system": {
        "at_ns": ("BIGINT", "ns from the run's start to the sample, one a second"),
        "host": ("VARCHAR", "name of the machine"),
        "kind": (
            "VARCHAR",
            "disk, stacked disk (it lies on others), network, memory, processors, accelerator, nfs "
            "(of the server, by mount), group (the control group's own, by device numbers), "
            "job: of the program and all it started, counted when they have ended, or process: "
            "one that is gone, a sample each (`silent_s`: since it was last seen)",
        ),
        "device": (
            "VARCHAR",
            "the device's name; of a job its launcher's; of a process its pid; empty where there "
            "is but one",
        ),
        "quantity": (
            "VARCHAR",
            "what is counted: read_bytes, busy_s …; all grow but those of memory, accelerator and "
            "process",
        ),
        "value": (
            "DOUBLE",
            "bytes, seconds, calls, shares or numbers (`processes`: how many compute on an "
            "accelerator), by quantity",
        ),
    },
    "notes": {
        "process": ("INTEGER", "which process; NULL: the run folder itself"),
        "key": ("VARCHAR", "what the note is about"),
        "value": ("VARCHAR", "what it says"),
    },
    "ceilings": {
        "path": ("VARCHAR", "where it was measured"),
        "mount": ("VARCHAR", "the file system's mount point; HOST:PORT of a server"),
        "kind": ("VARCHAR", "the file system's type; remote: a server"),
        "op": ("VARCHAR", "read or write"),
        "order": ("VARCHAR", "sequential or random"),
        "request_bytes": ("BIGINT", "bytes of one call"),
        "threads": ("INTEGER", "how many at once"),
        "bandwidth_bps": ("DOUBLE", "bytes per second"),
        "calls_hz": ("DOUBLE", "calls per second"),
        "is_cold": ("BOOLEAN", "nothing of it was in memory before"),
        "unix_ns": ("BIGINT", "when it was measured, ns since 1970"),
    },
    "staged": {
        "process": ("INTEGER", "which process opened files of which a tier holds a copy"),
        "outcome": (
            "VARCHAR",
            "served; or why the original was opened: changed, dropped, absent, gone, damaged, "
            "direct, denied; written: opened for writing, its copy is dropped",
        ),
        "opens": ("BIGINT", "how often"),
    },
    "fills": {
        "from_ns": ("BIGINT", "ns since the run began: a stretch of filling a tier meanwhile"),
        "to_ns": ("BIGINT", "its end, ns since the run began"),
        "copied_bytes": ("BIGINT", "what was copied in it"),
        "is_copying": ("BOOLEAN", "FALSE: a pause, in which nothing was copied"),
        "tier": ("VARCHAR", "the tier that was filled"),
        "limit_bps": ("DOUBLE", "the bandwidth that it might take; 0: as much as the job read"),
        "is_cut": ("BOOLEAN", "TRUE: what came after it is not told: the filling was killed"),
    },
    "unseen": {
        "process": ("INTEGER", "which process started it"),
        "pid": ("BIGINT", "the kernel's process id, if known"),
        "program": ("VARCHAR", "path of the program, if known"),
        "reason": ("VARCHAR", "why nothing of it was recorded"),
    },
}


# Calls that examine a path without opening or listing the path.
EXAMINING_OPS = ("stat", "lstat", "access", "readlink")

# A path belongs to programs and libraries in the following cases, if the path matches no rule and
# the job did not write the file.  The reason: an interpreter examines each folder above a program
# or library again and again.  A folder that the job examines only because of data, and a missing
# file beside data, remain data.
BESIDE_LIBRARY = (
    "a program that was started, or looked for in vain under the name of one in a bin folder",
    "a folder that was examined alone, with a library file somewhere below, unless more of the "
    "files that were opened directly in it are data",
    "a folder that was listed, with as many library files and folders of such directly in it as of "
    "data",
)


def describe_tables() -> str:
    """Return TABLES as Markdown, for the documentation."""
    parts = []
    for table, columns in TABLES.items():
        rows = [f"| `{name}` | {kind} | {meaning} |" for name, (kind, meaning) in columns.items()]
        head = ["| column | type | meaning |", "| --- | --- | --- |"]
        parts.append("\n".join([f"### {table}", "", *head, *rows]))
    return "\n\n".join(parts) + "\n"
