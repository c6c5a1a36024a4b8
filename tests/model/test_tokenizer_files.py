import json
from pathlib import Path

import pytest

from headway.errors import CheckpointError
from headway.model.tokenizer_files import folder_tokenizer, gguf_tokenizer
from tiny_checkpoints import CHAT_TEMPLATE, write_json_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_json_tokenizer(tmp_path, 288)
    return tmp_path


def configure(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | changes))


def test_files_of_a_folder(folder: Path) -> None:
    (folder / "special_tokens_map.json").write_text('{"pad_token": "<pad>", "eos_token": "overlaid"}')
    source = folder_tokenizer(folder)
    assert source.kind == "json"
    assert source.tokenizer_json == (folder / "tokenizer.json").read_bytes()
    assert source.tokenizer_config["pad_token"] == "<pad>"
    assert source.tokenizer_config["eos_token"] == "<|im_end|>"
    assert source.chat_template == CHAT_TEMPLATE


def test_a_folder_without_tokenizer_json_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="save_pretrained"):
        folder_tokenizer(tmp_path)


def test_a_jinja_file_comes_before_all_other_templates(folder: Path) -> None:
    (folder / "chat_template.json").write_text('{"chat_template": "from json"}')
    assert folder_tokenizer(folder).chat_template == "from json"
    (folder / "chat_template.jinja").write_text("from jinja")
    assert folder_tokenizer(folder).chat_template == "from jinja"


def test_of_several_templates_the_default_counts(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    configure(folder, chat_template=named)
    assert folder_tokenizer(folder).chat_template == "plain"
    configure(folder, chat_template=named[:1])
    assert folder_tokenizer(folder).chat_template is None


def test_no_template(folder: Path) -> None:
    configure(folder, chat_template=None)
    assert folder_tokenizer(folder).chat_template is None
    assert gguf_tokenizer({"tokenizer.ggml.model": "gpt2"}).chat_template is None


def test_damaged_files_are_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja.*not UTF-8"):
        folder_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("[1, 2]")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json.*object is expected"):
        folder_tokenizer(folder)
