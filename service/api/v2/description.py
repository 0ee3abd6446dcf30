"""What the server and its models are, in the words of the V2 protocol and its extensions."""

from importlib.metadata import version
from typing import Any

from service.api.v2.request import INPUT
from service.api.v2.schemas import (
    BatchStatistics,
    CountAndTime,
    IndexEntry,
    InferenceStatistics,
    ModelMetadata,
    ModelStatistics,
    ServerMetadata,
    TensorMetadata,
)
from service.engine.runner import State
from service.hosting.pipeline import Pipeline
from service.telemetry.statistics import Duration

EXTENSIONS = [
    "classification",
    "model_repository",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
]
PLATFORM = "convoy_onnx"

_STATES = {
    State.WARMING: "LOADING",
    State.READY: "READY",
    State.RESTARTING: "LOADING",
    State.FAILED: "UNAVAILABLE",
    State.DRAINING: "UNLOADING",
}


def server_metadata() -> ServerMetadata:
    """Who answers."""
    return ServerMetadata(name="convoy", version=version("convoy"), extensions=EXTENSIONS)


def model_metadata(pipeline: Pipeline) -> ModelMetadata:
    """What a model takes and gives.

    Clients that make up data, as perf_analyzer does, make it up for every input that stands here:
    so there is one, of pixels. That it may be sent as encoded files too is not said.
    """
    info = pipeline.info
    pixels = TensorMetadata(name=INPUT, datatype="UINT8", shape=[-1, *info.image_shape])
    scores = TensorMetadata(name=info.scores, datatype="FP32", shape=[-1, pipeline.runner.classes])
    return ModelMetadata(
        name=info.name,
        versions=[info.version],
        platform=PLATFORM,
        inputs=[pixels],
        outputs=[scores],
    )


def model_config(pipeline: Pipeline) -> dict[str, Any]:
    """Triton's model configuration, as far as there is something to say; dims have no batch."""
    info = pipeline.info
    return {
        "name": info.name,
        "platform": PLATFORM,
        "backend": "convoy",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": pipeline.runner.max_batch,
        "input": [
            {
                "name": INPUT,
                "data_type": "TYPE_UINT8",
                "format": "FORMAT_NHWC",
                "dims": list(info.image_shape),
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": False,
            }
        ],
        "output": [
            {
                "name": info.scores,
                "data_type": "TYPE_FP32",
                "dims": [pipeline.runner.classes],
                "label_filename": "labels.txt" if info.labels else "",
                "is_shape_tensor": False,
            }
        ],
        "instance_group": [
            {
                "name": info.name,
                "kind": "KIND_CPU" if pipeline.runner.device.startswith("cpu") else "KIND_GPU",
                "count": 1,
            }
        ],
        "dynamic_batching": {
            "preferred_batch_size": list(range(1, pipeline.runner.max_batch + 1)),
            "max_queue_delay_microseconds": 0,
        },
        "model_transaction_policy": {"decoupled": False},
    }


def index_entry(pipeline: Pipeline) -> IndexEntry:
    """A model in the repository's index."""
    state = pipeline.runner.state
    return IndexEntry(
        name=pipeline.info.name,
        version=pipeline.info.version,
        state=_STATES[state],
        reason="" if state is State.READY else state.value,
    )


def model_statistics(pipeline: Pipeline) -> ModelStatistics:
    """What a model has done, as the statistics extension has it."""
    info, done = pipeline.info, pipeline.metrics.statistics
    nothing = Duration()
    return ModelStatistics(
        name=info.name,
        version=info.version,
        last_inference=done.last_inference,
        inference_count=done.inferences,
        execution_count=done.executions,
        inference_stats=InferenceStatistics(
            success=_time(done.success),
            fail=_time(done.fail),
            queue=_time(done.queue),
            compute_input=_time(done.compute_input),
            compute_infer=_time(done.compute_infer),
            compute_output=_time(done.compute_output),
            cache_hit=_time(nothing),
            cache_miss=_time(nothing),
        ),
        response_stats={},
        batch_stats=[
            # Decoding and answering are done a request at a time, not in batches.
            BatchStatistics(
                batch_size=size,
                compute_input=CountAndTime(count=batch.count, ns=0),
                compute_infer=_time(batch),
                compute_output=CountAndTime(count=batch.count, ns=0),
            )
            for size, batch in sorted(done.batches.items())
        ],
        memory_usage=[],
    )


def _time(duration: Duration) -> CountAndTime:
    return CountAndTime(count=duration.count, ns=duration.ns)
