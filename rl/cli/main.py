"""The `hone` command: each verb lives in its own module and is registered here."""

from __future__ import annotations

import typer

from rl.cli.check import app as check_app
from rl.cli.ckpt import app as ckpt_app
from rl.cli.config import app as config_app
from rl.cli.data import app as data_app
from rl.cli.doctor import doctor
from rl.cli.init import init
from rl.cli.play import play
from rl.cli.preflight import preflight
from rl.cli.rollout import evaluate, rollout
from rl.cli.run import app as run_app
from rl.cli.sandbox import sandbox
from rl.cli.score import score
from rl.cli.train import resume, train

app = typer.Typer(
    name="hone",
    help="RL post-training for language models. Start with `hone train grpo/arithmetic_cpu`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

app.command()(doctor)
app.command()(init)
app.command()(play)
app.add_typer(check_app, name="check")
app.command()(train)
app.command()(resume)
app.add_typer(run_app, name="run")
app.command()(preflight)
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(ckpt_app, name="ckpt")
app.command()(rollout)
app.command("eval")(evaluate)
app.command()(score)
app.command()(sandbox)
