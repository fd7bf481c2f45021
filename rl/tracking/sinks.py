"""Where metrics go besides the run directory: wandb and TensorBoard, both imported only when asked for."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import secrets
from collections.abc import Mapping
from typing import Any, Protocol

from rl.config import Config, ConfigError
from rl.tracking.jsonable import jsonable
from rl.tracking.run_directory import RunDirectory


class Sink(Protocol):
    """A place that takes metrics. Any call may raise; the tracker counts that and goes on."""

    name: str

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self, summary: Mapping[str, Any], *, failed: bool) -> None: ...


def open_sinks(directory: RunDirectory, config: Config) -> list[Sink]:
    """The sinks that the config asks for.

    Raises:
        ConfigError: a package or a key is missing.
    """
    sinks: list[Sink] = []
    if config.tracking.wandb:
        sinks.append(Wandb(directory, config))
    if config.tracking.tensorboard:
        sinks.append(TensorBoard(directory))
    return sinks


class Wandb:
    """Weights & Biases. The run's id is kept in ``state.json``, so a resumed run goes on in the same one."""

    name = "wandb"

    def __init__(self, directory: RunDirectory, config: Config) -> None:
        tracking = config.tracking
        _need("wandb", "tracking.wandb", "pip install wandb")
        key = os.environ.get(tracking.wandb_key_env)
        if tracking.wandb_mode == "online" and not key:
            raise ConfigError(
                f"tracking.wandb: the environment variable {tracking.wandb_key_env} is not set; export it with your "
                "key, name another one in tracking.wandb_key_env, or set tracking.wandb_mode=offline"
            )
        import wandb

        run_id = directory.state().get("wandb_run_id") or secrets.token_hex(4)
        directory.update_state(wandb_run_id=run_id)  # before init: a crash in there must not make a second run
        settings: dict[str, Any] = {"console": "off", "save_code": False, "disable_git": True, "silent": True}
        if key and tracking.wandb_mode == "online":
            settings["api_key"] = key
        self._run = wandb.init(
            id=run_id,
            resume="allow" if tracking.wandb_mode == "online" else None,
            name=config.name,
            project=tracking.wandb_project,
            entity=tracking.wandb_entity,
            mode=tracking.wandb_mode,  # type: ignore[arg-type]  # the schema allows two of its values
            dir=str(directory.path),
            config=jsonable(dataclasses.asdict(config)),
            settings=wandb.Settings(**settings),
        )
        # A resumed run goes back to its checkpoint's step, which wandb's own counter refuses.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def close(self, summary: Mapping[str, Any], *, failed: bool) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=1 if failed else 0)


class TensorBoard:
    """TensorBoard files in ``tensorboard/``."""

    name = "tensorboard"

    def __init__(self, directory: RunDirectory) -> None:
        _need("tensorboard", "tracking.tensorboard", "pip install 'hone-rl[tensorboard]'")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory.path / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, summary: Mapping[str, Any], *, failed: bool) -> None:
        self._writer.close()


def _need(package: str, key: str, command: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{key}: the package {package} is not installed; run `{command}` or switch it off")
