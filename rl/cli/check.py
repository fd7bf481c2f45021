"""`hone check`: try a plug alone, before a run does."""

from __future__ import annotations

import typer

from rl.cli.check_env import check_env
from rl.cli.check_reward import check_reward

app = typer.Typer(help="Check a reward or an environment on its own.", no_args_is_help=True)
app.command("env")(check_env)
app.command("reward")(check_reward)
