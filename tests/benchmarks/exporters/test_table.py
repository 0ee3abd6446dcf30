"""The page of exporters counts every outcome, and shows no path of the machine that wrote it."""

from benchmarks.exporters.check import PIXELS, REFUSED, RIGHT, WARNED, WRONG, Verdict
from benchmarks.exporters.table import table


def test_every_model_has_a_row_and_every_outcome_is_counted() -> None:
    page = table(
        [
            Verdict("a", RIGHT, 1e-5),
            Verdict("b", PIXELS, 0.02),
            Verdict("c", REFUSED, said="/tmp/x/model.onnx: set a | key"),
            Verdict("d", WARNED, 0.3, "Warning: probably wrong"),
        ],
        "abc",
    )
    assert (
        "Of 4 models, 2 are right, 1 refused, 1 warned. No answer is wrong without a warning."
        in page
    )
    assert "| a | right | 1.0e-05 |  |" in page
    assert "| c | refused |  | model.onnx: set a \\| key |" in page


def test_a_wrong_answer_is_not_hidden() -> None:
    page = table([Verdict("a", RIGHT, 0.0), Verdict("b", WRONG, 0.4)], "abc")
    assert "Of 2 models, 1 are right, 1 wrong." in page
    assert "No answer is wrong" not in page
