"""Builds V2 requests with one image file, for HTTP and for gRPC."""

import json

from service.grpc.messages import message_class


def v2_body(file: bytes) -> tuple[int, bytes]:
    """Return the length of the JSON part, and the whole body. The body is the JSON, followed by the
    image file as a BYTES tensor."""
    data = _element(file)
    tensor = {
        "name": "image",
        "datatype": "BYTES",
        "shape": [1],
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return len(head), head + data


def v2_message(file: bytes, model: str) -> bytes:
    """Return a protobuf request that contains the image file as a BYTES tensor."""
    message = message_class("inference.ModelInferRequest")(model_name=model)
    message.inputs.add(name="image", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(_element(file))
    encoded: bytes = message.SerializeToString()
    return encoded


def _element(file: bytes) -> bytes:
    return len(file).to_bytes(4, "little") + file
