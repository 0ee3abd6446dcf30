"""Tells users how to install an optional dependency. The command depends on how Convoy was
installed."""

import sys
from enum import StrEnum
from pathlib import Path

_ROOT = Path(__file__).parent.parent


class Installation(StrEnum):
    """Lists the ways in which Convoy can be installed."""

    CHECKOUT = "checkout"
    WHEEL = "wheel"
    TOOL = "tool"  # a wheel in an environment without pip, as uvx and pipx make it
    IMAGE = "image"


def installation(root: Path = _ROOT, prefix: Path = Path(sys.prefix)) -> Installation:
    """Return how the Convoy in `root` was installed into the environment at `prefix`."""
    if (prefix / "sbom.cdx.json").exists():  # the Dockerfile writes it
        return Installation.IMAGE
    if (root / "constraints.txt").exists():
        return Installation.CHECKOUT
    return Installation.WHEEL if (prefix / "bin" / "pip").exists() else Installation.TOOL


def how_to_install(extra: str, kind: Installation | None = None) -> str:
    """Return a clause for an error message that tells how to install `extra`, one of the optional
    dependency groups in pyproject.toml."""
    kind = kind or installation()
    if kind is Installation.CHECKOUT:
        return f"run {sys.prefix}/bin/pip install -c constraints.txt -e '.[{extra}]'"
    if kind is Installation.WHEEL:
        return f"run {sys.prefix}/bin/pip install 'convoy-inference[{extra}]'"
    if kind is Installation.TOOL:
        wanted = f"'convoy-inference[{extra}]'"
        return f"run convoy by uvx --from {wanted}, or install it by pipx install --force {wanted}"
    if extra.startswith("cuda"):
        return f"use an image built with --build-arg EXTRA={extra}"
    return f"the image has no extra {extra}: run Convoy from a wheel or a checkout"
