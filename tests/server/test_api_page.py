import re
from pathlib import Path

from fake_engine import FakeEngine
from headway.config import ServerConfig
from headway.server.app import create_app
from headway.server.protocol import ChatRequest, CompletionRequest

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


def named_in(section: str) -> set[str]:
    (text,) = [part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE) if part.startswith(section)]
    first_cells = re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE)
    return {name for cell in first_cells for name in re.findall(r"`(.*?)`", cell)}


def test_every_field_is_on_the_page() -> None:
    assert named_in("Fields") == ChatRequest.model_fields.keys() | CompletionRequest.model_fields.keys()


def test_every_path_is_on_the_page() -> None:
    paths = create_app(FakeEngine(), ServerConfig()).openapi()["paths"]
    written = set(re.findall(r"`(?:GET|POST) (/[^`]*)`", PAGE))
    assert written == {path.replace("{model_id}", "{id}") for path in paths}
