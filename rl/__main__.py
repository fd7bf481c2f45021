"""`python -m rl` is `hone`."""

from rl.cli.main import app

app(prog_name="hone")
