"""Both protocols send the same requests."""

from benchmarks.serving.v2 import v2_body, v2_message
from models import OutputKind
from service.api.v2.parse import parse_request
from service.grpc.infer_request import infer_request, read_message
from service.hosting.model_info import ModelInfo


def test_both_protocols_are_sent_the_same_request() -> None:
    info = ModelInfo("no-op", "1", (1, 1, 1), "scores", OutputKind.LOGITS, ())
    length, body = v2_body(b"a JPEG")
    by_http = parse_request(body, length, info, 8)
    by_grpc = infer_request(read_message(v2_message(b"a JPEG", "no-op")), info, 8)
    assert by_http == by_grpc
    assert by_grpc.files == [b"a JPEG"]
