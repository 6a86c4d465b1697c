"""Sizes from headers of whole and of damaged files."""
import io
import random
import struct
import time
import unittest

import media_files as mf
from metadata_folder import Folder, clip, have
from pipeloom import metadata
from pipeloom.metadata import BrokenFileError, MetadataError
from pipeloom.metadata.errors import Unreadable
from pipeloom.metadata.headers import images, measure, mp3


def sizes_of(data, wanted="", **options):
    return measure.measure(io.BytesIO(data), wanted, **options)


class ImageTest(unittest.TestCase):

    def check(self, data, size):
        """Compares this package's reader, and Pillow where it is installed."""
        for oriented in (True, False):
            self.assertEqual(images.own_size(io.BytesIO(data), oriented),
                             size[oriented])
            self.assertEqual(images.image_size(io.BytesIO(data), oriented),
                             size[oriented])

    def test_reads_the_size_of_every_format(self):
        for data in (mf.png(31, 20), mf.jpeg(31, 20),
                     mf.jpeg(31, 20, frame=0xC2), mf.bmp(31, 20)):
            self.check(data, [(31, 20)] * 2)
        for data in (mf.gif(31, 20), mf.webp(31, 20),
                     mf.webp(31, 20, "lossless"),
                     mf.webp(31, 20, "extended")):  # Too short for Pillow.
            self.assertEqual(images.own_size(io.BytesIO(data)), (31, 20))

    def test_orientation_swaps_width_and_height_only_where_it_turns(self):
        for orientation in range(1, 9):
            shown = (20, 31) if orientation > 4 else (31, 20)
            for data in (mf.png(31, 20, orientation),
                         mf.jpeg(31, 20, orientation)):
                self.check(data, [(31, 20), shown])
            data = mf.webp(31, 20, "extended", orientation)
            self.assertEqual(images.own_size(io.BytesIO(data)), shown)

    def test_a_size_beyond_what_pillow_decodes_is_read(self):
        data = mf.png(2, 2)
        at = data.index(b"IHDR") + 4
        data = data[:at] + struct.pack(">II", 60000, 50000) + data[at + 8:]
        self.assertEqual(images.own_size(io.BytesIO(data)), (60000, 50000))

    def test_damage_is_named(self):
        for data, why in ((mf.png(0, 4), "0 x 4"), (mf.png(9, 9)[:20], "ends"),
                          (mf.png(9, 9)[:33], "ends|pixels"),
                          (mf.jpeg(9, 9)[:30], "ends"),
                          (b"\xff\xd8\xff\xd9", "frame header"),
                          (mf.webp(9, 9, "lossless")[:14], "ends")):
            with self.assertRaisesRegex(Unreadable, why):
                images.own_size(io.BytesIO(data))
        for data, why in ((b"", "empty"), (b"hello, world", "no known image"),
                          (b"<html>404</html>", "text")):
            with self.assertRaisesRegex(Unreadable, why):
                sizes_of(data, "image" if data[:1] == b"<" else "")


class VideoTest(unittest.TestCase):

    def test_reads_frames_size_and_length(self):
        for options in ({}, {"wide": True}, {"index_first": True},
                        {"fragments": 5}, {"sound": 10}):
            found = sizes_of(mf.mp4((640, 360), 50, 25, **options), "video")
            self.assertEqual(found.videos, (clip(50, 640, 360, 2.0),), options)
            self.assertEqual(found.audio_seconds, ())

    def test_turned_video_and_its_sound(self):
        data = mf.mp4((640, 360), 30, 30, turned=True, sound=47)
        self.assertEqual(sizes_of(data).videos, (clip(30, 360, 640, 1.0),))
        self.assertEqual(sizes_of(data, oriented=False).videos,
                         (clip(30, 640, 360, 1.0),))
        self.assertEqual(sizes_of(data, video_sound=True).audio_seconds,
                         (1.003,))
        self.assertEqual(sizes_of(data, "audio").audio_seconds, (1.003,))

    def test_a_cut_off_video_is_refused(self):
        data = mf.mp4((64, 36), 30, 30)
        for cut, why in ((100, "mdat"), (len(data) - 3, "moov"),
                         (5024 + 8, "no description")):
            with self.assertRaisesRegex(Unreadable, why):
                sizes_of(data[:cut], "video")

    def test_other_containers_name_the_package(self):
        if have("av"):
            self.skipTest("PyAV is installed")
        with self.assertRaisesRegex(MetadataError, "pip install av"):
            sizes_of(b"\x1a\x45\xdf\xa3" + bytes(60), "video")


class AudioTest(unittest.TestCase):

    def seconds(self, data):
        return sizes_of(data, "audio").audio_seconds[0]

    def test_reads_the_length_of_every_format(self):
        self.assertEqual(self.seconds(mf.wav(1.5)), 1.5)
        self.assertEqual(self.seconds(mf.flac(66150, 44100)), 1.5)
        self.assertEqual(self.seconds(b"ID3\4\0\0\0\0\0\4" + bytes(4) +
                                      mf.flac(66150, 44100)), 1.5)
        self.assertEqual(self.seconds(mf.ogg(66150)), 1.5)
        self.assertEqual(self.seconds(mf.ogg(72312, "opus")), 1.5)
        self.assertEqual(self.seconds(mf.mp4((8, 8), 1, 1, sound=100)), 2.133)

    def test_mp3_by_table_by_constant_bitrate_and_by_all_frames(self):
        exact = round(100 * 1152 / 44100, 3)
        self.assertEqual(self.seconds(mf.mp3(100, table=True)), exact)
        self.assertEqual(self.seconds(mf.mp3(100, table=True, trimmed=1152)),
                         round(99 * 1152 / 44100, 3))
        for tagged in (False, True):
            self.assertEqual(self.seconds(mf.mp3(
                100, bitrates=(5, 9, 14), tagged=tagged)), exact)
            self.assertAlmostEqual(self.seconds(mf.mp3(100, tagged=tagged)),
                                   exact, delta=0.01)

    def test_mp3_frames_of_all_versions(self):
        self.assertEqual(mp3.parse_frame(b"\xff\xfb\x92\0", 0)[:4],
                         (418, 1152, 44100, 128000))
        self.assertEqual(mp3.parse_frame(b"\xff\xf3\x80\xc0", 0)[:4],
                         (208, 576, 22050, 64000))
        self.assertIsNone(mp3.parse_frame(b"\xff\xfb\xf2\0", 0))

    def test_damage_is_named(self):
        whole = mf.wav(1.0)
        for data, why in ((whole[:1000], "ends inside its sound"),
                          (whole[:36], "no sound"), (whole[:20], "ends|sound"),
                          (mf.flac(0, 44100), "length"),
                          (mf.ogg(0), "last page"),
                          (b"ID3\4\0\0\0\0\0\0" + bytes(99), "no MP3 frame")):
            with self.assertRaisesRegex(Unreadable, why):
                self.seconds(data)

    def test_a_stream_without_its_size_is_read_to_its_end(self):
        data = bytearray(mf.wav(1.5))
        struct.pack_into("<I", data, 40, 0xFFFFFFFF)
        self.assertEqual(self.seconds(bytes(data)), 1.5)


class FuzzTest(Folder):

    def test_damaged_files_give_sizes_or_clean_errors(self):
        draw = random.Random(22)
        seeds = [mf.png(31, 20, 6), mf.jpeg(31, 20, 6), mf.gif(31, 20),
                 mf.bmp(31, 20), mf.webp(31, 20, "extended", 6),
                 mf.mp4((64, 36), 30, 30, sound=9),
                 mf.mp4((64, 36), 30, 30, fragments=3), mf.wav(0.1),
                 mf.flac(4410, 44100), mf.ogg(4410), mf.mp3(9, table=True),
                 mf.mp3(60, bitrates=(1, 9)), b"\x1a\x45\xdf\xa3" + bytes(60)]
        outcomes = {"sizes": 0, "error": 0}
        for _ in range(6000):
            data = bytearray(draw.choice(seeds))
            for _ in range(draw.randint(1, 4)):
                at = min(int(draw.expovariate(0.02)), len(data) - 1)
                data[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF,
                                        draw.randrange(256)))
            if draw.random() < 0.3:
                del data[draw.randrange(len(data)):]
            began = time.monotonic()
            try:
                sizes_of(bytes(data), draw.choice(("", "image", "video",
                                                   "audio")))
                outcomes["sizes"] += 1
            except (Unreadable, MetadataError):
                outcomes["error"] += 1
            self.assertLess(time.monotonic() - began, 5)
        self.assertGreater(outcomes["sizes"], 500)
        self.assertGreater(outcomes["error"], 500)

    def test_damaged_shards_give_samples_or_clean_errors(self):
        draw = random.Random(23)
        mf.shard(self.path("whole.tar"), [
            (f"{n}.{end}", data) for n in range(6) for end, data in (
                ("json", b'{"caption": "a"}'), ("png", mf.png(9, 9)))])
        with open(self.path("whole.tar"), "rb") as file:
            whole = file.read(12 * 1024 + 1024)
        path, broken = self.path("x.tar"), 0
        for _ in range(300):
            data = bytearray(whole)
            for _ in range(draw.randint(1, 6)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            del data[draw.choice((len(data), draw.randrange(len(data)))):]
            with open(path, "wb") as file:
                file.write(data)
            found = list(metadata.read(path, skip_broken=True))
            self.assertLessEqual(len(found), 12)
            try:
                list(metadata.read(path))
            except BrokenFileError as error:
                broken += 1
                self.assertIn("x.tar", str(error))
        self.assertGreater(broken, 100)
