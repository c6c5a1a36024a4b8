"""What to do with each field of a request: honour it, or refuse it by name. Nothing is ignored in silence.

A field that clients are known to send but that is not supported passes only with a value that asks for nothing.
"""

from typing import Any

from pydantic import BaseModel

from headway.errors import InvalidRequest

# Known, not supported: the values that change nothing. ``None`` always passes, as absent.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    # OpenAI
    "audio": (),
    "best_of": (1,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
    # other servers
    "add_special_tokens": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "cache_salt": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "early_stopping": (False,),
    "echo": (False,),
    "grammar": ("",),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "json_schema": (),
    "length_penalty": (1, 1.0),
    "mirostat": (0,),
    "mm_processor_kwargs": ({},),
    "priority": (0,),
    "prompt_logprobs": (),
    "regex": ("",),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "typical_p": (1, 1.0),
    "use_beam_search": (False,),
    # planned here
    "allow_fallback": (False,),
    "explain": (False,),
}


def settle_fields(body: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """``body`` without known fields at a neutral value; raises for every other field that ``model`` does not have."""
    settled = {}
    for name, value in body.items():
        if name in model.model_fields:
            settled[name] = value
        elif name not in NEUTRAL:
            raise InvalidRequest(f"Unknown field {name[:80]!r}: remove it.", param=name[:80], code="unknown_parameter")
        elif not _is_neutral(name, value):
            raise _unsupported(name)
    return settled


def _is_neutral(name: str, value: Any) -> bool:
    return value is None or any(value == neutral and type(value) is type(neutral) for neutral in NEUTRAL[name])


def _unsupported(name: str) -> InvalidRequest:
    allowed = " or ".join(repr(value) for value in NEUTRAL[name])
    way_out = f"leave it out or send {allowed}" if allowed else "leave it out"
    message = f"{name} is not supported by this server: {way_out}."
    return InvalidRequest(message, param=name, code="unsupported_parameter")
