"""A kernel of one's own against the canonical cases; here attention in BF16 with torch."""

import torch

from golden.canonical import cases

for case in cases():
    if case.recipe.num_heads == 8:
        step, ckv = case.inputs, case.recipe.head_dim_ckv
        queries = torch.cat([step.q_nope, step.q_pe], -1).float()
        keys = [step.cache.gather(slots).bfloat16().float() for slots in step.slots()]
        logits = [q @ k.T * case.recipe.sm_scale for q, k in zip(queries, keys, strict=True)]
        weights = [s.softmax(-1).bfloat16().float() for s in logits]
        out = torch.stack([p @ k[:, :ckv] for p, k in zip(weights, keys, strict=True)]).bfloat16()
        verdict = case.judge(out)
        print(f"{case.name}: {verdict.max_ratio:.2f} of what rounding allows")
        assert verdict.ok, verdict.message
