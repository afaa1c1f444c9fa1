"""`python -m mha`: the same as `mha`."""

from mha.cli import app

app(prog_name="mha")
