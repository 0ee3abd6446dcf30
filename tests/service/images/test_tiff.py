"""TIFF files: common ones are decoded correctly, and others are refused before they are decoded."""

import struct
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from PIL import Image

from service.errors import ImageError, ServiceError, UnsupportedMediaTypeError
from service.images.prepare import ImageLimits, parse_image_file, prepare_image
from tests.service.images.test_prepare import RGB
from tests.support.images.files import encode, exif, scene

IMAGE = scene(40, 30)
LIMITS = ImageLimits()
WIDE = Image.fromarray(np.asarray(IMAGE.convert("L")).astype(np.uint16) * 257)


def drawn(data: bytes) -> object:
    return prepare_image(data, RGB, LIMITS).run()


def tagged(data: bytes, tag: int, change: Callable[[int, int, int], Sequence[int]]) -> bytes:
    """Return a little-endian TIFF with one tag's type, count and value changed."""
    (begin,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, begin)
    hurt = bytearray(data)
    for at in range(begin + 2, begin + 2 + 12 * count, 12):
        if struct.unpack_from("<H", data, at)[0] == tag:
            struct.pack_into(
                "<HII", hurt, at + 2, *change(*struct.unpack_from("<HII", data, at + 2))
            )
            return bytes(hurt)
    raise AssertionError(f"there is no tag {tag}")


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "packbits"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L", "1", "LA", "I;16"])
def test_a_tiff_is_drawn_as_the_same_png_is(mode: str, compression: str | None) -> None:
    image = WIDE if mode == "I;16" else IMAGE.convert(mode)
    tiff = encode(image, "TIFF", compression=compression)
    np.testing.assert_array_equal(drawn(tiff), drawn(encode(image, "PNG")))


def test_a_tiff_of_a_big_endian_machine_is_read() -> None:
    for image in (WIDE, IMAGE):
        data = encode(image, "TIFF")
        raw = np.frombuffer(image.tobytes(), ">u2" if image is WIDE else "u1")
        (begin,) = struct.unpack_from("<I", data, 4)
        (count,) = struct.unpack_from("<H", data, begin)
        entries = [struct.unpack_from("<HHI", data, begin + 2 + 12 * n) for n in range(count)]
        values = {tag: data[begin + 10 + 12 * n :][:4] for n, (tag, _, _) in enumerate(entries)}
        tags = {tag: int.from_bytes(values[tag][: 2 if kind == 3 else 4], "little")
                for tag, kind, number in entries if number == 1}  # fmt: skip
        tags |= {258: 16 if image is WIDE else 8, 273: 8, 279: len(raw.tobytes())}
        if image is WIDE:
            raw = raw.byteswap().view(">u2")
        body = raw.tobytes()
        directory = struct.pack(">H", len(tags)) + b"".join(
            struct.pack(">HHII", tag, 4, 1, value) for tag, value in sorted(tags.items())
        )
        big = b"MM\0*" + struct.pack(">I", 8 + len(body)) + body + directory + bytes(4)
        np.testing.assert_array_equal(drawn(big), drawn(encode(image, "PNG")))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_tiff_is_turned_upright_once(orientation: int) -> None:
    turned = encode(IMAGE, "TIFF", exif=exif(orientation))
    assert parse_image_file(turned).orientation == orientation
    np.testing.assert_array_equal(
        drawn(turned), drawn(encode(IMAGE, "PNG", exif=exif(orientation)))
    )


def test_the_first_page_is_the_image_and_the_decoder_gets_no_other() -> None:
    pages = encode(IMAGE, "TIFF", save_all=True, append_images=[scene(40, 30, 1)])
    np.testing.assert_array_equal(drawn(pages), drawn(encode(IMAGE, "PNG")))


def test_the_decoder_gets_no_tag_that_does_not_affect_pixels() -> None:
    described = encode(IMAGE, "TIFF", tiffinfo={270: "x" * 5000, 315: "by me"})
    (*_, directory) = parse_image_file(described).parts
    tags = [struct.unpack_from("<H", directory, at)[0] for at in range(2, len(directory) - 4, 12)]
    assert 256 in tags
    assert not {270, 315} & {*tags}
    np.testing.assert_array_equal(drawn(described), drawn(encode(IMAGE, "PNG")))


PLAIN, LZW = encode(IMAGE, "TIFF"), encode(IMAGE, "TIFF", compression="tiff_lzw")


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (PLAIN[:6], ImageError, "truncated"),
        (PLAIN[:-20], ImageError, "truncated"),
        (tagged(PLAIN, 256, lambda *_: (4, 1, 0)), ImageError, "width or height"),
        (tagged(PLAIN, 256, lambda *_: (4, 1, 9000)), ImageError, "at least 810000 bytes"),
        (tagged(LZW, 257, lambda *_: (4, 1, 2**20)), ImageError, "lists .* strips or tiles"),
        (tagged(PLAIN, 273, lambda *_: (4, 1, 2**30)), ImageError, "truncated"),
        (tagged(PLAIN, 279, lambda *_: (4, 1, 2**30)), ImageError, "truncated"),
        (tagged(PLAIN, 273, lambda *_: (4, 5000, 0)), ImageError, "5000 values"),
        (tagged(PLAIN, 278, lambda *_: (4, 1, 0)), ImageError, "no pixels"),
        (tagged(PLAIN, 262, lambda *_: (3, 1, 6)), UnsupportedMediaTypeError, "space 6"),
        (tagged(PLAIN, 277, lambda *_: (3, 1, 2)), UnsupportedMediaTypeError, "2 samples"),
        (tagged(PLAIN, 259, lambda *_: (3, 1, 7)), UnsupportedMediaTypeError, "compression JPEG;"),
        (encode(IMAGE.convert("F"), "TIFF"), UnsupportedMediaTypeError, "32 bits"),
        (b"II+\0" + PLAIN[4:], UnsupportedMediaTypeError, "BigTIFF"),
    ],
)  # fmt: skip
def test_what_is_no_usual_tiff_is_refused(
    data: bytes, error: type[ServiceError], says: str
) -> None:
    with pytest.raises(error, match=says):
        prepare_image(data, RGB, LIMITS)


def test_a_tile_much_larger_than_the_image_is_refused() -> None:
    tiled = [(256, 40), (257, 30), (258, 8), (259, 1), (262, 1), (277, 1), (322, 65_520)]
    tiled += [(323, 65_520), (324, 8), (325, 100)]
    directory = struct.pack("<H", len(tiled)) + b"".join(
        struct.pack("<HHII", tag, 4, 1, value) for tag, value in tiled
    )
    data = b"II*\0" + struct.pack("<I", 108) + bytes(100) + directory + bytes(4)
    with pytest.raises(ImageError, match="tiles of 65520×65520 pixels are larger than the image"):
        prepare_image(data, RGB, LIMITS)
