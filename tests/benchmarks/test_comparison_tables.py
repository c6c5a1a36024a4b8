"""Tables from recorded results, and the README's copy of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from comparison.tables import (
    BEGIN,
    END,
    NOT_RECORDED,
    README,
    goodput_table,
    ratios,
    readme_section,
    update_readme,
    work_table,
)


def work(name: str, unit: str, *rounds: dict[str, float]) -> dict[str, Any]:
    return {"work": name, "unit": unit, "rounds": [{"figures": figures} for figures in rounds]}


DECODE = work(
    "decode",
    "tokens/s",
    {"headway Q4_1": 300.0, "llama.cpp Q4_0": 100.0, "llama.cpp Q8_0": 150.0},
    {"headway Q4_1": 330.0, "llama.cpp Q4_0": 110.0, "llama.cpp Q8_0": 90.0},
    {"headway Q4_1": 360.0, "llama.cpp Q4_0": 120.0, "llama.cpp Q8_0": 80.0},
)


def test_a_round_is_compared_with_the_fastest_peer_of_that_round() -> None:
    assert ratios(DECODE) == [2.0, 3.0, 3.0]


def test_less_time_is_faster() -> None:
    assert ratios(work("start", "s", {"headway Q4_1": 0.5, "vllm bf16": 60.0, "openvino Q8_0": 4.0})) == [8.0]


def test_a_round_without_headway_or_without_peers_has_no_ratio() -> None:
    assert ratios(work("w", "s", {"headway Q4_1": 1.0}, {"vllm bf16": 1.0})) == []


def test_a_cell_has_the_format_with_the_best_median() -> None:
    header, _, row = work_table({"works": [DECODE]}).splitlines()
    assert header == "|  | Headway | llama.cpp | Headway / best peer |"
    assert row == ("| decode, tokens a second | 330 (300-360) Q4_1 | 110 (100-120) Q4_0 | 3.00 (2.00-3.00) |")


def test_an_engine_without_a_figure_for_a_work_has_an_empty_cell() -> None:
    start = work("start", "s", {"headway Q4_1": 0.5, "vllm bf16": 60.0})
    row = work_table({"works": [DECODE, start]}).splitlines()[-1]
    assert row == "| start, seconds | 0.50 (0.50-0.50) Q4_1 | - | 60.00 (60.00-60.00) bf16 | 120.00 (120.00-120.00) |"


HTTP = {
    "servers": {"headway Q4_1": {}, "llama.cpp Q4_0": {}, "vllm bf16": {}},
    "rounds": [
        {"goodput": {"headway Q4_1": 8.0, "llama.cpp Q4_0": 2.0, "vllm bf16": 0.0}},
        {"goodput": {"headway Q4_1": 9.0, "llama.cpp Q4_0": 1.5}},
    ],
}


def test_goodput_is_compared_round_by_round() -> None:
    rows = goodput_table(HTTP).splitlines()[2:]
    assert rows == [
        "| Headway Q4_1 | 8.5 (8-9) | - |",
        "| llama.cpp Q4_0 | 1.75 (1.5-2) | 5.00 (4.00-6.00) |",
        "| vLLM bf16 | 0 (0-0) | - |",
    ]


def test_the_readme_has_the_tables_of_the_recorded_results() -> None:
    text = README.read_text()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == f"\n{readme_section()}\n", (
        "run: python benchmarks/peers.py --readme"
    )


def recorded(folder: Path) -> None:
    result = {
        "model": {"name": "tiny", "format": "Q4_1", "num_parameters": 134_500_000},
        "machine": {"processor": "Some CPU"},
        "threads": 2,
        "did_not_run": {"vllm": "no such wheel"},
        "works": [DECODE],
    }
    (folder / "peers-tiny.json").write_text(json.dumps(result))


def test_the_section_names_model_machine_and_what_did_not_run(tmp_path: Path) -> None:
    assert readme_section(tmp_path) == NOT_RECORDED
    recorded(tmp_path)
    section = readme_section(tmp_path)
    assert "**tiny** (0.13 B parameters, Q4_1), 2 threads of Some CPU: median (min-max) of 3 rounds" in section
    assert "benchmarks/results/peers-tiny.json" in section
    assert section.endswith("Did not run: vllm (no such wheel).")


def test_only_what_is_between_the_marks_is_replaced(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}")
    recorded(tmp_path)
    update_readme(readme, tmp_path)
    assert readme.read_text() == f"before\n{BEGIN}\n{readme_section(tmp_path)}\n{END}"


@pytest.mark.parametrize("text", ["nothing", BEGIN, END])
def test_a_readme_without_the_marks_is_left_alone(text: str, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(SystemExit, match="lacks the lines"):
        update_readme(readme, tmp_path)
    assert readme.read_text() == text
