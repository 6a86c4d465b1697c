"""Every kind of source, and the tokens of texts."""
import base64
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import unittest

import media_files as mf
from metadata_folder import ROOT, Folder, clip, have
from pipeloom import Sample, metadata
from pipeloom.metadata import BrokenFileError, MetadataError, packages
from pipeloom.metadata.sources import energon, yaml_subset
from pipeloom.metadata.text import TokenCounter


class SourceTest(Folder):

    def test_shards_with_several_files_of_a_key(self):
        conversation = json.dumps({"conversations": [
            {"from": "human", "value": "<image>abcdefgh"},
            {"from": "gpt", "value": "ijkl"}]})
        mf.shard(self.path("a.tar"), [
            ("__info__", b"x"), ("d/1.left.jpg", mf.jpeg(30, 20)),
            ("d/1.right.png", mf.png(10, 12)), ("d/1.txt", b"abcd"),
            ("d/1.json", b'{"caption": "abcd", "width": 3}'),
            ("d/2.mp4", mf.mp4((64, 36), 30, 30)),
            ("d/2.json", conversation.encode()),
            ("d/3.flac", mf.flac(66150, 44100)), ("d/3.cls", b"7"),
            ("d/4.webp", mf.webp(9, 8, "lossless") if not have("PIL.Image")
             else mf.png(9, 8))])
        expected = [Sample(1, ((30, 20), (10, 12))),
                    Sample(3, (), (clip(30, 64, 36, 1.0),)),
                    Sample(0, (), (), (1.5,)), Sample(0, ((9, 8),))]
        self.assertEqual(self.read("a.tar"), expected)
        for suffix, mode in ((".tar.gz", "w:gz"), (".tar.xz", "w:xz")):
            with open(self.path("a.tar"), "rb") as file:
                plain = file.read()
            packed = io.BytesIO()
            with (gzip if mode == "w:gz" else lzma).open(packed, "wb") as out:
                out.write(plain)
            self.put("a" + suffix, packed.getvalue())
            self.assertEqual(self.read("a" + suffix), expected)

    def test_a_cut_off_shard_gives_its_whole_samples_and_is_named(self):
        expected = self.shards(1, 5)
        with open(self.path("shard-000.tar"), "rb") as file:
            data = file.read()
        cut = data.index(b"000003.jpg") + 512 + 100
        self.put("shard-000.tar", data[:cut])
        found = []
        with self.assertRaisesRegex(BrokenFileError,
                                    "shard-000.tar: it ends inside 000003.jpg.*"
                                    "skip"):
            for sample in metadata.read(self.folder):
                found.append(sample)
        self.assertEqual(self.read(skip_broken=True), expected[:3])
        for damage in (data[:5 * 2 * 1024], bytes(data[:4096]) + b"z" * 512 +
                       data[4608:]):
            self.put("shard-000.tar", damage)
            with self.assertRaisesRegex(BrokenFileError, "end mark|damaged"):
                self.read()

    def test_energon_folder_with_splits_exclusions_and_a_field_map(self):
        self.shards(3, 2)
        self.put(".nv-meta/split.yaml", """\
exclude:
- shard-001.tar/000003
split_parts:
  train:
  - shard-{000..001}.tar
  val: [shard-002.tar]
  test: []
""")
        self.put(".nv-meta/dataset.yaml", """\
sample_type:
  __module__: megatron.energon
  __class__: CaptioningSample
field_map:
  image: jpg
  caption: json[caption],txt
""")
        self.assertEqual([s.images[0][0] for s in self.read()], [100, 101, 102])
        self.assertEqual([s.text_tokens for s in self.read(split="val")],
                         [2, 3])
        self.assertEqual(len(self.read(split="all")), 5)
        with self.assertRaisesRegex(MetadataError, "train, val or all"):
            self.read(split="dev")
        with self.assertRaisesRegex(MetadataError, "no shards"):
            self.read(split="test")

    def test_records_of_all_kinds(self):
        self.put("img/a.png", mf.png(40, 30))
        self.put("img/b.jpg", mf.jpeg(20, 10))
        self.put("v.mp4", mf.mp4((64, 36), 30, 30))
        self.put("s.wav", mf.wav(2))
        uri = "data:image/png;base64," + base64.b64encode(mf.png(7, 5)).decode()
        sound = base64.b64encode(mf.wav(1)).decode()
        records = [
            ({"image": "img/a.png", "conversations": [
                {"from": "human", "value": "<image>abcd"},
                {"from": "gpt", "value": "efgh"}]}, Sample(2, ((40, 30),))),
            ({"messages": [{"role": "user", "content": [
                {"type": "text", "text": "abcd"},
                {"type": "image_url", "image_url": {"url": uri}},
                {"type": "image", "image": "img/b.jpg"},
                {"type": "input_audio", "input_audio": {"data": sound,
                                                        "format": "wav"}}]},
                           {"role": "assistant", "content": "efgh"}]},
             Sample(2, ((7, 5), (20, 10)), (), (1.0,))),
            ({"messages": [{"role": "user", "content": "<video><audio>abcd"}],
              "videos": ["v.mp4"], "audios": ["s.wav"], "images": []},
             Sample(1, (), (clip(30, 64, 36, 1.0),), (2.0,))),
            ({"messages": [{"role": "user", "content": [
                {"type": "image"}, {"type": "text", "text": "abcd"}]}],
              "images": ["img/a.png"]}, Sample(1, ((40, 30),))),
            ({"images": ["img/a.png", None, "img/b.jpg"],
              "texts": [None, "abcd", None]}, Sample(1, ((40, 30), (20, 10)))),
            ({"video": ["img/a.png", "img/a.png"], "caption": "abcdefgh"},
             Sample(2, (), (clip(2, 40, 30, 0.0),))),
            ({"text": "12345"}, Sample(2)),
            ({"text_tokens": 7, "images": [[3, 4]], "videos": [
                {"frames": 2, "width": 8, "height": 9}]},
             Sample(7, ((3, 4),), (clip(2, 8, 9, 0.0),))),
        ]
        mf.json_lines(self.path("r.jsonl"), [r for r, _ in records])
        self.put("r.json", json.dumps([r for r, _ in records], indent=2))
        expected = [s for _, s in records]
        self.assertEqual(self.read("r.jsonl"), expected)
        self.assertEqual(self.read("r.json"), expected)
        os.makedirs(self.path("lists"))
        mf.json_lines(self.path("lists/r.jsonl"), [r for r, _ in records])
        self.assertEqual(self.read("lists", media_root=self.folder), expected)

    def test_errors_of_records_name_line_field_and_remedy(self):
        good = json.dumps({"text": "abcd"})
        for line, why in (('{"image": "no.jpg"}', "no.jpg.*--media-root"),
                          ('{"image": "http://host/a.jpg"}', "network"),
                          ('{"text": ', "no JSON"), ("[1]", "no JSON object"),
                          ('{"id": 3, "size": [2, 2]}',
                           "its fields are id, size; .*--text-field"),
                          ('{"text_tokens": "x"}', "wrong kind"),
                          ('{"images": [[0, 5]]}', "0 x 5"),
                          ('{"image": "data:image/png;base64,AAAA"}',
                           "data URI")):
            self.put("r.jsonl", f"{good}\n{good}\n{line}\n{good}\n")
            with self.assertRaisesRegex(BrokenFileError,
                                        f"r.jsonl: line 3.*{why}"):
                self.read("r.jsonl")
            self.assertEqual(len(self.read("r.jsonl", skip_broken=True)), 3)
        self.put("r.json", '[{"text": "abcd"}, {"text": ')
        with self.assertRaisesRegex(BrokenFileError, "r.json: byte 19"):
            self.read("r.json")

    def test_known_fields_that_are_empty_are_a_sample_of_nothing(self):
        self.put("r.jsonl", '{}\n{"text": ""}\n{"images": [], "id": 1}\n')
        self.assertEqual([s.text_tokens for s in self.read("r.jsonl")],
                         [0, 0, 0])
        self.put("r.jsonl", '{"mine": "abcd"}\n')
        self.assertEqual(
            len(self.read("r.jsonl", text_fields=["mine"])), 1)
        with self.assertRaisesRegex(BrokenFileError, "fields are mine"):
            self.read("r.jsonl", text_fields=["other"])

    def test_large_files_of_records_are_cut_into_parts(self):
        records = [{"text": "x" * (i % 900)} for i in range(20000)]
        mf.json_lines(self.path("r.jsonl"), records)
        self.put("r.json", json.dumps(records))
        expected = [Sample(-(-(i % 900) // 4)) for i in range(20000)]
        for name in ("r.jsonl", "r.json"):
            self.assertEqual(self.read(name), expected)

    def test_a_folder_of_media_with_captions(self):
        self.put("a/1.jpg", mf.jpeg(30, 20))
        self.put("a/1.txt", "abcdefgh")
        self.put("b.wav", mf.wav(1))
        self.put("b.json", '{"caption": "abcd"}')
        self.put("readme.txt", "no sample")
        self.put(".hidden/x.jpg", b"damaged")
        self.assertEqual(self.read(), [Sample(2, ((30, 20),)),
                                       Sample(1, (), (), (1.0,))])
        self.assertEqual(self.read("a/1.jpg"), [Sample(0, ((30, 20),))])

    def test_a_folder_of_several_kinds_is_a_question(self):
        self.shards(1, 1)
        self.put("x.jsonl", '{"text": "a"}\n')
        with self.assertRaisesRegex(MetadataError, "several kinds.*--kind"):
            self.read()
        self.assertEqual(len(self.read(kind="jsonl")), 1)

    def test_missing_and_unknown_paths(self):
        for name, why in (("no.tar", "no such file"), ("", "no samples"),
                          ("a.bin", "no known kind"), ("m.yaml", "metadataset"),
                          ("a.tar.zst", "zstd"), ("e.tar", "no tar")):
            if name and name != "no.tar":
                self.put(name, b"1")
            if name:
                with self.assertRaisesRegex(MetadataError, why):
                    self.read(name)
        with self.assertRaisesRegex(MetadataError, "network"):
            list(metadata.read("s3://bucket/a.tar"))

    @unittest.skipUnless(have("pyarrow"), "no pyarrow")
    def test_parquet_and_arrow_tables(self):
        import pyarrow as pa
        import pyarrow.parquet as pq
        rows = [{"picture": {"bytes": mf.png(9 + i, 8), "path": None},
                 "extra": [{"bytes": mf.jpeg(5, 4 + i), "path": "x.jpg"}] * 2,
                 "raw": mf.wav(1), "caption": "abcd", "score": 0.5}
                for i in range(40)]
        table = pa.Table.from_pylist(rows)
        pq.write_table(table, self.path("train-0.parquet"), row_group_size=17)
        pq.write_table(table[:3], self.path("test-0.parquet"))
        expected = [Sample(1, ((9 + i, 8), (5, 4 + i), (5, 4 + i)), (), (1.0,))
                    for i in range(40)]
        self.assertEqual(self.read(), expected)
        self.assertEqual(self.read(workers=3), expected)
        self.assertEqual(self.read(split="test"), expected[:3])
        self.assertEqual(len(self.read(sample=11)), 11)
        with self.assertRaisesRegex(MetadataError, "picture, extra"):
            self.read(text_fields=["nothing"])
        os.makedirs(self.path("disk/train"))
        with pa.OSFile(self.path("disk/train/data-0.arrow"), "wb") as sink:
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=13)
        self.put("disk/train/state.json", "{}")
        self.assertEqual(self.read("disk"), expected)
        with open(self.path("train-0.parquet"), "rb") as file:
            data = file.read()
        self.put("train-0.parquet", data[:len(data) // 2])
        with self.assertRaisesRegex(BrokenFileError, "no whole Parquet"):
            self.read("train-0.parquet")

    @unittest.skipIf(have("pyarrow"), "pyarrow is installed")
    def test_tables_name_the_package(self):
        self.put("a.parquet", b"PAR1")
        with self.assertRaisesRegex(MetadataError, "pip install pyarrow"):
            self.read()


class TextTest(Folder):

    def test_the_estimate_counts_bytes_and_leaves_places_of_media_out(self):
        count = TokenCounter().count
        texts = ("", "a", "abcd", "abcde", "<image><video>abcd", "\u4e2d" * 4)
        self.assertEqual([count(t) for t in texts], [0, 1, 1, 2, 1, 3])
        self.assertEqual(TokenCounter(None, 2).count("abcd"), 2)

    def test_a_function_counts(self):
        self.put("r.jsonl", '{"text": "a b c"}\n')
        self.assertEqual(self.read("r.jsonl",
                                   tokenizer=lambda t: len(t.split())),
                         [Sample(3)])

    @unittest.skipUnless(have("tokenizers"), "no tokenizers")
    def test_a_tokenizer_file_counts(self):
        import tokenizers
        words = tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, "?")
        made = tokenizers.Tokenizer(words)
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        made.enable_truncation(2)
        made.save(self.path("tokenizer.json"))
        self.assertEqual(TokenCounter(self.path("tokenizer.json")).count(
            "a b z a \ud800"), 5)

    def test_text_fields_replace_known_ones(self):
        self.put("r.jsonl", '{"text": "abcd", "meta": {"alt": "12345678"}}\n')
        self.assertEqual(self.read("r.jsonl", text_fields=["meta.alt"]),
                         [Sample(2)])


class SmallPartsTest(unittest.TestCase):

    def test_braces_expand_as_in_shells(self):
        self.assertEqual(energon.expand_braces("a{08..11}.tar"),
                         ["a08.tar", "a09.tar", "a10.tar", "a11.tar"])
        self.assertEqual(energon.expand_braces("{x,y}{1..2}"),
                         ["x1", "x2", "y1", "y2"])
        self.assertEqual(energon.expand_braces("a{b}"), ["a{b}"])

    def test_the_yaml_subset_reads_what_it_knows_and_refuses_the_rest(self):
        packages._found["yaml"] = None
        self.addCleanup(packages._found.pop, "yaml")
        text = ("a: 1  # one\nb:\n- x: y\n  z: [1, 'q']\n- {}\n"
                "c:\n  d: \"e: f\"\n  g:\n")
        self.assertEqual(yaml_subset.load(text, "f"), {
            "a": 1, "b": [{"x": "y", "z": [1, "q"]}, {}],
            "c": {"d": "e: f", "g": None}})
        for bad in ("a: &x 1", "a: [[1]]", "a: 1\n  b: 2", "a: |\n  x"):
            with self.assertRaisesRegex(MetadataError, "PyYAML"):
                yaml_subset.load(bad, "f")

    def test_importing_needs_neither_grpc_nor_protobuf(self):
        code = ("import sys; sys.path.insert(0, sys.argv[1])\n"
                "import pipeloom.metadata.command\n"
                "bad = {'grpc', 'google.protobuf', 'numpy', 'PIL', 'torch'}\n"
                "sys.exit(', '.join(bad & set(sys.modules)) or 0)")
        subprocess.run([sys.executable, "-c", code,
                        os.path.join(ROOT, "python")], check=True)
