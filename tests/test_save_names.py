"""Test the steps in the names of checkpoints, by the names that frameworks and model hubs use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.places.stores import LocalStore
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.retention import Keep
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.unit.names import parts_of, step_of_folder
from penstock.save.unit.units import grouped
from penstock.save.verify import latest_valid

# Names of checkpoints, each with the step; the library or the program that uses the name.
TOLD = {
    "timm": {"checkpoint-17.pth.tar": 17, "last.pth.tar": None, "model_best.pth.tar": None},
    "ultralytics": {"epoch10.pt": 10, "last.pt": None, "best.pt": None},
    "fairseq": {
        "checkpoint3.pt": 3, "checkpoint_3_20000.pt": 20000, "checkpoint_last.pt": None,
        "checkpoint_1_10000-shard0.pt": 10000, "checkpoint.best_loss_2.34.pt": None,
        "checkpoint_last-rank-0.pt": None, "checkpoint.avg10.pt": None,
    },
    "ESPnet": {"12epoch.pth": 12, "valid.acc.ave_10best.pth": None, "valid.loss.best.pth": None},
    "NeMo": {
        "megatron_gpt--val_loss=2.35-step=1000-consumed_samples=8000.0.ckpt": 1000,
        "megatron_gpt--val_loss=2.35-step=1000-consumed_samples=8000.0-last.ckpt": 1000,
    },
    "Megatron": {"model_optim_rng.pt": None, "distrib_optim.pt": None},
    "DeepSpeed": {
        "mp_rank_00_model_states.pt": None, "zero_pp_rank_0_mp_rank_00_optim_states.pt": None,
        "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt": None,
    },
    "Composer": {"ep1-ba2000-rank0.pt": 2000, "latest-rank0.pt": None, "ep0-ba20-rank0.pt": 20},
    "Lightning": {
        "epoch=3-step=1200.ckpt": 1200, "epoch=3-step=1200-v1.ckpt": 1200, "last-v1.ckpt": None,
        "mnist-epoch=02-val_loss=0.32.ckpt": 2, "N-Step-Checkpoint_1_2000.ckpt": 2000,
    },
    "Keras": {
        "weights.02-1.30.hdf5": 2, "weights.10-0.45.h5": 10, "model.05-0.78.keras": 5,
        "cp-0004.ckpt": 4, "checkpoint-0010.weights.h5": 10, "ep113.keras": 113,
    },
    "TensorFlow": {"ckpt-12": 12, "model.ckpt-1000": 1000},
    "MMEngine": {
        "iter_10000.pth": 10000, "epoch_12.pth": 12, "best_coco_bbox_mAP_epoch_12.pth": 12,
    },
    "Paddle": {"epoch_10.pdparams": 10, "10.pdparams": 10, "iter_epoch_3.pdparams": 3,
               "best_model.pdparams": None, "model_state.pdparams": None},
    "fastai": {"bestmodel.pth": None, "model_3.pth": 3, "stage-1.pth": None},
    "Detectron2": {"model_0004999.pth": 4999, "model_final.pth": None},
    "diffusers": {
        "pytorch_lora_weights.safetensors": None, "learned_embeds-steps-500.safetensors": 500,
        "my_lora-000010.safetensors": 10, "my_lora-step00000500.safetensors": 500,
    },
    "PEFT": {"adapter_model.safetensors": None},
    "Transformers": {
        "model-00001-of-00004.safetensors": None, "pytorch_model.bin": None,
        "rng_state_0.pth": None,
    },
    "Stable-Baselines3": {"rl_model_3000_steps.zip": 3000,
                          "rl_model_replay_buffer_3000_steps.pkl": 3000},
    "StyleGAN": {"network-snapshot-000200.pkl": 200, "training-state-000200.pkl": 200},
    "guided-diffusion": {"model050000.pt": 50000, "ema_0.9999_050000.pt": 50000},
    "pix2pix": {"300_net_G.pth": 300, "latest_net_G_A.pth": None},
    "VITS": {"G_1000.pth": 1000, "D_1000.pth": 1000},
    "HiFi-GAN": {"g_00005000": 5000, "do_00005000": 5000},
    "Coqui": {"checkpoint_10000.pth": 10000, "best_model_1234.pth": 1234},
    "a loop": {
        "step_100K.pt": 100_000, "iter-1.5M.pt": 1_500_000, "step_1e5.pt": 100_000,
        "model-lr0.001-bs32-epoch10.pt": 10, "lr_0.001_bs_32_epoch_10.pt": 10,
        "seed42_epoch3.pt": 3, "modelEpoch7.pt": 7, "model_loss_0.23_10.pt": 10,
        "model_2026-11-25_step_40.pt": 40, "step_20261125.pt": 20261125, "0.pt": 0,
        "model-3-of-4.pt": None,
    },
}  # fmt: skip

# Numbers of models, versions, sizes, runs, dates and hashes.
NO_STEPS = """
    vit_b_16.pth vit_b_16-c867db91.pth vit_l_32.pth ViT-B-32.pt ViT-L-14-336px.pt RN50x16.pt
    clip_vit_l14.pth resnet50.pth resnet-50.pth resnet18-f37072fd.pth vgg16-39792312.pth
    efficientnet_b4.pth efficientnet_b4_rwightman-23ab8bcd.pth swin_tiny_patch4_window7_224.pth
    convnext_base_22k_1k_224.pth deit_base_patch16_224-b5f2ef4d.pth dinov2_vits14_pretrain.pth
    sam_vit_h_4b8939.pth mask_rcnn_R_50_FPN_3x.pth hrnet_w48.pth u2net.pth unet50.pt
    faster_rcnn_r50_fpn_1x_coco_20200130-047c8118.pth RealESRGAN_x4plus.pth 4x-UltraSharp.pth
    llama-3-8b.safetensors Meta-Llama-3-8B-Q4_K_M.gguf llama-2-7b.Q5_K_M.gguf phi-2.gguf gpt2.pt
    gpt2-medium.bin Qwen2.5-7B-Instruct.gguf mixtral-8x7b.safetensors Mistral-7B-v0.1.safetensors
    bert-base-uncased.bin t5-v1_1-base.bin wav2vec2-base-960h.bin large-v3.pt yolov8n.pt yolo11n.pt
    yolov5s6.pt sdxl-1.0.safetensors sd_xl_base_1.0.safetensors v1-5-pruned-emaonly.ckpt
    v1.5.safetensors fp16.safetensors model_v2.pt model_7b.pt cifar10_resnet.pt seed_42.pt
    model_seed_1.pt run_3.pt version_0.pt model_2026-11-25.pt run_2026-11-25_12-30.pt
    20261125_123000.pt model_20261125-123000.pt model_acc_95.pt best_3.pt snap-300.pt my_net-7.pt
"""


def written(path: Path, time_s: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(100))
    os.utime(path, (time_s, time_s))


@pytest.mark.parametrize("library", TOLD)
def test_the_step_of_the_names_of_a_library(library: str) -> None:
    assert {name: parts_of(name).step for name in TOLD[library]} == TOLD[library]


@pytest.mark.parametrize("name", NO_STEPS.split())
def test_the_number_of_a_model_is_no_step(name: str) -> None:
    assert parts_of(name).step is None
    assert step_of_folder(name.rpartition(".")[0] or name) is None


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-1000", 1000), ("global_step1000", 1000), ("iter_0000100", 100), ("100", 100),
        ("checkpoint-500", 500), ("checkpoint_000010", 10), ("epoch_3", 3), ("100_steps", 100),
        ("step1000-unsharded", 1000), ("global_step100_hf", 100), ("epoch=1-step=2", 2),
        ("llama-3-8b", None), ("gpt2", None), ("v1.5", None), ("2026-11-25_12-30", None),
        ("20261125-123000", None), ("CKPT+2026-11-25+12-30-00+00", None), ("resnet-50", None),
        ("version_0", None), ("run_3", None), ("fold_1", None), ("tp0", None), ("lora_r8", None),
    ],
)  # fmt: skip
def test_the_step_of_the_name_of_a_folder(name: str, step: int | None) -> None:
    assert step_of_folder(name) == step


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ("bert_model.pt bert_optimizer.pt", {"bert_model.pt": 2}),
        ("anna_model.pt anna_optim.pt berta_model.pt berta_optim.pt",
         {"anna_model.pt": 2, "berta_model.pt": 2}),
        ("model_2026-11-25.pt optim_2026-11-25.pt model_2026-11-26.pt optim_2026-11-26.pt",
         {"model_2026-11-25.pt": 2, "model_2026-11-26.pt": 2}),
        ("flow-300.pt spline-300.pt flow-400.pt spline-400.pt",
         {"flow-300.pt": 2, "flow-400.pt": 2}),
        ("model-1-of-2.pt model-2-of-2.pt", {"model-1-of-2.pt": 2}),
        ("vit_b_16.pth vit_b_32.pth vit_l_16.pth vit_l_32.pth", {}),
        ("phi-2.gguf phi-3.gguf gemma-2.gguf", {}),
    ],
)  # fmt: skip
def test_files_of_one_number_or_one_run_form_a_group(names: str, wanted: dict[str, int]) -> None:
    found = {one.name: len(one.files) for one in grouped(names.split()) if len(one.files) > 1}
    assert found == wanted


def steps_of(folder: Path) -> dict[str, int | None]:
    return {one.name: one.step for one in find(LocalStore(folder))}


def test_a_number_that_grows_from_file_to_file_is_a_step(tmp_path: Path) -> None:
    written(tmp_path / "snap-300.pt", 1000)
    assert steps_of(tmp_path) == {"snap-300.pt": None}
    written(tmp_path / "snap-400.pt", 2000)
    assert steps_of(tmp_path) == {"snap-300.pt": 300, "snap-400.pt": 400}
    for number in (10, 20):
        written(tmp_path / "b" / f"lstm_256_{number}.pt", number)
    assert steps_of(tmp_path / "b") == {"lstm_256_10.pt": 10, "lstm_256_20.pt": 20}


def test_a_number_that_does_not_grow_with_time_is_no_step(tmp_path: Path) -> None:
    for time_s, size in enumerate((224, 384, 192)):
        written(tmp_path / f"tiny-{size}.pt", 1000 + time_s)
    assert set(steps_of(tmp_path).values()) == {None}


def test_a_counter_with_zeros_shows_that_numbers_without_zeros_are_steps(tmp_path: Path) -> None:
    for time_s, name in enumerate(("lora_x-100000", "lora_x-090000")):
        written(tmp_path / f"{name}.pt", 1000 + time_s)
    assert steps_of(tmp_path) == {"lora_x-100000.pt": 100_000, "lora_x-090000.pt": 90_000}


def npz(path: Path, time_s: float) -> None:
    numpy = pytest.importorskip("numpy")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        numpy.savez(file, x=numpy.full(10, time_s))
    os.utime(path, (time_s, time_s))


def test_retention_removes_no_model_for_the_number_in_its_name(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for time_s, name in enumerate(("vit_b_32_net", "vit_b_16_net", "resnet_50_net", "phi-2_net")):
        npz(fast / f"{name}.npz", 1000 + time_s)
    for step in (10, 20, 30):
        npz(fast / f"net_{step}.npz", 2000 + step)
    keep = DrainSettings(settle_s=0, tries=1, keep=Keep(fast=1, last=1, foreign=True))
    with Drainer(fast, slow, keep) as working:
        assert working.once() == []
    left = {path.name for folder in (fast, slow) for path in folder.glob("*.npz")}
    assert {name for name in left if name.startswith(("vit", "resnet", "phi"))} == {
        "vit_b_32_net.npz", "vit_b_16_net.npz", "resnet_50_net.npz", "phi-2_net.npz",
    }  # fmt: skip
    assert {path.name for path in slow.glob("net_*.npz")} == {"net_30.npz"}


def test_a_restart_does_not_begin_from_the_number_of_a_model(tmp_path: Path) -> None:
    npz(tmp_path / "epoch_3_net.npz", 1000)
    npz(tmp_path / "vit_b_16_net.npz", 3000)
    assert latest_valid(tmp_path).step == 3


def test_a_lone_file_on_one_tier_is_compared_with_those_on_the_other(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    for number in (100, 200, 300):
        npz(fast / f"snap_net-{number}.npz", 1000 + number)
        _drain(fast, slow, Keep(fast=1, foreign=True))
    assert [path.name for path in fast.glob("*.npz")] == ["snap_net-300.npz"]
    npz(fast / "snap_net-400.npz", 2000)
    (fast / "snap_net-300.npz").unlink()
    choice = latest_valid(fast, slow)
    assert (choice.step, choice.checkpoint and choice.checkpoint.name) == (400, "snap_net-400.npz")


def _drain(fast: Path, slow: Path, keep: Keep | None) -> None:
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1, keep=keep)) as working:
        assert working.once() == []
