"""Getting a model while a person watches: progress, and the question a licence asks. Every command uses it."""

import sys

import typer
from rich.console import Console

from headway.cli.terminal import TerminalProgress
from headway.config import ModelConfig
from headway.model.licences import AskLicence, LicenceTerms
from headway.model.resolve import ResolvedModel, pull_model


def pull_in_terminal(name: str, config: ModelConfig, console: Console) -> ResolvedModel:
    with TerminalProgress(console) as progress:
        return pull_model(name, config, progress, licence_question(config, progress))


def licence_question(config: ModelConfig, progress: TerminalProgress) -> AskLicence | None:
    """How a licence is accepted here: by the setting (it is still shown), by answering, or not at all."""
    console = progress.console

    def announce(terms: LicenceTerms) -> bool:
        progress.stop()
        console.print(f"{terms.model} comes under the {terms.licence}: {terms.url}", markup=False, soft_wrap=True)
        console.print(f"The text is in {terms.path}", markup=False, soft_wrap=True, highlight=False)
        return True

    def ask(terms: LicenceTerms) -> bool:
        announce(terms)
        with console.pager():
            console.print(terms.text(), markup=False, highlight=False)
        return typer.confirm("Do you accept these terms?", err=True)

    if config.accept_licence:
        return announce
    return ask if _can_answer(console) else None


def _can_answer(console: Console) -> bool:
    return sys.stdin.isatty() and console.is_terminal
