"""Measures the timeline of a batch on this machine's GPU."""

from pathlib import Path

from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.open_engine import check_architecture
from models.open_gpu import open_gpu
from models.schedule.timeline import Timeline
from models.tuning.measured import choose_for


def measure_timeline(classifier: Classifier, n: int, tuning: Path | None = None) -> Timeline:
    """Return when the engine's launches run for n images, with convolutions chosen as for serving.

    Raises EngineError where there is no GPU, or it lacks the precision.
    """
    gpu = open_gpu("Leave --measure out for the modelled timeline")
    check_architecture(gpu, classifier.precision)
    choose = choose_for(gpu, classifier.rewritten.graph, n, tuning)
    engine = CudaEngine(classifier, gpu, max_batch=n, choose=choose)
    try:
        engine.warm_up()
        return engine.timeline(n)
    finally:
        engine.close()
