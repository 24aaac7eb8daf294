"""A job annotated for DFTracer, whose events can be counted by hand.

usage: dftracer_job.py TRACE FOLDER EPOCHS.  Two batches of an epoch, each one file of 5,000 bytes
that is read in pieces of 4,096: 4,096, 904 and nothing.  A batch is one `compute`, with a `forward`
and a `backward` in it.  After each epoch one checkpoint of 30,000 bytes: a `checkpoint` around two
`capture`, each of which opens its file and writes once.  First `checkpoint.init`, last `restart`,
which reads half a checkpoint in one call.  A forked child reads one file as above.
"""

import os
import sys

sys.modules["torch"] = None  # type: ignore[assignment]  # dftracer would import it: seconds

from dftracer.python import ai, dftracer  # noqa: E402

TRACE, FOLDER, EPOCHS = sys.argv[1], sys.argv[2], int(sys.argv[3])


def read(path: str, size: int = 4096) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.read(size):
            pass


def save(part: str) -> None:
    with ai.checkpoint.capture, open(f"{FOLDER}/{part}", "wb", buffering=0) as file:
        file.write(bytes(15_000))


log = dftracer.initialize_log(logfile=TRACE, data_dir=FOLDER, process_id=-1)
with ai.checkpoint.init():
    pass
for _ in range(EPOCHS):
    for name in ai.dataloader.fetch.iter(["a", "b"]):
        read(f"{FOLDER}/{name}")
        with ai.compute:
            with ai.compute.forward:
                pass
            with ai.compute.backward:
                pass
    with ai.checkpoint:
        save("model")
        save("optimizer")
with ai.checkpoint.restart, open(f"{FOLDER}/model", "rb", buffering=0) as file:
    file.read(15_000)
if not os.fork():
    read(f"{FOLDER}/a")
    os._exit(0)
os.wait()
log.finalize()
