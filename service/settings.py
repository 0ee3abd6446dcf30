"""Reads the settings from flags and environment variables, and validates them.

A command-line flag overrides the environment variable (such as CONVOY_PORT=8080), which overrides
the default. No other module of the service reads the environment.
"""

import logging
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum, StrEnum, unique
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from models import (
    CACHE_FOLDER,
    DEFAULT_TUNING,
    DeviceChoice,
    DeviceKind,
    Kind,
    Precision,
    every_gpu,
    keep_below,
)
from service.machine.cgroups import available_memory
from service.machine.cores import available_cores

PREFIX = "CONVOY_"

BUILT_IN_NAME = "digits"  # the model that is served if no model is named

# The values of --devices: GPUs by number, every GPU, or engines on the CPU.
_PLACES = re.compile(r"cuda:\d{1,3}(,cuda:\d{1,3}){0,63}|cuda:all|cpu:([1-9]|[1-5]\d|6[0-4])")

# The default share of memory for decoding; the rest is for the model, its engine and bodies.
_DECODE_SHARE = 4


class SettingsError(ValueError):
    """Says which setting is invalid. Names the flag or the environment variable that the user
    gave."""


@unique
class ResizedBy(Enum):
    """Names the processor that resizes decoded images."""

    CPU = "cpu"
    GPU = "gpu"


@unique
class DecodedBy(Enum):
    """Names the processor that decodes JPEG files."""

    AUTO = "auto"
    CPU = "cpu"
    GPU = "gpu"


# The most job processes: more would wait for the one thread that receives and answers.
_MOST_PROCESSES = 8


class LogFormat(StrEnum):
    """Names the format of log lines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The lowest severity of the messages that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """Return the level's number in Python's module `logging`."""
        return logging.getLevelNamesMapping()[self.name]


class Settings(BaseModel):
    """All settings. A field's name is also the name of its flag and environment variable. A field's
    docstring is the help of its flag."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,  # else a range would call nan too large
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    model: Path | None = None
    """ONNX model file, folder, name that `convoy models` lists, or hf://ORG/NAME. A folder has
    model.onnx, or one folder per model. Addresses on a hub may also be hf://ORG/NAME@REVISION or
    hf://ORG/NAME/FILE.onnx. Models that are not on this machine yet are downloaded. [default:
    digits, the built-in model]"""
    model_name: str | None = None
    """Name of the model, if only one is served. [default: the name of its file or folder]"""
    default_model: str | None = None
    """Model behind /v1/classify, if several are served."""
    strict: bool = False
    """Do not start if a model of a folder cannot be opened. Without this flag, such a model is
    listed with its error, and the other models are served."""
    preset: str | None = None
    """Preprocessing that replaces the model's own, such as imagenet, caffe or unit; docs/models.md
    lists all."""
    labels: Path | None = None
    """File of labels that replaces the model's own: one per line, or JSON, YAML or CSV."""
    beside: str | None = None
    """KEY=VALUE: serve the model twice, the second time with this key of model.toml. For example
    preset=caffe or precision=fp16. The second model's name ends in the value, and the page compares
    both."""
    device: DeviceKind = DeviceKind.AUTO
    """Where the model runs."""
    precision: Precision | None = None
    """Precision in which a GPU computes. Choices are fp32; 3xtf32, on tensor cores, with up to 1.7
    times the rounding error of fp32 in a layer and 2.4 times in a network; tf32; fp16; and int8,
    for a quantized model, which `convoy quantize` creates. The CPU computes in int8 if the model is
    quantized, otherwise in fp32. [default: the precision in model.toml; otherwise int8 if the model
    is quantized, fp16 if its weights are fp16, and fp32 for other models]"""
    devices: str | None = None
    """Several engines for one queue, such as cuda:0,cuda:1 or cpu:2, instead of --device. cuda:all
    uses every GPU; cpu:2 is two engines with half of the threads each."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0: any free port."""
    grpc_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the V2 protocol over gRPC; 0: any free port. [default: none]"""
    max_batch: int = Field(default=8, ge=1, le=64)
    """Most images in a batch."""
    max_queue: int = Field(default=128, ge=1, le=100_000)
    """Most images that wait. If more arrive, a request of the client with the most waiting images
    gets 429."""
    max_body_mb: float = Field(default=20, gt=0, le=1024)
    """Largest request body, in MB of 1,000,000 bytes."""
    max_megapixels: float = Field(default=25, gt=0, le=1000)
    """Most pixels in one image, in millions."""
    max_clip_s: float = Field(default=5, gt=0, le=60)
    """Longest time on one core that decoding a clip may take, as estimated from its header."""
    decode_mb: float = Field(default=0, ge=0, le=1_000_000)
    """Memory for decoding, over all threads, in MB of 1,000,000 bytes; 0: a quarter of the
    container's or machine's memory."""
    threads: int = Field(default=0, ge=0, le=1024)
    """Threads that decode, run an engine on the CPU, or compile kernels; 0: one per core."""
    resize: ResizedBy = ResizedBy.CPU
    """Where decoded images are resized; the pixels are the same. cpu: in the decode threads. gpu:
    on the GPU, in one graph with the network, so the decode threads have less work. This takes 10
    MB of memory per image of a batch, 3.4 MB of them on the host, and has not been measured on a
    GPU. With gpu, the CPU still resizes images of more than a megapixel after decoding, images that
    are expensive to decode, and images for an engine on the CPU."""
    decode: DecodedBy = DecodedBy.AUTO
    """Where JPEG files are decoded; the pixels are the same. cpu: in the decode threads. gpu: on
    the GPU, in one graph with resizing and the network, which takes 36 MB more GPU memory per image
    of a batch. With gpu, the CPU still decodes files that are progressive, larger than 4 megapixels
    or 1 MB, or unusual. auto: on the CPU, because no GPU has been measured yet."""
    notice_s: float = Field(default=0, ge=0, le=3600)
    """Time after SIGTERM in which requests are still answered. The readiness check fails then, and
    each answer closes its connection. Set a longer time than a proxy's health checks need to notice
    the failure."""
    drain_s: float = Field(default=20, ge=0, le=3600)
    """Longest time to finish accepted requests at shutdown."""
    engine_timeout_s: float | None = Field(default=None, ge=0, le=86_400)
    """Longest time that a batch may run before its engine counts as hung and restarts; 0: no limit.
    [default: 50 times the time measured during warm-up, at least 10]"""
    warm_up_timeout_s: float = Field(default=0, ge=0, le=86_400)
    """Longest time to warm up an engine, and longest time to read a model at the start; 0: no
    limit."""
    max_connections: int = Field(default=1024, ge=1, le=100_000)
    """Most open connections."""
    max_connections_per_address: int = Field(default=0, ge=0, le=100_000)
    """Most open connections from one IPv4 address or IPv6 /64 network; 0: half of
    --max-connections."""
    max_rate: float = Field(default=0, ge=0, le=1_000_000)
    """Most images per second from one client; further requests get 429; 0: no limit. Clients are
    identified as for --max-per-client, and a request counts as at least one image."""
    max_per_client: int = Field(default=0, ge=0, le=100_000)
    """Most images of one client in progress at once; 0: no limit. A client is identified by its API
    key, or without keys by its IPv4 address or IPv6 /64 network. Behind a proxy, this is the
    proxy's address. A request counts as at least one image."""
    api_key_file: Path | None = None
    """Text file with one API key per line; if given, requests need a key. Words may follow a key:
    weight=N, its weight compared with other keys (1 by default); priority=1, to allow priority 1;
    repository, to allow loading and unloading models; and shared-memory, to allow shared memory."""
    hosts: str | None = None
    """Additional names of this server, separated by commas, such as example.org. Clients without
    keys may load models or use shared memory only if they call the server by one of its names,
    because a page of another site could use its own name for this server's address. [default:
    --host and the loopback addresses]"""
    cors_origin: str | None = None
    """Origin whose pages may call the server from a browser, such as https://example.org; or * for
    all."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Separate port for /metrics, without API keys; 0: any free port."""
    shared_memory: bool = False
    """Let clients on this machine register system shared memory, and pass tensors in it."""
    repository_api: bool = False
    """Let clients load and unload the models of the served folder or file with calls of the V2
    protocol."""
    watch: bool = False
    """Reload a model when its files change, and load models from new folders."""
    agreement: float = Field(default=0.8, ge=0, le=1)
    """Least fraction of recent images that a new version must label like the old version. If the
    fraction is smaller, the old version stays. 0: every new version is loaded."""
    log_level: LogLevel = LogLevel.INFO
    """Lowest severity of messages that are logged. Requests are info. Successful health probes,
    scrapes of metrics and periodic requests of the page are debug."""
    log_format: LogFormat = LogFormat.TEXT
    """Format of the log."""
    access_log: bool = True
    """Log one line per request."""
    direct_path: bool = True
    """Answer requests for models without FastAPI's router, which is faster. The answers are the
    same."""
    otel: bool = False
    """Trace every request with OpenTelemetry; its OTEL_ variables configure it."""
    tuning: Path | None = Field(
        default=None,
        description=f"Results of `convoy tune`, used on a GPU. [default: {DEFAULT_TUNING.name} in"
        " the folder --cache]",
    )
    catalogue: Path | None = None
    """TOML file with more models for `convoy pull`."""
    cache: Path | None = None
    """Folder for cached files: downloaded models, compiled kernels, results of `convoy
    tune`. [default: convoy in XDG_CACHE_HOME, or ~/.cache/convoy]"""
    external_data: bool = False
    """Allow weights in subfolders of the model's folder; weights in files next to the model are
    always read."""

    @field_validator("devices")
    @classmethod
    def _are_devices(cls, devices: str | None, info: ValidationInfo) -> str | None:
        if devices and not _PLACES.fullmatch(devices):
            raise ValueError(
                "must be a list of GPUs (cuda:0,cuda:1), cuda:all, or a number of CPU engines"
                " (cpu:2)"
            )
        if devices and info.data.get("device", DeviceKind.AUTO) is not DeviceKind.AUTO:
            raise ValueError("replaces --device; set only one of the two")
        return devices

    @field_validator("host", "hosts")
    @classmethod
    def _are_names(cls, names: str | None) -> str | None:
        if names and not all(map(_is_name, names.split(","))):
            raise ValueError("must be a name or an address, without http:// and without a port")
        return names

    @field_validator("resize", "decode")
    @classmethod
    def _has_a_gpu(cls, by: ResizedBy | DecodedBy, info: ValidationInfo) -> ResizedBy | DecodedBy:
        given = info.data
        if by not in (ResizedBy.GPU, DecodedBy.GPU):
            return by
        if given.get("device") is DeviceKind.CPU or str(given.get("devices")).startswith("cpu"):
            raise ValueError("needs a GPU, but --device or --devices names the CPU")
        return by

    @field_validator("cors_origin")
    @classmethod
    def _is_origin(cls, origin: str | None) -> str | None:
        if origin and not re.fullmatch(r"\*|https?://[!-.0-~]+", origin):
            raise ValueError("must be an origin, such as https://example.org, or *")
        return origin

    @model_validator(mode="after")
    def _queue_holds_a_batch(self) -> Self:
        if self.max_queue < self.max_batch:
            raise ValueError(f"must be at least max_batch, {self.max_batch}")
        return self

    @property
    def device_choices(self) -> Sequence[DeviceChoice]:
        """Return the device of each engine. Raises EngineError for `cuda:all` without a GPU."""
        if not self.devices:
            return [DeviceChoice(self.device)]
        if self.devices == "cuda:all":
            return every_gpu()
        kinds = [device.split(":") for device in self.devices.split(",")]
        if kinds[0][0] == "cpu":
            return [DeviceChoice(DeviceKind.CPU)] * int(kinds[0][1])
        return [DeviceChoice(DeviceKind.CUDA, int(number)) for _, number in kinds]

    @property
    def takes(self) -> Kind:
        """Return the highest `Kind` of image that a GPU accepts. The GPU also accepts the lower
        kinds. For example, a GPU that accepts JPEG files also accepts decoded images and resizes
        them."""
        if self.decode is DecodedBy.GPU:
            return Kind.JPEG
        return Kind.DECODED if self.resize is ResizedBy.GPU else Kind.TENSOR

    @property
    def may_change(self) -> bool:
        """Return whether models can be loaded, replaced or unloaded while the server runs."""
        return self.repository_api or self.watch

    @property
    def engine_threads(self) -> int:
        """Return the number of threads of one CPU engine.

        Raises SettingsError if there are more engines than threads.
        """
        engines = 1
        if self.devices and self.devices.startswith("cpu"):
            engines = len(self.device_choices)
        if engines > self.thread_count:
            raise SettingsError(
                f"--devices: {self.devices} needs one thread per engine, but there are only "
                f"{self.thread_count} threads; use fewer engines, or raise --threads"
            )
        return self.thread_count // engines

    @property
    def processes(self) -> int:
        """Return the maximum number of processes that decode and run a model's images: one per
        thread, but at most `_MOST_PROCESSES`. With a single thread, it is 0."""
        return min(self.thread_count, _MOST_PROCESSES) if self.thread_count > 1 else 0

    @property
    def listens_locally(self) -> bool:
        """Return whether only clients on this machine can reach the server."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def host_names(self) -> Sequence[str]:
        """Return the names in `hosts`."""
        return self.hosts.split(",") if self.hosts else ()

    @property
    def max_body_bytes(self) -> int:
        """Return `max_body_mb` in bytes."""
        return int(self.max_body_mb * 1e6)

    @property
    def max_pixels(self) -> int:
        """Return `max_megapixels` in pixels."""
        return int(self.max_megapixels * 1e6)

    @property
    def decode_bytes(self) -> int:
        """Return `decode_mb` in bytes. If it is 0, return a quarter of the memory."""
        return int(self.decode_mb * 1e6) or available_memory() // _DECODE_SHARE

    @property
    def connections_per_address(self) -> int:
        """Return `max_connections_per_address`. If it is 0, return half of `max_connections`."""
        return self.max_connections_per_address or max(1, self.max_connections // 2)

    @property
    def thread_count(self) -> int:
        """Return `threads`. If it is 0, return the number of available cores."""
        return self.threads or available_cores()


GROUPS: Mapping[str, Sequence[str]] = {
    "Often used": (
        *("model", "host", "port", "grpc_port", "device", "preset", "labels", "max_batch"),
        "api_key_file",
    ),
    "Models": (
        *("model_name", "default_model", "strict", "beside", "watch", "agreement"),
        *("repository_api", "shared_memory", "catalogue", "cache", "external_data"),
    ),
    "The network": ("precision", "devices", "resize", "decode", "threads", "tuning"),
    "Limits": (
        *("max_queue", "max_body_mb", "max_megapixels", "max_clip_s", "decode_mb"),
        *("max_connections", "max_connections_per_address", "max_rate", "max_per_client"),
    ),
    "Reliability": ("notice_s", "drain_s", "engine_timeout_s", "warm_up_timeout_s"),
    "Access": ("hosts", "cors_origin", "direct_path"),
    "Logs and metrics": ("log_level", "log_format", "access_log", "metrics_port", "otel"),
}
"""The settings by group, as in `convoy serve --help`."""


def _is_name(text: str) -> bool:
    """Return whether a text is an IP address or a host name, as in a Host header."""
    try:
        ip_address(text)
    except ValueError:
        return re.fullmatch(r"[\w-]+(\.[\w-]+)*", text) is not None
    return True


# The most characters of a setting's description in two lines of the help.
_TWO_LINES = 85


def short(text: str) -> str:
    """Return the first sentence of a setting's description. Append the default if both fit in two
    lines. If the text says what 0 means, the default 0 is shown with this meaning."""
    whole, found, default = text.partition(" [default: ")
    first = re.split(r"\. |; ", whole, maxsplit=1)[0].rstrip(".")
    if default in ("0]", "0.0]") and (zero := re.search(r"\b0: ([^.;]+)", whole)):
        default = f"0: {zero[1]}]"
    return f"{first} [{default}" if found and len(first + default) <= _TWO_LINES else first


# The variables that Kubernetes sets for every Service of a namespace; the Service may be named
# convoy or convoy-digits.
_SERVICE_LINK = re.compile(
    r"(\w+_)?SERVICE_(HOST|PORT(_\w+)?)|(\w+_)?PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
_LINKED = re.compile(r"(tcp|udp|sctp)://.*")


def _is_service_link(key: str, value: str) -> bool:
    """Return whether Kubernetes has set this variable to describe a Service, such as
    CONVOY_SERVICE_HOST or CONVOY_PORT=tcp://..."""
    name = key.removeprefix(PREFIX)
    return bool(_SERVICE_LINK.fullmatch(name)) or (
        name.endswith("PORT") and bool(_LINKED.fullmatch(value))
    )


def _cache_in(environ: Mapping[str, str]) -> Path:
    """Return the cache folder that CONVOY_CACHE or XDG_CACHE_HOME sets, or the default."""
    if chosen := environ.get("CONVOY_CACHE"):
        return Path(chosen)
    shared = Path(environ.get("XDG_CACHE_HOME", ""))
    return shared / "convoy" if shared.is_absolute() else CACHE_FOLDER  # as the specification says


# Set here, so that it applies to every process that a server starts.
keep_below(_cache_in(os.environ))


def load_settings(
    flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Return the settings. Flags override CONVOY_ variables, which override defaults. A flag with
    the value None was not given.

    An empty variable counts as not set. Raises SettingsError for an unknown variable or an invalid
    value.
    """
    known = {PREFIX + name.upper(): name for name in Settings.model_fields}
    given: dict[str, tuple[str, object]] = {}  # each with its name as the user wrote it
    for key, value in (os.environ if environ is None else environ).items():
        if key.startswith(PREFIX) and not _is_service_link(key, value):
            if key not in known:
                raise SettingsError(_unknown(key))
            if value:
                given[known[key]] = key, value
    for name, flag in (flags or {}).items():
        if flag is not None:
            given[name] = "--" + name.replace("_", "-"), flag
    try:
        settings = Settings.model_validate({name: value for name, (_, value) in given.items()})
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(error, given))) from None
    if environ is None and settings.cache is not None:
        os.environ[PREFIX + "CACHE"] = str(settings.cache)  # for the processes that this one starts
        keep_below(settings.cache)
    return settings


@dataclass(frozen=True)
class HubAccess:
    """The settings for downloads from the Hugging Face hub. They come from the same environment
    variables that Hugging Face's own programs read."""

    endpoint: str = "https://huggingface.co"
    token: str = field(default="", repr=False)
    offline: bool = False


def hub_access(environ: Mapping[str, str] | None = None) -> HubAccess:
    """Return the settings in HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE. Raises SettingsError.

    There is no flag for the token, because every user of the machine can read the command lines of
    processes.
    """
    given = os.environ if environ is None else environ
    endpoint = (given.get("HF_ENDPOINT") or HubAccess.endpoint).rstrip("/")
    if not re.fullmatch(r"https?://[!-~]+", endpoint):
        raise SettingsError(
            f"HF_ENDPOINT: {endpoint} is not allowed; it must be an address such as"
            " https://example.org"
        )
    token = given.get("HF_TOKEN", "").strip()
    if not re.fullmatch(r"[!-~]*", token):
        raise SettingsError("HF_TOKEN has characters that no token has; copy the token again")
    offline = given.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "true", "yes")
    return HubAccess(endpoint, token, offline)


def called_by_make(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether `make serve` runs this command. If so, hints name `make` instead of
    `convoy`."""
    return "CALLED_BY_MAKE" in (os.environ if environ is None else environ)


def parse_assignments(assignments: Sequence[str], flag: str = "--set") -> dict[str, object]:
    """Parse the `key=value` arguments of a flag. Values are in TOML. A value that is not valid TOML
    is a string, as in channels=bgr.

    Raises SettingsError if there is no `=` or no key before it.
    """
    parsed: dict[str, object] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise SettingsError(
                f"{flag}: {assignment} is not allowed; write KEY=VALUE, such as size=299"
            )
        try:
            parsed[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed[key.strip()] = value.strip()
    return parsed


def _unknown(key: str) -> str:
    names = get_close_matches(key.removeprefix(PREFIX).lower(), Settings.model_fields, n=1)
    keys = ", ".join(PREFIX + name.upper() for name in names or Settings.model_fields)
    right = f"did you mean {keys}?" if names else f"the settings are {keys}"
    return f"{key} is not a setting; {right}"


def _explain(error: ValidationError, given: Mapping[str, tuple[str, object]]) -> Iterator[str]:
    """Yield a sentence for each invalid setting, without Pydantic's technical terms."""
    for problem in error.errors(include_url=False, include_context=False):
        # A rule over several settings has no location; the only one is about the queue.
        name = str(problem["loc"][0]) if problem["loc"] else "max_queue"
        written, value = given.get(name, (name, Settings.model_fields[name].default))
        reason = problem["msg"].removeprefix("Value error, ").partition(", unable to")[0]
        reason = reason.replace("Input should be", "must be", 1)
        reason = reason.replace("a valid integer", "a whole number").replace("a valid nu", "a nu")
        reason = reason.replace("a valid boolean", "true or false")
        default = name in Settings.model_fields and Settings.model_fields[name].default
        if reason.endswith("number") and default:
            reason += f", as {default}"
        yield f"{written}: {value} is not allowed; it {reason}"
