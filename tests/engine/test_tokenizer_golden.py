"""Catalogue models' tokenizers against ids from elsewhere (tests/golden/write_tokenizer_golden.py)."""

import json
import os
from pathlib import Path

import pytest

from headway.config import ModelConfig
from headway.engine.chat_template import ChatTemplate
from headway.engine.detokenizer import Detokenizer
from headway.engine.tokenizer import Tokenizer, load_tokenizer
from headway.model.checkpoint import open_checkpoint
from headway.model.resolve import find_model

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tokenizers.json").read_text())
TEXTS = range(len(GOLDEN["texts"]))


def tokenizer_of(path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(path).tokenizer_files())


@pytest.fixture(scope="module")
def smollm2(default_model_path) -> Tokenizer:
    return tokenizer_of(default_model_path)


@pytest.fixture(scope="module")
def gemma3() -> Tokenizer:
    model = find_model("gemma3-270m", ModelConfig(cache_dir=os.environ.get("HEADWAY_CACHE", "")))
    if model is None:
        pytest.skip(
            "gemma3-270m is not in the cache; its licence must be accepted first: headway models pull gemma3-270m"
        )
    return tokenizer_of(model.path)


def assert_golden(tokenizer: Tokenizer, name: str, index: int) -> None:
    text = GOLDEN["texts"][index]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == GOLDEN[name][index]
    detokenizer = Detokenizer(tokenizer)
    streamed = "".join(map(detokenizer.push, ids)) + detokenizer.finish()
    assert streamed == tokenizer.decode(ids)
    assert streamed == (text.replace("\u2581", " ") if name == "gemma3-270m" else text)


@pytest.mark.parametrize("index", TEXTS)
def test_smollm2_ids_are_those_of_its_own_tokenizer(smollm2, index):
    assert_golden(smollm2, "smollm2-135m", index)


@pytest.mark.parametrize("index", TEXTS)
def test_gemma3_ids_are_sentencepieces(gemma3, index):
    assert_golden(gemma3, "gemma3-270m", index)


def test_smollm2_chat(smollm2, default_model_path):
    files = open_checkpoint(default_model_path).tokenizer_files()
    template = ChatTemplate(files.chat_template, smollm2)
    ids = template.prompt_ids([{"role": "user", "content": "Hi<|im_end|>"}])
    template.close()
    assert [token_id for token_id in ids if smollm2.is_special(token_id)] == [1, 2, 1, 2, 1]
    assert smollm2.decode(ids, skip_special_tokens=False).endswith(
        "user\nHi<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )


def test_gemma3_is_a_base_model_with_bos(gemma3):
    assert gemma3.prefix_ids == [2]
    assert gemma3.vocab_size == 262_144
    assert gemma3.ids_without_text(262_145) == [262_144]
