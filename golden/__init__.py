"""Golden: what a sparse-MLA decode must answer, and how far from it an answer may lie.

The package is the judge's own arithmetic. It knows token lists and raw cache bytes, never the
subject under test: it imports torch and the standard library and nothing else, so a mistake
in a subject cannot be shared with its judge. (The golden set's files need safetensors, its
command click; no other module does.)

* `draw`: inputs from a counter-based, integer-only generator, byte-equal on every device;
* `cache`: a paged key/value cache as bytes, decoded here;
* `oracle`: dense attention in float64; `answer`: what it hands back;
* `tolerance`: the one tolerance function, derived from the roundings that happen;
* `refusal`: the texts of errors;
* `recipe`, `numerics`, `inputs`: canonical cases as data, and what is drawn from them;
* `standard`, `manifest`, `store`, `check`, `canonical`: the golden set of such cases.

A check, from drawing to verdict::

    draw = Draw("NUM-1/case 7")
    data = draw.fork("cache").bf16([blocks * 64, 512]).view(torch.uint8)
    cache = PagedBytes(data, "bf16", 512, 0, block_size=64, block_stride_rows=64)
    golden = attend(q_nope, q_pe, cache, block_table, request, tokens, sm_scale, split=256)
    verdict = compare(observed, golden, Roundings.of(cache.fmt, cache.scale))
    assert verdict.ok, verdict.message
"""

from golden.answer import Golden
from golden.cache import PagedBytes
from golden.draw import Draw
from golden.oracle import attend
from golden.tolerance import Roundings, Verdict, bound, compare

__all__ = ["Draw", "Golden", "PagedBytes", "Roundings", "Verdict", "attend", "bound", "compare"]
