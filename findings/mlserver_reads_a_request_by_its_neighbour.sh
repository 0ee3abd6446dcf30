#!/usr/bin/env bash
# mlserver 1.7.1, Python 3.11: with adaptive batching, MLServer reads the numbers of a request with
# the type and the shape of another client's request.
#
# A V2 request states datatype and shape of each input. To batch two requests, MLServer puts their
# numbers behind each other and keeps datatype and shape of the first one alone; only the number of
# rows is added up. Nothing is compared. So 0.75 and 0.5 become 0 and 0 behind a client that sent
# integers, and an image of 3×2 pixels is cut into rows of 3 behind one of 2×3, as portrait behind
# landscape photographs are. Both requests are valid, and are answered right without batching. The
# order in which they arrive decides, and nothing is said. A request that cannot be read like that
# (300 behind UINT8) fails together with its neighbour.
#
# A model that adds all numbers, or those of the first column of an image, asked by two clients at
# once. The result of each is what it gets with max_batch_size=1 and with max_batch_size=2. Seen:
#   INT64 1 2, then FP32 0.75 0.5: alone 3.0 1.25, in a batch 3.0 0.0
#   FP32 0.75 0.5, then INT64 1 2: alone 1.25 3.0, in a batch 1.25 3.0
#   image of 2×3, then 3×2: alone 2.0 3.0, in a batch 2.0 1.0
#   image of 3×2, then 2×3: alone 3.0 2.0, in a batch 3.0 1.0
#   UINT8 1 2, then INT32 300 300: alone 3.0 600.0, in a batch OverflowError OverflowError
# Expected: the same alone and in a batch. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    mlserver==1.7.1 numpy==2.4.6 pydantic==2.14.4
cat >"$folder/run.py" <<'PYTHON'
import asyncio

import numpy as np
from mlserver import MLModel, ModelSettings, Settings
from mlserver.batching import load_batching
from mlserver.codecs import NumpyCodec
from mlserver.handlers import DataPlane
from mlserver.registry import MultiModelRegistry
from mlserver.types import InferenceRequest, InferenceResponse, RequestInput


class Sum(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        x = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        if x.ndim == 3:
            x = x[:, :, 0]
        output = NumpyCodec.encode_output("y", x.sum(axis=1, keepdims=True).astype(np.float64))
        return InferenceResponse(model_name=self.name, outputs=[output])


def request(datatype, *numbers, shape=None):
    x = RequestInput(name="x", datatype=datatype, shape=shape or [1, len(numbers)], data=numbers)
    return InferenceRequest(inputs=[x])


INTEGERS = request("INT64", 1, 2)
FLOATS = request("FP32", 0.75, 0.5)
LANDSCAPE = request("INT64", 1, 0, 0, 1, 0, 0, shape=[1, 2, 3])
PORTRAIT = request("INT64", 1, 0, 1, 0, 1, 0, shape=[1, 3, 2])
SMALL = request("UINT8", 1, 2)
LARGE = request("INT32", 300, 300)
PAIRS = {
    "INT64 1 2, then FP32 0.75 0.5": (INTEGERS, FLOATS, [3.0, 1.25], [3.0, 0.0]),
    "FP32 0.75 0.5, then INT64 1 2": (FLOATS, INTEGERS, [1.25, 3.0], [1.25, 3.0]),
    "image of 2×3, then 3×2": (LANDSCAPE, PORTRAIT, [2.0, 3.0], [2.0, 1.0]),
    "image of 3×2, then 2×3": (PORTRAIT, LANDSCAPE, [3.0, 2.0], [3.0, 1.0]),
    "UINT8 1 2, then INT32 300 300": (SMALL, LARGE, [3.0, 600.0], ["OverflowError"] * 2),
}


async def ask(handlers, model, requests):
    """Asks as the servers for HTTP and gRPC do, for both requests at once."""
    copies = [each.model_copy(deep=True) for each in requests]
    answers = await asyncio.gather(
        *(handlers.infer(each, model) for each in copies), return_exceptions=True
    )
    return [
        type(answer).__name__ if isinstance(answer, Exception) else answer.outputs[0].data[0]
        for answer in answers
    ]


async def main():
    registry = MultiModelRegistry(on_model_load=[load_batching])
    handlers = DataPlane(Settings(), registry)
    await registry.load(ModelSettings(name="alone", implementation=Sum, max_batch_size=1))
    await registry.load(
        ModelSettings(name="batch", implementation=Sum, max_batch_size=2, max_batch_time=60)
    )
    for name, (first, second, *expected) in PAIRS.items():
        found = [await ask(handlers, model, (first, second)) for model in ("alone", "batch")]
        alone, batch = (" ".join(str(result) for result in results) for results in found)
        print(f"{name}: alone {alone}, in a batch {batch}")
        assert found == expected, "this has changed"


asyncio.run(main())
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
