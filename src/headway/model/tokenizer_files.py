"""What comes with a model's weights for its tokenizer, read but not interpreted."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import CheckpointError
from headway.model.strict_json import read_bytes, read_json

MAX_TOKENIZER_BYTES = 256 << 20
MAX_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """``kind`` "json": ``tokenizer_json`` and ``tokenizer_config``, which is special_tokens_map.json overlaid by
    tokenizer_config.json. ``kind`` "gguf": ``gguf_metadata``, the keys that begin with "tokenizer."."""

    kind: str
    tokenizer_json: bytes | None
    tokenizer_config: dict[str, Any]
    gguf_metadata: dict[str, object]
    chat_template: str | None


def gguf_tokenizer(metadata: Mapping[str, object]) -> TokenizerFiles:
    tokenizer = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    template = tokenizer.get("tokenizer.chat_template")
    return TokenizerFiles("gguf", None, {}, tokenizer, template if isinstance(template, str) else None)


def folder_tokenizer(folder: Path) -> TokenizerFiles:
    tokenizer_file = folder / "tokenizer.json"
    if not tokenizer_file.exists():
        raise CheckpointError(
            f"{tokenizer_file}: is missing; save it beside the weights (AutoTokenizer's save_pretrained writes it)"
        )
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            config |= read_json(folder / name)
    return TokenizerFiles(
        kind="json",
        tokenizer_json=read_bytes(tokenizer_file, MAX_TOKENIZER_BYTES),
        tokenizer_config=config,
        gguf_metadata={},
        chat_template=_folder_chat_template(folder, config),
    )


def _folder_chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else chat_template.json, else the tokenizer's configuration: a text, or several by name, of
    which the one called "default" counts."""
    if (folder / "chat_template.jinja").exists():
        try:
            return read_bytes(folder / "chat_template.jinja", MAX_TEMPLATE_BYTES).decode()
        except UnicodeDecodeError:
            raise CheckpointError(f"{folder / 'chat_template.jinja'}: not UTF-8 text") from None
    template = config.get("chat_template")
    if (folder / "chat_template.json").exists():
        template = read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
