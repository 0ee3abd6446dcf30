"""Settings: their sources, their permitted values, and their errors."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

from models import DeviceChoice, DeviceKind, Kind
from service.settings import GROUPS, ResizedBy, Settings, SettingsError, load_settings
from tests.support import ROOT


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {"CONVOY_PORT": "1234", "CONVOY_MAX_BATCH": "4"}
    settings = load_settings({"port": 4321, "max_queue": None}, environ)
    assert (settings.port, settings.max_batch) == (4321, 4)
    assert settings.max_queue == Settings().max_queue


def test_empty_in_the_environment_counts_as_not_set() -> None:
    empty = {f"CONVOY_{name.upper()}": "" for name in Settings.model_fields}
    assert load_settings({}, empty) == Settings()


def test_other_variables_of_the_environment_are_ignored() -> None:
    assert load_settings({}, {"PATH": "/bin", "MY_CONVOY_PORT": "1", "PORT": "x"}) == Settings()


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("CONVOY_PROT", "PORT"),
        ("CONVOY_port", "PORT"),
        ("CONVOY_MAXBATCH", "MAX_BATCH"),
        ("CONVOY_DRAIN", "DRAIN_S"),
    ],
)
def test_an_unknown_key_in_the_environment_is_an_error_that_names_the_nearest(
    key: str, nearest: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({}, {key: "1"})
    assert str(caught.value) == f"{key} is not a setting; did you mean CONVOY_{nearest}?"


@pytest.mark.parametrize("service", ["CONVOY", "CONVOY_DIGITS", "CONVOY_METRICS", "CONVOY_GRPC"])
def test_what_kubernetes_sets_for_a_service_is_no_setting(service: str) -> None:
    links = {
        f"{service}_SERVICE_HOST": "10.96.7.1",
        f"{service}_SERVICE_PORT": "8000",
        f"{service}_SERVICE_PORT_HTTP": "8000",
        f"{service}_PORT": "tcp://10.96.7.1:8000",
        f"{service}_PORT_8000_TCP": "tcp://10.96.7.1:8000",
        f"{service}_PORT_8000_TCP_PROTO": "tcp",
        f"{service}_PORT_8000_TCP_PORT": "8000",
        f"{service}_PORT_8000_TCP_ADDR": "10.96.7.1",
    }
    assert load_settings({}, links) == Settings()
    assert load_settings({}, {**links, "CONVOY_MAX_BATCH": "2"}).max_batch == 2


def test_each_setting_is_in_one_group_of_the_help() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(Settings.model_fields)


# Variables, and the folder of what is kept.
_KEPT: Sequence[tuple[dict[str, str], str]] = [
    ({}, "home/.cache/convoy"),
    ({"XDG_CACHE_HOME": "cache"}, "home/.cache/convoy"),  # relative ones are to be ignored
    ({"XDG_CACHE_HOME": "{}/xdg"}, "xdg/convoy"),
    ({"XDG_CACHE_HOME": "{}/xdg", "CONVOY_CACHE": "{}/own"}, "own"),
]

# Prints, for each set of variables, where a process keeps its files. A process reads the variables
# as it imports the settings; all else is imported once.
_PLACES = """
import importlib, json, os, sys
from pathlib import Path
import models, service.settings
from service.hosting import catalogue, hub, kept
usual = dict(os.environ)
for variables in json.loads(sys.argv[1]):
    os.environ.clear()
    os.environ.update(usual | variables)
    models.keep_below(Path("nowhere"))
    importlib.reload(service.settings)
    paths = catalogue.PULLED, hub.CACHE, kept.FOLDER, models.TRANSLATED, models.DEFAULT_TUNING
    print(json.dumps([str(models.placed(each)) for each in (*paths, Path("~/x"))]))
"""


def test_all_that_is_kept_is_below_one_folder(tmp_path: Path) -> None:
    given = [
        {name: value.format(tmp_path) for name, value in variables.items()}
        for variables, _ in _KEPT
    ]
    command = [sys.executable, "-c", _PLACES, json.dumps(given)]
    own = {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=own, capture_output=True, check=True)
    names = ["models", "hub", "served", "translated", "tuning.json"]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        [*(str(tmp_path / folder / name) for name in names), str(tmp_path / "home/x")]
        for _, folder in _KEPT
    ]


@pytest.mark.parametrize("key", ["CONVOY_", "CONVOY_ZZZ"])
def test_an_unknown_key_like_no_other_is_an_error_that_lists_the_known(key: str) -> None:
    with pytest.raises(SettingsError, match=f"{key} is not a setting; the settings are ") as caught:
        load_settings({}, {key: "1"})
    for name in Settings.model_fields:
        assert f"CONVOY_{name.upper()}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("port", "x", "must be a whole number"),
        ("port", "65536", "must be less than or equal to 65535"),
        ("port", "-1", "must be greater than or equal to 0"),
        ("device", "tpu", "must be 'auto', 'cuda' or 'cpu'"),
        ("max_batch", "0", "must be greater than or equal to 1"),
        ("max_body_mb", "0", "must be greater than 0"),
        ("max_body_mb", "nan", "must be a finite number"),
        ("max_megapixels", "inf", "must be a finite number"),
        ("agreement", "1.5", "must be less than or equal to 1"),
        ("drain_s", "soon", "must be a number"),
        *(
            ("devices", value, r"must be a list of GPUs \(cuda:0,cuda:1\), cuda:all, or a")
            for value in ("cpu", "cpu:0", "cpu:65", "cuda", "cuda:0,cpu:1", "cuda:0,", "gpu:0")
        ),
        ("max_queue", "7", "must be at least max_batch, 8"),
    ],
)
def test_a_value_that_makes_no_sense_is_named_as_it_was_given(
    name: str, value: str, says: str
) -> None:
    key = f"CONVOY_{name.upper()}"
    with pytest.raises(SettingsError, match=says) as caught:
        load_settings({}, {key: value})
    assert str(caught.value).startswith(f"{key}: {value} is not allowed")
    with pytest.raises(SettingsError, match=says) as caught:
        load_settings({name: value}, {})
    assert str(caught.value).startswith(f"--{name.replace('_', '-')}: {value} is not allowed")


def test_a_batch_too_large_for_the_queue_is_an_error_too() -> None:
    with pytest.raises(SettingsError, match=r"CONVOY_MAX_QUEUE: 32 .* at least max_batch, 64"):
        load_settings({"max_batch": 64}, {"CONVOY_MAX_QUEUE": "32"})


def test_all_invalid_settings_are_reported_at_once() -> None:
    with pytest.raises(SettingsError, match=r"CONVOY_DEVICE: .*; --port: "):
        load_settings({"port": -1}, {"CONVOY_DEVICE": "tpu"})


def test_settings_cannot_be_changed_nor_made_up() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1
    with pytest.raises(ValidationError):
        Settings(prot=1)  # type: ignore[call-arg]  # that is the point


def test_units_are_converted_once() -> None:
    settings = load_settings({"max_body_mb": 1.5, "max_megapixels": 2, "device": "cpu"}, {})
    assert (settings.max_body_bytes, settings.max_pixels) == (1_500_000, 2_000_000)
    assert settings.device is DeviceKind.CPU
    assert load_settings({"threads": 3}, {}).thread_count == 3
    assert load_settings({}, {}).thread_count >= 1


def test_devices_are_a_place_for_each_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def places(devices: str) -> Sequence[DeviceChoice]:
        return load_settings({"devices": devices}, {}).device_choices

    cpu, gpus = (
        DeviceChoice(DeviceKind.CPU),
        [DeviceChoice(DeviceKind.CUDA, number) for number in range(8)],
    )
    assert load_settings({"device": "cpu"}, {}).device_choices == [cpu]
    assert places("cpu:3") == [cpu] * 3
    assert places("cuda:1,cuda:0,cuda:1") == [gpus[1], gpus[0], gpus[1]]
    monkeypatch.setattr("service.settings.every_gpu", lambda: gpus[:2])
    assert places("cuda:all") == gpus[:2]


def test_engines_on_the_cpu_divide_the_threads() -> None:
    assert load_settings({"devices": "cpu:2", "threads": 5}, {}).engine_threads == 2
    assert load_settings({"devices": "cuda:0,cuda:1", "threads": 5}, {}).engine_threads == 5
    with pytest.raises(SettingsError, match=r"cpu:3 needs one thread per .* there are only 2"):
        assert load_settings({"devices": "cpu:3", "threads": 2}, {}).engine_threads


def test_device_and_devices_exclude_each_other() -> None:
    with pytest.raises(SettingsError, match=r"--devices: cpu:2 .* replaces --device; set only one"):
        load_settings({"devices": "cpu:2"}, {"CONVOY_DEVICE": "cuda"})
    assert load_settings({"device": "cpu"}, {"CONVOY_DEVICES": ""}).devices is None


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"device": "cpu"}, r"--resize: gpu .*needs a GPU"),
        ({"devices": "cpu:2"}, r"--resize: gpu .*needs a GPU"),
    ],
)
def test_a_gpu_resizes_where_there_may_be_one(others: dict[str, object], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        load_settings({"resize": "gpu", **others}, {})
    with pytest.raises(SettingsError, match=why.replace("resize", "decode")):
        load_settings({"decode": "gpu", **others}, {})
    assert load_settings({"resize": "cpu", **others}, {}).resize is ResizedBy.CPU
    for device in ({}, {"device": "cuda"}, {"devices": "cuda:0,cuda:1"}):
        assert load_settings({"resize": "gpu", **device}, {}).resize is ResizedBy.GPU


@pytest.mark.parametrize(
    ("flags", "takes"),
    [
        ({}, Kind.TENSOR),
        ({"decode": "auto"}, Kind.TENSOR),  # until a GPU has been measured
        ({"decode": "cpu"}, Kind.TENSOR),
        ({"resize": "gpu"}, Kind.DECODED),
        ({"resize": "gpu", "decode": "cpu"}, Kind.DECODED),
        ({"decode": "gpu"}, Kind.JPEG),
    ],
)
def test_what_a_gpu_takes_follows_from_what_it_is_to_do(
    flags: dict[str, object], takes: Kind
) -> None:
    assert load_settings(flags, {}).takes is takes
