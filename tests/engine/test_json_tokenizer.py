import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import decoders, models, pre_tokenizers

import tiny_tokenizers
from headway.engine.json_tokenizer import read_json_tokenizer
from headway.errors import CheckpointError, UnsupportedModel

METASPACE = tiny_tokenizers.from_json(tiny_tokenizers.json_encoder(), bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b"[]", b"\xff", b'{"model": {"type": "New"}}'])
def test_a_broken_file_is_a_checkpoint_error(data):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        read_json_tokenizer(data, {})


def test_a_decoder_that_is_not_exact_is_refused_by_name():
    encoder = Encoder(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    encoder.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        tiny_tokenizers.from_json(encoder)


def test_the_ids_are_the_librarys():
    encoder = tiny_tokenizers.json_encoder()
    for text in ("the hello", "é  x", "a<tool>b", ""):
        assert METASPACE.encode(text) == encoder.encode(text).ids
        assert METASPACE.decode(METASPACE.encode(text)) == encoder.decode(encoder.encode(text).ids)


def test_control_tokens_are_read_with_their_options_as_the_library_does():
    encoder = tiny_tokenizers.json_encoder()
    for text in ("the</s>the", "the<|end|>  the", "<s>", "a <tool></s> b"):
        expected = encoder.encode(text, add_special_tokens=False).ids
        assert METASPACE.encode(text, add_special_tokens=False, allow_special=True) == expected


def test_byte_level_files_are_read():
    tokenizer = tiny_tokenizers.from_json(tiny_tokenizers.byte_level_json_encoder(), eos_token={"content": "<|end|>"})
    assert tokenizer.token_bytes(tokenizer.encode(" ")[0]) == b" "
    assert tokenizer.decode(tokenizer.encode("e\u0301 🦙")) == "é 🦙"
    assert tokenizer.eos_token_ids == (256,)
    assert tokenizer.special_names == {"eos_token": "<|end|>"}
    assert not tokenizer.strips_space


@pytest.mark.parametrize(("add_bos_token", "prefix"), [(None, [1]), (True, [1]), (False, [])])
def test_the_configuration_decides_about_bos(add_bos_token, prefix):
    tokenizer = tiny_tokenizers.from_json(tiny_tokenizers.json_encoder(), bos_token="<s>", add_bos_token=add_bos_token)
    assert tokenizer.prefix_ids == prefix


def test_the_configuration_can_add_a_bos_that_the_file_does_not():
    encoder = tiny_tokenizers.byte_level_json_encoder()
    assert tiny_tokenizers.from_json(encoder, bos_token="<|end|>", add_bos_token=True).prefix_ids == [256]


def test_truncation_and_padding_in_the_file_are_ignored():
    encoder = tiny_tokenizers.json_encoder()
    encoder.enable_truncation(2)
    encoder.enable_padding(length=50)
    assert tiny_tokenizers.from_json(encoder).encode("the hello") == METASPACE.encode("the hello")


def test_a_vocabulary_that_itself_spells_control_tokens_does_not_give_them_away():
    encoder = Encoder(
        models.Unigram(
            [
                ("<unk>", 0.0),
                ("</s>", 0.0),
                ("▁", -1.0),
                ("a", -1.0),
                ("<", -2.0),
                ("/", -2.0),
                ("s", -2.0),
                (">", -2.0),
            ],
            0,
        )
    )
    encoder.pre_tokenizer = pre_tokenizers.Metaspace()
    encoder.decoder = decoders.Metaspace()
    encoder.add_special_tokens(["<unk>", "</s>"])
    tokenizer = tiny_tokenizers.from_json(encoder)
    ids = tokenizer.encode("a</s>")
    assert 1 not in ids
    assert tokenizer.decode(ids).replace(" ", "") == "a</s>"
    assert 0 in tokenizer.encode("aé")


def test_gaps_in_the_ids_are_rows_without_text():
    encoder = Encoder(models.BPE({"a": 0, "b": 3}, []))
    encoder.decoder = decoders.ByteLevel()
    tokenizer = tiny_tokenizers.from_json(encoder)
    assert tokenizer.vocab_size == 4
    assert tokenizer.ids_without_text(5) == [1, 2, 4]


def test_an_absurd_id_is_refused_before_a_table_of_that_size_is_made():
    encoder = Encoder(models.BPE({"a": 0, "b": 1}, []))
    encoder.decoder = decoders.ByteLevel()
    data = encoder.to_str().encode().replace(b'"b":1', b'"b":2147483648')  # writing it that way takes to_str seconds
    with pytest.raises(CheckpointError, match="2147483648"):
        read_json_tokenizer(data, {})
