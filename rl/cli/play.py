"""`hone play`: an episode by a person or by any OpenAI-compatible endpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl.cli.check_env import Name, Options, Tasks, open_environment
from rl.cli.report import reported

if TYPE_CHECKING:
    from envs.base import Action
    from envs.episode import Policy


def play(
    environment: Name,
    options: Options = None,
    tasks: Tasks = None,
    number: Annotated[int, typer.Option("-n", help="Tasks that are played.")] = 1,
    endpoint: Annotated[
        str | None, typer.Option(help="Base URL of a chat completions API; you play when not given.")
    ] = None,
    model: Annotated[str, typer.Option(help="Name of the endpoint's model.")] = "policy",
    key_env: Annotated[str, typer.Option(help="Environment variable with the endpoint's key.")] = "OPENAI_API_KEY",
    temperature: Annotated[float, typer.Option(help="Sampling temperature of the endpoint.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(help="Response budget of one turn, in tokens.")] = 1024,
    concurrency: Annotated[int, typer.Option(help="Episodes at once with an endpoint.")] = 8,
    trace: Annotated[Path | None, typer.Option(help="Append the episodes to this JSONL file.")] = None,
    replay: Annotated[Path | None, typer.Option(help="Play the actions of these traces again and compare.")] = None,
) -> None:
    """Play an environment in the terminal, with a model, or from traces.

    Examples:
        hone play repo_navigator
        hone play repo_navigator --tasks tasks.jsonl -n 50 --endpoint http://localhost:8000/v1 --model qwen
    """
    import asyncio

    from envs.endpoint import endpoint_policy
    from envs.episode import play_all, read_traces
    from envs.episode import replay as replay_trace
    from envs.program import is_program
    from rl.config.errors import ConfigError

    with reported():
        make, found = open_environment(environment, options, tasks, number if replay is None else 10**9)
        if is_program(make()):
            if endpoint is None or replay is not None:
                raise ConfigError(f"{environment} owns its loop: give it a model with --endpoint; it is not replayed")
            summarise(asyncio.run(_run_programs(make, found, endpoint, concurrency)))
            return
        if replay is not None:
            by_id = {t.task_id: t for t in found}
            wrong = 0
            for old in read_traces(replay):
                for difference in asyncio.run(replay_trace(make(), by_id[old.task_id], old)):
                    wrong += 1
                    typer.echo(f"{old.task_id}: {difference}")
            typer.echo("every observation is the same" if not wrong else f"{wrong} differences")
            raise typer.Exit(1 if wrong else 0)

        def policy() -> Policy:
            if endpoint is None:
                return person
            return endpoint_policy(
                endpoint, model, os.environ.get(key_env, ""), temperature=temperature, max_tokens=max_tokens
            )

        timeout = 600.0 if endpoint else 24 * 3600.0
        traces = asyncio.run(
            play_all(make, found, policy, concurrency=concurrency if endpoint else 1, timeout_s=timeout)
        )
        if trace is not None:
            for made in traces:
                made.append_to(trace)
        summarise(traces)


async def _run_programs(make: Callable[[], Any], tasks: Sequence[Any], url: str, concurrency: int) -> list[Any]:
    """One episode a task; what was said stays with the endpoint, the traces hold rewards and failures."""
    import asyncio
    import time

    from envs.episode import Trace

    gate = asyncio.Semaphore(concurrency)

    async def one(task: Any) -> Trace:
        trace, program, seconds = Trace(task.task_id, 0, list(task.messages)), make(), 600.0
        async with gate:
            try:
                run = program.run(task, base_url=url, seed=0, deadline=time.monotonic() + seconds)
                rewards = await asyncio.wait_for(run, seconds)
                trace.results.append({"rewards": dict(rewards), "info": {}, "messages": []})
                trace.finish = "done"
            except Exception as error:  # user code: its failure ends this episode only
                trace.finish, trace.error = "env_error", f"{type(error).__name__}: {error}"
            finally:
                await program.close()
        return trace

    return await asyncio.gather(*(one(t) for t in tasks))


def summarise(traces: Sequence[Any]) -> None:
    """Prints how the episodes ended and the mean of every reward and metric."""
    from collections import Counter

    from rich.console import Console
    from rich.table import Table

    from rl.tracking.tables import print_table

    table = Table("name", "mean", box=None)
    names = sorted({n for t in traces for n in (*t.rewards, *t.info)})
    for name in names:
        values = [t.rewards.get(name, t.info.get(name, 0.0)) for t in traces]
        table.add_row(name, f"{sum(values) / len(values):.4f}")
    console = Console()
    print_table(table, console)
    console.print(", ".join(f"{n} {finish}" for finish, n in Counter(t.finish for t in traces).most_common()))
    for t in traces:
        if t.error:
            console.print(f"{t.task_id}: {t.error}", style="red", markup=False)


async def person(messages: Sequence[Any], tools: Sequence[Any]) -> Action:
    """Shows what was said since the last turn and reads one; an empty line ends it."""
    from envs.base import Action
    from envs.parsing import parse_tool_calls
    from envs.tools import in_thread

    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    for message in messages[last + 1 :]:
        typer.secho(f"[{message['role']}]", fg="cyan")
        typer.echo(message["content"])
    names = ", ".join(t["function"]["name"] for t in tools)
    hint = f' (tools: {names}; call one with {{"name": ..., "arguments": {{...}}}})' if names else ""
    typer.secho(f"[you]{hint}", fg="green")

    def read() -> str:
        lines = []
        while line := input():
            lines.append(line)
        return "\n".join(lines)

    text = await in_thread(read)
    return Action(text, parse_tool_calls(text, "hermes") or parse_tool_calls(text, "json"))
