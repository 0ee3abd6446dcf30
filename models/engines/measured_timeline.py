"""Measures the timeline of a batch on a GPU of this machine."""

from pathlib import Path

from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.open_engine import check_architecture
from models.open_gpu import open_gpu
from models.schedule.timeline import Timeline
from models.tuning.measured import choose_for


def measure_timeline(classifier: Classifier, n: int, tuning: Path | None = None) -> Timeline:
    """Return the measured times of the engine's launches for n images.

    Convolutions use the same algorithms as in a server. Raises EngineError if there is no GPU, or
    if the GPU does not support the precision.
    """
    gpu = open_gpu("Without --measure, the timeline is modelled and needs no GPU")
    check_architecture(gpu, classifier.precision)
    choose = choose_for(gpu, classifier.rewritten.graph, n, tuning)
    engine = CudaEngine(classifier, gpu, max_batch=n, choose=choose)
    try:
        engine.warm_up()
        return engine.timeline(n)
    finally:
        engine.close()
