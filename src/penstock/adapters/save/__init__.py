"""Checkpoints of frameworks through a fast and a slow tier; each file imports its own framework.

penstock.adapters.save.torch          torch.distributed.checkpoint: TieredWriter, TieredReader
penstock.adapters.save.lightning      TieredCheckpointIO
penstock.adapters.save.transformers   DrainCallback, last_valid_checkpoint
penstock.adapters.save.keras          TieredBackupAndRestore
penstock.adapters.save.tensorflow     TieredCheckpointManager
penstock.adapters.save.orbax          TieredSteps
"""

__all__: list[str] = []
