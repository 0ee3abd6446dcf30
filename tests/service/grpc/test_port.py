"""The gRPC port with fakes, in process: limits, errors, streams, health, reflection, closing."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from service.edge.edge import Edge, Limits
from service.edge.keys import Keys
from service.errors import BadRequestError, Code
from service.grpc.messages import HEALTH, INFERENCE, POOL, message_class
from service.grpc.methods import METHODS
from service.grpc.port import _STATUSES, _UNREAD_BYTES, GrpcPort
from service.hosting.pipeline import Pipeline
from service.hosting.regions import Regions
from service.hosting.repository import Repository
from service.http.compression import inflate
from service.telemetry.record import RequestRecord
from tests.support import PATIENCE_S
from tests.support.servers.served import run
from tests.support.service.client import until
from tests.support.service.fakes import FakeEngine, make_repository
from tests.support.service.garbage import CALLS, bytes_kept, bytes_left
from tests.support.service.shared_memory import shared_memory

Asked = message_class("inference.ModelInferRequest")
Status = grpc.StatusCode
INFER = "ModelInfer"


def digit(*digits: int, size: int = 1, model: str = "fake", **fields: Any) -> Any:
    """Return a request for images of these digits. Each image has `size` bytes."""
    asked = Asked(model_name=model, **fields)
    tensor = asked.inputs.add(name="image", datatype="BYTES", shape=[len(digits)])
    tensor.contents.bytes_contents.extend(b"%d" % each + bytes(size - 1) for each in digits)
    return asked


class Client:
    """A client of the port, with access to the port, its pipeline and its edge."""

    def __init__(self, channel: Any, port: GrpcPort, pipeline: Pipeline, edge: Edge) -> None:
        self.channel, self.port, self.pipeline, self.edge = channel, port, pipeline, edge
        self.ended: list[RequestRecord] = []

    def call(self, name: str, service: str = INFERENCE) -> Any:
        """Return the function that calls a method with a message or bytes, and returns a
        message."""
        method = POOL.FindMethodByName(f"{service}.{name}")
        streams = method.client_streaming, method.server_streaming
        make = {
            (False, False): self.channel.unary_unary,
            (False, True): self.channel.unary_stream,
            (True, True): self.channel.stream_stream,
        }[streams]
        return make(
            f"/{service}/{name}",
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=message_class(method.output_type.full_name).FromString,
        )

    async def ask(self, asked: Any, name: str = INFER, **options: Any) -> Any:
        return await self.call(name)(asked, **options)

    async def digits(self, *digits: int, **options: Any) -> list[int]:
        return digits_in(await self.ask(digit(*digits), **options))


def digits_in(answer: Any) -> list[int]:
    """Return the digits in an answer. A digit's score is 9, and all other scores are 0."""
    (output,), (raw,) = answer.outputs, answer.raw_output_contents
    scores = memoryview(raw).cast("f").tolist()
    classes = output.shape[1]
    rows = [scores[place : place + classes] for place in range(0, len(scores), classes)]
    return [row.index(max(row)) for row in rows]


@asynccontextmanager
async def client(
    engine: FakeEngine | None = None,
    *,
    limits: Limits | None = None,
    keys: Keys | None = None,
    max_arriving: int = 64,
    warm: bool = True,
    **options: Any,
) -> AsyncIterator[Client]:
    """Yield a client of a port with fakes. At the end, no request may remain in the pipeline."""
    repository = make_repository(engine, **options)
    if warm:
        await repository.warm_up()
    ended: list[RequestRecord] = []
    edge = Edge(limits, keys, [ended.append])
    port = GrpcPort("127.0.0.1", 0, repository, max_arriving)
    await port.start(edge)
    (pipeline,) = repository.models.values()
    try:
        async with opened(port) as channel:
            made = Client(channel, port, pipeline, edge)
            made.ended = ended
            yield made
    finally:
        await port.stop(0.5)
        await until(lambda: not repository.requests and not port._arrivals.images)
        admission = pipeline.admission
        assert (admission.images, admission.room.taken) == (0, 0)
        assert await repository.close(PATIENCE_S)


def opened(port: GrpcPort, **options: Any) -> Any:
    """Return a separate connection."""
    pool = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{port.number}", options=pool, **options)


@asynccontextmanager
async def refused(status: grpc.StatusCode, says: str = "") -> AsyncIterator[Any]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        yield raised
    assert (raised.value.code(), says in raised.value.details()) == (status, True), raised.value


def test_every_code_has_a_status() -> None:
    assert set(_STATUSES) == set(Code)


@run
async def test_an_answer_has_the_model_its_version_and_the_id() -> None:
    async with client() as asking:
        answer = await asking.ask(digit(7, 1, id="me"))
        assert (answer.model_name, answer.model_version, answer.id) == ("fake", "1", "me")
        assert digits_in(answer) == [7, 1]
        (record,) = asking.ended
        assert (record.status, record.model, record.images) == (200, "fake", 2)
        assert record.bytes_in == len(digit(7, 1, id="me").SerializeToString())
        assert record.bytes_out == len(answer.SerializeToString())


@run
async def test_scores_and_labels_come_typed_if_that_is_asked_for() -> None:
    async with client() as asking:
        asked = digit(3)
        asked.parameters["binary_data_output"].bool_param = False
        answer = await asking.ask(asked)
        assert list(answer.outputs[0].contents.fp32_contents).index(9) == 3
        assert not answer.raw_output_contents
        asked.outputs.add(name="scores").parameters["classification"].int64_param = 1
        answer = await asking.ask(asked)
        assert answer.outputs[0].contents.bytes_contents == [b"9.000000:3:three"]


@run
async def test_long_contents_are_read_in_a_thread() -> None:
    async with client() as asking:
        assert digits_in(await asking.ask(digit(4, size=80_000))) == [4]
        async with refused(Status.INVALID_ARGUMENT, "of shape [2]"):
            asked = digit(4, size=80_000)
            asked.inputs[0].shape[:] = [2, 2]
            asked.inputs[0].shape[:] = [2]
            asked.inputs[0].datatype = "FP32"
            await asking.ask(asked)


@run
async def test_requests_together_make_batches() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with client(engine) as asking:
        asked = [asyncio.create_task(asking.digits(n % 10)) for n in range(24)]
        await until(lambda: asking.pipeline.admission.images == 24)
        gate.set()
        assert await asyncio.gather(*asked) == [[n % 10] for n in range(24)]
        assert len(engine.batches) < 12


@run
async def test_a_message_that_is_too_long_is_refused_before_it_is_received() -> None:
    async with client(max_body_bytes=50_000) as asking:
        async with refused(Status.RESOURCE_EXHAUSTED, "larger than max"):
            await asking.ask(digit(1, size=60_000))
        assert await asking.digits(1) == [1]


@run
async def test_a_compressed_message_is_bounded_by_what_it_inflates_to() -> None:
    async with (
        client(max_body_bytes=50_000) as asking,
        opened(asking.port, compression=grpc.Compression.Gzip) as compressing,
    ):
        call = compressing.unary_unary(f"/{INFERENCE}/{INFER}")
        right, bomb = (digit(1, size=size).SerializeToString() for size in (40_000, 10_000_000))
        assert await call(right)
        assert asking.ended[-1].bytes_in < 1000
        async with refused(Status.INVALID_ARGUMENT, "this body inflates to more"):
            await call(bomb)
        stream = compressing.stream_stream(f"/{INFERENCE}/ModelStreamInfer")
        answer = message_class("inference.ModelStreamInferResponse").FromString
        answers = [answer(each) async for each in stream(iter([right, bomb, right]))]
        errors = [each.error_message for each in answers]
        assert (errors[0], errors[2]) == ("", "")
        assert "this body inflates to more" in errors[1]
        described = compressing.unary_unary(f"/{INFERENCE}/ModelMetadata")
        assert await described(b"\x0a\x04fake" + b"\x12\x00" * 200)
        async with refused(Status.INVALID_ARGUMENT, "inflates to more"):
            await described(b"\x0a\x04fake" + b"\x12\x00" * 20_000)


@pytest.mark.parametrize("coding", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@run
async def test_a_compressed_message_is_inflated_by_the_thread_that_reads(
    coding: grpc.Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def seen(data: bytes, coding: str, max_bytes: int) -> bytes:
        threads.append(threading.get_ident())
        return inflate(data, coding, max_bytes)

    monkeypatch.setattr("service.grpc.port.inflate", seen)
    async with client() as asking, opened(asking.port, compression=coding) as compressing:
        asking.channel = compressing
        assert digits_in(await asking.ask(digit(3, size=50_000))) == [3]
        (answer,) = [
            each async for each in asking.call("ModelStreamInfer")(iter([digit(4, size=9000)]))
        ]
        assert digits_in(answer.infer_response) == [4]
    assert len(threads) == 2
    assert threading.get_ident() not in threads


@run
async def test_a_compressed_message_counts_as_bytes_inside_until_it_is_inflated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, lengths = threading.Event(), []

    def slow(data: bytes, coding: str, max_bytes: int) -> bytes:
        lengths.append(len(data))
        gate.wait(PATIENCE_S)
        return inflate(data, coding, max_bytes)

    monkeypatch.setattr("service.grpc.port.inflate", slow)
    async with (
        client() as asking,
        opened(asking.port, compression=grpc.Compression.Gzip) as compressing,
    ):
        asking.channel = compressing
        room = asking.pipeline.admission.room
        answer = asyncio.create_task(asking.ask(digit(3, size=50_000)))
        await until(lambda: bool(lengths))
        assert room.taken == lengths[0]
        room.taken += (others := room.max_bytes - room.taken)
        async with refused(Status.RESOURCE_EXHAUSTED, "images and answers in progress have"):
            await asking.ask(digit(4, size=50_000))
        held = next(iter(room.inside))
        held.give_way()
        async with refused(Status.RESOURCE_EXHAUSTED, "the queue is full"):
            await answer
        room.taken -= others
        gate.set()
        assert digits_in(await asking.ask(digit(5, size=50_000))) == [5]


@run
async def test_a_stream_has_few_bytes_in_flight_and_waits_after_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.grpc.port._MOST_IN_FLIGHT", 50_000)
    gate = threading.Event()
    async with client(FakeEngine(gate=gate), max_queue=8) as asking:
        call = asking.call("ModelStreamInfer")(digit(1, size=20_000) for _ in range(10))
        await until(lambda: asking.pipeline.admission.images == 3)
        await asyncio.sleep(0.05)
        assert asking.pipeline.admission.images == 3
        gate.set()
        assert [each.error_message async for each in call] == [""] * 10
        gate.clear()
        asking.pipeline.admission.expected_wait_s = lambda: 0.3
        stream = asking.call("ModelStreamInfer")()
        began = asyncio.get_running_loop().time()
        for _ in range(3):
            await stream.write(digit(*[1] * 8))
        await until(lambda: asking.ended[-1].status == Code.TOO_MANY)  # the third
        gate.set()
        await until(lambda: asking.pipeline.admission.images == 0)
        await stream.write(digit(*[1] * 8))
        errors = [(await stream.read()).error_message for _ in range(4)]
        assert asyncio.get_running_loop().time() - began > 0.2
        assert "no room for" in errors[2]
        assert errors[3] == ""
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


@run
async def test_a_message_without_tensors_may_be_short_only() -> None:
    async with client() as asking:
        async with refused(Status.INVALID_ARGUMENT, "this method allows at most 4096"):
            await asking.ask(bytes(5000), "ModelMetadata")
        async with refused(Status.INVALID_ARGUMENT, "not a valid ModelMetadataRequest"):
            await asking.ask(b"\x0a\xff", "ModelMetadata")


@run
async def test_there_are_no_other_methods() -> None:
    async with client() as asking:
        async with refused(Status.UNIMPLEMENTED):
            await asking.channel.unary_unary(f"/{INFERENCE}/Other")(b"")
        async with refused(Status.INVALID_ARGUMENT, "has no message"):
            nothing = asking.channel.stream_unary(f"/{INFERENCE}/{INFER}")
            await nothing(iter(()))


@run
async def test_a_full_queue_is_told_with_the_time_to_try_again() -> None:
    gate = threading.Event()
    async with client(FakeEngine(gate=gate), max_queue=8) as asking:
        waiting = [asyncio.create_task(asking.digits(1)) for _ in range(16)]
        await until(lambda: asking.pipeline.admission.images == 16)
        async with refused(Status.RESOURCE_EXHAUSTED, "no room for 1 more images") as raised:
            await asking.digits(1)
        trailers = dict(raised.value.trailing_metadata())
        assert int(trailers["retry-after"]) >= 1
        assert trailers["x-request-id"]
        gate.set()
        assert await asyncio.gather(*waiting) == [[1]] * 16


@run
async def test_a_client_that_cancels_is_withdrawn_and_counted() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with client(engine) as asking:
        first = asyncio.create_task(asking.digits(1))
        await until(lambda: engine.batches == [1])
        second = asking.call(INFER)(digit(2))
        await until(lambda: asking.pipeline.runner.batcher.depth == 1)
        second.cancel()
        await until(lambda: asking.pipeline.runner.batcher.depth == 0)
        gate.set()
        assert await first == [1]
        await until(lambda: len(asking.ended) == 2)
        assert asking.ended[0].status == Code.CLIENT_LEFT
        assert engine.batches == [1]


@run
async def test_the_next_request_of_a_client_that_cancelled_waits_for_a_turn() -> None:
    """A client cannot fill the event loop with requests whose answers it does not wait for."""
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with client(engine) as asking:
        turns = asking.edge.turns
        left = asking.call(INFER)(digit(1))
        await until(lambda: engine.batches == [1])
        left.cancel()
        await until(lambda: sum(turns.owed.values()) == 1)
        gate.set()
        turns._paused = True  # as after a call that has just begun
        owing = asyncio.create_task(asking.digits(2))
        await until(lambda: sum(map(len, turns._waiting.values())) == 1)
        assert not turns.owed
        assert await asking.digits(3) == [3], "only one request waits"
        assert not owing.done()
        turns._next()
        assert await owing == [2]


@run
async def test_a_deadline_of_grpc_is_the_requests() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with client(engine) as asking:
        first = asyncio.create_task(asking.digits(1))
        await until(lambda: engine.batches == [1])
        timeout_s = 0.1
        while not asking.ended:  # on a busy machine one may not leave its client in time
            async with refused(Status.DEADLINE_EXCEEDED):
                await asking.digits(2, timeout=timeout_s)
            await asyncio.sleep(timeout_s)
            timeout_s *= 2
        statuses = {record.status for record in asking.ended}
        assert statuses <= {Code.TOO_LATE, Code.CLIENT_LEFT}
        await until(lambda: asking.pipeline.runner.batcher.depth == 0)
        gate.set()
        await first
    assert engine.batches == [1]


@run
async def test_the_sooner_of_two_deadlines_holds() -> None:
    async with client(FakeEngine(delay_s=0.05)) as asking:
        await asking.digits(1)
        asked = digit(2)
        asked.parameters["timeout"].int64_param = 1
        async with refused(Status.DEADLINE_EXCEEDED, "its deadline"):
            await asking.ask(asked, timeout=PATIENCE_S)


@run
async def test_a_key_is_required_but_for_health(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("horse\n")
    file.chmod(0o600)
    async with client(keys=Keys(file)) as asking:
        for headers, says in (
            ((), "an API key is required"),
            ((("authorization", "Bearer cow"),), "this API key is not known"),
        ):
            async with refused(Status.UNAUTHENTICATED, says):
                await asking.digits(1, metadata=headers)
            async with refused(Status.UNAUTHENTICATED):
                await asking.ask(b"", "ServerMetadata", metadata=headers)
            async with refused(Status.UNAUTHENTICATED):
                async for _ in asking.call("ModelStreamInfer")(iter([digit(1)]), metadata=headers):
                    pass
        for headers in ((("authorization", "Bearer horse"),), (("x-api-key", "horse"),)):
            assert await asking.digits(1, metadata=headers) == [1]
        assert asking.ended[-1].caller.name == "key 1"
        assert (await asking.ask(b"", "ServerReady")).ready
        check = asking.call("Check", HEALTH)
        assert (await check(b"")).status == 1


@run
async def test_what_changes_the_server_needs_a_right() -> None:
    loading = "RepositoryModelLoad", "RepositoryModelUnload"
    sharing = "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"
    async with client(limits=Limits(rights=frozenset())) as asking:
        asking.pipeline.regions = Regions(1000)
        asking.port._repository.regions = asking.pipeline.regions
        for method in loading + sharing:
            async with refused(Status.PERMISSION_DENIED, "you may not"):
                await asking.ask(b"", method)
        with shared_memory(bytes(64)) as file:
            asking.pipeline.regions.register("r", file.name, 0, 64)
            asked = digit(7)
            asked.outputs.add(name="scores").parameters["shared_memory_region"].string_param = "r"
            asked.outputs[0].parameters["shared_memory_byte_size"].int64_param = 64
            async with refused(Status.PERMISSION_DENIED, "this machine's shared memory"):
                await asking.ask(asked)


@run
async def test_images_of_a_client_are_limited_as_over_http() -> None:
    gate = threading.Event()
    async with client(FakeEngine(gate=gate), limits=Limits(per_client=3)) as asking:
        async with refused(Status.INVALID_ARGUMENT, "at most 3 of your images"):
            await asking.digits(1, 2, 3, 4)
        waiting = asyncio.create_task(asking.digits(1, 2, 3))
        await until(lambda: asking.pipeline.admission.images == 3)
        async with refused(Status.RESOURCE_EXHAUSTED, "3 of your images are in progress"):
            await asking.digits(1)
        gate.set()
        assert await waiting == [1, 2, 3]
        assert await asking.digits(5) == [5]
        assert asking.edge.inside == {}
    async with client(limits=Limits(rate=0.01)) as asking:
        assert await asking.digits(1, 1) == [1, 1]
        async with refused(Status.RESOURCE_EXHAUSTED, "0.01 images per second"):
            await asking.digits(1)


@run
async def test_a_message_that_does_not_arrive_is_given_up() -> None:
    async with client(limits=Limits(body_s=0.1)) as asking:
        call = asking.channel.stream_unary(f"/{INFERENCE}/{INFER}")()
        async with refused(Status.DEADLINE_EXCEEDED, "did not arrive within 0.1 s"):
            await call
        assert asking.ended[0].status == Code.TOO_SLOW


@pytest.mark.parametrize(
    "path", [f"{HEALTH}/Watch", "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]
)
@run
async def test_a_stream_whose_first_message_does_not_arrive_is_given_up(path: str) -> None:
    async with client(limits=Limits(body_s=0.1)) as asking:
        call = asking.channel.stream_stream(f"/{path}")()
        async with refused(Status.DEADLINE_EXCEEDED, "did not arrive within 0.1 s"):
            await asyncio.wait_for(call.read(), PATIENCE_S)
        assert not asking.port._arrivals.images


@run
async def test_of_too_many_that_arrive_the_newest_of_who_has_most_gives_way(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    file.chmod(0o600)
    async with client(keys=Keys(file), max_arriving=3) as asking:
        one, two = ((("x-api-key", key),) for key in ("one", "two"))
        silent = []
        for _ in range(3):
            silent.append(asking.channel.stream_unary(f"/{INFERENCE}/{INFER}")(metadata=one))
            await until(lambda: asking.port._arrivals.images == len(silent))
        async with refused(Status.RESOURCE_EXHAUSTED):  # its own next is refused
            await asking.digits(1, metadata=one)
        assert await asking.digits(1, metadata=two) == [1]  # another client's is not
        async with refused(Status.RESOURCE_EXHAUSTED, "your client holds the largest part"):
            await silent[2]
        assert asking.port._arrivals.images == 2
        for call in silent:
            call.cancel()
        await until(lambda: asking.port._arrivals.images == 0)


@run
async def test_a_stream_is_answered_in_its_order_and_goes_on_after_an_error() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with client(engine) as asking:
        sent = [digit(n % 10) for n in range(20)]
        sent[5] = digit(1, model="no")
        sent[6] = b"\xff"
        stream = asking.call("ModelStreamInfer")(iter(sent))
        await until(lambda: asking.pipeline.admission.images == 18)
        gate.set()
        answers = [each async for each in stream]
        assert "unknown model: 'no'" in answers[5].error_message
        assert "does not end" in answers[6].error_message
        found = [digits_in(a.infer_response)[0] for a in answers if not a.error_message]
        assert found == [n % 10 for n in range(20) if n not in (5, 6)]
        assert len(engine.batches) < 18  # they are batched with each other


@run
async def test_a_stream_that_its_client_leaves_is_withdrawn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with client(engine) as asking:
        call = asking.call("ModelStreamInfer")()
        for n in range(4):
            await call.write(digit(n))
        await until(lambda: asking.pipeline.admission.images == 4)
        call.cancel()
        await until(lambda: asking.pipeline.admission.images == 0)
        gate.set()
    assert not caplog.records


@run
async def test_many_requests_of_one_stream_wait_for_its_answers() -> None:
    gate = threading.Event()
    async with client(FakeEngine(gate=gate), max_queue=1000) as asking:
        call = asking.call("ModelStreamInfer")(digit(1) for _ in range(300))
        await until(lambda: asking.pipeline.admission.images > 90)
        await asyncio.sleep(0.05)
        assert asking.pipeline.admission.images < 110
        gate.set()
        assert len([each async for each in call]) == 300


@run
async def test_health_says_whether_the_models_are_ready() -> None:
    async with client(warm=False) as asking:
        check, watch = asking.call("Check", HEALTH), asking.call("Watch", HEALTH)
        kind = message_class("grpc.health.v1.HealthCheckRequest")
        serving, not_serving, unknown = 1, 2, 3
        for service in ("", INFERENCE, "fake"):
            assert (await check(kind(service=service))).status == not_serving
        async with refused(Status.NOT_FOUND):
            await check(kind(service="no"))
        watching = watch(kind(service="fake"))
        assert (await watching.read()).status == not_serving
        assert (await watch(kind(service="no")).read()).status == unknown
        assert not (await asking.ask(b"", "ServerReady")).ready
        async with refused(Status.UNAVAILABLE):
            await asking.digits(1)
        await asking.port._repository.warm_up()
        assert (await watching.read()).status == serving
        assert (await check(b"")).status == serving


@run
async def test_tools_are_told_the_services_and_their_messages() -> None:
    async with client() as asking:
        kind = reflection_pb2.ServerReflectionRequest
        call = asking.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=kind.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        asked = [kind(list_services=""), kind(file_containing_symbol=INFERENCE)]
        listed, described = [each async for each in call(iter(asked))]
        names = {service.name for service in listed.list_services_response.service}
        assert {INFERENCE, HEALTH} <= names
        assert b"ModelInfer" in described.file_descriptor_response.file_descriptor_proto[0]
        async with refused(Status.INVALID_ARGUMENT, "at most 4096"):
            async for _ in call(iter([kind(list_services="x" * 5000)])):
                pass


_LONG = 80_000  # bytes of typed contents that are read in a thread


@pytest.mark.parametrize(
    "message",
    [
        b"\x2a\0" * (_LONG // 2),
        digit(1, size=_LONG, model="no").SerializeToString(),
        digit(1, size=50_000).SerializeToString().replace(b"BYTES", b"UINT8"),
        digit(1, size=_LONG).SerializeToString().replace(b"BYTES", b"UINT8"),
        digit(1, size=_LONG).SerializeToString().replace(b"1\0\0", b"x\0\0"),
    ],
    ids=["unread", "no model", "read at once", "read in a thread", "decoded"],
)
@run
async def test_a_refused_message_is_let_go_at_once_not_by_the_garbage_collector(
    message: bytes,
) -> None:
    async with client() as asking:

        async def refuse() -> None:
            with pytest.raises(grpc.aio.AioRpcError):
                await asking.ask(message)

        left = await bytes_left(refuse)
    assert left < 400_000, f"{left} bytes of the {CALLS * len(message)} that were sent"


@run
async def test_what_the_frames_of_a_refused_call_have_is_let_go_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail() -> None:
        raise BadRequestError("it cannot be loaded")

    async def load(_models: Repository, _asked: Any) -> Any:
        taken = bytearray(_LONG)
        task = asyncio.create_task(fail())  # its error has this frame, which has the task
        await task
        return taken

    monkeypatch.setitem(METHODS, f"/{INFERENCE}/ServerLive", load)
    async with client() as asking:

        async def refuse() -> None:
            with pytest.raises(grpc.aio.AioRpcError, match="it cannot be loaded"):
                await asking.ask(b"", "ServerLive")

        left = await bytes_left(refuse)
    assert left < 400_000, f"{left} bytes of the {CALLS * _LONG} that were taken"


@run
async def test_too_many_images_a_failing_engine_and_another_version_are_told() -> None:
    engine = FakeEngine()
    async with client(engine, max_queue=8) as asking:
        async with refused(Status.INVALID_ARGUMENT, "at most 8 are allowed"):
            await asking.digits(*[1] * 9)
        assert await asking.digits(*[1] * 8) == [1] * 8
        engine.failing = True
        async with refused(Status.INTERNAL, "the engine failed on this batch"):
            await asking.digits(1)
        engine.failing = False
        async with refused(Status.NOT_FOUND, "unknown model"):
            await asking.ask(digit(1, model_version="2"))
        assert await asking.digits(2) == [2]


@run
async def test_scores_that_are_no_numbers_are_no_answer() -> None:
    engine = FakeEngine(scores=lambda images: np.full((len(images), 10), np.nan, np.float32))
    async with client(engine) as asking, refused(Status.INTERNAL, "not finite"):
        await asking.digits(1)


@run
async def test_a_message_counts_as_bytes_inside_until_it_is_answered() -> None:
    gate = threading.Event()
    async with client(FakeEngine(gate=gate)) as asking:
        message = Asked(model_name="fake", raw_input_contents=[b"\4"])
        message.inputs.add(name="image", datatype="UINT8", shape=[1, 1, 1, 1])
        answer = asyncio.create_task(asking.ask(message))
        admission = asking.pipeline.admission
        await until(lambda: admission.images == 1)
        assert admission.room.taken == message.ByteSize()
        gate.set()
        assert digits_in(await answer) == [4]


@pytest.mark.parametrize("size", [2**17, 2**20], ids=["prepared at once", "prepared in a thread"])
@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "stream"])
@run
async def test_a_file_is_freed_when_it_is_decoded(size: int, *, streamed: bool) -> None:
    gate = threading.Event()
    message = digit(7, size=size).SerializeToString()
    async with client(FakeEngine(gate=gate), max_body_bytes=2**21) as asking:
        admission = asking.pipeline.admission
        with bytes_kept() as kept:
            if streamed:
                answers = asking.call("ModelStreamInfer")(iter([message]))
            else:
                answer = asyncio.create_task(asking.ask(message))
            await until(lambda: admission.images == 1)
            # No bytes are reserved for the file any more, so none may be in use.
            await until(lambda: admission.room.taken == 0)
            await until(lambda: kept() < size / 2)
            gate.set()
            got = [a.infer_response async for a in answers] if streamed else [await answer]
            assert [digits_in(each) for each in got] == [[7]]


@run
async def test_a_copy_of_shared_memory_counts_as_bytes_inside_too() -> None:
    gate = threading.Event()
    async with client(FakeEngine(gate=gate)) as asking:
        asking.pipeline.regions = regions = Regions(100_000)
        with shared_memory(b"\4" * 8) as file:
            regions.register("r", f"/{file.name}", 0, 8)
        message = Asked(model_name="fake")
        tensor = message.inputs.add(name="image", datatype="UINT8", shape=[8, 1, 1, 1])
        tensor.parameters["shared_memory_region"].string_param = "r"
        tensor.parameters["shared_memory_byte_size"].int64_param = 8
        answer = asyncio.create_task(asking.ask(message))
        admission = asking.pipeline.admission
        await until(lambda: admission.images == 8)
        assert admission.room.taken == message.ByteSize() + 8
        gate.set()
        assert digits_in(await answer) == [4] * 8
        taken = admission.room.taken = admission.room.max_bytes - message.ByteSize() - 7
        async with refused(Status.RESOURCE_EXHAUSTED, "images and answers in progress have"):
            await asking.ask(message)
        admission.room.taken -= taken


@run
async def test_a_defect_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async with client() as asking:

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("secret")

        vars(asking.pipeline.runner)["post"] = broken
        async with refused(Status.INTERNAL, "internal server error; see the server log"):
            await asking.digits(1)
        assert asking.ended[0].status == Code.FAILED
    (logged,) = [record for record in caplog.records if record.name == "convoy"]
    assert "secret" in str(logged.exc_info)


@run
async def test_requests_inside_are_answered_after_the_port_stops() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with client(engine) as asking:
        asked = asyncio.create_task(asking.digits(1))
        await until(lambda: engine.batches == [1])
        stopping = asyncio.create_task(asking.port.stop(PATIENCE_S))
        await asyncio.sleep(0.05)
        assert not stopping.done()
        gate.set()
        await stopping
        assert await asked == [1]
        async with opened(asking.port) as late, refused(Status.UNAVAILABLE):
            await late.unary_unary(f"/{INFERENCE}/ServerLive")(b"", timeout=PATIENCE_S)


@run
async def test_an_address_in_use_is_an_error() -> None:
    async with client() as asking:
        again = GrpcPort("127.0.0.1", asking.port.number, asking.port._repository, 8)
        with pytest.raises(OSError, match="gRPC at 127"):
            await again.start(Edge())


# Of a channel whose client reads no further than this ahead.
_NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535)]


def wide() -> FakeEngine:
    """Return an engine with 2,000 classes."""

    def scores(images: Any) -> Any:
        rows = np.zeros((len(images), 2000), np.float32)
        rows[:, 0] = 9
        return rows

    engine = FakeEngine(scores=scores)
    engine.classes = 2000
    return engine


def long_answers(images: int = 32) -> Any:
    """Return a short request with a long answer, which has 2,000 classes per image."""
    asked = Asked(model_name="fake")
    tensor = asked.inputs.add(name="image", datatype="UINT8", shape=[images, 1, 1, 1])
    tensor.contents.uint_contents.extend([0] * images)
    parameters = asked.outputs.add(name="scores").parameters
    parameters["classification"].int64_param = 2000
    parameters["binary_data"].bool_param = False
    return asked


async def read_to_the_end(stream: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await stream.read() is not grpc.aio.EOF:
            pass


@run
async def test_a_stream_whose_client_reads_nothing_keeps_few_answers_and_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    most = 0
    async with client(wide(), limits=Limits(answer_s=1.0)) as asking:
        room = asking.pipeline.admission.room
        options = [("grpc.use_local_subchannel_pool", 1), *_NARROW]
        address = f"127.0.0.1:{asking.port.number}"
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            asking.channel = channel
            stream = asking.call("ModelStreamInfer")()
            for _ in range(30):
                with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                    await stream.write(long_answers())
                await asyncio.sleep(0.01)

            def peak() -> int:
                nonlocal most
                most = max(most, room.most_taken())
                return most

            await until(lambda: peak() > 500_000)
            await until(lambda: not room.taken)  # though the client is there, and reads nothing
            assert peak() < 5 * _UNREAD_BYTES  # of 30 MB
            with pytest.raises(grpc.aio.AioRpcError):
                await read_to_the_end(stream)
    assert "Traceback" not in caplog.text
    assert not [line for line in caplog.records if line.levelname in ("ERROR", "WARNING")]


@run
async def test_a_stream_that_is_cancelled_writes_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with client(wide()) as asking:
        for _ in range(3):
            stream = asking.call("ModelStreamInfer")()
            for _ in range(10):
                await stream.write(long_answers())
            stream.cancel()
        await until(lambda: not asking.pipeline.admission.room.taken)
    assert not [line for line in caplog.records if line.levelname in ("ERROR", "WARNING")]


@run
async def test_a_stream_that_is_cancelled_leaves_its_connection_to_others() -> None:
    async with client(wide()) as asking:
        room, arrivals = asking.pipeline.admission.room, asking.port._arrivals
        options = [("grpc.use_local_subchannel_pool", 1), *_NARROW]
        address = f"127.0.0.1:{asking.port.number}"
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            asking.channel = channel
            other = asking.call("ModelStreamInfer")()
            for number in range(1, 6):
                await other.write(digit(number))
                assert (await other.read()).infer_response.model_name == "fake"
                unread = asking.call("ModelStreamInfer")()
                for _ in range(4):
                    await unread.write(long_answers())
                await until(lambda: room.taken > 1_000_000)
                unread.cancel()
                await until(lambda: room.taken == 0 and arrivals.images == 1)
            await other.done_writing()
            assert await other.read() is grpc.aio.EOF


class _Gone:
    """The context of a call whose client has left. grpcio notices this only when it writes."""

    async def write(self, _: bytes) -> None:
        raise grpc.aio.InternalError("Failed 'execute_batch'")


@pytest.mark.parametrize("method", [INFER, "ModelStreamInfer"])
@run
async def test_an_answer_that_cannot_be_written_ends_its_call_without_a_word(
    method: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tried = GrpcPort._write, list[bytes]()

    async def unwritten(port: GrpcPort, _: Any, answer: bytes, held: Any) -> None:
        tried.append(answer)
        await write(port, _Gone(), answer, held)

    async with client() as asking:
        other = asking.call("ModelStreamInfer")()
        await other.write(digit(1))
        assert digits_in((await other.read()).infer_response) == [1]
        monkeypatch.setattr(GrpcPort, "_write", unwritten)
        sent: Any = digit(2) if method == INFER else iter([digit(2)])
        leaving = asking.call(method)(sent)
        await until(lambda: bool(tried))
        monkeypatch.undo()
        leaving.cancel()
        await other.write(digit(3))
        assert digits_in((await other.read()).infer_response) == [3]
        await other.done_writing()
        assert await other.read() is grpc.aio.EOF
    assert not [line for line in caplog.records if line.levelname in ("ERROR", "WARNING")]


@run
async def test_calls_that_no_model_answers_wait_for_their_turn_and_others_do_not() -> None:
    async with client() as asking:
        turns = asking.edge.turns
        turns._paused = True  # as after a call that has just begun
        live = asyncio.create_task(asking.ask(b"", "ServerLive"))
        stream = asking.call("ModelStreamInfer")(iter([digit(4)]))
        await until(lambda: sum(map(len, turns._waiting.values())) == 2)
        assert await asking.digits(3) == [3]
        assert not live.done()
        turns._next()
        assert (await live).live
        (answer,) = [each async for each in stream]
        assert digits_in(answer.infer_response) == [4]


@run
async def test_in_a_stream_what_no_model_answers_waits_for_its_turn() -> None:
    """A client cannot fill the event loop with many messages in one stream."""
    async with client() as asking:
        turns = asking.edge.turns

        async def second(stream: Any, first: bytes, then: bytes) -> Any:
            """Return the answer to the second message, after it has waited for a turn."""
            await stream.write(first)
            await stream.read()
            await until(lambda: not turns._paused)
            turns._paused = True  # as after a call that has just begun
            await stream.write(then)
            await until(lambda: sum(map(len, turns._waiting.values())) == 1)
            assert await asking.digits(3) == [3]
            turns._next()
            return await stream.read()

        stream = asking.call("ModelStreamInfer")()
        assert digits_in((await second(stream, b"\xff", digit(4))).infer_response) == [4]
        turns._paused = True
        await stream.write(digit(5))  # nothing was refused since
        assert digits_in((await stream.read()).infer_response) == [5]
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        turns._paused = False
        tell = asking.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        asked = reflection_pb2.ServerReflectionRequest(list_services="*").SerializeToString()
        assert INFERENCE.encode() in await second(tell(), asked, asked)


@run
async def test_a_single_answer_that_is_not_read_ends_too() -> None:
    async with client(wide(), limits=Limits(answer_s=0.5)) as asking:
        room = asking.pipeline.admission.room
        options = [("grpc.use_local_subchannel_pool", 1), *_NARROW]
        address = f"127.0.0.1:{asking.port.number}"
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            method = channel.stream_stream(f"/{INFERENCE}/{INFER}")()  # which reads when asked to
            await method.write(long_answers().SerializeToString())
            await until(lambda: room.most_taken() > 500_000)
            await until(lambda: not room.taken)


@run
async def test_a_long_answer_is_the_same_in_pieces() -> None:
    async with client(wide()) as asking:
        long = await asking.ask(long_answers())
        texts = long.outputs[0].contents.bytes_contents
        assert (len(texts), list(long.outputs[0].shape)) == (64_000, [32, 2000])
        assert texts[0].startswith(b"9.000000:0")
        assert {text.split(b":")[1] for text in texts[2000:4000]} == {
            b"%d" % n for n in range(2000)
        }
        short = await asking.ask(long_answers(1))
        assert list(short.outputs[0].contents.bytes_contents) == list(texts[:2000])
