"""Environments of `verifiers` (tried with 0.1.14), through the gateway: such an environment owns its loop.

    python -m envs.adapters.verifiers my-environment tasks.jsonl    # its dataset as a data source

Then `environment: verifiers` with `environment_options: {name: my-environment}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rl.config.plugins import load_object
from rl.types import Task

KEY_VARIABLE = "HONE_GATEWAY_KEY"
"""verifiers reads its endpoint's key from a variable; the gateway asks for none (its address is the secret)."""
_ROW = ("answer", "info", "task", "example_id")


class VerifiersProgram:
    """One rollout of a verifiers environment, scored by its own rubric.

    Its only reward is `environment`, the rubric's weighted sum.

    Args:
        name: an installed environment's id, or `path/file.py:load_environment`.
        options: arguments of its loader.
    """

    def __init__(self, name: str, *, options: Mapping[str, Any] | None = None) -> None:
        self._name, self._options = name, dict(options or {})

    async def run(self, task: Task, *, base_url: str, seed: int, deadline: float) -> Mapping[str, float]:
        environment = await asyncio.to_thread(load, self._name, self._options)
        import verifiers  # takes a while the first time: loaded in that thread

        os.environ.setdefault(KEY_VARIABLE, "none")
        client = verifiers.ClientConfig(api_base_url=base_url, api_key_var=KEY_VARIABLE, max_retries=0)
        row: dict[str, Any] = {k: task.columns[k] for k in _ROW if k in task.columns}
        row |= {"prompt": list(task.messages), "example_id": row.get("example_id", 0)}
        out = await environment.run_rollout(row, client, "policy", {})
        if out.get("error"):
            raise RuntimeError(f"{self._name}: {out['error']}")
        return {"environment": float(out["reward"])}

    async def close(self) -> None:
        """The environment is shared by the episodes of a process and stays."""


_loaded: dict[str, Any] = {}
_loading = threading.Lock()


def load(name: str, options: Mapping[str, Any]) -> Any:
    """A verifiers environment, loaded once a process.

    Raises:
        ModuleNotFoundError: verifiers is not installed.
    """
    try:
        import verifiers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the environment `verifiers` needs that package: pip install verifiers") from error
    with _loading:
        key = json.dumps([name, dict(options)], sort_keys=True, default=str)
        if key not in _loaded:
            made = load_object(name, {}) if ":" in name else lambda **o: verifiers.load_environment(name, **o)
            _loaded[key] = made(**options)
        return _loaded[key]


def rows(environment: Any, limit: int = -1) -> list[dict[str, Any]]:
    """Its training tasks as rows of a data source."""
    return [{k: row[k] for k in ("prompt", *_ROW) if k in row} for row in environment.get_dataset(limit)]


def main() -> None:
    import typer

    def convert(
        name: Annotated[str, typer.Argument(help="Environment id, or path/file.py:load_environment.")],
        out: Annotated[Path, typer.Argument(help="JSONL file that is written.")],
        limit: Annotated[int, typer.Option(help="Tasks at most; all when not given.")] = -1,
    ) -> None:
        """Writes an environment's dataset as JSON lines for `data.sources`."""
        made = rows(load(name, {}), limit)
        out.write_text("".join(json.dumps(row, default=str) + "\n" for row in made), encoding="utf-8")
        typer.echo(f"{len(made)} tasks in {out}")

    typer.run(convert)


if __name__ == "__main__":
    main()
