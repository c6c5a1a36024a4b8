"""What the documents claim about the project and a program can check."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_dependency_says_why_and_no_other_does() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    declared = {
        "## To run": project["dependencies"],
        "## To build": pyproject["build-system"]["requires"],
        "## To test": project["optional-dependencies"]["test"],
        "## To write the expected values": project["optional-dependencies"]["oracle"],
    }
    page = (ROOT / "docs" / "dependencies.md").read_text()
    sections = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    for heading, requirements in declared.items():
        (section,) = [text for text in sections if text.startswith(heading)]
        rows = re.findall(r"^\| ([\w.-]+) \| \S", section, flags=re.MULTILINE)
        names = [re.split(r"[<>=!~\[; ]", requirement)[0] for requirement in requirements]
        assert sorted(rows) == sorted(["package", *names]), heading
