"""ms-swift: fine-tuning by Megatron-Core, from comments of its scripts.

Rows whose scripts do not name the GPU are left out."""

from step_times.words import shape

# GPU, model and tokens of a sample, by script. The lengths of samples
# are assumed: several of them make a pack, and attend to themselves only.
R1_DISTILLED = 2048
SWIFT = {
    "fp8/benchmark.sh": (
        "h20", dict(layers=40, hidden=5120, heads=40, kv_heads=8, head_dim=128,
                    query_key_norms=1, ffn=17408, gated=1, vocab=151936),
        R1_DISTILLED),
    "long_text.sh": (
        "a100-sxm", dict(layers=28, hidden=3584, heads=28, kv_heads=4,
                         ffn=18944, gated=1, vocab=152064), 8192),
    "moe/qwen3_moe.sh": (
        "a800-sxm", dict(layers=48, hidden=2048, heads=32, kv_heads=4,
                         head_dim=128, query_key_norms=1, experts=128, top_k=8,
                         expert_ffn=768, gated=1, vocab=151936),
        R1_DISTILLED)}
# The script had this layout when its step time was published (its first
# version and the guide to Qwen3's training have it) and kept the time when it
# was changed to two stages. No expert_tensor_parallel_size: that of tp.
PUBLISHED = {"moe/qwen3_moe.sh": {"tp": 2, "pp": 1, "etp": 2}}
# cross_entropy_fusion_impl te in the first version, which was measured; others
# have Megatron-Core's.
TE_LOSS = {"fp8/benchmark.sh"}


def swift(row):
    script = row["path"].removeprefix("examples/megatron/")
    known = SWIFT.get(script)
    if known is None:
        return None
    cluster, words, length = known
    # Gradients are summed in fp32. attention_backend of the scripts is the
    # package flash_attn.
    setup = {"attention": "flash2",
             "precision": "fp8" if "fp8" in row["precision"] else "bf16",
             "sharding": "zero1", "weight_gathers": "wait", "host_us": 30,
             "recompute": row["recompute"].split(",")[0],
             # memory(GiB) of its log (megatron/callbacks/print.py).
             "peak": "reserved"}
    # Otherwise cross_entropy_loss_fusion by Megatron-Core, on fp32 logits.
    if script in TE_LOSS:
        setup["loss"] = "fused"
    if setup["precision"] == "fp8":
        # fp8_param_gather; TransformerEngine holds each weight also transposed
        # (pytorch/module/base.py, columnwise). Moments in 16 bits.
        setup.update(weight_bytes=1, optimizer_bytes=8)
    samples = int(row["seq"]) // length
    layout = {k: row[k] for k in ("tp", "pp", "vp", "cp", "ep", "dp")}
    layout.update(PUBLISHED.get(script, {}))
    return dict(
        framework="megatron-swift",
        run=f"{row['model'].split('/')[1]} {cluster.split('-')[0].upper()}",
        cluster=cluster, shape=shape(**words), layout=shape(**layout),
        setup=shape(**setup), microbatch=samples,
        global_batch=samples * int(row["global_batch"]), sequence=length,
        step_ms=round(1e3 * float(row["step_s"])), peak_gib=row["peak_gib"])


SOURCES = {
    "swift": ("ms_swift_scripts.csv", swift,
              "modelscope/ms-swift @3602360a562, examples/megatron; "
              "Apache-2.0")}
