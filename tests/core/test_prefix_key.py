from hashlib import sha256

from headway.core.prefix_key import VERSION, block_key, root_key


def test_parts_of_a_root_are_kept_apart_by_their_lengths():
    assert root_key("ab", "c") != root_key("a", "bc") != root_key("abc")
    assert root_key("x") == root_key("x") != root_key("x", "")


def test_a_key_is_the_hash_that_it_is_said_to_be():
    part = len(VERSION).to_bytes(8, "little") + VERSION.encode()
    assert root_key() == sha256(part).digest()
    assert len(block_key(root_key(), [1, 2, 3])) == 32


def test_a_block_is_named_by_its_tokens_their_order_and_all_before_them():
    root = root_key("tenant")
    assert block_key(root, (1, 2)) == block_key(root, [1, 2])
    assert len({block_key(root, ids) for ids in ([1, 2], [2, 1], [1], [1, 2, 0])}) == 4
    assert block_key(block_key(root, [1]), [2]) != block_key(block_key(root, [3]), [2])
