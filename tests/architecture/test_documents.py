"""What the documents tell a reader to type exists."""

from __future__ import annotations

import re

from tests.conftest import REPOSITORY

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
MAKE = re.compile(r"(?:^|[\s`;&])make ((?:[A-Z]+=\S+ )*)([a-z][a-z-]*)")


def targets_of(makefile: str) -> set[str]:
    """Return the phony targets of *makefile* that have a rule."""
    phony = set(re.findall(r"[\w-]+", " ".join(re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE))))
    return phony & set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))


def commands_in(document: str) -> set[str]:
    """Return the targets of the `make` commands in the code of *document*."""
    return {match[1] for code in CODE.findall(document) for match in MAKE.findall(code)}


def words_in(glossary: str) -> list[str]:
    """Return the words that the first column of the table in *glossary* explains."""
    cells = re.findall(r"^\| ([^|]+) \|.*\|$", glossary, re.MULTILINE)[1:]
    return [word for cell in cells for word in cell.split(", ") if word != "---"]


def test_readme_shows_the_two_commands() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert commands_in(readme) >= {"demo", "test"}


def test_commands_exist() -> None:
    targets = targets_of((REPOSITORY / "Makefile").read_text(encoding="utf-8"))
    shown = {path: commands_in(path.read_text(encoding="utf-8")) for path in DOCUMENTS}
    assert {path: found - targets for path, found in shown.items() if found - targets} == {}


def test_rule_notices_a_missing_target() -> None:
    document = "Run `make demo`, or:\n\n```sh\nmake PYTHON=python3.12 deploy\n```\n\nThese make sense.\n"
    makefile = ".PHONY: demo test\ndemo: x\n\ttrue\n"
    assert commands_in(document) - targets_of(makefile) == {"deploy"}


def test_a_word_is_explained_once() -> None:
    words = words_in(
        (REPOSITORY / "docs" / "developers" / "contributing.md").read_text(encoding="utf-8").split("## Words")[1]
    )
    assert {"kernel", "chunk", "stream"} <= set(words)
    assert len(words) == len(set(words))


def test_canary_a_word_with_two_entries_is_found() -> None:
    table = "| word | meaning | not |\n| --- | --- | --- |\n| rank, bank | one | |\n| bank | two | river |\n"
    assert words_in(table) == ["rank", "bank", "bank"]
