"""Listens for gRPC requests, limits them as over HTTP, and calls their methods.

    metadata ── edge ── room to arrive ── message ─┬─ ModelInfer, ModelStreamInfer ── infer
                                                   └─ everything else ────────────── methods

The number and the memory of the messages that arrive at the same time are limited. At the limit,
the newest message of the client with the most arriving messages is refused. grpcio refuses messages
that are too long before it has received them. The threads that read long bodies also decompress
messages. As over HTTP, requests other than inference, and messages that follow a refusal in their
stream, wait in the queue of `call_turns`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http import HTTPStatus
from math import ceil
from typing import Any, NoReturn, TypeVar

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer
from typing_extensions import override

from service.edge.connections import network_of
from service.edge.edge import RPC, Edge
from service.edge.rights import permit
from service.errors import (
    CRASHED,
    BadRequestError,
    Code,
    ModelNotFoundError,
    PayloadTooLargeError,
    RequestTimeoutError,
    RetryableError,
    ServiceError,
)
from service.fair_queue import Client
from service.grpc.messages import (
    HEALTH,
    INFERENCE,
    POOL,
    coding_of,
    fill,
    message_class,
    parse,
)
from service.grpc.methods import METHODS, RIGHTS
from service.grpc.model_infer import infer
from service.grpc.port_connections import PortConnections, peer_of
from service.grpc.receiving import Receiver
from service.hosting.admission import Admission, ByteRoom, Held, Reservation
from service.hosting.repository import Repository
from service.http.compression import inflate
from service.telemetry.record import RequestRecord

Context = Any  # grpc.aio.ServicerContext
Behaviour = Callable[[Any, Context], Awaitable[None]]

_STATUSES = {
    Code.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Code.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Code.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    Code.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Code.TOO_SLOW: grpc.StatusCode.DEADLINE_EXCEEDED,
    Code.TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    Code.UNSUPPORTED_TYPE: grpc.StatusCode.INVALID_ARGUMENT,
    Code.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Code.TOO_MANY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.CLIENT_LEFT: grpc.StatusCode.CANCELLED,
    Code.FAILED: grpc.StatusCode.INTERNAL,
    Code.UNIMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    Code.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Code.TOO_LATE: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_CHECK, _WATCH = f"/{HEALTH}/Check", f"/{HEALTH}/Watch"
_INFER, _STREAM = f"/{INFERENCE}/ModelInfer", f"/{INFERENCE}/ModelStreamInfer"
_REFLECTION = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"
_HealthRequest, _HealthAnswer = map(
    message_class, ("grpc.health.v1.HealthCheckRequest", "grpc.health.v1.HealthCheckResponse")
)
_StreamAnswer = message_class("inference.ModelStreamInferResponse")

# The most bytes of a message without tensors.
_MOST_BYTES = 4096

# The most models or regions in an answer that is created on the event loop: each takes 0.1 ms.
_FEW = 8

# The most characters of an error's text, which must fit in 8 kB with the other trailers.
_MOST_CHARACTERS = 500

_STREAMS = 100  # at once on a connection
_IN_FLIGHT = 100  # requests of one stream
_IDLE_MS = 300_000  # until a connection without requests is closed; clients open another unasked
_PING_MS = 60_000  # after which a silent client is asked whether it is there
_LOOK_S = 1.0  # between two checks of the health that watchers are sent

_UNREAD_BYTES = 2**21  # of a stream's answers; with more, no message is taken
_MOST_IN_FLIGHT = 2**23  # bytes of a stream's messages; likewise
_PAUSE_S = 1.0  # longest pause of a stream after a message found no room

_Held = TypeVar("_Held", bound=Held)

_log = logging.getLogger("convoy")

# An answer's bytes, and its reservation in the `ByteRoom`, if the answer is counted there.
_Answer = tuple[bytes, Held | None]


class _LeftError(Exception):
    """Says that the client has cancelled the request. Its connection may have other requests."""


class _NotReadError(Exception):
    """Says that the client does not read its answer. Its connection is then closed, because the
    client would not read an error status either."""


class _Flow:
    """Limits the memory of one stream: the bytes of its messages in progress, and of the answers
    that its client has not read."""

    def __init__(self, task: "asyncio.Task[Any] | None") -> None:
        """`task` is the task that handles the stream."""
        self.task = task
        self.changed = asyncio.Event()
        self.in_flight = 0  # bytes
        self.owes = False  # a turn: its last answer is a refusal
        self._held: list[Held] = []
        self._pause_until = 0.0  # loop time

    async def wait(self) -> None:
        """Wait until the stream may take another message."""
        while self._unread > _UNREAD_BYTES or self.in_flight > _MOST_IN_FLIGHT:
            self.changed.clear()
            await self.changed.wait()
        await asyncio.sleep(max(0.0, self._pause_until - asyncio.get_running_loop().time()))

    def refused(self, error: ServiceError) -> None:
        """Make the stream wait before its next message, as a client that sends single requests
        would: for a while if the error is temporary, otherwise for its client's turn."""
        if isinstance(error, RetryableError):
            pause_s = min(error.retry_after_s, _PAUSE_S)
            self._pause_until = asyncio.get_running_loop().time() + pause_s
        else:
            self.owes = True

    @property
    def _unread(self) -> int:
        """Return how many bytes of answers the client has not read."""
        self._held = [held for held in self._held if held.bytes]
        return sum(held.bytes for held in self._held)

    def add(self, held: Held) -> None:
        """Count the bytes of an answer as unread until `held` is released."""
        self._held.append(held)

    def release(self) -> None:
        """Release the reservations for all answers, because the stream has ended."""
        for held in self._held:
            held.release()


class GrpcPort(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Serves the models of a repository over gRPC at one address and port."""

    def __init__(self, host: str, port: int, repository: Repository, max_arriving: int) -> None:
        """`max_arriving` is the number of messages that may arrive at the same time."""
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._stopping = False
        self.number = port  # once it listens
        self._repository = repository
        room = ByteRoom(max_arriving * repository.max_body_bytes)
        self._arrivals = Admission(
            max_arriving, 1, repository.max_body_bytes, room, expected_wait_s=lambda: 1.0
        )
        self._edge = Edge()  # until `start`
        self._server: Any = None
        self._connections: PortConnections | None = None  # since `start`
        self._receiver = Receiver(self._received, repository.max_body_bytes)
        repository.taken_elsewhere = self._receiver.taken
        POOL.AddSerializedFile(reflection_pb2.DESCRIPTOR.serialized_pb)
        services = (INFERENCE, HEALTH, reflection.SERVICE_NAME)
        self._reflection = ReflectionServicer(services, pool=POOL)
        self._handlers = self._handlers_by_method()

    async def start(self, edge: Edge) -> None:
        """Start to listen; `edge` admits requests. Raises OSError if the address is in use."""
        self._edge = edge
        options = {
            "grpc.so_reuseport": 0,
            "grpc.max_receive_message_length": self._repository.max_body_bytes,
            "grpc.per_message_decompression": 0,  # grpcio would decompress on the event loop
            "grpc.max_send_message_length": -1,
            # Half of these are for connections that are not counted yet.
            "grpc.max_allowed_incoming_connections": 2 * edge.limits.connections,
            "grpc.server_handshake_timeout_ms": int(edge.limits.head_s * 1e3),
            "grpc.max_concurrent_streams": _STREAMS,
            "grpc.max_connection_idle_ms": _IDLE_MS,
            "grpc.keepalive_time_ms": _PING_MS,
        }
        self._server = grpc.aio.server(options=list(options.items()))
        self._server.add_generic_rpc_handlers((self,))
        try:
            self.number = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise OSError(f"gRPC at {self._address}: {error}") from error
        await self._server.start()
        self._connections = PortConnections(self.number, edge.limits)
        self._connections.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, and finish the requests in progress within a time limit."""
        self._stopping = True
        if self._connections is not None:
            self._connections.stop()
        if self._server is not None:
            await self._server.stop(grace_s)
        self._receiver.close()

    def _received(self, context: Context) -> int | None:
        connections = self._connections
        return None if connections is None else connections.received(peer_of(context.peer()))

    @override
    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a method, or None if there is no such method."""
        return self._handlers.get(handler_call_details.method)

    def _handlers_by_method(self) -> Mapping[str, Any]:
        # A single answer is written like an answer of a stream, which is the same for a client. So
        # the port knows when the answer is sent.
        behaviours = {path: self._unary(path) for path in (_INFER, _CHECK, *METHODS)}
        behaviours |= {_STREAM: self._stream, _WATCH: self._watch, _REFLECTION: self._reflect}
        handler = grpc.stream_stream_rpc_method_handler
        return {path: handler(self._counted(each)) for path, each in behaviours.items()}

    def _counted(self, behaviour: Behaviour) -> Behaviour:
        """Return a function that runs `behaviour`, and counts the request on its connection
        meanwhile. The function closes the connection if the client does not read the answer."""

        async def counted(messages: Any, context: Context) -> None:
            connections, peer = self._connections, peer_of(context.peer())
            if connections is None:  # stopping
                await behaviour(messages, context)
                return
            try:
                with connections.busy(peer):
                    await behaviour(messages, context)
            except _LeftError:  # other calls of its connection continue
                raise asyncio.CancelledError from None
            except _NotReadError:
                await connections.hang_up_on(peer)
                raise asyncio.CancelledError from None

        return counted

    # --- methods ----------------------------------------------------------------------------------

    def _unary(self, path: str) -> Behaviour:
        """Return the handler of a method with one message."""

        async def answer(_messages: Any, context: Context) -> None:
            try:
                await self._answer_one(path, context)
                return
            except ServiceError as error:
                refusal = _refusal(error, context)
            # Abort only after the `except` block: grpcio keeps the abort's error in a cycle. With
            # `error` as its context, the message would stay in memory until the garbage collector
            # runs.
            await _abort(context, *refusal)

        return answer

    async def _answer_one(self, path: str, context: Context) -> None:
        with self._admitted(path, context) as record:
            turns, caller = self._edge.turns, record.caller.name
            if turns.pay(caller) or path != _INFER:
                await turns.wait(caller)
            data = await self._receive(record, context, None if path == _INFER else _MOST_BYTES)
            record.bytes_in = len(data)
            if path == _INFER:
                data = await self._inflated(data, record.caller)
            received = [data]
            del data
            answer = await self._answer(path, record, received, context)
            record.bytes_out = len(answer)
            held = self._held(record, len(answer), asyncio.current_task())
        await self._write(context, answer, held)

    async def _receive(self, record: RequestRecord, context: Context, most: int | None) -> bytes:
        async with self._arriving(record, self._edge.limits.body_s):
            data: bytes = await self._receiver.read(context, record.caller.name, most)
        if data is grpc.aio.EOF:
            raise BadRequestError("the request has no message; send one")
        return data

    async def _answer(
        self, path: str, record: RequestRecord, received: list[bytes], context: Context
    ) -> bytes:
        if path == _INFER:
            return await infer(self._repository, record, received, context.time_remaining())
        if path in RIGHTS:
            permit(record, RIGHTS[path])
        method = POOL.FindMethodByName(path[1:].replace("/", "."))
        asked = _parse_short(message_class(method.input_type.full_name), received.pop())
        found = self._health(asked) if path == _CHECK else METHODS[path](self._repository, asked)
        fields, kind = await found, message_class(method.output_type.full_name)
        if any(isinstance(value, list | dict) and len(value) > _FEW for value in fields.values()):
            return await asyncio.to_thread(fill, kind, fields)
        return fill(kind, fields)

    async def _stream(self, _messages: Any, context: Context) -> None:
        """Answer a stream of inference requests, in the order in which they arrive."""
        flow = _Flow(asyncio.current_task())
        answers: asyncio.Queue[asyncio.Task[_Answer] | None] = asyncio.Queue(_IN_FLIGHT)

        async def write() -> None:
            while (answer := await answers.get()) is not None:
                data, held = await answer
                del answer
                await self._write(context, data, held)
                flow.changed.set()

        async with self._opened(_STREAM, context) as caller:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(write())
                    while (data := await self._next(context, caller, flow)) is not grpc.aio.EOF:
                        length = len(data)
                        data = await self._inflated_or_error(data, caller)
                        flow.in_flight += 0 if isinstance(data, Exception) else len(data)
                        one = self._streamed(data, length, context, flow)
                        await answers.put(group.create_task(one))
                        del data, one
                    await answers.put(None)
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
            finally:
                flow.release()

    async def _inflated(self, data: bytes, caller: Client) -> bytes:
        """Return a message, decompressed if it is compressed. While it is decompressed, its bytes
        count towards the limit on request bodies. Raises PayloadTooLargeError, BadRequestError,
        MemoryShortError, and QueueFullError."""
        coding, most = coding_of(data), self._repository.max_body_bytes
        if not coding:
            return data
        self._repository.room.check_memory()
        async with _until_given_way(partial(Held, self._repository.room, caller), None) as held:
            held.hold_bytes(len(data))
            read = partial(inflate, data, coding, most)
            return await self._repository.read_aside(read, caller)

    async def _inflated_or_error(self, data: bytes, caller: Client) -> bytes | ServiceError:
        try:
            return await self._inflated(data, caller)
        except ServiceError as error:
            return error.with_traceback(None)

    async def _next(self, context: Context, caller: Client, flow: "_Flow") -> Any:
        """Wait for a stream's next message, and then until the limits of `flow` allow it. Return
        the message."""
        try:
            async with asyncio.timeout(_IDLE_MS / 1e3):
                data = await self._receiver.read(context, caller.name)
        except TimeoutError:
            raise RequestTimeoutError(
                f"no message arrived for {_IDLE_MS // 1000} s; open a new stream for the next one"
            ) from None
        await flow.wait()
        if flow.owes and data is not grpc.aio.EOF:
            flow.owes = False
            await self._edge.turns.wait(caller.name)
        return data

    async def _streamed(
        self, data: bytes | ServiceError, length: int, context: Context, flow: "_Flow"
    ) -> "_Answer":
        """Return the answer to one message of a stream. `length` is the number of bytes that were
        received for it. An error becomes an answer too, so that the stream continues."""
        size = 0 if isinstance(data, Exception) else len(data)
        try:
            with self._admitted(_STREAM, context) as record:
                record.bytes_in = length
                if isinstance(data, ServiceError):
                    raise data
                remaining_s, received = context.time_remaining(), [data]
                del data
                answer = await infer(
                    self._repository, record, received, remaining_s, in_stream=True
                )
                record.bytes_out = len(answer)
                held = self._held(record, len(answer), flow.task)
                flow.add(held)
                return answer, held
        except ServiceError as error:
            flow.refused(error)
            encoded: bytes = _StreamAnswer(error_message=_text(error)).SerializeToString()
            return encoded, None
        finally:
            flow.in_flight -= size
            flow.changed.set()

    def _held(self, record: RequestRecord, count: int, task: "asyncio.Task[Any] | None") -> Held:
        """Reserve memory for an answer until the client has read it, and return the reservation. If
        another client needs the memory, `task` is cancelled."""
        cancel = partial(_cancel, task)
        held = Held(self._repository.room, record.caller, cancel)
        try:
            held.hold_bytes(count)
        except ServiceError:
            held.release()
            raise
        return held

    async def _write(self, context: Context, answer: bytes, held: Held | None) -> None:
        """Write an answer. Raises _LeftError if the client has cancelled the request, and
        _NotReadError if it does not read the answer in time."""
        answer_s = self._edge.limits.answer_s
        try:
            async with asyncio.timeout(answer_s):
                await context.write(answer)
        except TimeoutError:
            _log.info("a client did not read its answer within %g s", answer_s)
            raise _NotReadError from None
        except grpc.aio.InternalError:
            raise _LeftError from None
        finally:
            if held is not None:
                held.release()

    async def _watch(self, _messages: Any, context: Context) -> None:
        """Send a service's health now and whenever it changes."""
        async with self._opened(_WATCH, context) as caller:
            asked = _parse_short(_HealthRequest, await self._first(context, caller))
            said = None
            while not self._stopping:
                try:
                    status = await self._health(asked)
                except ModelNotFoundError:
                    status = {"status": "SERVICE_UNKNOWN"}
                if status != said:
                    said = status
                    await self._write(context, fill(_HealthAnswer, status), None)
                await asyncio.sleep(_LOOK_S)

    async def _reflect(self, _messages: Any, context: Context) -> None:
        """Describe the services for tools that use server reflection."""

        async def asked() -> AsyncIterator[Any]:
            data = await self._first(context, caller)
            while data is not grpc.aio.EOF:
                yield _parse_short(reflection_pb2.ServerReflectionRequest, data)
                data = await self._receiver.read(context, caller.name, _MOST_BYTES)
                await self._edge.turns.wait(caller.name)

        async with self._opened(_REFLECTION, context) as caller:
            async for answer in self._reflection.ServerReflectionInfo(asked(), context):
                await self._write(context, answer.SerializeToString(), None)

    async def _first(self, context: Context, caller: Client) -> Any:
        """Return the first message of a stream whose messages have no tensors. Raises
        RequestTimeoutError if it does not arrive in time."""
        within_s = self._edge.limits.body_s
        try:
            async with asyncio.timeout(within_s):
                return await self._receiver.read(context, caller.name, _MOST_BYTES)
        except TimeoutError:
            raise _too_slow(within_s) from None

    async def _health(self, asked: Any) -> Mapping[str, Any]:
        """Return the health of the model that the service is named after. Without a name, or for
        the inference service, return the health of all models."""
        if asked.service in ("", INFERENCE):
            check_ready = self._repository.check_ready
        else:
            check_ready = self._repository.find(asked.service).runner.check_ready
        try:
            check_ready()
        except ServiceError:
            return {"status": "NOT_SERVING"}
        return {"status": "SERVING"}

    # --- limits -----------------------------------------------------------------------------------

    @contextmanager
    def _admitted(self, path: str, context: Context) -> Iterator[RequestRecord]:
        """Within the `with` block, count a request as in progress. Yield its record. Raises
        ServiceError if the request is refused or fails."""
        headers = {
            name.encode(): value if isinstance(value, bytes) else value.encode()
            for name, value in context.invocation_metadata()
        }
        peer = peer_of(context.peer())
        address = peer[0]
        request_id = self._edge.request_id(headers)
        client = self._edge.client_of(network_of(address))
        record = RequestRecord(request_id, address, RPC, path.encode(), b"", headers, client)
        context.set_trailing_metadata((("x-request-id", request_id.decode()),))
        self._repository.company.enter()
        try:
            connections = self._connections
            health_only = connections is not None and connections.health_only(peer)
            refused = self._edge.admit(record, health_only=health_only)
            if refused is not None:
                raise refused
            yield record
            record.status = HTTPStatus.OK
        except ServiceError as error:
            record.status = error.code
            raise
        except asyncio.CancelledError:
            record.status = Code.CLIENT_LEFT
            self._edge.turns.owe(client.name)
            raise
        except Exception as error:
            record.status = Code.FAILED
            _log.exception("request %s failed unexpectedly", request_id.decode())
            raise ServiceError(CRASHED) from error
        finally:
            self._repository.company.leave()
            self._edge.leave(record)

    @asynccontextmanager
    async def _opened(self, path: str, context: Context) -> AsyncIterator[Client]:
        """Admit a stream, and yield its client. An open stream counts as one arriving message, so
        that the number of open streams is limited."""
        try:
            with self._admitted(path, context) as record:
                await self._edge.turns.wait(record.caller.name)
            async with self._arriving(record, None):
                yield record.caller
            return
        except ServiceError as error:
            refusal = _refusal(error, context)
        await _abort(context, *refusal)

    @asynccontextmanager
    async def _arriving(self, record: RequestRecord, within_s: float | None) -> AsyncIterator[None]:
        """Within the `with` block, count a message as arriving. Raises QueueFullError if another
        client's message takes its place, and RequestTimeoutError if the message does not arrive in
        time."""
        hold = partial(Reservation, self._arrivals, record.caller)
        try:
            async with _until_given_way(hold, within_s) as reservation:
                reservation.admit(1)
                yield
        except TimeoutError:
            raise _too_slow(within_s) from None


@asynccontextmanager
async def _until_given_way(
    hold: Callable[[Callable[[ServiceError], None]], _Held], within_s: float | None
) -> AsyncIterator[_Held]:
    """Within the `with` block, hold a reservation of capacity, and yield it. `hold` creates it. If
    another client needs the capacity, the argument of `hold` is called with an error.

    In that case, the block is cancelled and the error is raised. If the block takes longer than
    `within_s`, raises TimeoutError.
    """
    refused: list[ServiceError] = []
    try:
        async with asyncio.timeout(within_s) as limit:

            def give_way(error: ServiceError) -> None:
                refused.append(error)
                limit.reschedule(0.0)

            held = hold(give_way)
            try:
                yield held
            finally:
                held.release()
    except TimeoutError:
        if refused:
            raise refused[0] from None
        raise


def _too_slow(within_s: float | None) -> RequestTimeoutError:
    return RequestTimeoutError(f"the message did not arrive within {within_s:g} s; send it faster")


def _cancel(task: "asyncio.Task[Any] | None", _: ServiceError) -> None:
    if task is not None:
        task.cancel()


def _parse_short(kind: Any, data: Any) -> Any:
    """Parse a message that contains no tensors."""
    if data is grpc.aio.EOF:
        raise BadRequestError("the request has no message; send one")
    if len(data) > _MOST_BYTES:
        raise PayloadTooLargeError(
            f"the message has {len(data)} bytes; this method allows at most {_MOST_BYTES}"
        )
    coding = coding_of(data)
    return parse(kind, inflate(data, coding, _MOST_BYTES) if coding else data)


def _text(error: ServiceError) -> str:
    text = str(error)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."


_Refusal = tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]


def _refusal(error: ServiceError, context: Context) -> _Refusal:
    """Return the gRPC status, the text and the trailers for an error. Delete the error's traceback.

    A traceback refers to stack frames. If one of them waits for the failed task, it also refers to
    the error. This reference cycle would keep data in memory, such as a model that was not loaded.
    """
    error.with_traceback(None)
    trailers = context.trailing_metadata()
    if isinstance(error, RetryableError):
        trailers = (*trailers, ("retry-after", str(max(1, ceil(error.retry_after_s)))))
    return _STATUSES[error.code], _text(error), trailers


async def _abort(
    context: Context, status: grpc.StatusCode, text: str, trailers: tuple[tuple[str, str], ...]
) -> NoReturn:
    """End a request with an error status."""
    await context.abort(status, text, trailers)
    raise AssertionError  # it has raised
