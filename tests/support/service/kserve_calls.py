"""Makes the same calls with KServe's client over HTTP and over gRPC, and prints the answers as
JSON.

    PYTHON kserve_calls.py HTTP_ADDRESS GRPC_ADDRESS JPEG

This program runs with a separate Python, because kserve 0.21.0 needs protobuf 6, and Convoy's tests
need protobuf 7. It imports nothing from Convoy.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

PIXELS = np.full((2, 4, 6, 3), (10, 20, 30), np.uint8)


def pixels(*, binary: bool) -> InferInput:
    """Return an input of pixels, as bytes or as typed numbers."""
    tensor = InferInput("image", list(PIXELS.shape), "UINT8")
    tensor.set_data_from_numpy(PIXELS, binary_data=binary)
    return tensor


def file(path: Path) -> InferInput:
    """Return an input of one file."""
    tensor = InferInput("image", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([path.read_bytes()], np.object_), binary_data=True)
    return tensor


class Grpc:
    """Makes calls of KServe's client over gRPC."""

    def __init__(self, address: str) -> None:
        self._client = InferenceGRPCClient(url=address)

    async def health(self) -> list[Any]:
        """Return the server's description of itself and of a model."""
        client = self._client
        model = await client.is_model_ready("digits")
        return [await client.is_server_live(), await client.is_server_ready(), model]

    async def infer(self, request: InferRequest) -> Any:
        """Return the answer to an inference."""
        return await self._client.infer(request)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


class Http:
    """Makes calls of KServe's client over HTTP."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}"
        self._client = InferenceRESTClient(RESTConfig(protocol="v2"))

    async def health(self) -> list[Any]:
        """Return the server's description of itself and of a model."""
        client, url = self._client, self._url
        model = await client.is_model_ready(url, "digits")
        return [await client.is_server_live(url), await client.is_server_ready(url), model]

    async def infer(self, request: InferRequest) -> Any:
        """Return the answer to an inference."""
        return await self._client.infer(self._url, request, request.model_name)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


async def answers(client: Grpc | Http, jpeg: Path) -> dict[str, Any]:
    """Return the answers to every call."""
    asked = {
        "bytes": InferRequest("channels.v2", [pixels(binary=True)], request_id="one"),
        "numbers": InferRequest("channels.v2", [pixels(binary=False)]),
        "a file": InferRequest("digits", [file(jpeg)]),
        "no such model": InferRequest("no", [pixels(binary=True)]),
    }
    found: dict[str, Any] = {"health": await client.health()}
    for name, request in asked.items():
        try:
            answer = await client.infer(request)
        except Exception as error:  # noqa: BLE001  printed
            found[name] = str(error)
            continue
        (output,) = answer.outputs
        scores = output.as_numpy().tolist()
        found[name] = [answer.model_name, output.name, output.datatype, output.shape, scores]
    await client.close()
    return found


async def main() -> None:
    """Print the answers over each protocol."""
    http, grpc, jpeg = sys.argv[1:]
    by: dict[str, Grpc | Http] = {"http": Http(http), "grpc": Grpc(grpc)}
    print(json.dumps({name: await answers(each, Path(jpeg)) for name, each in by.items()}))


asyncio.run(main())
