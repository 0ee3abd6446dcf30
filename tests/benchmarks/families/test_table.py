"""The table of families: the newest row of each file, the worst error, refusals counted."""

from benchmarks.families.table import table


def row(batch: str, **found: object) -> dict[str, object]:
    return {"family": "convnext_atto", "exporter": "dynamo", "batch": batch, **found}


def loading(error: float, launches: int = 61) -> dict[str, object]:
    return {"loads": True, "nodes": 70, "launches": launches, "cpu_error": error}


def test_a_family_is_a_line_of_its_newest_rows() -> None:
    text = table(
        [
            row("1", **loading(1e-6)),
            row("1", **loading(2e-7)),
            row("dynamic", **loading(3e-7, 60), fp16_us=12.3, fp16_roofline_us=3.1),
            {"family": "convnext_atto", "simulated_error": 5e-7},
        ]
    )
    line = "| convnext_atto | 2 of 2 | 70 | 60 to 61 | 3.0e-07 | 5.0e-07 | 12 (3) |  |"
    assert line in text
    assert "1 of 1 families run on the kernels." in text
    assert "one small network from each of 1 families of timm" in text, "those that have rows"


def test_a_row_without_plans_leaves_the_launches_of_the_row_before() -> None:
    text = table([row("1", **loading(1e-6)), row("1", loads=True, nodes=70, cpu_error=3e-7)])
    assert "| convnext_atto | 1 of 1 | 70 | 61 | 3.0e-07 |" in text


def test_a_file_with_another_best_class_is_named() -> None:
    same, other = ({**loading(1e-7), "top_1": equal} for equal in (True, False))
    text = table([row("1", **same), row("dynamic", **other)])
    assert "For 2 files, the best classes were also compared" in text
    assert (
        "run on the kernels; another class is the best of convnext_atto dynamo dynamic.\n" in text
    )


def test_a_refused_file_is_a_family_that_does_not_load() -> None:
    text = table([row("1", loads=False, reason="no\nnode"), row("dynamic", **loading(1e-7))])
    assert "| convnext_atto | 1 of 2 | 70 | 61 | 1.0e-07 |  |  |  |" in text
    assert (
        "0 of 1 families run on the kernels.\n- convnext_atto, dynamo, batch 1: no node\n" in text
    )
