"""Measures inference by gRPC beside HTTP, and beside a grpcio service that does nothing.

    python -m benchmarks.serving.protocols [--seconds N] [--rounds N] [--record [FILE]]

Both protocols are those of one Convoy process, the real application with an engine and a decoder
that do nothing; a request has a JPEG as a binary tensor of V2, and the answer 1000 scores. The
third server is grpcio's own, on the same event loop: it takes the same message, and answers bytes
that were made before. Tensors of pixels, of one image and of eight, are sent in the request and
in system shared memory. Servers take turns (A B C, C B A, ...), so other work on the machine
affects all of them. Each client keeps its connections busy from one process, and is part of what is
measured: grpcio's takes more of a core than the HTTP client, as any client by gRPC does.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.rows import RESULTS, add_record, append
from benchmarks.serving.http_client import (
    Address,
    Connection,
    closed_loop,
    free_port,
    post_request,
)
from benchmarks.serving.overhead import jpeg_of, serving, wait_until_ready, where
from benchmarks.serving.targets import both_protocols
from service.grpc.messages import INFERENCE, message_class

CONNECTIONS = (1, 8, 32)
FEW_CONNECTIONS = (1, 8)  # of eight images each: the queue has room for 128
BODY_BYTES = 100_000
RECORD = RESULTS / "service.jsonl"
HTTP, GRPC, BARE = "Convoy by HTTP", "Convoy by gRPC", "grpcio alone"

_METHOD = f"/{INFERENCE}/ModelInfer"
_CLASSES = 1000
_SIDE, _MOST_IMAGES = 224, 8
_OWN = [("grpc.use_local_subchannel_pool", 1)]  # each client its own connection


@dataclass(frozen=True)
class Measurement:
    """Holds the results of one server at one number of connections."""

    target: str
    connections: int
    body_bytes: int
    requests: int
    requests_a_second: float
    p50_ms: float
    p99_ms: float


def bare_service(port: int, listener: socket.socket) -> None:
    """Serve a gRPC method that returns constant bytes, and report readiness over HTTP."""
    message = message_class("inference.ModelInferResponse")(
        model_name="no-op", model_version="1", raw_output_contents=[bytes(4 * _CLASSES)]
    )
    answer: bytes = message.SerializeToString()

    async def infer(_data: bytes, _context: Any) -> bytes:
        return answer

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _call: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(infer)

    async def say_ready(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()

    async def main() -> None:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        server.add_generic_rpc_handlers((Handler(),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await asyncio.start_server(say_ready, sock=listener)
        await server.wait_for_termination()

    uvloop.run(main())


@dataclass(frozen=True)
class Sent:
    """Holds one tensor, which is in the request or in a region of shared memory."""

    kind: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes
    region: str = ""

    @property
    def parameters(self) -> dict[str, str | int]:
        """Return the tensor's parameters, except the size of a binary tensor."""
        if not self.region:
            return {}
        return {
            "shared_memory_region": self.region,
            "shared_memory_byte_size": len(self.data),
        }


def file_of(jpeg: bytes) -> Sent:
    """Return an image file as a tensor."""
    return Sent("JPEG", "BYTES", (1,), len(jpeg).to_bytes(4, "little") + jpeg)


def pixels_of(images: int, region: str = "") -> Sent:
    """Return black images as a tensor, in a shared region if one is named."""
    data = bytes(images * _SIDE * _SIDE * 3)
    kind = "pixels in shared memory" if region else "pixels"
    return Sent(kind, "UINT8", (images, _SIDE, _SIDE, 3), data, region)


def v2_body(sent: Sent) -> tuple[int, bytes]:
    """Return the length of a request's JSON, and its body: the JSON, and the tensor's bytes."""
    data = b"" if sent.region else sent.data
    size = {} if sent.region else {"binary_data_size": len(data)}
    tensor = {
        "name": "image",
        "datatype": sent.datatype,
        "shape": sent.shape,
        "parameters": sent.parameters | size,
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return len(head), head + data


def v2_request(sent: Sent, model: str = "no-op") -> bytes:
    """Return a request to a model by HTTP."""
    head, body = v2_body(sent)
    length = f"Inference-Header-Content-Length: {head}"
    return post_request(f"/v2/models/{model}/infer", body, "application/octet-stream", length)


def v2_message(sent: Sent, model: str = "no-op") -> bytes:
    """Return the same request as a protobuf message."""
    message = message_class("inference.ModelInferRequest")(model_name=model)
    tensor = message.inputs.add(name="image", datatype=sent.datatype, shape=sent.shape)
    for name, value in sent.parameters.items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(tensor.parameters[name], kind, value)
    if not sent.region:
        message.raw_input_contents.append(sent.data)
    encoded: bytes = message.SerializeToString()
    return encoded


@contextmanager
def region_of(address: Address, size: int) -> Iterator[str]:
    """Yield the name of a region of shared memory, filled with zeros and registered with the
    server."""
    name = f"convoy-benchmark-{os.getpid()}-{size}"
    file = Path("/dev/shm", name)
    file.write_bytes(bytes(size))
    connection = Connection(address)
    try:
        body = json.dumps({"key": f"/{name}", "byte_size": size}).encode()
        path = f"/v2/systemsharedmemory/region/{name}/register"
        connection.exchange(post_request(path, body, "application/json"))
        yield name
    finally:
        connection.close()
        file.unlink()


def closed_loop_of_grpc(port: int, message: bytes, connections: int, seconds: float) -> list[float]:
    """Return the seconds of each call, sent `connections` at a time for about `seconds`."""
    took: list[float] = []

    async def ask(deadline: float) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OWN) as channel:
            call = channel.unary_unary(_METHOD)
            while (started := perf_counter()) < deadline:
                await call(message)
                took.append(perf_counter() - started)

    async def main() -> None:
        deadline = perf_counter() + seconds
        await asyncio.gather(*(ask(deadline) for _ in range(connections)))

    uvloop.run(main())
    return took


def measure(
    loops: Mapping[str, Callable[[int, float], list[float]]],
    sent: Sent,
    seconds: float,
    rounds: int,
    all_connections: Sequence[int] = CONNECTIONS,
) -> list[Measurement]:
    """Load each server for `seconds` in each round; servers take turns."""
    measured = []
    for connections in all_connections:
        took: dict[str, list[float]] = {name: [] for name in loops}
        for number in range(rounds):
            for name in sorted(loops, key=list(loops).index, reverse=number % 2 == 1):
                took[name] += loops[name](connections, seconds)
        for name, times in took.items():
            marks = statistics.quantiles(times, n=100)
            rate = len(times) / (seconds * rounds)
            p50_ms, p99_ms = marks[49] * 1e3, marks[98] * 1e3
            about = name, connections, len(sent.data), len(times)
            measured.append(Measurement(*about, rate, p50_ms, p99_ms))
    return measured


def by_both(
    address: Address, port: int, sent: Sent
) -> dict[str, Callable[[int, float], list[float]]]:
    """Return a load function for Convoy for each protocol, by the protocol's name."""
    where_sent = f", {sent.kind}"
    return {
        HTTP + where_sent: partial(closed_loop, address, v2_request(sent)),
        GRPC + where_sent: partial(closed_loop_of_grpc, port, v2_message(sent)),
    }


def main(command_line: Sequence[str] | None = None) -> None:
    """Measure, show, and write down what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.protocols")
    parser.add_argument("--seconds", type=float, default=2, help="of load a turn (%(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each (%(default)s)")
    add_record(parser, RECORD)
    arguments = parser.parse_args(command_line)
    ports = free_port(), free_port()
    turns = arguments.seconds, arguments.rounds
    measured = []
    with ExitStack() as servers:
        addresses: list[Address] = [
            servers.enter_context(serving(partial(target, port)))
            for target, port in zip((both_protocols, bare_service), ports, strict=True)
        ]
        for address in addresses:
            wait_until_ready(address)
        sent = file_of(jpeg_of(BODY_BYTES))
        bare = partial(closed_loop_of_grpc, ports[1], v2_message(sent))
        measured += measure(by_both(addresses[0], ports[0], sent) | {BARE: bare}, sent, *turns)
        for images in (1, _MOST_IMAGES):
            pixels = pixels_of(images)
            region = servers.enter_context(region_of(addresses[0], len(pixels.data)))
            shared = by_both(addresses[0], ports[0], pixels_of(images, region))
            loops = by_both(addresses[0], ports[0], pixels) | shared
            measured += measure(loops, pixels, *turns, FEW_CONNECTIONS)
    table = Table("", "kB", "connections", "requests/s", "p50 ms", "p99 ms")
    for row in measured:
        numbers = f"{row.requests_a_second:.0f}", f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}"
        table.add_row(row.target, f"{row.body_bytes / 1e3:.0f}", str(row.connections), *numbers)
    Console(highlight=False, width=100).print(table)
    if arguments.record:
        stands = where("grpcio", "uvicorn", "uvloop") | {"part": "protocols"}
        append(arguments.record, [{**stands, **asdict(row)} for row in measured])


if __name__ == "__main__":
    main()
