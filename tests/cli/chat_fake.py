"""``headway chat`` over a slow fake engine, for a terminal."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from engines import install  # noqa: E402

from fake_engine import FakeEngine  # noqa: E402

engine = FakeEngine()
engine.answer = "word " * 2000
engine.pace_s = 0.02


def answer_to(request: object) -> str:
    """Short when asked ``quick``; otherwise long."""
    prompt = bytes(request.prompt_token_ids[1:]).decode()  # type: ignore[attr-defined]
    last = prompt.rpartition("[user]")[2].removesuffix("\n[assistant]")
    return f"<{len(prompt)}|{last}>".replace("\n", "|") if "quick" in last else engine.answer


engine.answer_to = answer_to  # type: ignore[method-assign]
install(engine)

from headway.cli.app import app  # noqa: E402

app(["chat", "fake"])
