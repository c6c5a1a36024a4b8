"""``headway run``: one answer, streamed."""

import sys
from typing import Annotated, Any

import typer

from headway.cli.options import ENGINE_SETTINGS, configured
from headway.config import Config
from headway.errors import ConfigError

MaxTokens = Annotated[int | None, typer.Option("--max-tokens", help="Longest answer in tokens.", show_default=False)]
Temperature = Annotated[
    float | None, typer.Option("--temperature", help="0 is the likeliest token each time.", show_default=False)
]
TopP = Annotated[float | None, typer.Option("--top-p", help="Draw from this share of the mass.", show_default=False)]
Seed = Annotated[int | None, typer.Option("--seed", help="The same seed gives the same answer.", show_default=False)]
System = Annotated[str, typer.Option("--system", help="Instructions put before the conversation.", show_default=False)]


@configured(*ENGINE_SETTINGS, model_required=True)
def run(
    prompt: Annotated[str | None, typer.Argument(help="The question; standard input if left out.")] = None,
    *,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    seed: Seed = None,
    system: System = "",
    config: Config,
) -> None:
    """Answer one prompt, streamed to standard output. A base model goes on from the text."""
    from headway.cli.conversation import sampling_params
    from headway.cli.loading import running_engine

    question = read_prompt(prompt)
    with running_engine(config) as running:
        sampling = sampling_params(
            running.engine,
            config.server.sampling,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
        )
        answer_once(running.engine, question, system, sampling)


def read_prompt(argument: str | None) -> str:
    if argument is None and sys.stdin.isatty():
        raise ConfigError('no prompt: give it as an argument (headway run MODEL "prompt") or on standard input')
    prompt = sys.stdin.read() if argument is None else argument
    if not prompt.strip():
        raise ConfigError("the prompt is empty: give some text")
    return prompt


def answer_once(engine: Any, question: str, system: str, sampling: Any) -> None:
    """Raises typer.Exit with status 130, as the shell knows it, when Ctrl-C stopped the answer."""
    import asyncio

    from headway.cli.conversation import stream_answer
    from headway.cli.terminal import show_text
    from headway.core.request import FinishReason

    if engine.chat_template is None:
        prompt = engine.tokenizer.encode(f"{system}\n{question}" if system else question)
    else:
        messages = [{"role": "system", "content": system}] if system else []
        prompt = engine.chat_template.prompt_ids([*messages, {"role": "user", "content": question}])
    reason = asyncio.run(stream_answer(engine, prompt, sampling, show_text))
    show_text("\n")
    if reason is FinishReason.ABORT:
        raise typer.Exit(130)
