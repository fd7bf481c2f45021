"""One DeepSpeed rank: the policy, its optimizer, and what the controller asks of it.

Everything is float32 with bfloat16 autocast where ``trainer.dtype`` says so, at every ZeRO stage:
one code path, the same numbers. deepspeed is imported late, since importing it starts a probe for
accelerators and takes seconds.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from rl.config.errors import ConfigError
from rl.config.schema import Config, LoraConfig, ModelConfig
from rl.objectives.base import Objective
from rl.packing import pack
from rl.training.background import BackgroundWriter
from rl.training.batch import StepBatch, StepResult
from rl.training.model import PolicyModule, adapters_off, load_model
from rl.training.optim import learning_rate, make_optimizer
from rl.training.packed import pack_tokens
from rl.training.state import collect, step_count
from rl.training.state import restore as restore_state
from rl.training.step import Micro, run_step
from rl.training.weights import Clones, mix_into, named_weights, perturb, probe_noise, restore, weights_meta

log = logging.getLogger(__name__)
HEADS = ("values",)
"""Signals that an auxiliary head of the policy makes."""
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class TrainerRank:
    """Rank ``rank`` of ``world_size``; each lives in a process of its own.

    Args:
        store: where the process group meets.
        objective: this rank's own instance.
    """

    def __init__(
        self,
        config: Config,
        *,
        rank: int,
        world_size: int,
        store: dist.Store,
        objective: Objective,
    ) -> None:
        self._config, self._rank, self._world_size = config, rank, world_size
        self._store = store
        self.objective = objective
        self.updates = 0
        """Optimizer steps since the schedule began."""
        self._phase = "new"
        self._engine: Any = None
        self._reference: PolicyModule | None = None
        self._teacher: PolicyModule | None = None
        self._clones: Clones | None = None
        self._writer = BackgroundWriter()
        self._norm = float("nan")
        self._total: int | None = None

    def start(self) -> None:
        """Joins the process group and loads the model. Collective."""
        self._phase = "starting"
        gpu = self._config.device != "cpu" and torch.cuda.is_available()
        self.device = torch.device("cuda", 0) if gpu else torch.device("cpu")
        if not gpu:
            os.environ["DS_ACCELERATOR"] = "cpu"
        os.environ.update(
            RANK=str(self._rank),
            WORLD_SIZE=str(self._world_size),
            LOCAL_RANK="0",
            LOCAL_SIZE="1",
        )
        if "OMP_NUM_THREADS" in os.environ:
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        if self._config.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        import deepspeed

        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        # None of its compiled operators: the one that it would take here, an all-reduce in shared memory for
        # CPUs, costs a minute of compilation on first use, hangs on a lock that a killed compilation left
        # behind, and leaves 69 MB a rank in /dev/shm. Gloo sums the gradients.
        deepspeed.ops.__compatible_ops__ = {}
        backend = "nccl" if gpu else "gloo"
        dist.init_process_group(backend, store=self._store, rank=self._rank, world_size=self._world_size)
        deepspeed.init_distributed(dist_backend=backend, verbose=False)
        self._build()
        self._phase = "idle"

    def train(self, batch: StepBatch) -> StepResult:
        """One step's updates. Collective: every rank is given its own batch of the same step."""
        self._phase = f"training step {batch.step}"
        if batch.restart_schedule:
            self.updates = 0
        self._total = batch.total_updates
        self._module.train()
        algorithm = self._config.algorithm
        if self._moves_reference and batch.step > 1 and (batch.step - 1) % algorithm.reference_every == 0:
            assert self._reference is not None
            mix_into(self._reference.model, self._module.model, algorithm.reference_mix)
        result = run_step(
            batch,
            self.objective,
            forward=self._forward,
            score=self._score,
            reference=self._reference_logprobs,
            teacher=self._teacher_logprobs,
            backward=self._backward,
            update=self._update,
            world_size=self._world_size,
            constant_length=algorithm.constant_length or self._config.rollout.max_response_tokens,
            seed=self._config.seed,
            device=self.device,
        )
        self._phase = "idle"
        return result

    def logprobs(self, rows: Sequence[Sequence[int]], temperature: float) -> list[NDArray[np.float32]]:
        """Log-prob of each token given those before it, ``[T]`` a row; entry 0 is 0. Collective under ZeRO-3."""
        arrays = [np.asarray(row, dtype=np.int64) for row in rows]
        out: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(arrays)
        for members in pack([len(a) for a in arrays], self._config.trainer.max_tokens_per_microbatch):
            chosen = [np.arange(len(arrays[i])) > 0 for i in members]
            packed = pack_tokens([arrays[i] for i in members], chosen, [temperature] * len(members), self.device)
            with torch.no_grad():
                values, _, _ = self._engine(packed)
            spread = packed.scatter(values).float().cpu().numpy()
            bounds = packed.cu_seqlens.tolist()
            for i, start, end in zip(members, bounds[:-1], bounds[1:], strict=True):
                out[i] = spread[start:end]
        return out

    def weights_meta(self) -> list[tuple[str, tuple[int, ...], str]]:
        return weights_meta(self._module.model, DTYPES[self._config.rollout.dtype])

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors by Hugging Face name, in the engine's dtype. Collective."""
        return named_weights(self._module.model, DTYPES[self._config.rollout.dtype])

    def perturb(self, seed: int) -> None:
        """Adds noise to every tensor, for the probe of weight sync; `restore` takes it back."""
        model, exact = self._module.model, self._config.rollout.dtype == self._config.trainer.dtype == "float32"
        layers = model.config.get_text_config().num_hidden_layers
        self._clones = perturb(model, seed, probe_noise(layers, exact=exact))

    def restore(self) -> None:
        if self._clones is None:
            raise RuntimeError("nothing to restore: perturb() comes first")
        restore(self._module.model, self._clones)
        self._clones = None

    def save(self, folder: str) -> None:
        """Weights, optimizer, schedule, objective and random state. Collective.

        Returns when all has been copied; `written` waits for the files.
        """
        self._phase = "saving"
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        shared = {"optimizer_steps": step_count(self._engine), "updates": self.updates}
        tensors = collect(self._engine, self._config.trainer.zero_stage, self._rank, self._world_size)
        self._writer.call(save_file, tensors, place / f"state-{self._rank:05d}.safetensors")
        state = shared | {
            "objective": self.objective.state_dict(),
            "torch": torch.get_rng_state(),
            "numpy": np.random.get_state(),
            "python": random.getstate(),
        }
        self._writer.save(state, str(place / f"rank{self._rank}.pt"))
        if self._moves_reference and self._rank == 0:
            assert self._reference is not None
            self._writer.save(self._reference.state_dict(), str(place / "reference.pt"))
        self._phase = "idle"

    def written(self) -> None:
        """Waits for the files of `save`. Raises OSError when one could not be written."""
        self._writer.wait()

    def load(self, folder: str) -> None:
        """Continues from `save`, of any number of ranks and ZeRO stage. Collective.

        Raises:
            FileNotFoundError: there is nothing to load.
        """
        place = Path(folder)
        mine = place / f"rank{self._rank}.pt"
        file = mine if mine.is_file() else place / "rank0.pt"
        if not file.is_file():
            raise FileNotFoundError(f"{folder} holds no trainer state")
        state = torch.load(file, weights_only=False)  # our own file, of this run
        restore_state(self._engine, self._config.trainer.zero_stage, place, state["optimizer_steps"])
        self.updates = state["updates"]
        self.objective.load_state_dict(state["objective"])
        if file == mine:
            torch.set_rng_state(state["torch"])
            np.random.set_state(state["numpy"])
            random.setstate(state["python"])
        if self._moves_reference:
            assert self._reference is not None
            self._reference.load_state_dict(torch.load(place / "reference.pt", map_location=self.device))

    def reset(self) -> None:
        """Back to the initial weights, with a fresh optimizer and schedule. Collective."""
        self._engine = None
        if self._moves_reference:
            self._reference = None
        self._build()

    def status(self) -> dict[str, Any]:
        return {"phase": self._phase, "updates": self.updates, "rank": self._rank}

    def stop(self) -> None:
        """Leaves the process group; idempotent."""
        self._engine = self._reference = self._teacher = None
        self._writer.close()
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def _module(self) -> PolicyModule:
        return self._engine.module

    def _build(self) -> None:
        import deepspeed

        config = self._config
        torch.manual_seed(config.seed)
        model = load_model(config.model).to(self.device)
        heads = tuple(signal for signal in HEADS if signal in self.objective.signals)
        policy = PolicyModule(model, config, heads=heads).to(self.device)
        optimizer = make_optimizer(policy, config.trainer)
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=policy, optimizer=optimizer, config=self._deepspeed_config()
        )
        if self._world_size == 1 and config.trainer.zero_stage == 0:
            self._engine.enable_backward_allreduce = False  # would copy every gradient twice, to sum it over one rank
        # Runs after gradients have been reduced, just before they are used.
        optimizer.register_step_pre_hook(lambda *_: self._before_step())
        self.updates = 0
        wanted = "ref_logprobs" in self.objective.signals or self._full_kl
        if wanted and not config.model.lora.enabled and self._reference is None:
            self._reference = self._frozen(config.model)
        if "teacher_logprobs" in self.objective.signals and self._teacher is None:
            if not config.algorithm.teacher:
                raise ConfigError("the objective learns from a teacher: set algorithm.teacher to a model")
            plain = dataclasses.replace(config.model, path=config.algorithm.teacher, revision=None, lora=LoraConfig())
            self._teacher = self._frozen(plain)
            self._check_vocabulary(self._teacher)

    def _deepspeed_config(self) -> dict[str, Any]:
        trainer = self._config.trainer
        clip = trainer.max_grad_norm or 0.0
        settings: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "managed_gradient_accumulation": False,
            # Stage 0 is clipped in `_before_step`, which must know the norm to leave out a bad update.
            "gradient_clipping": clip if trainer.zero_stage else 0.0,
            "zero_optimization": {"stage": trainer.zero_stage},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 10**9,
        }
        if trainer.offload:
            settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        return settings | trainer.deepspeed

    @property
    def _moves_reference(self) -> bool:
        return self._config.algorithm.reference_every > 0

    @property
    def _full_kl(self) -> bool:
        return any(term.needs_ref for term in self.objective.vocab_terms)

    def _frozen(self, model: ModelConfig) -> PolicyModule:
        return PolicyModule(load_model(model).to(self.device).requires_grad_(False).eval(), self._config)

    def _check_vocabulary(self, other: PolicyModule) -> None:
        mine, theirs = self._module.model.config.vocab_size, other.model.config.vocab_size
        if mine != theirs:
            raise ConfigError(
                f"algorithm.teacher has {theirs} tokens and the policy {mine}: they need the same tokenizer"
            )

    def _forward(self, micro: Micro, objective: Objective) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        if not self._full_kl:
            return self._engine(micro.row, objective.vocab_terms)
        with torch.no_grad():
            if self._reference is not None:
                hidden = self._reference.hidden(micro.row)
            else:
                with adapters_off(self._module.model):
                    hidden = self._module.hidden(micro.row)
        return self._engine(micro.row, objective.vocab_terms, hidden, self._reference)

    def _score(self, micro: Micro) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        with torch.no_grad():
            return self._engine(micro.row)

    def _teacher_logprobs(self, micro: Micro) -> Tensor:
        assert self._teacher is not None
        with torch.no_grad():
            return self._teacher(micro.row)[0]

    def _reference_logprobs(self, micro: Micro) -> Tensor:
        with torch.no_grad():
            if self._reference is not None:
                return self._reference(micro.row)[0]
            with adapters_off(self._module.model):
                return self._engine(micro.row)[0]

    def _backward(self, loss: Tensor) -> None:
        self._engine.backward(loss, scale_wrt_gas=False)

    def _update(self) -> dict[str, float]:
        rate = learning_rate(self._config.trainer, self.updates, self._total)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._norm = float("nan")
        self._engine.step()
        self.updates += 1
        norm = self._engine.get_global_grad_norm()
        norm = self._norm if norm is None else float(norm)
        return {"train/lr": rate, "train/grad_norm": norm, "train/skipped_updates": float(not np.isfinite(norm))}

    def _before_step(self) -> None:
        """Clips (stage 0) and takes the gradients away where their norm is not finite: no update is made."""
        if self._config.trainer.zero_stage == 0:
            parameters = [p for p in self._module.parameters() if p.grad is not None]
            limit = self._config.trainer.max_grad_norm
            norm = torch.nn.utils.clip_grad_norm_(parameters, limit if limit else float("inf"))
            self._norm = float(norm)
        else:
            self._norm = float(getattr(self._engine.optimizer, "_global_grad_norm", 0.0) or 0.0)
        if not np.isfinite(self._norm):
            log.warning("gradient norm is %s; the update is left out", self._norm)
            for group in self._optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
