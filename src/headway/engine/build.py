"""From settings to an engine's parts: the one place where the engine meets the worker."""

import threading
import time
from contextlib import suppress

from headway.config import Config, RuntimeConfig
from headway.engine.chat_template import ChatTemplate
from headway.engine.generation import ModelCard, StartupReport
from headway.engine.parts import EngineParts
from headway.engine.tokenizer import Tokenizer, load_tokenizer
from headway.errors import TemplateError
from headway.worker.cores import usable_cores
from headway.worker.load import AskLicence, LoadedModel, Progress, load_model, silent


def build_engine(config: Config, progress: Progress = silent, ask_licence: AskLicence | None = None) -> EngineParts:
    """Loads the model, its tokenizer and its chat template. ``progress(what, done, total)`` is told how far it is.

    Raises a ``ModelError`` when the model cannot be had or is not sound, ``ConfigError`` for settings that cannot work.
    """
    started = time.perf_counter()
    model = load_model(config, progress, ask_licence)
    architecture = model.checkpoint.architecture
    tokenizer_files = model.checkpoint.tokenizer_files()
    tokenizer = load_tokenizer(tokenizer_files)
    executor = model.make_executor(tokenizer.ids_without_text(architecture.vocab_size))
    return EngineParts(
        executor=executor,
        tokenizer=tokenizer,
        chat_template=_chat_template(tokenizer_files.chat_template, tokenizer),
        card=_card(config, model),
        eos_token_ids=frozenset(architecture.eos_token_ids or tokenizer.eos_token_ids),
        generation_defaults=model.generation_defaults,
        report=_report(model, config.runtime, time.perf_counter() - started),
        profiler=model.make_profiler(executor),
    )


def _chat_template(source: str | None, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Its process starts while the rest of the start-up goes on. A template that does not compile is no reason not to
    serve completions: whoever uses it is told."""
    if source is None:
        return None
    template = ChatTemplate(source, tokenizer)

    def warm_up() -> None:
        with suppress(TemplateError):
            template.warm_up()

    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
    return template


def _card(config: Config, model: LoadedModel) -> ModelCard:
    checkpoint = model.checkpoint
    return ModelCard(
        name=config.model.name,
        family=checkpoint.architecture.family,
        quantisation=checkpoint.quantisation,
        revision=model.resolved.revision,
        digest=model.resolved.digest,
        max_context=model.memory.info.max_context,
        vocab_size=model.memory.info.vocab_size,
        num_parameters=checkpoint.num_parameters,
    )


def _report(model: LoadedModel, runtime: RuntimeConfig, seconds: float) -> StartupReport:
    info = model.memory.info
    return StartupReport(
        weights_bytes=model.backend.weight_bytes(),
        workspace_bytes=model.program.workspace_bytes,
        kv_bytes=model.memory.kv_bytes,
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        max_context=info.max_context,
        threads=model.backend.threads,
        cores=usable_cores(),
        is_pinned=runtime.pin_threads and runtime.backend == "native",
        isa=model.backend.isa,
        load_s=seconds,
        num_disk_slots=info.num_disk_slots,
    )
