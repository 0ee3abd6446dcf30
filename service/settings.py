"""Settings of the service: read once, validated, frozen, and passed down as arguments.

A flag wins over the environment (CONVOY_PORT=8080), which wins over the default. This is the only
file that reads the environment.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from models import DEFAULT_TUNING, DeviceKind
from service.engine.cgroups import available_memory
from service.engine.cores import available_cores
from service.telemetry.logs import LogFormat

PREFIX = "CONVOY_"

# Of the memory that there is: the rest is for the model, its engine, and bodies.
_DECODE_SHARE = 4


class SettingsError(ValueError):
    """Something is set to what it cannot be; the message names it as the user wrote it."""


class Settings(BaseModel):
    """Everything that can be set; the field names are the flags and the environment's keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    model: Annotated[
        Path | None,
        Field(
            description="ONNX model file, or a folder with a folder for each model; "
            "the built-in digits model if not given"
        ),
    ] = None
    default_model: Annotated[
        str | None, Field(description="which of several models /v1/classify asks")
    ] = None
    preset: Annotated[
        str | None,
        Field(description="named preprocessing, over the model's own: imagenet, caffe or digits"),
    ] = None
    labels: Annotated[
        Path | None, Field(description="text file with one label a line, over the model's own")
    ] = None
    device: Annotated[DeviceKind, Field(description="where the model runs")] = DeviceKind.AUTO
    host: Annotated[str, Field(min_length=1, description="address to listen on")] = "127.0.0.1"
    port: Annotated[
        int, Field(ge=0, le=65535, description="port to listen on; 0 takes a free one")
    ] = 8000
    max_batch: Annotated[
        int, Field(ge=1, le=64, description="most images that travel together")
    ] = 8
    max_queue: Annotated[
        int, Field(ge=1, le=100_000, description="most images that wait; more are answered 429")
    ] = 128
    max_body_mb: Annotated[
        float, Field(gt=0, le=1024, description="largest request body, in MB of 1,000,000 bytes")
    ] = 20.0
    max_megapixels: Annotated[
        float, Field(gt=0, le=1000, description="most pixels in one image, in millions")
    ] = 25.0
    decode_mb: Annotated[
        float,
        Field(
            ge=0,
            le=1_000_000,
            description="memory for decoding images, of all threads together, in MB of 1,000,000 "
            "bytes; 0: a quarter of what the container, or else the machine, has",
        ),
    ] = 0.0
    threads: Annotated[
        int,
        Field(ge=0, le=1024, description="threads to decode with, and to run on the CPU; 0: cores"),
    ] = 0
    workers: Annotated[
        int,
        Field(
            ge=0,
            le=64,
            description="processes for HTTP and decoding, beside the one with the engines; "
            "0: that one does it all",
        ),
    ] = 0
    drain_s: Annotated[
        float, Field(ge=0, le=3600, description="longest wait for accepted requests at shutdown")
    ] = 20.0
    engine_timeout_s: Annotated[
        float | None,
        Field(
            ge=0,
            le=86_400,
            description="longest that a batch may take before the engine counts as hung and is "
            "restarted; 0: no bound; if not given, 50 times what such batches take, at least 10",
        ),
    ] = None
    warm_up_timeout_s: Annotated[
        float,
        Field(
            ge=0,
            le=86_400,
            description="longest that an engine may take to warm up; 0: as long as it takes",
        ),
    ] = 0.0

    max_connections: Annotated[
        int, Field(ge=1, le=100_000, description="most connections that are open at once")
    ] = 1024
    max_connections_per_address: Annotated[
        int,
        Field(
            ge=0,
            le=100_000,
            description="most connections of one address, or of one /64 network of IPv6; "
            "0: half of --max-connections",
        ),
    ] = 0
    max_rate: Annotated[
        float,
        Field(
            ge=0,
            le=1_000_000,
            description="most requests a second of one client, told apart as for --max-per-client; "
            "more are answered 429; 0: any number",
        ),
    ] = 0.0
    max_per_client: Annotated[
        int,
        Field(
            ge=0,
            le=100_000,
            description="most requests of one client inside at once, told apart by API key or else "
            "by address, which behind a proxy is the proxy's; 0: any number",
        ),
    ] = 0
    api_key_file: Annotated[
        Path | None,
        Field(description="text file with one API key a line; if given, requests need one of them"),
    ] = None
    metrics_port: Annotated[
        int | None,
        Field(
            ge=0,
            le=65535,
            description="port for /metrics alone, without API keys, instead of --port; "
            "0 takes a free one",
        ),
    ] = None
    log_format: Annotated[LogFormat, Field(description="text or json")] = LogFormat.TEXT
    access_log: Annotated[bool, Field(description="log a line for every request")] = True
    otel: Annotated[
        bool,
        Field(
            description="send a trace of every request by OpenTelemetry, "
            "which is set up by its own OTEL_ variables"
        ),
    ] = False

    tuning: Annotated[
        Path | None,
        Field(description=f"what `convoy tune` measured, on a GPU [{DEFAULT_TUNING}]"),
    ] = None
    external_data: Annotated[
        bool, Field(description="read weights from other files in the model's own folder")
    ] = False

    @model_validator(mode="after")
    def _a_batch_fits_the_queue(self) -> Self:
        if self.max_queue < self.max_batch:
            raise ValueError(f"must be at least max_batch, {self.max_batch}")
        return self

    @property
    def max_body_bytes(self) -> int:
        """`max_body_mb` in bytes."""
        return int(self.max_body_mb * 1e6)

    @property
    def max_pixels(self) -> int:
        """`max_megapixels` in pixels."""
        return int(self.max_megapixels * 1e6)

    @property
    def decode_bytes(self) -> int:
        """`decode_mb` in bytes, with 0 resolved."""
        return int(self.decode_mb * 1e6) or available_memory() // _DECODE_SHARE

    @property
    def connections_per_address(self) -> int:
        """`max_connections_per_address`, with 0 resolved."""
        return self.max_connections_per_address or max(1, self.max_connections // 2)

    @property
    def thread_count(self) -> int:
        """`threads`, with 0 resolved to the cores that there are."""
        return self.threads or available_cores()


def load_settings(
    flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Settings from flags (None: not given) over the environment's CONVOY_ keys over defaults.

    An empty value in the environment counts as not set. SettingsError: a key that does not exist,
    or a value that makes no sense.
    """
    environ = os.environ if environ is None else environ
    given: dict[str, object] = {}
    source: dict[str, str] = {}
    for key, value in environ.items():
        if not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX).lower()
        if name not in Settings.model_fields or key != key.upper():
            known = ", ".join(PREFIX + field.upper() for field in Settings.model_fields)
            raise SettingsError(f"{key} is not a setting; there are {known}")
        if value != "":
            given[name], source[name] = value, key
    for name, flag in (flags or {}).items():
        if flag is not None:
            given[name], source[name] = flag, "--" + name.replace("_", "-")
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(error, given, source))) from None


def parse_assignments(assignments: Sequence[str]) -> dict[str, object]:
    """`key=value` flags as TOML means them; a value that is no TOML is text (channels=bgr).

    SettingsError: one without a `=`.
    """
    parsed: dict[str, object] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise SettingsError(f"--set: {assignment} is not allowed; write KEY=VALUE, as size=299")
        try:
            parsed[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed[key.strip()] = value.strip()
    return parsed


def _explain(
    error: ValidationError, given: Mapping[str, object], source: Mapping[str, str]
) -> list[str]:
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        # A rule over several settings has no place of its own; there is one, about the queue.
        name = str(problem["loc"][0]) if problem["loc"] else "max_queue"
        reason = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        value = given.get(name, getattr(Settings.model_fields.get(name), "default", None))
        lines.append(f"{source.get(name, name)}: {value} is not allowed; it {_must(reason)}")
    return lines


def _must(reason: str) -> str:
    """Pydantic's reason as what the value must be, without how it was parsed."""
    reason = reason.partition(", unable to")[0]
    return reason if reason.startswith("must ") else f"must be {reason}"
