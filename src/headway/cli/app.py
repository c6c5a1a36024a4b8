"""The commands, put together."""

import typer

from headway import __version__
from headway.cli.bench import app as bench
from headway.cli.chat import chat
from headway.cli.models import app as models
from headway.cli.run import run
from headway.cli.serve import serve

app = typer.Typer(
    help="A server for large language models that can answer for itself.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command()(serve)
app.command()(run)
app.command()(chat)
app.add_typer(models, name="models")
app.add_typer(bench, name="bench")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"headway {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    pass
