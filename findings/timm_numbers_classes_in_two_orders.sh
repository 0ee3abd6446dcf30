#!/usr/bin/env bash
# timm 1.0.31, torchvision 0.29.1: the two number the classes of the same folder differently, and so
# do two of timm's own readers.
#
# A folder of images has one folder for each class, and the class numbers are the positions of their
# sorted names. torchvision sorts by characters: capitals before small letters, 10 before 9. timm's
# default reader sorts as people do: without regard to case, and numbers by value. timm's reader
# torch/image_folder sorts as torchvision does. So the outputs of a network that was trained with
# one of the readers get wrong names and a wrong accuracy with another, unless all names are of one
# case and their numbers have as many digits each, as ImageNet's do.
#
# Folders Zebra, ant, bee9 and bee10, and their numbers from 0. Seen:
#   torchvision, ImageFolder: Zebra ant bee10 bee9
#   timm, torch/image_folder: Zebra ant bee10 bee9
#   timm, default: ant bee9 bee10 Zebra
# Expected: one order. No warning. Exits with an error if this changes. torch needs 6 GB of disk.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    timm==1.0.31 torchvision==0.29.1 pillow==13.0.0 numpy==2.4.6
cat >"$folder/run.py" <<'PYTHON'
import pathlib
import sys

from PIL import Image
from timm.data import create_dataset
from torchvision.datasets import ImageFolder

root = pathlib.Path(sys.argv[1])
for name in ("Zebra", "ant", "bee9", "bee10"):
    (root / name).mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(root / name / "image.png")


def labels(dataset, files):
    """The names of the classes, by the labels that the data set gives their images."""
    pairs = [(label, files(index)) for index, (_, label) in enumerate(dataset)]
    return [pathlib.Path(file).parent.name for _, file in sorted(pairs)]


folder = ImageFolder(root)
wrapped = create_dataset("torch/image_folder", root=str(root), split="")
default = create_dataset("", root=str(root), split="")
found = {
    "torchvision, ImageFolder": labels(folder, lambda index: folder.imgs[index][0]),
    "timm, torch/image_folder": labels(wrapped, lambda index: wrapped.imgs[index][0]),
    "timm, default": labels(default, lambda index: default.filename(index, absolute=True)),
}
for name, order in found.items():
    print(f"{name}:", *order)
characters, people = ["Zebra", "ant", "bee10", "bee9"], ["ant", "bee9", "bee10", "Zebra"]
assert list(found.values()) == [characters, characters, people], "this has changed"
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder/images"
