"""Ten calls of NVIDIA's tritonclient, as Triton's documentation introduces them.

    python docs/ten_calls.py http 127.0.0.1:8000 digits models/digits/samples/3_ink_on_paper.jpg
    python docs/ten_calls.py grpc 127.0.0.1:8001 digits models/digits/samples/3_ink_on_paper.jpg

It needs `pip install tritonclient[all]`. Nothing else than the address and the protocol changes.
"""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np


def main(protocol: str, address: str, model: str, file: str) -> None:
    """Make the calls, and print what came back."""
    triton = import_module(f"tritonclient.{protocol}")
    as_dict = {"as_json": True} if protocol == "grpc" else {}  # tritonclient.http always does
    client = triton.InferenceServerClient(url=address)

    print("1. is_server_live:", client.is_server_live())
    print("2. is_server_ready:", client.is_server_ready())
    print("3. is_model_ready:", client.is_model_ready(model))

    server = client.get_server_metadata(**as_dict)
    print("4. get_server_metadata:", server["name"])

    described = client.get_model_metadata(model, **as_dict)
    inputs = ", ".join(f"{each['name']} {each['datatype']}" for each in described["inputs"])
    output = described["outputs"][0]["name"]
    print("5. get_model_metadata:", inputs, "->", output)

    config = client.get_model_config(model, **as_dict)
    config = config.get("config", config)  # by gRPC it is inside an answer
    print("6. get_model_config: max_batch_size", config["max_batch_size"])

    index = client.get_model_repository_index(**as_dict)
    index = index.get("models", []) if isinstance(index, dict) else index
    print("7. get_model_repository_index:", ", ".join(f"{m['name']} {m['state']}" for m in index))

    image = triton.InferInput("image", [1], "BYTES")
    image.set_data_from_numpy(np.array([Path(file).read_bytes()], dtype=np.object_))
    scores = client.infer(model, [image]).as_numpy(output)
    print("8. infer:", scores.shape, "largest at", scores.argmax())

    best = [triton.InferRequestedOutput(output, class_count=1)]
    (label,) = client.infer(model, [image], outputs=best).as_numpy(output).ravel()
    print("9. infer, classification:", label.decode().rpartition(":")[2])

    (counted,) = client.get_inference_statistics(model, **as_dict)["model_stats"]
    print("10. get_inference_statistics:", counted["name"], "of version", counted["version"])
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
