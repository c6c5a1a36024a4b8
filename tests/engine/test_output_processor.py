import pytest

from headway.core.batch import RequestOutput, TokenLogprobs
from headway.core.request import FinishReason, SamplingParams
from headway.engine.generation import GenerationRequest, OutputDelta
from headway.engine.output_processor import OutputProcessor
from text_fakes import EOS, MARK, FakeTokenizer, ids


def run(
    token_ids,
    finish: FinishReason | None = FinishReason.LENGTH,
    step: int = 1,
    stop_token_id: int | None = None,
    logprobs: int | None = None,
    **request,
) -> list[OutputDelta]:
    """Deltas for these tokens, ``step`` at a time, up to the one that ends."""
    sampling = SamplingParams(logprobs=logprobs, **request.pop("sampling", {}))
    processor = OutputProcessor(GenerationRequest((1, 2, 3), sampling, **request), FakeTokenizer())
    deltas = []
    for start in range(0, len(token_ids), step):
        new = tuple(token_ids[start : start + step])
        is_last = start + step >= len(token_ids)
        probs = () if logprobs is None else tuple(TokenLogprobs(-1.0, ((t, -1.0), (EOS, -2.0))) for t in new)
        ends = (finish, stop_token_id) if is_last else (None, None)
        deltas.append(processor.process(RequestOutput("r", new, probs, *ends)))
        if deltas[-1].finish_reason is not None:
            break
    return deltas


def text_of(deltas: list[OutputDelta]) -> str:
    return "".join(delta.text for delta in deltas)


@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize("text", ["Hello. The end", "naïve 是 🦙!", ""])
def test_deltas_joined_are_the_text(text, step):
    token_ids = ids(text or "x")
    deltas = run(token_ids, step=step)
    assert text_of(deltas) == (text or "x")
    assert tuple(t for delta in deltas for t in delta.token_ids) == token_ids
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [FinishReason.LENGTH]


def test_a_character_cut_by_the_end_is_one_replacement_in_the_last_delta():
    deltas = run(ids("ab🦙")[:-1])
    assert text_of(deltas) == "ab\ufffd"
    assert [delta.text for delta in deltas[:-1]] == ["a", "b", "", ""]


class TestStopStrings:
    @pytest.mark.parametrize("step", [1, 3, 100])
    def test_no_piece_of_the_stop_leaks(self, step):
        deltas = run(ids("ABCDEFGHIJKL"), step=step, stop=("DEFGHIJ",))
        assert text_of(deltas) == "ABC"
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, "DEFGHIJ")

    @pytest.mark.parametrize("step", [1, 4])
    def test_usage_counts_up_to_the_token_that_completes_the_stop(self, step):
        deltas = run(ids("ABCDEFGHIJ"), step=step, stop=("DE",))
        assert (deltas[-1].usage.prompt_tokens, deltas[-1].usage.completion_tokens) == (3, 5)
        assert sum(len(delta.token_ids) for delta in deltas) == 5

    def test_a_stop_that_is_included(self):
        assert text_of(run(ids("ABCDEF"), stop=("CD",), include_stop=True)) == "ABCD"

    def test_held_text_is_given_at_the_end(self):
        deltas = run((*ids("ABCDE"), EOS), FinishReason.STOP, stop_token_id=EOS, stop=("DEF",))
        assert text_of(deltas) == "ABCDE"
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, None)

    def test_a_stop_on_the_last_token_allowed_is_a_stop(self):
        deltas = run(ids("ABCD"), FinishReason.LENGTH, stop=("CD",))
        assert (text_of(deltas), deltas[-1].finish_reason) == ("AB", FinishReason.STOP)

    def test_text_within_min_tokens_is_not_searched(self):
        deltas = run(ids("AXBXC"), stop=("X",), sampling={"min_tokens": 2})
        assert (text_of(deltas), deltas[-1].usage.completion_tokens) == ("AXB", 4)


class TestStopTokens:
    @pytest.mark.parametrize("stop_ids", [(), (MARK,)])
    def test_the_token_is_counted_but_not_shown(self, stop_ids):
        sampling = {"stop_token_ids": stop_ids}
        deltas = run((*ids("AB"), MARK), FinishReason.STOP, stop_token_id=MARK, sampling=sampling)
        assert text_of(deltas) == "AB"
        assert deltas[-1].usage.completion_tokens == 3 and deltas[-1].token_ids == (MARK,)
        assert deltas[-1].stop_reason == (MARK if stop_ids else None), "an EOS of the model's own is no stop asked for"

    def test_it_is_left_out_even_where_special_tokens_are_shown_unless_it_is_to_be_included(self):
        for include_stop, text in ((False, "AB<mark>"), (True, "AB<mark><eos>")):
            deltas = run(
                (*ids("AB"), MARK, EOS),
                FinishReason.STOP,
                stop_token_id=EOS,
                skip_special_tokens=False,
                include_stop=include_stop,
            )
            assert text_of(deltas) == text

    def test_an_ordinary_stop_token_loses_only_itself(self):
        deltas = run(ids("AB."), FinishReason.STOP, stop_token_id=ord("."), sampling={"stop_token_ids": (ord("."),)})
        assert (text_of(deltas), deltas[-1].stop_reason) == ("AB", ord("."))


class TestLogprobs:
    @pytest.mark.parametrize("text", ["AB", "是🦙é"])
    def test_bytes_joined_are_the_text(self, text):
        deltas = run((*ids(text), EOS), FinishReason.STOP, stop_token_id=EOS, logprobs=2)
        tokens = [token for delta in deltas for token in delta.tokens]
        assert b"".join(token.bytes for token in tokens) == text_of(deltas).encode() == text.encode()
        assert all(token.text and token.logprob == -1.0 for token in tokens)

    def test_alternatives_are_readable(self):
        (delta,) = run(ids("A"), logprobs=2)
        (token,) = delta.tokens
        assert [(top.text, top.bytes, top.logprob) for top in token.top] == [
            ("A", b"A", -1.0),
            ("<eos>", b"<eos>", -2.0),
        ]

    def test_a_skipped_special_token_adds_no_bytes(self):
        (token,) = run((MARK,), logprobs=0)[0].tokens
        assert (token.text, token.bytes) == ("<mark>", b"")

    def test_none_unless_asked_for(self):
        assert run(ids("AB"))[0].tokens == ()


def test_an_aborted_answer_ends_with_what_was_held():
    processor = OutputProcessor(GenerationRequest((1,), stop=("XY",)), FakeTokenizer())
    assert processor.process(RequestOutput("r", ids("X"), ())).text == ""
    last = processor.process(RequestOutput("r", (), (), FinishReason.ABORT))
    assert (last.text, last.finish_reason, last.usage.completion_tokens) == ("X", FinishReason.ABORT, 1)
