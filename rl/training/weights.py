"""The policy's weights by their Hugging Face names: whole, adapters merged in, the head always named.

Engines get full merged weights also under LoRA: one path, exact, and no adapter code in the engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

Clones = dict[str, Tensor]


def named_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the model in ``dtype``; gathers shards, so every rank must iterate to the end."""
    adapters = _adapters(model)
    tied = getattr(model.config, "tie_word_embeddings", False)
    embedding = model.get_input_embeddings().weight  # type: ignore[operator]
    for name, parameter in model.named_parameters():
        if ".lora_" in name or ".modules_to_save." in name:
            continue
        layer = adapters.get(name.removesuffix(".base_layer.weight")) if name.endswith(".base_layer.weight") else None
        with gathered([parameter, *(layer.parameters() if layer is not None else ())]):
            tensor = parameter.detach()
            if layer is not None:
                tensor = tensor + sum(layer.get_delta_weight(a) for a in layer.active_adapters)
            tensor = tensor.to(dtype)
            if tensor.data_ptr() == parameter.data_ptr():
                tensor = tensor.clone() if hasattr(parameter, "ds_id") else tensor
        yield name.replace(".base_layer.", "."), tensor
        if tied and parameter is embedding:
            yield "lm_head.weight", tensor


def mix_into(target: nn.Module, source: nn.Module, share: float) -> None:
    """Moves every parameter of ``target`` to ``(1 - share) target + share source``; gathers shards of the source."""
    theirs = dict(source.named_parameters())
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            with gathered([theirs[name]]):
                # Not `lerp`: a share of 1 is then a copy, bit for bit.
                parameter.mul_(1 - share).add_(theirs[name].to(parameter.dtype), alpha=share)


def weights_meta(model: nn.Module, dtype: torch.dtype) -> list[tuple[str, tuple[int, ...], str]]:
    """Names, shapes and dtype of `named_weights`, in its order, without gathering anything."""
    tied = getattr(model.config, "tie_word_embeddings", False)
    embedding = model.get_input_embeddings().weight  # type: ignore[operator]
    kind = str(dtype).removeprefix("torch.")
    out = []
    for name, parameter in model.named_parameters():
        if ".lora_" in name or ".modules_to_save." in name:
            continue
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        out.append((name.replace(".base_layer.", "."), shape, kind))
        if tied and parameter is embedding:
            out.append(("lm_head.weight", shape, kind))
    return out


def probe_noise(layers: int, *, exact: bool) -> float:
    """Relative size of the noise with which the start-up probe shows a stale tensor.

    Rounding grows with noise and depth, so deep models take less of it; what one stale tensor moves is
    large in them. In bfloat16 (not ``exact``) more than 0.05 is chaotic. Measured in float32: 30 trained
    layers at 0.1 round to 2e-5 and show a stale projection by 3e-2; two random ones need 0.5 to show it.
    """
    return 0.7 / max(layers, 2) ** 0.5 if exact else 0.05


def perturb(model: nn.Module, seed: int, scale: float) -> Clones:
    """Adds seeded noise to every tensor, adapters at zero included; returns what restores them.

    The same noise on every rank. Its size follows each tensor's own, with a floor for zeros.
    """
    clones: Clones = {}
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            with gathered([parameter], modify=True) as mine:
                noise = torch.randn(tuple(getattr(parameter, "ds_shape", parameter.shape)), generator=generator)
                if mine:
                    clones[name] = parameter.detach().cpu().clone()
                    size = max(float(parameter.float().std(correction=0)), float(parameter.float().abs().mean()), 0.02)
                    parameter.add_((noise * size * scale).to(parameter.device, parameter.dtype))
    return clones


def restore(model: nn.Module, clones: Clones) -> None:
    """Puts back what `perturb` saved, bit for bit."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            with gathered([parameter], modify=True) as mine:
                if mine:
                    parameter.copy_(clones[name])


@contextlib.contextmanager
def gathered(parameters: list[Any], *, modify: bool = False) -> Iterator[bool]:
    """Whole tensors under ZeRO-3, nothing to do elsewhere. Yields whether this rank may write."""
    sharded = [p for p in parameters if hasattr(p, "ds_id")]
    if not sharded:
        yield True
        return
    import deepspeed
    import torch.distributed as dist

    with deepspeed.zero.GatheredParameters(sharded, modifier_rank=0 if modify else None):
        yield dist.get_rank() == 0 or not modify


def _adapters(model: nn.Module) -> dict[str, Any]:
    found = {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}
    return {name: module for name, module in found.items() if hasattr(module, "base_layer")}
