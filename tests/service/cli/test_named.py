"""The label in the name of a file."""

from pathlib import Path

import pytest

from service.cli.named import expected_of, names_of_labels

LABELS = ("tench", "tiger", "tiger cat", "n02123045 tabby, tabby cat", "7")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("n01440764_tench.JPEG", ["tench"]),
        ("photos/tench/IMG_0001.jpg", ["tench"]),
        ("photos/n02123045/1.jpg", ["n02123045", "tabby", "tabby cat"]),
        ("Tabby-Cat (3).jpg", ["n02123045", "tabby", "tabby cat"]),
        ("tiger_cat_2.jpg", ["tiger cat"]),
        ("7_faint_on_grey.jpg", ["7"]),
        ("IMG_7.jpg", []),
        ("tenchlike.jpg", []),
        ("tiger/tench.jpg", ["tiger"]),
        ("holiday/beach.jpg", []),
    ],
)
def test_a_file_is_named_after_the_label_of_its_folder_or_of_its_beginning(
    file: str, expected: list[str]
) -> None:
    assert expected_of(Path("/somewhere") / file, names_of_labels(LABELS)) == expected


def test_without_labels_no_file_is_named_after_one() -> None:
    assert expected_of(Path("/tench/tench.jpg"), names_of_labels(())) == []
