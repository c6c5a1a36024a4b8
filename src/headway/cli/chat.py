"""``headway chat``: a conversation in the terminal."""

import asyncio
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from headway.cli.options import ENGINE_SETTINGS, configured
from headway.cli.run import MaxTokens, Seed, System, Temperature, TopP
from headway.cli.terminal import messages, show_text
from headway.config import Config
from headway.core.request import FinishReason
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.cli.conversation import Conversation

HELP = """\
/reset  start again        /help  this list
/exit   leave (or Ctrl-D)  Ctrl-C stops an answer
Several pasted lines are one message."""
PROMPT = "> "
PASTE_GAP_S = 0.05  # lines that follow each other faster than this were pasted, not typed


@configured(*ENGINE_SETTINGS)
def chat(
    *,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    seed: Seed = None,
    system: System = "",
    config: Config,
) -> None:
    """Talk to a model in the terminal."""
    from headway.cli.conversation import Conversation, sampling_params
    from headway.cli.loading import running_engine

    with running_engine(config) as running:
        sampling = sampling_params(
            running.engine,
            config.server.sampling,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
        )
        conversation = Conversation(running.engine, sampling, system)
        note(f"{running.engine.card.name}. /help for help, Ctrl-D to leave.")
        converse(conversation, read_message)


def converse(conversation: "Conversation", read: Callable[[], str]) -> None:
    """Until the end of input or /exit. Ctrl-C stops an answer that runs; at the prompt, it drops the line."""
    with asyncio.Runner() as runner:
        while True:
            try:
                text = read().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                note("\n(Ctrl-D or /exit to leave)")
                continue
            if text == "/exit":
                return
            if text.startswith("/") and "\n" not in text:
                obey(conversation, text)
            elif text:
                answer(runner, conversation, text)


def obey(conversation: "Conversation", command: str) -> None:
    if command == "/reset":
        conversation.reset()
        note("(a new conversation)")
    else:
        note(HELP if command == "/help" else f"{command.split()[0]} is no command here.\n{HELP}")


def answer(runner: asyncio.Runner, conversation: "Conversation", question: str) -> None:
    try:
        reason = runner.run(conversation.ask(question, show_text))
    except HeadwayError as error:
        note(f"\nerror: {error}")
        return
    except KeyboardInterrupt:  # a second one, before the first had stopped the answer
        reason = FinishReason.ABORT
    show_text("\n")
    if reason is not FinishReason.STOP:
        note("(stopped)" if reason is FinishReason.ABORT else "(cut at the limit of tokens)")


def read_message() -> str:
    """A line, and the lines that were pasted with it."""
    with suppress(ImportError):
        import readline  # noqa: F401  gives input() editing and a history
    is_terminal = sys.stdin.isatty()
    lines = [input(PROMPT if is_terminal else "")]
    while is_terminal and select.select([sys.stdin], [], [], PASTE_GAP_S)[0]:
        try:
            lines.append(input())
        except EOFError:
            break
    return "\n".join(lines)


def note(text: str) -> None:
    """Something the program says, not the model."""
    messages().print(text, style="dim", markup=False, highlight=False)
