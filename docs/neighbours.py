"""Finds each photograph's nearest neighbours among all of a folder, by the server's embeddings.

    python docs/neighbours.py http://127.0.0.1:8000 photos/

It needs `pip install hnswlib httpx numpy pillow`.
"""

import base64
import io
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import hnswlib
import httpx
import numpy as np
from PIL import Image, ImageEnhance

BATCH = 8


def embed(url: str, files: Iterable[bytes]) -> np.ndarray:
    """Return the embedding of each file, N×size, each of length 1: their products are cosines."""
    rows, waiting = [], list(files)
    for begin in range(0, len(waiting), BATCH):
        images = [base64.b64encode(file).decode() for file in waiting[begin : begin + BATCH]]
        asked = {"input": images, "encoding_format": "base64", "normalize": True}
        answer = httpx.post(f"{url}/v1/embeddings", json=asked, timeout=60).raise_for_status()
        rows += [base64.b64decode(each["embedding"]) for each in answer.json()["data"]]
    return np.frombuffer(b"".join(rows), "<f4").reshape(len(waiting), -1)


def cropped(image: Image.Image, left: float, top: float, part: float) -> Image.Image:
    """Return `part` of each side of an image, its corner at these parts of its sides."""
    width, height = image.size
    box = (left * width, top * height, (left + part) * width, (top + part) * height)
    return image.crop(tuple(round(side) for side in box))


CHANGES: Mapping[str, Callable[[Image.Image], Image.Image]] = {
    "the middle 90% of each side": lambda image: cropped(image, 0.05, 0.05, 0.9),
    "the upper left 90%": lambda image: cropped(image, 0, 0, 0.9),
    "the lower right 90%": lambda image: cropped(image, 0.1, 0.1, 0.9),
    "0.7 times as bright": lambda image: ImageEnhance.Brightness(image).enhance(0.7),
    "1.3 times as bright": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    "the middle 90%, 0.8 times as bright": lambda image: ImageEnhance.Brightness(
        cropped(image, 0.05, 0.05, 0.9)
    ).enhance(0.8),
}


def changed(path: Path, change: Callable[[Image.Image], Image.Image]) -> bytes:
    """Return a changed photograph as a JPEG file."""
    with Image.open(path) as image:
        file = io.BytesIO()
        change(image.convert("RGB")).save(file, "JPEG", quality=90)
    return file.getvalue()


def main(url: str, folder: str) -> None:
    """Print the neighbours of a few photographs, and how often a changed one finds itself."""
    every = sorted(Path(folder).iterdir())
    paths = [path for path in every if path.suffix.lower() in (".jpg", ".jpeg")]
    if not paths:
        sys.exit(f"{folder} has no *.jpg or *.jpeg")
    vectors = embed(url, (path.read_bytes() for path in paths))
    print(f"{len(paths)} photographs, {vectors.shape[1]} numbers each")

    nearest = np.argsort(-(vectors @ vectors.T), axis=1)[:, 1:4]  # the first is itself
    for row in range(0, len(paths), max(1, len(paths) // 6)):
        others = ", ".join(paths[other].stem for other in nearest[row])
        print(f"{paths[row].stem}: {others}")

    index = hnswlib.Index("cosine", vectors.shape[1])
    index.init_index(len(paths), random_seed=1)
    index.add_items(vectors, num_threads=1)
    index.set_ef(50)
    found, _ = index.knn_query(vectors, k=4, num_threads=1)
    same = np.mean([set(a[1:]) == set(b) for a, b in zip(found, nearest, strict=True)])
    print(f"for {same:.0%} of the photographs, hnswlib finds the same three neighbours")

    for name, change in CHANGES.items():
        queries = embed(url, (changed(path, change) for path in paths))
        first, _ = index.knn_query(queries, k=1, num_threads=1)
        itself = np.mean(first[:, 0] == np.arange(len(paths)))
        print(f"{name}: nearest to itself {itself:.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
