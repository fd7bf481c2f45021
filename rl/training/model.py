"""The policy as the trainer sees it: a Hugging Face model, its trunk and its head."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl.config.errors import ConfigError
from rl.config.schema import Config, ModelConfig
from rl.objectives.base import VocabTerm
from rl.pretrained import resolve
from rl.training import attention
from rl.training.logprobs import chunked_logprobs
from rl.training.packed import PackedRow

log = logging.getLogger(__name__)
TESTED = ("llama", "qwen2", "qwen3", "gemma3_text", "mistral", "phi3", "olmo2")
"""Families whose packed forward, weight sync and export are tested on tiny random models."""


def load_model(model: ModelConfig, *, attention_name: str | None = None) -> nn.Module:
    """The model in float32, adapters injected where the config asks for them.

    Raises:
        ConfigError: the family cannot be trained, or the files lack weights.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    attention.register()
    path = resolve(model.path)
    options = dict(revision=model.revision, trust_remote_code=model.trust_remote_code)
    refuse_family(AutoConfig.from_pretrained(path, **options))
    implementation = attention_name or (attention.NAME if model.attention == "packed" else model.attention)
    found: Any = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation=implementation, output_loading_info=True, **options
    )
    loaded, info = found
    missing = (
        set(info["missing_keys"]) - {"lm_head.weight"} if loaded.config.tie_word_embeddings else info["missing_keys"]
    )
    if missing:
        raise ConfigError(f"model.path: {model.path} lacks weights {sorted(missing)[:5]}")
    if model.gradient_checkpointing:
        loaded.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if model.lora.enabled:
        _inject_lora(loaded, model)
    return loaded


def refuse_family(config: Any) -> None:
    """Raises ConfigError for models that the trainer would get wrong; warns for those not tested."""
    family = config.model_type
    for field, why in (
        ("num_experts", "mixture-of-experts routing differs between engine and trainer"),
        ("num_local_experts", "mixture-of-experts routing differs between engine and trainer"),
        ("logit_scale", "scaled logits"),
        ("logits_scaling", "scaled logits"),
    ):
        if getattr(config, field, None):
            raise ConfigError(f"model.path: family {family!r} is not supported: {why}")
    if getattr(config, "is_encoder_decoder", False) or hasattr(config, "vision_config"):
        raise ConfigError(f"model.path: family {family!r} is not a text-only decoder")
    if family not in TESTED:
        log.warning("model family %r is untested; tested are %s", family, ", ".join(TESTED))


class PolicyModule(nn.Module):
    """What DeepSpeed wraps: packed rows in, log-probs of trained tokens out.

    Args:
        heads: auxiliary heads by name: float32 linear maps from a hidden state to one number. They are
            trained and saved with the policy and never reach the engines.
    """

    def __init__(self, model: nn.Module, config: Config, *, heads: Sequence[str] = ()) -> None:
        super().__init__()
        self.model: Any = model
        size: int = model.config.hidden_size  # type: ignore[union-attr, assignment]
        self.heads = nn.ModuleDict({f"head_{name}": _new_head(size) for name in heads})  # `values` is a method's name
        self._chunk = config.trainer.logits_chunk
        self._bfloat16 = config.trainer.dtype == "bfloat16"
        self._softcap = getattr(model.config, "final_logit_softcapping", None)

    def forward(
        self,
        row: PackedRow,
        terms: Sequence[VocabTerm] = (),
        ref_hidden: Tensor | None = None,
        reference: PolicyModule | None = None,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Log-probs, entropies and terms ``[N]`` of the row's ``N`` chosen tokens; see `chunked_logprobs`.

        Terms hold the outputs of the heads too. ``ref_hidden`` without ``reference`` goes through the
        policy's own output layer.
        """
        with self._autocast(row.input_ids.device):
            hidden = self.hidden(row)
            logprobs, entropy, values = chunked_logprobs(
                hidden,
                self.head,
                row.targets,
                row.temperature,
                chunk=self._chunk,
                terms=terms,
                ref_hidden=ref_hidden,
                ref_head=self.head if reference is None else reference.head,
            )
        with torch.autocast(row.input_ids.device.type, enabled=False):
            for name, head in self.heads.items():
                values[name.removeprefix("head_")] = head(hidden.float()).squeeze(-1)
        return logprobs, entropy, values

    def hidden(self, row: PackedRow) -> Tensor:
        """Last hidden states ``[N, D]`` at the positions that predict the chosen tokens."""
        with self._autocast(row.input_ids.device):
            inputs = row.inputs(planned=self.model.config._attn_implementation == attention.NAME)
            output = self.model.base_model(
                input_ids=inputs.input_ids[None],
                position_ids=inputs.position_ids[None],
                use_cache=False,
                **inputs.attention,
            )
            return output.last_hidden_state[0, inputs.predict]

    def head(self, hidden: Tensor) -> Tensor:
        """Logits ``[C, V]``."""
        logits = self.model.get_output_embeddings()(hidden)
        if self._softcap is not None:
            logits = torch.tanh(logits.float() / self._softcap) * self._softcap
        return logits

    def _autocast(self, device: torch.device) -> Any:
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=self._bfloat16)


def _new_head(size: int) -> nn.Linear:
    """Starts at zero: the first value is 0 everywhere, whatever the seed."""
    head = nn.Linear(size, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


@contextlib.contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The model as it was before its adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [m for m in model.modules() if isinstance(m, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def _inject_lora(model: nn.Module, config: ModelConfig) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    targets: Any = config.lora.target_modules
    if list(targets) == ["all-linear"]:
        targets = "all-linear"
    inject_adapter_in_model(
        LoraConfig(
            r=config.lora.rank,
            lora_alpha=config.lora.alpha,  # type: ignore[arg-type]  # a float will do
            lora_dropout=config.lora.dropout,
            target_modules=targets,
            task_type="CAUSAL_LM",
        ),
        model,
    )
    if config.gradient_checkpointing:
        model.enable_input_require_grads()  # type: ignore[operator]
