"""The exports of `models` exist, both those imported at once and those imported when first used."""

import pytest

import models


@pytest.mark.parametrize("name", models.__all__)
def test_every_exported_name_is_there(name: str) -> None:
    assert getattr(models, name) is not None


@pytest.mark.parametrize("name", ["unknown"])
def test_an_unknown_name_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
        getattr(models, name)
