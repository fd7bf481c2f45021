"""`Run`: a training run as an object, for the command line and for Python."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rl.checkpoint.changes import Change, config_changes, file_changes, refuse
from rl.checkpoint.store import Checkpoint, CheckpointError, CheckpointStore
from rl.config import Resolved, load, load_resolved
from rl.config.errors import ConfigError
from rl.orchestration.loop import run_step, run_to_end
from rl.orchestration.session import Session
from rl.orchestration.start import open_session
from rl.orchestration.waiting import first_cause
from rl.tracking.progress import Progress
from rl.tracking.run_directory import RunDirectory

T = TypeVar("T")


class Terminated(BaseException):
    """SIGTERM asked the run to end."""


class Run:
    """One run. Nothing starts before the first step, evaluation or ``start()``.

    Use it as a context manager, or call ``close()``: Ray and all actors end with it.

    Args:
        recipe: path or name of a recipe.
        overrides: ``key=value`` strings, as on the command line.
        overwrite: replace a run directory of the same name.

    Example:
        >>> with Run("grpo/arithmetic_cpu", "stop.steps=2") as run:  # doctest: +SKIP
        ...     run.step()
        ...     print(run.metrics["reward/mean"])
    """

    def __init__(self, recipe: str | Path, *overrides: str, overwrite: bool = False, quiet: bool = True) -> None:
        self._init(load(recipe, overrides), None, quiet=quiet, overwrite=overwrite)

    @classmethod
    def resume(cls, directory: str | Path, *overrides: str, force: bool = False, quiet: bool = True) -> Run:
        """Continues the run in ``directory`` from its newest complete checkpoint.

        Args:
            force: accept changed files and settings that the saved state is about.

        Raises:
            CheckpointError: there is no checkpoint.
            ConfigError: a setting or a user file changed and was not accepted.
        """
        opened = RunDirectory.open(Path(directory))
        store = CheckpointStore(opened.checkpoints)
        checkpoint = store.latest()
        if checkpoint is None:
            raise CheckpointError(f"{directory} has no complete checkpoint; start again with `hone train`")
        resolved = load_resolved(opened.config_path, overrides)
        changes = config_changes(load_resolved(opened.config_path).config, resolved.config)
        refuse(changes, file_changes(opened.path), force=force)
        run = cls.__new__(cls)
        run._init(resolved, checkpoint, quiet=quiet, directory=opened)
        run.changes = changes
        return run

    @classmethod
    def from_resolved(cls, resolved: Resolved, *, overwrite: bool = False, quiet: bool = True) -> Run:
        """A run of a config that has been loaded already."""
        run = cls.__new__(cls)
        run._init(resolved, None, quiet=quiet, overwrite=overwrite)
        return run

    def _init(
        self,
        resolved: Resolved,
        checkpoint: Checkpoint | None,
        *,
        quiet: bool,
        overwrite: bool = False,
        directory: RunDirectory | None = None,
    ) -> None:
        self.config = resolved.config
        self.metrics: dict[str, float] = {}
        self.changes: list[Change] = []
        """What a resumed run does differently from when it was saved."""
        self._resolved, self._checkpoint, self._overwrite = resolved, checkpoint, overwrite
        self._directory = directory
        self._stack = contextlib.AsyncExitStack()
        self._runner = asyncio.Runner()
        self._session: Session | None = None
        self.progress = Progress(quiet=quiet)

    @property
    def session(self) -> Session:
        """What the run is made of.

        Raises:
            RuntimeError: the run has not been started.
        """
        if self._session is None:
            raise RuntimeError("the run has not been started: call start(), step() or train() first")
        return self._session

    @property
    def directory(self) -> RunDirectory:
        if self._directory is None:
            self._directory = RunDirectory.create(self._resolved, overwrite=self._overwrite)
        return self._directory

    def start(self) -> None:
        """Starts Ray, engines and trainer; evaluates once if the config says so."""
        if self._session is None:
            self._drive(self._start())

    def step(self) -> dict[str, float]:
        """One step; returns its metrics, which `metrics` then holds too."""
        self.start()
        self.metrics = self._drive(run_step(self.session))
        return self.metrics

    def train(self) -> str:
        """Steps until a stop rule fires. Returns the rule in words."""
        self.start()
        if self.session.stop_reason() is None and all(rule is None for rule in vars(self.config.stop).values()):
            raise ConfigError("no stop rule: set stop.steps, epochs, hours, tokens, metric or by")
        reason = self._drive(run_to_end(self.session))
        self.metrics = dict(self.session.counters.last)
        return reason

    def evaluate(self) -> dict[str, float]:
        """Held-out metrics at the current weights."""
        self.start()
        return self._drive(self.session.evaluate())

    def save(self) -> Path:
        """A checkpoint of the whole state; returns its folder."""
        self.start()

        async def save() -> Path:
            folder = await self.session.save()
            await self.session.saved()
            return folder

        return self._drive(save())

    def close(self) -> None:
        """Ends all that the run started. Idempotent."""
        try:
            self._runner.run(self._stack.aclose())
        finally:
            self._runner.close()
            self._session = None
            if self._directory is not None:
                self._directory.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def _start(self) -> None:
        if self._checkpoint is not None:
            self.directory.trim_metrics(self._checkpoint.step)
        opened = open_session(self._resolved, self.directory, self.progress, resume=self._checkpoint)
        self._session = await self._stack.enter_async_context(opened)
        self.progress.total(self._session.total_steps, done=self._session.counters.step)
        if self._checkpoint is None and self.config.eval.at_start:
            metrics = await self._session.evaluate()
            if metrics:
                self._session.tracker.log(0, metrics)

    def _drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs to completion; SIGTERM and Ctrl-C cancel it, so that every `finally` is reached."""
        told: list[int] = []

        async def guarded() -> T:
            task = asyncio.current_task()
            assert task is not None
            loop = asyncio.get_running_loop()

            def on_term() -> None:
                """The first saves after the step in progress and ends; before any step, and the second, end at once."""
                told.append(signal.SIGTERM)
                if self._session is not None and len(told) == 1:
                    self._session.stop_asked = "SIGTERM"
                else:
                    task.cancel()

            def on_usr1() -> None:
                if self._session is not None:
                    self._session.save_asked = True

            with contextlib.suppress(ValueError, NotImplementedError, RuntimeError):  # not in the main thread
                loop.add_signal_handler(signal.SIGTERM, on_term)
                loop.add_signal_handler(signal.SIGUSR1, on_usr1)
            try:
                return await work
            finally:
                with contextlib.suppress(ValueError, NotImplementedError, RuntimeError):
                    loop.remove_signal_handler(signal.SIGTERM)
                    loop.remove_signal_handler(signal.SIGUSR1)

        try:
            return self._runner.run(guarded())
        except asyncio.CancelledError:
            if told:
                raise Terminated from None
            raise
        except BaseExceptionGroup as group:
            raise first_cause(group) from group
