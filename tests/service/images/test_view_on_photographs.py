"""The pointing game (Zhang et al. 2016): the largest value of a map lies on the object.

In thirty photographs, the object covers less than a quarter of the image, so the centre of the
image is not a safe guess.
"""

import csv
from collections.abc import Mapping

import numpy as np
import pytest

from models import DeviceKind, Maps, load_classifier, open_engine
from service.images.prepare import ImageLimits, prepare_image
from service.images.view import view_of
from tests.support.networks import SHARED

DATA = SHARED / "data"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data, which is absent"),
]

Box = tuple[float, float, float, float]

# Drawn by hand: left, top, right and bottom of the object, as parts of the image's sides.
BOXES: Mapping[str, Box] = {
    "n01530575_brambling": (0.48, 0.4, 0.54, 0.58),
    "n01774384_black_widow": (0.17, 0.13, 0.51, 0.79),
    "n01795545_black_grouse": (0.33, 0.34, 0.67, 0.6),
    "n01986214_hermit_crab": (0.41, 0.42, 0.57, 0.57),
    "n02007558_flamingo": (0.24, 0.32, 0.78, 0.75),
    "n02027492_red-backed_sandpiper": (0.34, 0.33, 0.61, 0.73),
    "n02105855_Shetland_sheepdog": (0.27, 0.3, 0.6, 0.86),
    "n02106662_German_shepherd": (0.42, 0.16, 0.62, 0.82),
    "n02110185_Siberian_husky": (0.41, 0.47, 0.93, 0.79),
    "n02120505_grey_fox": (0.33, 0.27, 0.7, 0.64),
    "n02219486_ant": (0.11, 0.5, 0.53, 0.68),
    "n02281406_sulphur_butterfly": (0.55, 0.29, 0.76, 0.6),
    "n02356798_fox_squirrel": (0.34, 0.39, 0.6, 0.67),
    "n02444819_otter": (0.32, 0.42, 0.53, 0.68),
    "n02488702_colobus": (0.44, 0.23, 0.74, 0.7),
    "n02641379_gar": (0.38, 0.57, 0.75, 0.68),
    "n02802426_basketball": (0.52, 0.15, 0.64, 0.24),
    "n02877765_bottlecap": (0.52, 0.51, 0.72, 0.77),
    "n02948072_candle": (0.08, 0.55, 0.43, 0.92),
    "n03532672_hook": (0.44, 0.22, 0.61, 0.9),
    "n03642806_laptop": (0.03, 0.57, 0.58, 1),
    "n03791053_motor_scooter": (0.07, 0.46, 0.54, 0.94),
    "n03887697_paper_towel": (0.43, 0.72, 0.69, 1),
    "n03937543_pill_bottle": (0.41, 0.17, 0.67, 0.67),
    "n03995372_power_drill": (0.54, 0.57, 0.98, 1),
    "n04136333_sarong": (0.12, 0.55, 0.44, 0.91),
    "n04228054_ski": (0.41, 0.36, 0.75, 0.65),
    "n04336792_stretcher": (0.12, 0.53, 1, 0.78),
    "n04509417_unicycle": (0.5, 0.4, 0.7, 1),
    "n07584110_consomme": (0.25, 0.29, 0.66, 0.66),
}


def lies_in(x: float, y: float, box: Box) -> bool:
    left, top, right, bottom = box
    return left <= x <= right and top <= y <= bottom


def test_maps_point_at_objects_more_often_than_the_centre_does() -> None:
    classifier = load_classifier(DATA / "squeezenet1.1-fp16.onnx", overrides={"preset": "caffe"})
    maps = classifier.maps
    assert isinstance(maps, Maps)
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1, threads=1)
    with (DATA / "images" / "labels.csv").open() as file:
        classes = {row["file"]: int(row["class_index"]) for row in csv.DictReader(file)}
    hits = 0
    for name, box in BOXES.items():
        decoding = prepare_image(
            (DATA / "images" / f"{name}.JPEG").read_bytes(), classifier.preprocessing, ImageLimits()
        )
        features = engine.run([decoding.run()], [maps.features.name]).inner[maps.features.name]
        (values,) = maps.of(features[0], [classes[f"{name}.JPEG"]])
        row, column = np.unravel_index(values.argmax(), values.shape)
        view = view_of(decoding)
        left, top, right, bottom = view.box
        x = left + (column + 0.5) / values.shape[1] * (right - left)
        y = top + (row + 0.5) / values.shape[0] * (bottom - top)
        hits += lies_in(x / view.size[0], y / view.size[1], box)
    engine.close()
    centre = sum(lies_in(0.5, 0.5, box) for box in BOXES.values())
    assert (len(BOXES), centre) == (30, 20)
    assert hits == 22 > centre
