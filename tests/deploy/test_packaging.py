"""What is installed from a checkout is all of it: an editable environment would not notice."""

import re

from tests.deploy.container_files import ROOT, packages, pyproject


def test_no_message_names_the_other_distribution_that_is_called_convoy() -> None:
    assert pyproject()["project"]["name"] == "convoy-inference"
    sources = [source for name in packages() for source in (ROOT / name).rglob("*.py")]
    texts = [*sources, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Dockerfile"]
    assert [
        text for text in texts if re.search(r"install\W+convoy\b(?!-inference)", text.read_text())
    ] == []


def test_every_folder_of_python_files_is_a_package() -> None:
    folders = {source.parent for name in packages() for source in (ROOT / name).rglob("*.py")}
    assert ROOT / "models" / "digits" in folders
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_every_file_beside_the_python_files_is_package_data() -> None:
    data = {
        path
        for package, patterns in pyproject()["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    present = {
        path
        for name in packages()
        for path in (ROOT / name).rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    assert ROOT / "models" / "digits" / "digits.onnx" in present
    assert present <= data
