"""SimuMax: Megatron on 8 B200, with peak memory."""

from step_times.models import DEEPSEEK_V3, LLAMA_8B, LLAMA_70B
from step_times.words import shape

SIMUMAX = {
    "llama3-8b": LLAMA_8B,
    "llama3-70b": LLAMA_70B,
    "llama3-405b": dict(hidden=16384, heads=128, kv_heads=16, ffn=53248,
                        gated=1, vocab=128256),
    "deepseekv2": dict(hidden=5120, heads=128, head_dim=192, value_dim=128,
                       rope_dim=64, query_rank=1536, kv_rank=512, ffn=12288,
                       gated=1, experts=160, top_k=6, shared_experts=2,
                       expert_ffn=1536, dense_layers=1, vocab=102400),
    "deepseekv3": DEEPSEEK_V3}


def simumax(row):
    model = SIMUMAX.get(row["model"])
    if model is None:
        return None
    setup = {"attention": "fused", "pointwise": "eager",
             "sequence_parallel": "yes", "overlap": "none",
             "sharding": "zero1", "gradient_bytes": 4, "precision": "bf16",
             # Megatron-LM without graphs, as in other tables.
             "host_us": 30}
    if row["cp"] != "1":
        # CP_COMM_TYPE of run_pretrain_*.sh.
        setup["context"] = "alltoall"
    dp = int(row["dp"])
    return dict(
        framework="megatron-simumax", run=row["case"],
        cluster="b200-simumax.json",
        shape=shape(layers=row["layers"], **model),
        layout=f"tp={row['tp']} pp={row['pp']} cp={row['cp']} ep={row['ep']} "
               f"dp={dp}",
        setup=shape(**setup), microbatch=1,
        global_batch=int(row["microbatches"]) * dp, sequence=row["seq"],
        step_ms=row["real_ms"], peak_gib=row["real_alloc_gib"])


SOURCES = {
    "simumax_b200": ("simumax_e2e_b200_measured.csv", simumax,
                     "MooreThreads/SimuMax @4dcaae51; Apache-2.0")}
