#!/usr/bin/env python3
"""Makes the shipped models that come from published configurations.

usage: make_models.py PIPELOOM [--check]

Each is what `pipeloom model` reads from its configuration in
tests/model_config/configs.json, with the parameters of the library's own class
(tests/model_config/golden.json) as published ones. --check compares the files
in workloads/models with what would be written.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = [
    "flux.1-dev", "flux.1-schnell", "gpt-oss-120b", "gpt-oss-20b",
    "hunyuan-video", "internvl3.5-30b-a3b", "internvl3.5-8b", "llama3.2-1b",
    "llava-onevision-7b", "nemotron-3-nano-30b-a3b", "nemotron-3-nano-4b",
    "nemotron-3-super-120b-a12b", "nemotron-h-56b", "qwen3-14b",
    "qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-8b", "qwen3-next-80b-a3b",
    "qwen3-omni-30b-a3b-thinker", "qwen3-vl-30b-a3b", "qwen3-vl-8b",
    "qwen3.5-27b", "qwen3.6-35b-a3b", "wan2.1-t2v-14b", "wan2.2-ti2v-5b"]


def make(pipeloom, name, config, parameters, folder):
    """Returns the text of a model file."""
    source, file = folder / "config.json", folder / "model.json"
    source.write_text(json.dumps(config))
    run = subprocess.run(
        [pipeloom, "model", source, "--name", name, "--out", file],
        capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{name}: {run.stderr}{run.stdout}")
    text = file.read_text()
    head = f'  "name": {json.dumps(name)},\n'
    assert head in text, name
    return text.replace(head, head + f'  "published_parameters": {parameters},'
                                     '\n', 1)


def main(arguments):
    if not arguments or arguments[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    fixtures = ROOT / "tests" / "model_config"
    configs = json.loads((fixtures / "configs.json").read_text())
    classes = json.loads((fixtures / "golden.json").read_text())["models"]
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            text = make(arguments[0], name, configs[name],
                        classes[name]["parameters"], pathlib.Path(folder))
            path = ROOT / "workloads" / "models" / f"{name}.json"
            if not arguments[1:]:
                path.write_text(text)
            elif not path.exists() or path.read_text() != text:
                differ += 1
                print(f"{path}: differs from its configuration; run "
                      "scripts/make_models.py PIPELOOM")
    print(f"{len(MODELS)} models, {differ} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
