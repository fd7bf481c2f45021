"""Checkpoint files are what the state was when it was copied, however late they are written."""

from __future__ import annotations

import collections
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from rl.training import background
from rl.training.background import BackgroundWriter, snapshot


def test_later_updates_do_not_reach_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, save = threading.Event(), torch.save

    def late(*arguments: Any) -> None:
        assert go.wait(20)
        save(*arguments)

    monkeypatch.setattr(background.torch, "save", late)
    weight = torch.ones(3)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(weight)], lr=0.1)
    writer = BackgroundWriter()
    writer.save({"weight": weight, "lr": [0.1], "optimizer": optimizer.state_dict()}, str(tmp_path / "a.pt"))
    weight.add_(1)
    go.set()
    writer.wait()
    assert torch.load(tmp_path / "a.pt")["weight"].tolist() == [1, 1, 1]
    writer.close()


def test_a_copy_keeps_kinds_and_what_is_shared() -> None:
    base = torch.arange(6.0)
    state = collections.OrderedDict(a=base, b=base, half=base[:3], empty=torch.zeros(0), t=(1, [base, None]), s="x")
    made = snapshot(state)
    assert type(made) is collections.OrderedDict and made["a"] is made["b"] and made["t"][1][0] is made["a"]
    assert made["a"].data_ptr() != base.data_ptr() and made["half"].tolist() == [0, 1, 2]
    assert made["t"][0] == 1 and made["t"][1][1] is None and made["s"] == "x"


def test_a_write_that_fails_is_told_once(tmp_path: Path) -> None:
    writer = BackgroundWriter()
    writer.save({}, str(tmp_path / "missing" / "a.pt"))
    writer.save({}, str(tmp_path / "b.pt"))
    with pytest.raises((OSError, RuntimeError)):
        writer.wait()
    writer.wait()
    writer.close()
    writer.close()
