"""Weights and optimizer state by parameter name, whole: the same files at every ZeRO stage and number of ranks.

Each rank writes the parameters that it is given by size, so that files are near equal and none is written
twice. Loading copies what a rank holds of each tensor. AdamW's state is ``exp_avg``, ``exp_avg_sq`` and a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rl.training.weights import gathered

MOMENTS = ("exp_avg", "exp_avg_sq")
SEPARATOR = "#"
"""Between a parameter's name and the name of a moment."""


def collect(engine: Any, stage: int, rank: int, ranks: int) -> dict[str, Tensor]:
    """This rank's share of the state as float32 copies in main memory. Collective above stage 0."""
    owners = _owners(engine.module, ranks)
    _link(engine, stage)
    out: dict[str, Tensor] = {}
    for name, parameter in _trained(engine.module):
        for key in (None, *MOMENTS):
            tensor = _whole(engine, parameter, key, stage)
            if tensor is not None and owners[name] == rank:
                full = name if key is None else f"{name}{SEPARATOR}{key}"
                out[full] = tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
    return out


def step_count(engine: Any) -> float:
    """Steps that the optimizer has made; 0 before the first."""
    states = _inner(engine).state.values()
    return max((float(state["step"]) for state in states if "step" in state), default=0.0)


def restore(engine: Any, stage: int, folder: Path, steps: float) -> None:
    """Loads the files of `collect` into an engine of any stage and number of ranks. Collective above stage 0.

    Raises:
        FileNotFoundError: a trained parameter, or all of the optimizer's state, is in none of the files.
    """
    files = dict(_index(folder))
    if steps and not any(SEPARATOR in name for name in files):
        raise FileNotFoundError(f"{folder} holds no optimizer state, but its optimizer had made {steps:.0f} steps")
    if steps:
        _make_moments(engine, stage, steps)
    for name, parameter in _trained(engine.module):
        if name not in files:
            raise FileNotFoundError(f"{folder} holds no weights of {name}")
        value = _read(files, name).to(parameter.device)
        with torch.no_grad(), gathered([parameter], modify=True) as mine:
            if mine:
                parameter.copy_(value)
        _set(engine, parameter, None, value, stage)
        for key in MOMENTS if steps else ():
            full = f"{name}{SEPARATOR}{key}"
            if full in files:
                _set(engine, parameter, key, _read(files, full).to(parameter.device), stage)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The trained parameters of a checkpoint by their names in `PolicyModule`, float32."""
    files = dict(_index(folder))
    return {name: _read(files, name) for name in files if SEPARATOR not in name}


def _trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def _owners(module: nn.Module, ranks: int) -> dict[str, int]:
    """The rank that writes each parameter: the largest first, to the rank with least."""
    sizes = {name: int(getattr(p, "ds_numel", p.numel())) for name, p in _trained(module)}
    loads = [0] * ranks
    owners = {}
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += sizes[name]
    return owners


def _inner(engine: Any) -> torch.optim.Optimizer:
    """The torch optimizer inside of DeepSpeed's."""
    outer: Any = engine.optimizer
    return getattr(outer, "optimizer", outer)


def _flat(engine: Any, stage: int) -> list[Tensor]:
    """What a ZeRO optimizer steps: flat float32 partitions."""
    outer = engine.optimizer
    return list(outer.fp32_partitioned_groups_flat if stage == 3 else outer.single_partition_of_fp32_groups)


def _whole(engine: Any, parameter: nn.Parameter, key: str | None, stage: int) -> Tensor | None:
    if stage == 0:
        return parameter if key is None else _inner(engine).state.get(parameter, {}).get(key)
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if key is None:
        return safe_get_full_fp32_param(parameter)
    # Alike on all ranks: states are made by the first step that has gradients.
    if not all(key in _inner(engine).state.get(flat, {}) for flat in _flat(engine, stage)):
        return None
    return safe_get_full_optimizer_state(parameter, key)


def _set(engine: Any, parameter: nn.Parameter, key: str | None, value: Tensor, stage: int) -> None:
    if stage == 0:
        if key is not None:
            _inner(engine).state[parameter][key].copy_(value)
        return
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    if key is None:
        safe_set_full_fp32_param(parameter, value)
    else:
        safe_set_full_optimizer_state(parameter, value, key)


def _make_moments(engine: Any, stage: int, steps: float) -> None:
    """The optimizer's tables as they are after its first step, which has not been made here."""
    stepped = [p for _, p in _trained(engine.module)] if stage == 0 else _flat(engine, stage)
    state = _inner(engine).state
    for tensor in stepped:
        state[tensor] = {"step": torch.tensor(steps), **{key: torch.zeros_like(tensor) for key in MOMENTS}}
    _link(engine, stage)


def _link(engine: Any, stage: int) -> None:
    """Lets DeepSpeed find the moments of a parameter: it looks once, after the first group's first step, and
    misses those of the other groups (0.19.8)."""
    if stage in (1, 2) and _inner(engine).state:
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()


def _index(folder: Path) -> Iterator[tuple[str, Path]]:
    from safetensors import safe_open

    for file in sorted(folder.glob("state-*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  # not a dictionary
                yield name, file


def _read(files: dict[str, Path], name: str) -> Tensor:
    from safetensors import safe_open

    with safe_open(files[name], framework="pt") as opened:
        return opened.get_tensor(name)
