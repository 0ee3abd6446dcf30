"""python -m tests.fuzz.seeds: write the initial inputs of fuzzing, a few bytes of every kind."""

import io
import zipfile
from collections.abc import Iterator
from hashlib import sha256

from PIL import Image

from service.grpc.messages import message_class
from tests.fuzz import lock
from tests.fuzz.targets import CORPUS, LOCK
from tests.support.clips.videos import video
from tests.support.images import worst_inputs as worst
from tests.support.images.files import encode, exif, heic, scene

_MOST = 2000  # bytes: longer seeds are cut, which is a kind of their own


def seeds() -> Iterator[tuple[str, bytes]]:
    """Pairs of a target and an input."""
    for data in worst.JSON.values():
        yield "json", b"\0" + data.replace(b"[1,224,224,3]", b"[1,2,3,1]")
    yield "json", b"\xc8" + worst.infer_json(b"[1,2,3,4,5,6]", shape=b"[1,2,3,1]")
    yield "json", b"\0" + worst.infer_json(b"[[[[1],[2],[3]],[[4],[5],[6]]]]", shape=b"[1,2,3,1]")
    for data in worst.FORMS.values():
        yield "form", b"multipart/form-data; boundary=b\n" + data
    for text in worst.CONTENT_TYPES.values():
        yield "form", text[:200] + b"\n--b\r\n"
    for data in worst.HEADERS.values():
        yield "header", data
    small = scene(24, 16)
    for options in ({}, {"progressive": True}, {"exif": exif(6)}):
        yield "header", encode(small, "JPEG", **options)
    for mode in ("L", "RGBA", "P", "1"):
        yield "header", encode(small.convert(mode), "PNG")
    for lossless in (False, True):
        yield "header", encode(small, "WebP", lossless=lossless)
    for mode in ("L", "P", "RGB", "1"):
        yield "header", encode(small.convert(mode), "BMP")
    yield "header", encode(small.convert("P"), "GIF", transparency=1)
    for mode in ("L", "P", "RGBA", "1"):
        yield "header", encode(small.convert(mode), "TIFF", compression="tiff_lzw")
    yield "header", encode(Image.new("RGB", (9, 9)), "TIFF", exif=exif(6))
    for mode in ("L", "RGB", "RGBA"):
        yield "header", encode(small.convert(mode), "AVIF", exif=exif(6))
    for name in ("scene", "scenergba", "odd"):
        yield "header", heic(name)
    yield "header", encode(Image.new("CMYK", (9, 9)), "JPEG")
    frames = [scene(9, 7, seed) for seed in range(3)]
    for animation in ("GIF", "PNG", "WEBP"):
        yield "clip", encode(frames[0], animation, save_all=True, append_images=frames[1:])
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as archive:
            for number, frame in enumerate(frames):
                entry = zipfile.ZipInfo(f"{number}.png")
                archive.writestr(entry, encode(frame, "PNG"), compress_type=method)
        yield "clip", file.getvalue()
    small_frames = [scene(16, 16, seed) for seed in range(3)]
    for written in ({"movflags": "faststart"}, {"movflags": "frag_keyframe+empty_moov"}):
        yield "clip", video(small_frames, written=written, crf="51", qp="51")
    for streamed in (False, True):
        yield "clip", video(small_frames, "webm", "libvpx", streamed=streamed, crf="63", b="1k")
    yield "headers", b"x-timeout-ms: 5\nx-priority: 1"
    yield "headers", worst.COMPRESSED["nested JSON of 8 MB in 8 kB"]()[:500]
    for head in worst.HEADS.values():
        yield "protocol", b"\x40" + head + b"\r\n\r\n"
    body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
    chunks = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks += b"3\r\nabc\r\n0\r\nX: y\r\n\r\n"
    upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    yield "protocol", b"\xff" + body * 3
    yield "protocol", b"\x01" + chunks + body
    yield (
        "protocol",
        b"\xff" + upgrade * 2,
    )
    yield "protocol", b"\xff" + b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n"

    for name, datatype, shape, contents in (
        ("image", "UINT8", (1, 2, 3, 1), {"uint_contents": [0, 7, 127, 128, 255, 1]}),
        ("x", "FP32", (1, 1, 2, 3), {"fp32_contents": [0.5] * 6}),
        ("image", "BYTES", (2,), {"bytes_contents": [b"one", b"two"]}),
        ("image", "UINT8", (1, 2, 3, 1), {}),
    ):
        asked = message_class("inference.ModelInferRequest")(model_name="m", id="i")
        tensor = asked.inputs.add(name=name, datatype=datatype, shape=shape)
        for field, values in contents.items():
            getattr(tensor.contents, field).extend(values)
        if not contents:
            asked.raw_input_contents.append(bytes(6))
        asked.parameters["priority"].int64_param = 1
        asked.outputs.add(name="scores").parameters["classification"].int64_param = 2
        yield "protobuf", asked.SerializeToString()
    for kind, long in lock.KNOWN.values():
        yield LOCK, lock.written(kind, long)


def main() -> None:
    """Write the inputs, named after their content."""
    for target, data in seeds():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        seed = data[:_MOST]
        (folder / sha256(seed).hexdigest()[:16]).write_bytes(seed)


if __name__ == "__main__":
    main()
