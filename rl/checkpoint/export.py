"""A checkpoint as a model folder in Hugging Face format, adapters merged."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from rl.checkpoint.store import Checkpoint, CheckpointError, CheckpointStore, retention
from rl.config.schema import Config


def export(checkpoint: Checkpoint, config: Config, folder: Path, *, dtype: str = "bfloat16") -> Path:
    """Writes the policy of a checkpoint; Transformers and vLLM load the folder.

    Args:
        config: of the run: names the model that the run began with.
        folder: appears whole or not at all.

    Raises:
        FileExistsError: the folder holds something.
        CheckpointError: the checkpoint does not fit the model.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    from rl.data.tokens import load_tokenizer
    from rl.pretrained import resolve
    from rl.training.model import PolicyModule, load_model
    from rl.training.state import read_weights
    from rl.training.weights import named_weights

    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; give another folder")
    state = read_weights(checkpoint.path / "trainer")
    policy = PolicyModule(load_model(config.model), config)
    wanted = {name: tensor for name, tensor in state.items() if not name.startswith("heads.")}
    _, unexpected = policy.load_state_dict(wanted, strict=False)
    missing = [n for n, p in policy.named_parameters() if p.requires_grad and n not in wanted]
    if missing or unexpected:
        raise CheckpointError(f"{checkpoint.path} does not fit {config.model.path}: {(missing or unexpected)[:5]}")
    path, trust = resolve(config.model.path), config.model.trust_remote_code
    plain: Any = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(path, revision=config.model.revision, trust_remote_code=trust),
        dtype=getattr(torch, dtype),
    )
    plain.load_state_dict(dict(named_weights(policy.model, getattr(torch, dtype))))
    plain.generation_config = GenerationConfig.from_model_config(plain.config)
    if (Path(path) / "generation_config.json").is_file():
        plain.generation_config = GenerationConfig.from_pretrained(path)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        plain.save_pretrained(scratch)
        load_tokenizer(config.model).save_pretrained(scratch)
        (scratch / "README.md").write_text(_card(checkpoint, config), encoding="utf-8")
        if folder.exists():
            folder.rmdir()
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def exported(run: Path, name: str) -> Path:
    """The model folder of a run's checkpoint, made at its first use: what ``model.path=runs/A@best`` means."""
    from rl.config import load_resolved
    from rl.tracking.run_directory import RunDirectory

    directory = RunDirectory.open(run, lock=False)
    config = load_resolved(directory.config_path).config
    if config.method != "rl":  # TRL's trainers leave a plain model folder
        if name != "latest" or not (directory.path / "model" / "config.json").is_file():
            raise CheckpointError(f"{run}: a run of method={config.method} offers @latest, once it has ended")
        return directory.path / "model"
    checkpoint = CheckpointStore(directory.checkpoints, retention(config.checkpoint)).find(name)
    folder = directory.path / "exports" / f"step-{checkpoint.step:06d}"
    return folder if (folder / "config.json").is_file() else export(checkpoint, config, folder)


def _card(checkpoint: Checkpoint, config: Config) -> str:
    return (
        f"# {config.name}, step {checkpoint.step}\n\nTrained with Hone from `{config.model.path}`: "
        f"{config.algorithm.advantage} advantages, {config.algorithm.policy_loss} loss, "
        f"learning rate {config.trainer.lr:g}.\n"
    )
