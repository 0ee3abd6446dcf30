"""Prints one of the papers' tables, or writes docs/papers.md, its image, and docs/ladder.md.

python -m benchmarks.papers --docs      write all pages: `make papers`
python -m benchmarks.papers NAME        print one table
"""

import argparse
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.kernels.suites import C3D, VGG_E
from benchmarks.papers import (
    blur,
    complexity,
    cuconv,
    ladder,
    lan,
    launches,
    lavin_gray,
    measured,
    memory,
    soutar,
)
from benchmarks.papers.errors import table_errors
from benchmarks.papers.pipeline import table_pipeline
from benchmarks.papers.result import OURS, Cells, Result, Status
from benchmarks.rows import ROOT, markdown

PAGE = ROOT / "docs" / "papers.md"

_C3D = {layer.name: layer.problem for layer in C3D}

TABLES: Mapping[str, tuple[str, Callable[[], Cells]]] = {
    "transforms": (
        "Instructions of a tile's transforms: Lavin & Gray → Convoy, if different",
        complexity.table_transforms,
    ),
    "table-1": ("Lavin & Gray, table 1: Winograd → Convoy, if different", complexity.table_1),
    "fft": ("Lavin & Gray, tables 1 and 2: the FFT", complexity.table_ffts),
    "equation-16": ("A complex product by three multiplications", lavin_gray.table_equation_16),
    "equation-23": (
        "Arithmetic of the direct sum divided by F(m×m, 3×3) with transforms, conv 4.2 with C = K",
        lambda: complexity.table_equation_23(VGG_E[7].problem),
    ),
    "errors": ("Lavin & Gray, table 4: the largest error of an element", table_errors),
    "workspace": ("F(2×2) at K = C = 512, bytes", lavin_gray.table_workspace),
    "block": ("The blocks of the fused F(2×2)", lavin_gray.table_block),
    "blocking": (
        "MB that F(2×2) reads from memory by order of blocks, with the Titan X's cache of 3 MB",
        lambda: memory.table_blocking(VGG_E),
    ),
    "sizes": ("cuConv, table 1: percentages of filter sizes, paper → Convoy", launches.table_sizes),
    "blocks": ("cuConv, section 4.2: blocks launched", launches.table_blocks),
    "stages": ("cuConv, table 4: the second stage's percentage of the time", launches.table_stages),
    "occupancy": ("cuConv, section 4.2: transforms and occupancy", cuconv.table_occupancy),
    "figures": ("cuConv, figures 5 to 7: speed-ups by filter size and N", measured.table_figures),
    "blur": ("Soutar's example", blur.table_blur),
    "larger-tiles": (
        "F(9×9, 5×5): the largest error divided by the error of the direct sum",
        soutar.table_larger_tiles,
    ),
    "layouts": (
        "Lan et al., figure 3: MB of sectors by layout, N = 32",
        lambda: memory.table_layouts(_C3D),
    ),
    "pipeline": (
        "Convoy's three launches of F(2×2×2, 3×3×3) on a layer like conv5: bytes, wavefronts",
        table_pipeline,
    ),
    "shares": (
        "Lan et al., figure 4: each kernel's percentage of conv3's sectors",
        lambda: memory.table_shares(_C3D["conv3"]),
    ),
}
"""For each table, by the name on the command line: its title and the function that creates it."""

PAPERS: Mapping[str, Callable[[], list[Result]]] = {
    "Lavin & Gray 2015, Fast Algorithms for Convolutional Neural Networks": lavin_gray.results,
    "Jordà et al. 2021, cuConv": cuconv.results,
    "Soutar 2020, Faster convolutions with Winograd (Part 2)": soutar.results,
    "Lan et al. 2017, 3-D Winograd on a GPU": lan.results,
}

_HEAD = """\
# The papers, result by result

Convoy's kernels implement the algorithms of the papers on this page. (The second version of Lavin &
Gray on arXiv has the same numbers as the first version.) `make papers` writes this page from code
and from recorded rows, and tests check the page. A row says *waits* if its number must be measured
on a GPU. The report ([RESULTS.md](../benchmarks/RESULTS.md)) will have this number and the fastest
times of cuDNN and PyTorch. [Six small kernels](ladder.md) show the effect of each idea.

In the column "status", "reproduced" means that Convoy has the same number or confirms the claim.
"better" means that Convoy exceeds the paper: it needs less arithmetic, has a smaller error, or
gains more. For "in part" and "contradicted", the last column gives the reason. Only rows that need
a GPU contain times. Errors are measured with the kernels on the simulator, with the paper's inputs
(uniform in [-1, 1]) and all channels and filters of the layers. The measured elements are squares
of 8×8 pixels from all parts of the image, up to 131,072 per layer. The largest error of these
elements is slightly smaller than the largest error of all elements, which `--whole` measures.

"""


def page(results: Mapping[str, Sequence[Result]]) -> str:
    """Return the text of docs/papers.md. `results` has the rows of each paper."""
    every = [result for found in results.values() for result in found]
    counts = ", ".join(
        f"{status.value} {sum(result.status is status for result in every)}" for status in Status
    )
    parts = [f"{_HEAD}Of {len(every)} rows: {counts}."]
    headings = ("where", "result", "paper", "Convoy", "status", "shown by", "why")
    for paper, found in results.items():
        rows = (
            (
                result.where,
                result.what,
                result.theirs,
                result.ours,
                result.status.value,
                f"`{result.command}`".replace("|", r"\|"),
                result.why,
            )
            for result in found
        )
        parts.append(f"## {paper}\n\n{_left(headings, *rows)}")
    parts.append("## Tables")
    for name, (title, make) in TABLES.items():
        parts.append(f"### {title}\n\n`{OURS}{name}`\n\n{_left(*make())}")
    parts.append(
        "![a channel, its tiles transformed by F(2×2), and the blurred output](blur.png)\n\n"
        "The image shows a channel of Soutar's example, its 25×25 transformed tiles, and the fused"
        " kernel's output."
    )
    return "\n\n".join(parts) + "\n"


def _left(headings: Sequence[str], *rows: Sequence[str]) -> str:
    """Return a table in Markdown with all columns aligned left, because its cells contain words."""
    head, rule, *lines = markdown(headings, *rows).splitlines()
    return "\n".join([head, rule.replace("---:", "---"), *lines])


def show(name: str, console: Console) -> None:
    """Print the table of TABLES with this name."""
    title, make = TABLES[name]
    headings, *rows = make()
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def main(command_line: Sequence[str] | None = None) -> None:
    """Print the table that the command line names. With --docs, write docs/papers.md, docs/blur.png
    and docs/ladder.md."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers", description="Compare the papers' results with Convoy's."
    )
    parser.add_argument("name", nargs="?", choices=tuple(TABLES), help="the table to print")
    parser.add_argument("--docs", action="store_true", help="write docs/papers.md")
    arguments = parser.parse_args(command_line)
    if not arguments.docs and arguments.name is None:
        parser.error("name a table to print, or give --docs")
    if arguments.docs:
        PAGE.write_text(page({paper: of() for paper, of in PAPERS.items()}), encoding="utf-8")
        blur.panels(blur.blurred()[0]).save(blur.IMAGE)
        text = ladder.PAGE.read_text(encoding="utf-8")
        ladder.PAGE.write_text(ladder.page(text, ladder.counted()), encoding="utf-8")
    if arguments.name is not None:
        show(arguments.name, Console(highlight=False, markup=False))


if __name__ == "__main__":
    main()
