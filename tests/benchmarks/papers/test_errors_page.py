"""docs/kernels.md has the recorded errors of the papers."""

from benchmarks.papers.errors import HALF_2, HALF_DIRECT, errors, ratios
from tests.support import ROOT


def test_the_page_says_how_much_small_tiles_err_in_fp16() -> None:
    apart = ratios(errors(), "fp16", HALF_2, HALF_DIRECT)
    times = f"{min(apart):.1f} to {max(apart):.1f} times"
    told = f"In fp16, the error of F(2×2) is {times} the error of a direct sum"
    assert told in " ".join((ROOT / "docs/kernels.md").read_text(encoding="utf-8").split())
