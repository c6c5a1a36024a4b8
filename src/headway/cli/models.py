"""``headway models``: what there is, what is on this machine, and where each came from."""

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from headway.cli.fetching import pull_in_terminal
from headway.cli.terminal import TerminalProgress, error_exit, messages, output
from headway.config import ModelConfig
from headway.errors import ModelError, ModelNotFound
from headway.model.catalogue import CatalogueEntry, catalogue
from headway.model.packed_folder import PackedFolder
from headway.model.progress import bytes_under, format_bytes
from headway.model.resolve import ResolvedModel, find_model, is_remote
from headway.model.store import ModelStore

app = typer.Typer(help="List, pull, show and remove models.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A catalogue name, hf:org/name, hf:org/name@revision, or a path.")]
CacheDir = Annotated[
    str, typer.Option(envvar="HEADWAY_CACHE", help="Where models are kept.", show_default="the platform's cache folder")
]


@app.command("list")
def list_models(cache_dir: CacheDir = "") -> None:
    """The catalogue, and every model that is on this machine."""
    with error_exit():
        store = ModelStore.at(cache_dir)
        cached = {manifest.name: manifest for manifest in store.manifests()}
        table = Table("name", "on disk", "size", "licence", "what it is", box=None, pad_edge=False)
        table.columns[2].justify = "right"
        for entry in catalogue().values():
            on_disk = "yes" if entry.name in cached else "no"
            table.add_row(
                _shown_name(entry), on_disk, format_bytes(entry.size), entry.licence.name, escape(entry.summary)
            )
        for name, manifest in cached.items():
            if name not in catalogue():
                size = format_bytes(manifest.size)
                table.add_row(escape(name), "yes", size, escape(manifest.licence), f"at {manifest.revision[:12]}")
        output().print(table)
        if packed := PackedFolder(store).size:
            output().print(f"\nand {format_bytes(packed)} of packed weights, for faster starts", highlight=False)


def _shown_name(entry: CatalogueEntry) -> str:
    return f"{entry.name} (default)" if entry.name == ModelConfig().name else entry.name


@app.command()
def pull(
    name: Name,
    accept_licence: Annotated[bool, typer.Option("--accept-licence", help="Accept the model's licence.")] = False,
    cache_dir: CacheDir = "",
) -> None:
    """Fetch a model, or bring one from a hub up to date."""
    with error_exit():
        if not is_remote(name) and Path(name).exists():
            raise ModelError(f"{name} is a path, and it is there: nothing to pull")
        config = ModelConfig(name=name, cache_dir=cache_dir, accept_licence=accept_licence)
        model = pull_in_terminal(name, config, messages())
        output().print(f"{name} is in {model.path}", soft_wrap=True, highlight=False, markup=False)


@app.command()
def show(
    name: Name,
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte again and compare digests.")] = False,
    cache_dir: CacheDir = "",
) -> None:
    """Where a model came from, its digest and licence, and what is in it."""
    with error_exit():
        config = ModelConfig(name=name, cache_dir=cache_dir)
        with TerminalProgress(messages()) as progress:
            model = find_model(name, config, progress, rehash=verify)
        if model is None:
            raise ModelNotFound(f"{name} is not on this machine yet: fetch it with `headway models pull {name}`")
        _print_facts(_identity(model))
        if verify:
            _print_facts(
                {"verified": "every file, against its pin" if is_remote(name) else "read again; a path has no pin"}
            )
        _print_facts(_contents(model))


def _print_facts(facts: dict[str, str]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", min_width=len("quantisation"))
    table.add_column(overflow="fold")
    for label, value in facts.items():
        table.add_row(label, escape(value))
    output().print(table, highlight=False)


def _identity(model: ResolvedModel) -> dict[str, str]:
    size = bytes_under(model.path)
    return {
        "name": model.name,
        "source": model.source,
        "revision": model.revision,
        "path": str(model.path),
        "sha256": model.digest,
        "size": f"{format_bytes(size)} ({size} bytes)",
        "licence": model.licence or "not stated",
    }


def _contents(model: ResolvedModel) -> dict[str, str]:
    from headway.model.checkpoint import open_checkpoint  # brings NumPy, which a mere list does not need

    checkpoint = open_checkpoint(model.path)
    formats = Counter(tensor.format.name for tensor in checkpoint.tensors.values())
    return {
        "family": checkpoint.architecture.family,
        "parameters": f"{checkpoint.num_parameters / 1e6:.1f} million",
        "quantisation": checkpoint.quantisation,
        "context": f"{checkpoint.architecture.max_context} tokens",
        "tensors": ", ".join(f"{count} {name}" for name, count in sorted(formats.items())),
    }


@app.command("rm")
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    cache_dir: CacheDir = "",
) -> None:
    """Remove a model from the cache. Files outside the cache are never touched."""
    with error_exit():
        store = ModelStore.at(cache_dir)
        if not is_remote(name) or not store.folder(name).exists():
            raise ModelNotFound(f"{name} is not in the cache {store.root}; `headway models list` shows what is")
        if not yes:
            if not sys.stdin.isatty():
                raise ModelError(f"removing {name} needs a yes, and there is no terminal to ask on: add -y")
            typer.confirm(f"Remove {name} from {store.root}?", abort=True)
        digests = [manifest.digest for manifest in store.manifests() if manifest.name == name]
        with store.lock(name):
            freed = store.remove(name) + sum(map(PackedFolder(store).remove, digests))
        output().print(f"{name} is removed: {format_bytes(freed)} freed", highlight=False, markup=False)
