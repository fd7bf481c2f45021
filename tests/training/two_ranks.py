"""Runs a step on several ranks and ZeRO stages in processes of their own, for `test_rank`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist


def rows(seed: int = 0) -> list:
    from rl.training.batch import TrainRow
    from rl.types import Segment

    g = np.random.default_rng(seed)
    out = []
    for i in range(8):
        n = int(g.integers(6, 24))
        mask = np.zeros(n, bool)
        mask[n // 2 :] = True
        segment = Segment(g.integers(3, 250, n).astype(np.int32), mask, np.full(n, -5.5, np.float32) * mask)
        out.append(TrainRow(segment, float(g.normal()), 1.0, i, 0, i // 4, int(mask.sum()), int(mask.sum()) * 4, 4))
    return out


def main(model: str, out: str, rank: int, world: int, port: int, stage: int, layout: str, settings: list[str]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    from rl.config import load
    from rl.objectives import build
    from rl.training.batch import Counts, StepBatch, UpdatePlan
    from rl.training.rank import TrainerRank

    overrides = [f"model.path={model}", "trainer.dtype=float32", "rollout.dtype=float32", "device=cpu"]
    overrides += ["trainer.lr=1e-3", "prompt.max_tokens=64", "rollout.max_response_tokens=64"]
    overrides += [f"trainer.zero_stage={stage}", f"trainer.ranks={world}"]
    places = dict(s.split("=", 1) for s in settings if s.startswith(("save=", "load=")))
    settings = [s for s in settings if not s.startswith(("save=", "load="))]
    config = load(None, [*overrides, *settings]).config
    objective = build(config.algorithm, max_response_tokens=64)
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0)
    trainer = TrainerRank(config, rank=rank, world_size=world, store=store, objective=objective)
    trainer.start()
    everything = rows()
    counts = Counts(sum(r.segment.trained_tokens for r in everything), len(everything), 2)
    mine = everything if layout == "idle" and rank == 0 else [] if layout == "idle" else everything[rank::world]
    bins = {
        "whole": [list(range(len(mine)))],
        "single": [[i] for i in range(len(mine))],
        "reversed": [list(range(len(mine)))[::-1]],
        "idle": [list(range(len(mine)))],
        "uneven": [list(range(len(mine)))] if rank == 0 else [[0], list(range(1, len(mine)))],
    }[layout]
    if layout == "uneven" and rank == 0:
        bins.append([])
    results = []
    if "load" in places:
        trainer.load(places["load"])
    for step in (1,) if "save" in places else (2,) if "load" in places else (1, 2):
        results.append(trainer.train(StepBatch(step, mine, [UpdatePlan(bins, counts)], groups=2)).means())
    if "save" in places:
        trainer.save(places["save"])
        trainer.written()
    total = {name: float(t.double().abs().sum()) for name, t in trainer.weights()}
    if rank == 0:
        kept = ("train/loss", "train/grad_norm", "policy/", "train/updates", "value/", "guide/")
        steps = [{k: v for k, v in r.items() if k.startswith(kept)} for r in results]
        Path(out).write_text(json.dumps({"steps": steps, "weights": total}))
    torch.distributed.barrier()
    trainer.stop()
    sys.stdout.flush()
    os._exit(0)  # torch's threads now and then abort a process while the interpreter is being taken down


if __name__ == "__main__":
    a = sys.argv
    main(a[1], a[2], int(a[3]), int(a[4]), int(a[5]), int(a[6]), a[7], a[8:])
