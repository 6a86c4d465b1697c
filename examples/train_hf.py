#!/usr/bin/python3
"""Trains a model of transformers on as many processes as torchrun starts, with
a plan for every step.

  pipeloom serve --listen 127.0.0.1:50551 &
  torchrun --nproc-per-node 2 examples/train_hf.py --model FOLDER \\
      --data train.jsonl --service 127.0.0.1:50551 --save NEW_FOLDER

  torchrun --nproc-per-node 8 examples/train_hf.py --model FOLDER --pp 4 \\
      --shard step --data train.jsonl      # Two replicas of four ranks.

FOLDER is a folder of config.json, processor files and safetensors, or the name
of a model in the hub. Each process reads the weights of its own stages only;
without safetensors they are random. --data is what examples/hf_data.py reads:
JSONL of LLaVA kind, webdataset shards, or files of samples; without it, samples
of random ids are made up. Without --service every step runs a static schedule
on an even partition. Every replica of the pipeline takes other records; --shard
divides parameters among them (FSDP2).
"""
import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
try:
    import pipeloom
except ImportError:
    sys.path.insert(0, str(ROOT / "python"))
    import pipeloom

try:
    import torch
    import torch.distributed as dist
    import transformers
except ImportError as missing:
    raise SystemExit(f"train_hf: {missing}: pip install torch torchvision "
                     "transformers Pillow grpcio protobuf") from None

import hf_data
from pipeloom import hf
from pipeloom.torch import agreement, of_first_rank

AHEAD = 3


def folder_of(model):
    """Returns the folder of a model, after a download from the hub if it is the
    name of one."""
    if os.path.isdir(model):
        return model
    import huggingface_hub

    def fetch():
        return huggingface_hub.snapshot_download(
            model, ignore_patterns=["*.bin", "*.pth", "*.gguf", "*.onnx"])

    try:
        of_first_rank(fetch)
        return fetch()  # Other nodes have folders of their own.
    except Exception as error:  # pylint: disable=broad-except
        raise StartError(f"--model {model}: there is no such folder, and the "
                         f"hub gave none: {error}") from None


def make_model(folder, dtype):
    """Returns the model and the folder of its weights: none if the model has
    random ones."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise StartError(f"--model {folder}: {error}") from None
    kind = getattr(transformers, (config.architectures or ["?"])[0], None)
    if kind is None:
        raise StartError(f"{folder}/config.json: `architectures` is "
                         f"{config.architectures}; it must name a class of "
                         f"transformers: {', '.join(hf.supported())}")
    if list(pathlib.Path(folder).glob("*.safetensors")):
        with torch.device("meta"):
            return kind._from_config(config, dtype=dtype).train(), folder
    if int(os.environ["RANK"]) == 0:
        print(f"no .safetensors in {folder}: random weights", flush=True)
    torch.manual_seed(0)
    return kind._from_config(config, dtype=dtype).train(), None


def made_up(config, draw, tokens):
    """Returns a sample of random ids."""
    text = getattr(config, "text_config", None) or config
    special = [v for k, v in vars(config).items()
               if k.endswith("token_id") and isinstance(v, int)]
    words = min([text.vocab_size] + [v for v in special if v > 9])
    ids = torch.tensor([[draw.randrange(words)
                         for _ in range(draw.randint(4, tokens))]])
    return {"input_ids": ids, "labels": ids.clone(),
            "mm_token_type_ids": torch.zeros_like(ids)}


class StartError(Exception):
    """The training cannot start; the text says what would be right."""


class Stream:
    """The samples of each step, the same on all ranks of a replica: epochs in
    random order, without records that are longer than --max-tokens or cannot be
    read. Each replica has records of its own."""

    def __init__(self, args, folder, config, replica, replicas):
        self.args, self.config = args, config
        self.samples = None
        self.draw = random.Random(args.seed * replicas + replica)
        self.left_out = {}
        self.order = []
        if args.data:
            every = hf_data.read_records(args.data, args.media_root)
            self.records = every[replica::replicas]
            if not self.records:
                raise hf_data.DataError(
                    f"{args.data} has {len(every)} records for {replicas} "
                    "replicas: use fewer (--pp is the ranks of one)")
            special = [v for k, v in vars(config).items() if isinstance(v, int)
                       and k.endswith(("_token_id", "_token_index"))]
            self.samples = (hf_data.Samples(folder, special)
                            if not self.records[0].sample else None)

    def sample(self):
        if not self.args.data:
            return made_up(self.config, self.draw, self.args.tokens)
        for _ in range(len(self.records)):
            if not self.order:
                self.order = list(range(len(self.records)))
                self.draw.shuffle(self.order)
            record = self.records[self.order.pop()]
            try:
                sample = (torch.load(record.sample) if record.sample else
                          self.samples.sample(record))
                length = sample["input_ids"].shape[1]
                if length > self.args.max_tokens:
                    raise hf_data.DataError(
                        f"{record.where}: it has {length} tokens, more than "
                        f"--max-tokens {self.args.max_tokens}")
                return sample
            except hf_data.DataError as error:
                if not self.args.skip_broken:
                    raise
                self.left_out[record.where] = str(error)
        raise hf_data.DataError(f"{self.args.data}: no record can be used; "
                                f"the last: {list(self.left_out.values())[-1]}")

    def step(self):
        return [self.sample() for _ in range(self.args.samples)]


def job_of(args, folder, ranks, replicas):
    """Returns the job, whose model file is made from the configuration."""
    from google.protobuf import json_format
    from pipeloom import messages
    with tempfile.TemporaryDirectory() as place:
        file = args.model_file or os.path.join(place, "model.json")
        if not args.model_file:
            try:
                made = subprocess.run(
                    [args.pipeloom, "model", folder, "--name", "model",
                     "--out", file], check=False, capture_output=True,
                    text=True)
            except OSError as error:
                raise ValueError(f"{error}: --pipeloom names the program, or "
                                 "--model-file what it would make") from None
            if made.returncode or "is incomplete" in made.stderr:
                raise ValueError(
                    f"{args.pipeloom} model {folder}: {made.stdout}"
                    f"{made.stderr}write the model file by hand, and give it "
                    "by --model-file; or train without --service")
        with open(file, encoding="utf-8") as text:
            model = json.load(text)
    # The language model takes a microbatch in one piece.
    whole = [{"module": model["modules"][-1]["name"], "instances": 1000000}]
    return json_format.ParseDict({
        "name": "train_hf", "model_spec": model, "cluster": args.cluster,
        "parallel": {"tp": 1, "pp": ranks, "dp": replicas},
        "training": {
            "microbatches": args.microbatches,
            "microbatch_tokens": args.microbatch_tokens,
            "microbatch_images": args.microbatch_images,
            "sub_microbatch_sizes": whole,
            "memory_strategies": ["MEMORY_STRATEGY_KEEP",
                                  "MEMORY_STRATEGY_RECOMPUTE"]},
        "search": {"schedule": "pipeloom", "deadline_us": 100000, "seed": 1}},
        messages.Job())


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n", 1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", required=True,
                        help="folder of config.json, or a name in the hub")
    parser.add_argument("--data", default="", help="file or folder")
    parser.add_argument("--media-root", default="",
                        help="folder of images; else that of the records")
    parser.add_argument("--skip-broken", action="store_true",
                        help="leave out records that cannot be used")
    parser.add_argument("--save", default="", help="folder for the result")
    parser.add_argument("--service", default="",
                        help="address of `pipeloom serve`, or @FILE that has "
                        "it; its token and certificate are in the files that "
                        "PIPELOOM_TOKEN_FILE and PIPELOOM_TLS_ROOT name")
    parser.add_argument("--job-id", default="", help="of the run at the "
                        "service, the same when the run starts again")
    parser.add_argument("--pipeloom", default="pipeloom", help="the program")
    parser.add_argument("--model-file", default="",
                        help="for a class that `pipeloom model` does not know")
    parser.add_argument("--cluster", default="h100-sxm", help="to plan for")
    parser.add_argument("--pp", type=int, default=0, help="ranks of a "
                        "pipeline; 0: all processes are one")
    parser.add_argument("--shard", default="", choices=["", "step", "pass"],
                        help="divide parameters among replicas, and gather "
                        "them by step or by pass")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--samples", type=int, default=8,
                        help="of a step and replica")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--microbatch-tokens", type=int, default=8192)
    parser.add_argument("--microbatch-images", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=8192,
                        help="of a record")
    parser.add_argument("--tokens", type=int, default=64,
                        help="at most, of a made-up sample")
    parser.add_argument("--dtype", default="float32",
                        choices=["float32", "bfloat16"])
    parser.add_argument("--freeze", default="", help="parts of names of "
                        "parameters, with commas: model.visual")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--warmup", type=int, default=5, help="steps")
    parser.add_argument("--clip", type=float, default=1.0,
                        help="norm of the gradients of all stages")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun: torchrun --nproc-per-node 2 "
                     "examples/train_hf.py ...")
    if args.samples < args.microbatches:
        parser.error(f"--samples {args.samples} cannot fill --microbatches "
                     f"{args.microbatches}")
    size = int(os.environ["WORLD_SIZE"])
    if args.pp < 0 or args.pp and size % args.pp:
        parser.error(f"--pp {args.pp} does not divide the {size} processes "
                     "that torchrun starts")
    if args.shard and size == (args.pp or size):
        parser.error("--shard needs replicas: start a multiple of --pp "
                     "processes")
    return args


def main():
    args = parse()
    cuda = torch.cuda.is_available()
    device = "cpu"
    if cuda:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    ranks = args.pp or dist.get_world_size()
    place = hf.grid(ranks)
    rank, replica = place.rank, place.replica
    replicas = dist.get_world_size() // ranks
    first = dist.get_rank() == 0
    folder = folder_of(args.model)
    model, weights = make_model(folder, getattr(torch, args.dtype))
    if weights is None:
        model.to(device)
    for name, parameter in model.named_parameters():
        if any(part in name for part in args.freeze.split(",") if part):
            parameter.requires_grad_(False)
    stream = Stream(args, folder, model.config, replica, replicas)
    # Samples of the next steps: plans are asked for two steps ahead.
    steps = collections.deque(stream.step()
                              for _ in range(min(AHEAD, args.steps)))
    family = hf.family.family_of(model)
    session = provider = None
    if args.service:
        try:
            client = pipeloom.connect(args.service)
            job = of_first_rank(lambda: client.open_job(
                job_of(args, folder, ranks, replicas),
                [family.sizes(s) for step in steps for s in step],
                job_id=args.job_id, new_attempt=True))
        except (RuntimeError, ValueError) as error:
            raise StartError(f"--service {args.service}: {error}") from None
        session = pipeloom.Session(client, job, rank=rank, replica=replica)
    else:
        job = hf.even_partition(model, ranks)
    several = {} if replicas == 1 else {
        "group": place.pipeline, "replicas": place.replicas,
        "shard": args.shard}
    pipe = hf.Pipeline(model, job, rank=rank, weights=weights, device=device,
                       **several)
    del model
    whole = f" of replica {replica}" if replicas > 1 else ""
    print(f"rank {rank}{whole}: {sum(p.numel() for p in pipe.parameters()):,} "
          f"parameters, {pipe.bytes_read:,} bytes read", flush=True)
    optimizer = torch.optim.AdamW(
        [p for p in pipe.parameters() if p.requires_grad] or
        [torch.zeros(1, requires_grad=True)], lr=args.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / max(1, args.warmup)))
    if session is not None:
        provider = pipeloom.PlanProvider(session, pipe.static_plan,
                                         agree=agreement())
    microbatch_of = [i * args.microbatches // args.samples
                     for i in range(args.samples)]

    def announce(step, samples):
        if provider is not None:
            provider.expect(step, pipe.microbatches(samples, microbatch_of),
                            [pipe.sizes(s) for s in samples], microbatch_of)

    for step, samples in enumerate(steps):
        announce(step, samples)
    for step in range(args.steps):
        samples = steps.popleft()
        plan = (provider.get(step) if provider is not None else
                pipe.static_plan(step, pipe.microbatches(samples,
                                                         microbatch_of)))
        optimizer.zero_grad(set_to_none=True)
        result = pipe.step(plan, samples)
        norm = pipe.clip_grad_norm_(args.clip)
        optimizer.step()
        schedule.step()
        if provider is not None:
            provider.report(step, result.spans)
        loss = torch.tensor([result.loss], device=device)
        dist.all_reduce(loss)
        if first:
            print(f"step {step:3d}  loss {float(loss):.4f}  gradient "
                  f"{float(norm):.3f}  {result.seconds:.3f} s  "
                  f"{plan.schedule}", flush=True)
        if step + AHEAD < args.steps:
            steps.append(stream.step())
            announce(step + AHEAD, steps[-1])
    if first and stream.left_out:
        print(f"left out {len(stream.left_out)} records; "
              f"{list(stream.left_out.values())[0]}", flush=True)
    if args.save:
        pipe.save(args.save)
        if first:
            if args.data and stream.samples:
                stream.samples.processor.save_pretrained(args.save)
            print(f"saved in {args.save}", flush=True)
    if provider is not None:
        provider.close()
        dist.barrier()
        session.close(close_job=first)
        client.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except (StartError, hf_data.DataError, hf.PartitionError,
            hf.SampleError, hf.WeightsError) as wrong:
        raise SystemExit(f"train_hf: {wrong}") from None
