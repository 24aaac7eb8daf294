"""Trainings by what stands on torch: Lightning, Hugging Face's Trainer, Accelerate.

Nothing in these programs knows of Penstock; their batches, steps, saves and waits are counted by
hand, or clocked by the programs themselves.
"""

import importlib.util
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import thorough
from penstock.explain.measures import Measures, measure

Recorded = Callable[..., Any]


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is not
        return False


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if not is_installed(name)]
    return pytest.mark.skipif(
        bool(missing),
        reason=f"not installed: {', '.join(missing)}; pip install 'penstock[frameworks]'",
    )


# 16 items in batches of 4: 4 batches a pass.  Each item reads one file of its own.
DATA = """
import json, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, number):
        with open(f"item-{number}", "rb") as file:
            return torch.tensor([float(len(file.read()))])

def make_files():
    for number in range(16):
        open(f"item-{number}", "wb").write(bytes(1000 + number))
"""

LIGHTNING = """
import lightning

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
    def training_step(self, batch, number):
        return self.net(batch).sum()
    def validation_step(self, batch, number):
        self.log("loss", self.net(batch).sum())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-9)

def trainer(epochs, **options):
    return lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, **options,
    )
"""


def source(*parts: str) -> str:
    return "".join([DATA, *map(textwrap.dedent, parts)])


def epochs_of(known: Measures) -> list[tuple[int, int | None]]:
    return [(epoch.batches, epoch.workers) for epoch in known.epochs]


def waits_for_batches(run: Any) -> int:
    """Waits that a batch ended; a pass that is over is a wait without one."""
    rows = run.sql(
        "select count(*) filter (where name = 'data wait')"
        " - count(*) filter (where name = 'delivered' and index is null)"
        " - count(*) filter (where name = 'data wait' and index is null) from spans"
    )
    return int(rows[0][0])


@needs("torch", "lightning")
def test_lightning_counts_each_wait_once_and_a_step_for_each_optimizer_step(
    recorded: Recorded, work: Path
) -> None:
    run = recorded(
        source(
            LIGHTNING,
            """
            from lightning.pytorch.callbacks import ModelCheckpoint
            if __name__ == "__main__":
                make_files()
                trainer(2, callbacks=[ModelCheckpoint("saved", save_top_k=-1)]).fit(
                    Net(),
                    DataLoader(Files(), batch_size=4, num_workers=2),
                    DataLoader(Files(), batch_size=8),
                )
            """,
        )
    )
    known = measure(run)
    assert known.training.steps == 8
    assert epochs_of(known) == [(4, 2), (2, 0), (4, 2), (2, 0)]  # training and validation, twice
    assert waits_for_batches(run) == 12
    files = sorted(work.glob("saved/*.ckpt"), key=lambda file: file.stat().st_mtime_ns)
    assert len(files) == len(known.checkpoints) == 2
    for save, file in zip(known.checkpoints, files, strict=True):
        assert save.blocks
        # Lightning writes a temporary file and moves it, which copies where /tmp is another device.
        assert save.written_bytes >= file.stat().st_size
    assert "not observed" not in known.wait_parts


@needs("torch", "transformers", "accelerate")
def test_a_hugging_face_trainer_saves_one_checkpoint_of_many_files(
    recorded: Recorded, work: Path
) -> None:
    run = recorded(
        source("""
        from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

        class Tokens(Files):
            def __getitem__(self, number):
                super().__getitem__(number)
                tokens = torch.arange(16) % 31
                return {"input_ids": tokens, "labels": tokens}

        if __name__ == "__main__":
            make_files()
            model = LlamaForCausalLM(LlamaConfig(
                vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32,
            ))
            arguments = TrainingArguments(
                "out", per_device_train_batch_size=4, gradient_accumulation_steps=2,
                num_train_epochs=2, dataloader_num_workers=2, save_strategy="steps", save_steps=2,
                report_to=[], use_cpu=True, disable_tqdm=True,
            )
            Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
        """),
        environment={"HF_HUB_OFFLINE": "1"},
    )
    known = measure(run)
    assert known.training.steps == 4  # 16 items, 4 a batch, 2 batches a step, 2 epochs
    assert epochs_of(known) == [(4, 2), (4, 2)]
    assert waits_for_batches(run) == 8
    folders = sorted(work.glob("out/checkpoint-*"))
    assert [folder.name for folder in folders] == ["checkpoint-2", "checkpoint-4"]
    assert len(known.checkpoints) == 2
    for save, folder in zip(known.checkpoints, folders, strict=True):
        assert save.blocks
        assert folder.name in (save.path or "")
        assert save.files >= 4  # the model's by safetensors, the others by torch.save


@needs("torch", "accelerate")
def test_accelerates_own_loop_counts_each_wait_once(recorded: Recorded) -> None:
    run = recorded(
        source("""
        from accelerate import Accelerator

        if __name__ == "__main__":
            make_files()
            accelerator = Accelerator(cpu=True)
            net = torch.nn.Linear(1, 1)
            optimizer = torch.optim.SGD(net.parameters(), 1e-9)
            loader = DataLoader(Files(), batch_size=4, num_workers=2)
            net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
            for epoch in range(2):
                for batch in loader:
                    optimizer.zero_grad()
                    accelerator.backward(net(batch).sum())
                    optimizer.step()
            accelerator.save_state("state")
            accelerator.load_state("state")
        """)
    )
    known = measure(run)
    assert known.training.steps == 8
    assert epochs_of(known) == [(4, 2), (4, 2)]
    assert waits_for_batches(run) == 8
    assert len(known.checkpoints) == 1
    assert "/state/" in (known.checkpoints[0].path or "")
    restores = run.sql("select count(*) from spans where name = 'restore'")
    assert restores == [(1,)]


@pytest.mark.alone
@pytest.mark.slow
@needs("torch", "lightning")
def test_lightnings_wait_and_its_share_in_file_calls_are_what_the_job_clocked(
    recorded: Recorded, work: Path, workload: Callable[..., Path]
) -> None:
    # Each item reads four times from a file whose reads take 15 ms, then works for 20 ms; the step
    # takes 40 ms.
    # The data set clocks both, in the training process: what it spends is what the training waits.
    run = recorded(
        source(
            LIGHTNING,
            """
            class Slow(Dataset):
                def __init__(self):
                    open("slow", "wb").write(bytes(1 << 20))
                    self.fd = os.open("slow", os.O_RDONLY)
                    self.spent = []
                def __len__(self):
                    return 30
                def __getitem__(self, number):
                    begin, read = time.perf_counter_ns(), 0
                    for _ in range(4):
                        os.lseek(self.fd, 0, os.SEEK_SET)
                        call = time.perf_counter_ns()
                        os.read(self.fd, 1 << 20)
                        read += time.perf_counter_ns() - call
                    end = time.perf_counter_ns() + 20_000_000
                    while time.perf_counter_ns() < end:
                        pass
                    self.spent.append((begin, time.perf_counter_ns(), read))
                    return torch.ones(1)

            class Timed(Net):
                def training_step(self, batch, number):
                    time.sleep(0.04)
                    return super().training_step(batch, number)
                def on_train_batch_end(self, *arguments):
                    self.end = time.perf_counter_ns()

            data, net = Slow(), Timed()
            trainer(1, enable_checkpointing=False).fit(net, DataLoader(data, batch_size=1))
            json.dump([data.spent, net.end], open("truth", "w"))
            """,
        ),
        environment=slow_reads(workload),
    )
    spent, end_ns = json.loads((work / "truth").read_text())
    holds_within_two_per_cent_of_wall(measure(run), spent, end_ns)


def slow_reads(workload: Callable[..., Path]) -> dict[str, str]:
    """Reads of the file `slow` wait 15 ms each, on no CPU."""
    library = workload("slow", "-shared", "-fPIC")
    return {"LD_PRELOAD": str(library), "SLOW_UNDER": "slow", "SLOW_READ_US": "15000"}


def holds_within_two_per_cent_of_wall(
    known: Measures,
    spent: list[tuple[int, int, int]],
    end_ns: int,
    waits: list[tuple[int, int]] | None = None,
) -> None:
    """What the job clocked, ns.  spent: of each batch when making it began and ended, and the part
    of it in file calls.  waits: from when to when it waited for each, at the most; None: just while
    it was made.  The first batch is start-up, by definition."""
    wall_s = (end_ns - (waits or spent)[0][1]) / 1e9
    made_s = sum(end - begin for begin, end, _ in spent[1:]) / 1e9
    waited_s = sum(end - begin for begin, end in waits[1:]) / 1e9 if waits else made_s
    read_s = sum(read for *_, read in spent[1:]) / 1e9
    training, margin_s = known.training, 0.02 * wall_s
    assert training.wall_s == pytest.approx(wall_s, abs=margin_s)
    assert training.data_wait_s is not None
    assert made_s - margin_s <= training.data_wait_s <= waited_s + margin_s
    assert known.data_storage_s == pytest.approx(read_s, abs=margin_s)
    assert 0.3 < made_s / wall_s < 0.9  # else the truth would say little


@needs("torch", "keras")
@pytest.mark.parametrize("backend", ["torch", thorough("jax", like="torch")])
def test_keras_on_other_backends_waits_at_the_loader_that_feeds_it(
    recorded: Recorded, backend: str
) -> None:
    run = recorded(
        source("""
        import keras

        class Pairs(Files):
            def __getitem__(self, number):
                return super().__getitem__(number), torch.zeros(1)

        if __name__ == "__main__":
            make_files()
            net = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
            net.compile(keras.optimizers.SGD(1e-9), "mse")
            net.fit(DataLoader(Pairs(), batch_size=4, num_workers=2), epochs=2, verbose=0)
            net.save("saved.keras")
        """),
        environment={"KERAS_BACKEND": backend},
    )
    known = measure(run)
    assert known.training.steps == 8
    # Keras also makes iterators that it takes one batch of or none: their workers fetch ahead until
    # they are ended, after up to all four.
    assert all(epoch.workers == 2 for epoch in known.epochs)
    batches = [epoch.batches for epoch in known.epochs]
    assert max(batches) == 4
    assert batches.count(4) >= 2
    assert len(known.checkpoints) == 1
    assert "saved.keras" in (known.checkpoints[0].path or "")
