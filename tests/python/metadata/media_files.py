"""Small media files made by hand, for tests of pipeloom.metadata."""
import io
import json
import struct
import tarfile
import wave
import zlib


def chunk(kind, data):
    return (struct.pack(">I", len(data)) + kind + data +
            struct.pack(">I", zlib.crc32(kind + data)))


def exif(orientation, order="<"):
    """Returns EXIF data with this orientation."""
    head = {"<": b"II*\0", ">": b"MM\0*"}[order]
    return (head + struct.pack(order + "IH", 8, 1) +
            struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0) +
            struct.pack(order + "I", 0))


def png(width, height, orientation=0):
    """Returns a whole PNG image of one colour."""
    rows = b"".join(b"\0" + b"\x7f" * 3 * width for _ in range(height))
    extra = chunk(b"eXIf", exif(orientation)) if orientation else b""
    return (b"\x89PNG\r\n\x1a\n" +
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0,
                                       0)) + extra +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def jpeg(width, height, orientation=0, frame=0xC0):
    """Returns a JPEG file up to the start of its pixels."""

    def segment(marker, data):
        return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data

    extra = b""
    if orientation:
        extra = segment(0xE1, b"Exif\0\0" + exif(orientation, ">"))
    return (b"\xff\xd8" + segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0") + extra +
            segment(0xDB, b"\0" + bytes(64)) +
            segment(frame, struct.pack(">BHHB", 8, height, width, 1) +
                    b"\1\x11\0") +
            segment(0xDA, b"\1\1\0\0\x3f\0") + bytes(8) + b"\xff\xd9")


def gif(width, height):
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0) + b";"


def bmp(width, height):
    row = b"\x7f" * ((3 * width + 3) // 4 * 4)
    return (b"BM" + struct.pack("<IHHI", 54 + len(row) * height, 0, 0, 54) +
            struct.pack("<IiiHHIIiiII", 40, width, -height, 1, 24, 0, 0, 0, 0,
                        0, 0) + row * height)


def webp(width, height, form="lossy", orientation=0):
    """Returns the header of a WebP file: "lossy", "lossless" or "extended"."""
    if form == "lossy":
        body = b"\x30\1\0\x9d\x01\x2a" + struct.pack("<HH", width, height)
        chunks = b"VP8 " + struct.pack("<I", len(body)) + body + bytes(16)
    elif form == "lossless":
        bits = (width - 1) | (height - 1) << 14
        chunks = (b"VP8L" + struct.pack("<I", 6) + b"\x2f" +
                  struct.pack("<I", bits) + bytes(17))
    else:
        sides = ((width - 1).to_bytes(3, "little") +
                 (height - 1).to_bytes(3, "little"))
        chunks = (b"VP8X" + struct.pack("<I", 10) +
                  bytes((8 if orientation else 0, 0, 0, 0)) + sides)
        data = exif(orientation or 1)
        chunks += b"VP8 " + struct.pack("<I", 11) + bytes(12)
        chunks += b"EXIF" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WEBP" + chunks


def box(kind, *contents, wide=False):
    data = b"".join(contents)
    if wide:
        return struct.pack(">I4sQ", 1, kind, len(data) + 16) + data
    return struct.pack(">I4s", len(data) + 8, kind) + data


def _track(kind, number, timescale, times, size=(0, 0), turned=False):
    matrix = ((0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30) if turned else
              (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30))
    total = sum(n * d for n, d in times)
    entry = bytes(6) + struct.pack(">H", 1) + bytes(16)
    if kind == b"vide":
        entry += struct.pack(">HH", *size) + bytes(50)
    return box(
        b"trak",
        box(b"tkhd", struct.pack(">III", 7, 0, 0),
            struct.pack(">III", number, 0, total), bytes(16),
            struct.pack(">9i", *matrix),
            struct.pack(">II", size[0] << 16, size[1] << 16)),
        box(b"mdia",
            box(b"mdhd", struct.pack(">IIIIII", 0, 0, 0, timescale, total, 0)),
            box(b"hdlr", struct.pack(">II", 0, 0), kind, bytes(13)),
            box(b"minf", box(
                b"stbl",
                box(b"stsd", struct.pack(">II", 0, 1), box(b"avc1", entry)),
                box(b"stts", struct.pack(">II", 0, len(times)),
                    *(struct.pack(">II", *t) for t in times)),
                box(b"stsz", struct.pack(">III", 0, 1,
                                         sum(n for n, _ in times)))))))


def mp4(size, frames, rate, *, turned=False, sound=0, wide=False,
        fragments=0, index_first=False):
    """Returns an MP4 file without frames' data. `fragments`: the frames are
    described in this number of fragments."""
    times = [] if fragments else [(frames, 1000)]
    tracks = _track(b"vide", 1, 1000 * rate, times, size, turned)
    if sound:
        tracks = _track(b"soun", 2, 48000, [(sound, 1024)]) + tracks
    extend = box(b"mvex", box(b"trex", struct.pack(
        ">IIIIII", 0, 1, 1, 1000, 0, 0))) if fragments else b""
    movie = box(b"moov", box(b"mvhd", bytes(100)), tracks, extend)
    data = box(b"mdat", bytes(5000), wide=wide)
    rest = b"".join(
        box(b"moof", box(b"traf", box(b"tfhd", struct.pack(">II", 0, 1)),
                         box(b"trun", struct.pack(">II", 0,
                                                  frames // fragments))))
        for _ in range(fragments))
    head = box(b"ftyp", b"isom", bytes(4), b"isom")
    return head + (movie + data if index_first or fragments else
                   data + movie) + rest


def wav(seconds, rate=16000):
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(2 * round(seconds * rate)))
    return out.getvalue()


def flac(samples, rate):
    packed = (rate << 44 | 1 << 41 | 15 << 36 | samples).to_bytes(8, "big")
    return (b"fLaC\x80\0\0\x22" + struct.pack(">HH", 4096, 4096) + bytes(6) +
            packed + bytes(16))


def ogg(position, codec="vorbis", rate=44100, skipped=312):
    """Returns an OGG file of two pages whose last ends at sample `position`."""

    def page(flags, at, data):
        return (b"OggS\0" + struct.pack("<BQIII", flags, at, 77, 0, 0) +
                bytes((1, len(data))) + data)

    head = (b"\x01vorbis" + struct.pack("<IBI", 0, 2, rate) + bytes(14)
            if codec == "vorbis" else
            b"OpusHead\x01\x02" + struct.pack("<HIH", skipped, 48000, 0) +
            b"\0")
    return page(2, 0, head) + page(4, position, bytes(200))


def mp3(frames, *, bitrates=(9,), table=False, tagged=False, trimmed=0):
    """Returns an MP3 file of 44.1 kHz. `bitrates`: indices that take turns (9
    is 128 kbit/s). `table`: with a Xing table of the number of frames."""
    rates = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)

    def frame(index, data=b""):
        size = 144 * rates[index] * 1000 // 44100
        return (bytes((0xFF, 0xFB, index << 4, 0)) + data).ljust(size, b"\0")

    first = b""
    if table:
        first = frame(9, bytes(32) + b"Xing" + struct.pack(">II", 1, frames) +
                      b"LAME3.100" + bytes(12) +
                      (trimmed << 12).to_bytes(3, "big"))
    body = b"".join(frame(bitrates[i % len(bitrates)]) for i in range(frames))
    tag = b"ID3\4\0\0\0\0\1\0" + bytes(128) if tagged else b""
    return tag + first + body


def shard(path, members, mode="w", end=True):
    """Writes a tar file of (name, bytes) pairs; without `end`, no end mark."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        last = tar.offset
    data = out.getvalue()
    with open(path, "wb") as file:
        file.write(data if end else data[:last])


def json_lines(path, records):
    with open(path, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
