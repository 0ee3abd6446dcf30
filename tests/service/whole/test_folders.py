"""Folders in the form that other programs write. One server of all these folders answers with the
right labels."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model
from PIL import Image

from tests.support.images.files import encode
from tests.support.servers.several_models import convoy_serve

LABELS = ["red", "green", "blue"]
SIDE = 8


def save_brightest(
    path: Path,
    mean: list[float],
    std: list[float],
    *,
    last: bool = False,
    closed: bool = True,
    beside: bool = False,
) -> None:
    """Save a network with a score per channel. The score is 9 if the channel is 255, and 0 if the
    channel is 0.

    It reverses the normalisation for which it was made, so another normalisation gives other
    scores. With `last`, its channels come last. Without `closed`, it leaves the number of channels
    and the size of images unknown, as optimum does. Its weights are in a file `beside` it.
    """
    height, width, channels = (SIDE, SIDE, 3) if closed else ("height", "width", "num_channels")
    shape = ["N", height, width, channels] if last else ["N", channels, height, width]
    axes = numpy_helper.from_array(np.array([1, 2] if last else [2, 3]), "axes")
    constants = [
        numpy_helper.from_array(np.array(std, np.float32) * 9, "times"),
        numpy_helper.from_array(np.array(mean, np.float32) * 9, "plus"),
        axes,
    ]
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["x", "axes"], ["m"], keepdims=0),
            helper.make_node("Mul", ["m", "times"], ["t"]),
            helper.make_node("Add", ["t", "plus"], ["y"]),
        ],
        "brightest",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        constants,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    opset = helper.make_opsetid("", 18)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    save_model(model, path, save_as_external_data=beside, size_threshold=0)


HALF, IMAGENET = ([0.5] * 3, [0.5] * 3), ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
ID2LABEL = {str(number): label for number, label in enumerate(LABELS)}


def write(path: Path, text: object) -> None:
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")


def optimum(folder: Path) -> None:
    """Write a folder like a repository on a hub with optimum's exports. The network is in a
    subfolder, and its other files are above."""
    save_brightest(folder / "onnx" / "model.onnx", *HALF)
    (folder / "onnx" / "model_quantized.onnx").touch()
    transformers_files(folder)


def transformers_files(folder: Path) -> None:
    processor = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": HALF[0],
        "image_processor_type": "ViTImageProcessor",
        "image_std": HALF[1],
        "resample": 2,
        "rescale_factor": 1 / 255,
        "size": {"height": SIDE, "width": SIDE},
    }
    write(folder / "preprocessor_config.json", processor)
    label2id = {label: int(number) for number, label in ID2LABEL.items()}
    config = {"architectures": ["ViTForImageClassification"], "model_type": "vit"}
    write(folder / "config.json", config | {"id2label": ID2LABEL, "label2id": label2id})


def transformers(folder: Path) -> None:
    """Write the output of optimum-cli, with all files in one folder. Only the processor's file
    states the size."""
    save_brightest(folder / "model.onnx", *HALF, closed=False)
    transformers_files(folder)


def timm(folder: Path) -> None:
    save_brightest(folder / "model.onnx", *HALF)
    trained = {
        "input_size": [3, SIDE, SIDE],
        "interpolation": "bicubic",
        "crop_pct": 0.95,
        "crop_mode": "center",
        "mean": HALF[0],
        "std": HALF[1],
    }
    config = {"architecture": "resnet18", "num_classes": 3, "pretrained_cfg": trained}
    write(folder / "config.json", config | {"label_names": LABELS})


def timm_named(folder: Path) -> None:
    """Write the output of timm's onnx_export.py, under a name that the user chose."""
    timm(folder)
    (folder / "model.onnx").rename(folder / "resnet18.a1_in1k.onnx")


def paddle(folder: Path) -> None:
    save_brightest(folder / "model.onnx", *IMAGENET)
    write(folder / "inference.yml", paddle_config("label_list: [red, green, blue]"))


def paddle_config(labels: str) -> str:
    return f"""
PreProcess:
  transform_ops:
  - ResizeImage: {{resize_short: 9}}
  - CropImage: {{size: {SIDE}}}
  - NormalizeImage:
      mean: {IMAGENET[0]}
      std: {IMAGENET[1]}
      scale: 0.00392156862745098
      order: ''
  - ToCHWImage: null
PostProcess:
  Topk:
    topk: 5
    {labels}
"""


def paddle_older(folder: Path) -> None:
    """Write the file that PaddleClas used before inference.yml, and its list of numbered labels."""
    save_brightest(folder / "inference.onnx", *IMAGENET)
    write(folder / "inference_cls.yaml", paddle_config("class_id_map_file: label_list.txt"))
    write(folder / "label_list.txt", "0 red\n1 green\n2 blue\n")


def tf2onnx(folder: Path) -> None:
    """Write a network with channels last, like TensorFlow's, and labels in the form of Teachable
    Machine."""
    save_brightest(folder / "model.onnx", *IMAGENET, last=True)
    write(folder / "labels.txt", "0 red\n1 green\n2 blue\n")


def mlflow(folder: Path) -> None:
    """Write the output of MLflow's onnx flavour, whose weights are in a file with a random name."""
    save_brightest(folder / "model.onnx", *IMAGENET, beside=True)
    write(folder / "MLmodel", "flavors:\n  onnx:\n    data: model.onnx\n    onnx_version: 1.20.0\n")
    write(folder / "conda.yaml", "name: mlflow-env\n")
    write(folder / "requirements.txt", "onnx\n")
    write(folder / "classes.txt", "red\ngreen\nblue\n")


def triton(folder: Path) -> None:
    save_brightest(folder / "1" / "model.onnx", *IMAGENET)
    (folder / "colours.txt").write_text("red\ngreen\nblue\n")
    config = 'output [ { name: "y" dims: 3 label_filename: "colours.txt" } ] max_batch_size: 2'
    write(folder / "config.pbtxt", config)


def torchvision(folder: Path) -> None:
    """Write a model.toml that has only the name of torchvision's weights as preset."""
    save_brightest(folder / "model.onnx", *IMAGENET)
    write(folder / "model.toml", 'preset = "resnet50.IMAGENET1K_V2"\n')
    write(folder / "labels.txt", "red\ngreen\nblue\n")


# Each way to write a folder, with the file that the labels are from.
SERVED: dict[str, tuple[Callable[[Path], None], str]] = {
    "optimum": (optimum, "../config.json"),
    "transformers": (transformers, "config.json"),
    "timm": (timm, "config.json"),
    "timm-named": (timm_named, "config.json"),
    "paddle": (paddle, "inference.yml"),
    "paddle-older": (paddle_older, "inference_cls.yaml"),
    "tf2onnx": (tf2onnx, "labels.txt"),
    "mlflow": (mlflow, "classes.txt"),
    "triton": (triton, "../config.pbtxt"),
    "torchvision": (torchvision, "labels.txt"),
}


def two_models(folder: Path) -> None:
    optimum(folder)
    save_brightest(folder / "model.onnx", *HALF)


def two_sizes(folder: Path) -> None:
    transformers(folder)
    config = json.loads((folder / "preprocessor_config.json").read_text())
    config |= {"image_processor_type": "OwnImageProcessor", "size": SIDE}
    write(folder / "preprocessor_config.json", config)


def two_lengths(folder: Path) -> None:
    mlflow(folder)
    write(folder / "classes.txt", "red\ngreen\n")


# Those of which it is not clear what they mean, with what is said of both readings.
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "two-models": (two_models, "may be model.onnx or onnx/model.onnx; name the file to serve"),
    "two-sizes": (two_sizes, "is ambiguous, because the image processor is unknown"),
    "two-lengths": (two_lengths, "there are 2 labels in classes.txt, but the model has 3 classes"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("folders")
    for name, (make, _) in (SERVED | REFUSED).items():
        (folder / name).mkdir()
        make(folder / name)
    with convoy_serve(folder, "--device", "cpu", "--max-batch", "4") as port:
        yield f"http://127.0.0.1:{port}/v1/models"


def described(models: str, name: str) -> dict[str, object]:
    listed = httpx.get(models).json()["models"]
    return next(model for model in listed if model["name"] == name)


@pytest.mark.parametrize("name", SERVED)
def test_a_folder_serves_the_right_labels_by_the_right_pixels(models: str, name: str) -> None:
    for number, label in enumerate(LABELS):
        colour = [0, 0, 0]
        colour[number] = 255
        file = encode(Image.new("RGB", (20, 16), tuple(colour)), "PNG")
        answer = httpx.post(f"{models}/{name}/classify", content=file).json()
        best = answer["results"][0]["predictions"][0]
        assert best["label"] == label
        # Scores of 9, 0 and 0: by other means or deviations it would be another probability.
        assert best["probability"] == pytest.approx(np.exp(9) / (np.exp(9) + 2), abs=1e-5)
    said = str(described(models, name)["origin"])
    taken = dict(part.split(": ") for part in said.split("; ") if ": " in part)
    assert "labels" in taken[SERVED[name][1]].split(", ")


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_with_two_readings_is_refused_with_both(models: str, name: str) -> None:
    model = described(models, name)
    assert REFUSED[name][1] in str(model["error"])
    assert httpx.post(f"{models}/{name}/classify", content=b"x").status_code == 503


def test_tritons_largest_batch_is_one_of_two_limits(models: str) -> None:
    assert described(models, "triton")["max_batch"] == 2
    assert described(models, "paddle")["max_batch"] == 4
