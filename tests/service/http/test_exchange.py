"""The pieces of a body are kept until the body is complete."""

import random
import tracemalloc

from service.http.exchange import add_chunk


def test_a_body_in_pieces_of_any_size_is_the_body() -> None:
    rng = random.Random(0)
    body = rng.randbytes(300_000)
    chunks: list[bytes | bytearray] = []
    begin = 0
    while begin < len(body):
        size = rng.choice((1, 2, 700, 5_000, 70_000))
        add_chunk(chunks, body[begin : begin + size])
        begin += size
    assert b"".join(chunks) == body


def test_a_whole_body_is_not_copied() -> None:
    chunks: list[bytes | bytearray] = []
    body = bytes(100)
    add_chunk(chunks, body)
    assert b"".join(chunks) is body


def test_a_body_in_pieces_of_two_bytes_takes_little_more_than_its_bytes() -> None:
    chunks: list[bytes | bytearray] = []
    tracemalloc.start()
    for number in range(200_000):
        add_chunk(chunks, number.to_bytes(2, "little") if number < 2**16 else b"ab")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(map(len, chunks)) == 400_000
    assert peak < 2 * 400_000
