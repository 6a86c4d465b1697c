"""Shapes of models that several sources measured, without their layers."""

LLAMA_8B = dict(hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=1,
                vocab=128256)
LLAMA_70B = dict(hidden=8192, heads=64, kv_heads=8, ffn=28672, gated=1,
                 vocab=128256)
LLAMA_405B = dict(hidden=16384, heads=128, kv_heads=8, ffn=53248, gated=1,
                  vocab=128256)
DEEPSEEK_V3 = dict(hidden=7168, heads=128, head_dim=192, value_dim=128,
                   rope_dim=64, query_rank=1536, kv_rank=512, ffn=18432,
                   gated=1, experts=256, top_k=8, shared_experts=1,
                   expert_ffn=2048, dense_layers=1, vocab=129280)
