"""docs/kernels.md has the recorded errors of the papers."""

from benchmarks.papers.errors import HALF_2, HALF_DIRECT, errors, ratios
from tests.support import ROOT


def test_the_page_says_how_much_small_tiles_err_in_fp16() -> None:
    apart = ratios(errors(), "fp16", HALF_2, HALF_DIRECT)
    told = f"in fp16 F(2×2) errs {min(apart):.1f} to {max(apart):.1f} times as much as a direct sum"
    assert told in " ".join((ROOT / "docs/kernels.md").read_text(encoding="utf-8").split())
