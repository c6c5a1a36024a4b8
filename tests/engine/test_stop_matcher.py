import random

import pytest

from headway.engine.stop_matcher import StopMatcher


def run(pieces: list[str], stops: list[str], include_stop: bool = False) -> tuple[list[str], str, str | None]:
    """What each push let through, what the end let through, and the stop that matched."""
    matcher = StopMatcher(stops, include_stop)
    passed = [matcher.push(piece) for piece in pieces]
    return passed, matcher.finish(), matcher.matched


def test_no_part_of_a_stop_leaks():
    passed, rest, matched = run(list("ABCDEFGHIJ"), ["DEFGHIJ"])
    assert passed == ["A", "B", "C", *[""] * 7]
    assert (rest, matched) == ("", "DEFGHIJ")


def test_text_held_as_a_possible_stop_is_flushed_at_the_end():
    assert run(["so \n", "Us", "er"], ["\nUser:"]) == (["so ", "", ""], "\nUser", None)


def test_only_the_longest_suffix_that_may_become_a_stop_is_held():
    passed, rest, _ = run(["<think>a</think>", " b <"], ["</answer>"])
    assert "".join(passed) == "<think>a</think> b "
    assert rest == "<"


def test_a_stop_is_found_across_pieces():
    assert run(["ok", "\n", "User", ":", " hi"], ["\nUser:"]) == (["ok", "", "", "", ""], "", "\nUser:")


def test_the_stop_that_completes_first_wins():
    assert run(["a Assistant:\n then User:\n"], ["User:\n", "Assistant:\n"]) == (["a "], "", "Assistant:\n")


def test_of_stops_that_complete_together_the_longest_wins():
    assert run(["x::end"], ["end", "::end"]) == (["x"], "", "::end")


def test_a_short_stop_inside_a_long_one_ends_the_text_when_it_is_complete():
    assert run(list("abcde"), ["abcde", "bcd"]) == (["", "", "", "a", ""], "", "bcd")


def test_a_stop_that_overlaps_itself_is_found():
    assert run(["aaab", "aab"], ["aab"]) == (["a", ""], "", "aab")
    assert run(["ababac"], ["abac"]) == (["ab"], "", "abac")


def test_include_stop_keeps_the_stop_and_nothing_after_it():
    assert run(["one STO", "P two"], ["STOP"], include_stop=True) == (["one ", "STOP"], "", "STOP")


def test_text_after_a_match_is_dropped():
    matcher = StopMatcher(["."])
    assert matcher.push("a.b") == "a"
    assert matcher.push("c") == ""
    assert matcher.finish() == ""


def test_the_final_flush_can_complete_a_stop():
    matcher = StopMatcher(["\ufffd"])
    assert matcher.push("a") + matcher.push("\ufffd") + matcher.finish() == "a"
    assert matcher.matched == "\ufffd"


def test_without_stops_everything_passes_at_once():
    assert run(["a", "", "b"], []) == (["a", "", "b"], "", None)


def test_an_empty_stop_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


@pytest.mark.parametrize("seed", range(300))
def test_any_cut_of_the_text_gives_what_a_search_of_the_whole_gives(seed):
    rng = random.Random(seed)
    alphabet = "ab" if seed % 2 else "abcü🦙"
    stops = ["".join(rng.choices(alphabet, k=rng.randint(1, 5))) for _ in range(rng.randint(1, 4))]
    text = "".join(rng.choices(alphabet, k=rng.randint(0, 30)))
    pieces, start = [], 0
    while start < len(text):
        step = rng.randint(0, 4)
        pieces.append(text[start : start + step])
        start += step
    passed, rest, matched = run(pieces, stops)
    assert ("".join(passed) + rest, matched) == naive(text, stops)


@pytest.mark.parametrize("seed", range(50))
def test_nothing_is_held_that_cannot_become_a_stop(seed):
    rng = random.Random(seed)
    stops = ["".join(rng.choices("ab", k=rng.randint(2, 6))) for _ in range(2)]
    matcher, text, passed = StopMatcher(stops), "", ""
    for _ in range(20):
        char = rng.choice("abc")
        text += char
        passed += matcher.push(char)
        if matcher.matched is not None:
            return
        held = text[len(passed) :]
        assert held == max(
            (stop[:length] for stop in stops for length in range(len(stop)) if text.endswith(stop[:length])), key=len
        )
