"""The runs that measure_steps.py measures, and their rows of the table that
`pipeloom backtest` reads. Plain data: needs no torch."""

COLUMNS = ["framework", "run", "cluster", "shape", "layout", "setup",
           "microbatch", "global_batch", "sequence", "step_ms", "peak_gib",
           "split"]
# Setup of all runs: gradients and moments in 16 bits. Torch 2.11 takes cuDNN's
# attention on Hopper; its backward fails in FLUX.1, so that diffusion models run
# with FlashAttention-2.
SETUP = ("pointwise=eager sharding=none precision=bf16 gradient_bytes=2 "
         "optimizer_bytes=4 sequence_parallel=no")


def run(config, batch, tokens, **more):
  """One run: `tokens` of text a sample. Further fields: layers (of the model,
  reduced), image (px, square), video ((height, width, frames)), frozen modules,
  recompute, compiled, words of the row's setup, split."""
  return dict(config=config, batch=batch, tokens=tokens, **more)


RUNS = [
    # Dense text, from what the host limits to what the GPU limits.
    run("llama3.2-1b", 1, 256),
    run("llama3.2-1b", 1, 2048),
    run("llama3.2-1b", 4, 2048),
    run("llama3.2-1b", 4, 8192),
    run("llama3.2-1b", 1, 32768),
    run("llama3.2-1b", 8, 4096, recompute=True),
    run("llama3.2-1b", 4, 2048, compiled=True),
    run("qwen3-0.6b", 8, 1024),
    run("qwen3-8b", 1, 4096),
    run("qwen3-8b", 8, 4096, recompute=True),
    run("llama2-7b", 2, 4096),
    # Experts.
    run("qwen3-30b-a3b", 4, 2048, layers=6),
    run("qwen3-30b-a3b", 1, 2048, layers=6),
    run("gpt-oss-20b", 4, 2048, layers=6),
    run("mixtral-8x7b", 2, 4096, layers=3),
    # Images and text.
    run("llava-1.5-7b", 8, 64, image=336),
    run("llava-1.5-7b", 16, 64, image=336, frozen="vision_encoder+backbone"),
    run("llava-onevision-7b", 4, 128, image=384),
    run("qwen2.5-vl-7b", 4, 128, image=448),
    run("qwen2.5-vl-7b", 1, 128, image=1344),
    run("qwen3-vl-8b", 4, 128, image=512),
    run("internvl3.5-8b", 4, 128, image=448),
    # Measured last, when the model had been changed by the runs above: text,
    # experts, images.
    run("qwen2.5-7b", 2, 4096, split="held-out"),
    run("mistral-7b", 1, 8192, split="held-out"),
    run("llama3-8b", 4, 1024, split="held-out"),
    run("qwen3-0.6b", 1, 512, split="held-out"),
    run("qwen3-0.6b", 4, 4096, recompute=True, split="held-out"),
    run("llama3.2-1b", 16, 512, split="held-out"),
    run("qwen3-30b-a3b", 8, 1024, layers=8, split="held-out"),
    run("mixtral-8x7b", 1, 2048, layers=3, split="held-out"),
    run("internvl3.5-8b", 16, 64, image=448, split="held-out"),
    run("qwen3-vl-8b", 1, 512, image=1024, split="held-out"),
    run("llava-onevision-7b", 8, 64, image=384, frozen="backbone",
        split="held-out"),
    run("llava-1.5-13b", 8, 64, image=336, frozen="vision_encoder+backbone",
        split="held-out"),
    # Generators.
    run("flux.1-dev", 1, 0, image=1024),
    run("flux.1-dev", 4, 0, image=512),
    run("wan2.2-ti2v-5b", 1, 0, video=(704, 1280, 33), recompute=True),
    run("wan2.1-t2v-14b", 1, 0, video=(480, 832, 33), recompute=True,
        words="optimizer=skipped"),
    run("hunyuan-video", 1, 0, video=(544, 960, 33), recompute=True,
        words="optimizer=skipped"),
]


# Diffusion models are held out too: none had run before.
for each in RUNS:
  if "video" in each or each["config"].startswith("flux"):
    each["split"] = "held-out"


def name_of(r):
  parts = [r["config"], f"{r['batch']}x{r['tokens']}"]
  if "image" in r:
    parts.append(f"{r['image']}px")
  if "video" in r:
    parts.append("{}x{}x{}".format(*r["video"]))
  for flag in ("recompute", "compiled", "frozen"):
    if flag in r:
      parts.append(flag)
  if "layers" in r:
    parts.append(f"{r['layers']} layers")
  return " ".join(parts)


def shape_of(r, configs):
  """Returns the words of the row's shape."""
  c = configs[r["config"]]
  if "image" in r or "video" in r:
    words = [f"model={r['config']}"]
    if "image" in r:
      words += ["images=1", "image={0}x{0}".format(r["image"])]
    if "video" in r:
      height, width, frames = r["video"]
      words += ["videos=1", f"video={width}x{height}x{frames}"]
    if "frozen" in r:
      words.append(f"frozen={r['frozen']}")
    return " ".join(words)
  fields = {
      "layers": r.get("layers", c["num_hidden_layers"]),
      "hidden": c["hidden_size"], "heads": c["num_attention_heads"],
      "kv_heads": c["num_key_value_heads"],
      "head_dim": c.get("head_dim"), "ffn": c["intermediate_size"],
      "gated": 1, "tied": int(c.get("tie_word_embeddings", False)),
      "vocab": c["vocab_size"]
  }
  if c["model_type"].startswith("qwen3"):
    fields["query_key_norms"] = 1
  experts = c.get("num_experts") or c.get("num_local_experts")
  if experts:
    fields["experts"] = experts
    fields["top_k"] = c["num_experts_per_tok"]
    fields["expert_ffn"] = c.get("moe_intermediate_size",
                                 c["intermediate_size"])
  if c["model_type"] == "gpt_oss":
    fields.update(expert_biases=1, clamped=1, biases=1,
                  window=c["sliding_window"], window_every=2)
  return " ".join(f"{k}={v}" for k, v in fields.items() if v)


def passes_mask(r, config):
  """Whether transformers gives the attention a mask: in compiled models, and
  where a window is not longer than the sequence (masking_utils.py,
  _ignore_causal_mask_sdpa)."""
  window = config.get("sliding_window") or 1 << 60
  return r.get("compiled") or (config.get("model_type") == "mistral" and
                               r["tokens"] >= window)


def row_of(r, cluster, configs):
  library = "diffusers" if "_class_name" in configs[r["config"]] else \
      "transformers"
  # measure() turns cuDNN's attention off for generators. HunyuanVideo passes a
  # mask, which FlashAttention does not take.
  if library == "diffusers":
    attention = "efficient" if r["config"] == "hunyuan-video" else "flash2"
  else:
    attention = "masked" if passes_mask(r, configs[r["config"]]) else "fused"
  words = ["attention=" + attention, SETUP]
  if library == "transformers":
    words.append("loss=fp32")
  if r.get("recompute"):
    words.append("recompute=full")
  if "words" in r:
    words.append(r["words"])
    words[1] = SETUP.replace("optimizer_bytes=4", "optimizer_bytes=0")
  setup = " ".join(words)
  if r.get("compiled"):
    setup = setup.replace("pointwise=eager", "pointwise=fused")
  if r["config"].startswith("gpt-oss"):
    setup = setup.replace("attention=fused", "attention=unfused")
  # A sample of a generator has no text of its own.
  return dict(framework=f"pytorch-{library}", run=name_of(r), cluster=cluster,
              shape=shape_of(r, configs), layout="dp=1", setup=setup,
              microbatch=r["batch"], global_batch=r["batch"],
              sequence=max(r["tokens"], 1), split=r.get("split", "fit"))
