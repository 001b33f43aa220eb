"""Each Triton kernel, interpreted, writes exactly what its torch twin writes."""

import pytest
import torch

from smla.tests.interpreter import INTERPRETING, run_interpreted

if not INTERPRETING:

    def test_kernels_equal_their_twins_in_the_interpreter():
        run_interpreted(__file__)

else:
    from smla.flags import Flag
    from smla.kernels.clamp import clamp
    from smla.kernels.convert import convert
    from smla.kernels.pack import pack
    from smla.kernels.rescale import rescale
    from smla.kernels.row_map import row_map
    from smla.runtime import CpuRuntime
    from smla.schedule import ScheduleLayout

    RUNTIMES = [CpuRuntime(kernels="torch"), CpuRuntime(kernels="interpret")]
    INT32 = torch.int32
    LAYOUT = ScheduleLayout(num_heads=16, num_sms=8, head_dim_ckv=64)

    def planned():
        """Return a schedule, int32, of which no word is 0."""
        return torch.arange(1, LAYOUT.staged_bytes // 4 + 1, dtype=INT32)

    def both(call):
        """Return what `call(runtime)` gives with the twin and with the interpreted kernel."""
        return [call(runtime) for runtime in RUNTIMES]

    def random_ints(seed, low, high, *shape):
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(low, high, shape, generator=generator, dtype=INT32)

    @pytest.mark.parametrize("seed", range(12))
    def test_row_map(seed):
        lens = random_ints(seed, 0, 5, 1 + seed * 3)
        starts = torch.zeros(lens.numel() + 1, dtype=INT32)
        starts[1:] = lens.cumsum(0)
        seq_lens = lens + random_ints(seed + 100, -1, 50, lens.numel())
        max_tokens = max(int(starts[-1]) + seed % 4, 1)
        # Every third time the last rows are somebody else's: they count as not live.
        live = int(starts[-1]) // (1 + (seed % 3 == 0))
        indptr = random_ints(seed + 200, 0, 99, max_tokens + 1)

        def run(runtime):
            request = torch.full((max_tokens,), -7, dtype=INT32)
            context = torch.full((max_tokens,), -7, dtype=INT32)
            packed, rows = indptr.clone(), torch.full((1,), -7, dtype=INT32)
            row_map(runtime, starts, seq_lens, request, context, packed, rows, live_rows=live)
            return request, context, packed, rows

        want, got = both(run)
        for twin, kernel in zip(want, got, strict=True):
            assert torch.equal(twin, kernel)
        request, context, packed, rows = got
        assert rows.tolist() == [live]
        assert torch.equal(packed[: live + 1], indptr[: live + 1]), "the live rows' starts changed"
        assert bool((packed[live:] == indptr[live]).all()), "not flat behind the live rows"
        row = 0
        for index, count in enumerate(lens.tolist()):
            for step in range(count):
                expected = max(int(seq_lens[index]) - count + step + 1, 0)
                found = (int(request[row]), int(context[row]))
                assert found == ((index, expected) if row < live else (0, 0))
                row += 1
        assert not request[row:].any() and not context[row:].any()

    @pytest.mark.parametrize("rows,max_tokens", [(255, 256), (256, 512), (257, 600), (0, 300)])
    def test_row_map_flattens_the_tail_across_blocks(rows, max_tokens):
        starts = torch.tensor([0, rows], dtype=INT32)
        seq_lens = torch.tensor([rows + 5], dtype=INT32)

        def run(runtime):
            request, context = (torch.full((max_tokens,), -7, dtype=INT32) for _ in range(2))
            indptr = torch.arange(max_tokens + 1, dtype=INT32)
            live = torch.full((1,), -7, dtype=INT32)
            row_map(runtime, starts, seq_lens, request, context, indptr, live, live_rows=rows)
            return request, context, indptr, live

        want, got = both(run)
        for twin, kernel in zip(want, got, strict=True):
            assert torch.equal(twin, kernel)
        assert got[1][:rows].tolist() == [*range(6, rows + 6)] and not got[1][rows:].any()
        assert got[2].tolist() == [min(row, rows) for row in range(max_tokens + 1)]

    @pytest.mark.parametrize("seed", range(16))
    @pytest.mark.parametrize("topk,kpool,width", [(16, 4, 24), (8, 1, 8), (40, 2, 41)])
    def test_convert(seed, topk, kpool, width):
        rows, requests, blocks = 5, 3, 4
        tokens = random_ints(seed, -2, 4 * blocks + 6, rows, width)
        extremes = torch.tensor([-(2**31), 2**31 - 1, 1 << 30, 0x7F7F7F7F], dtype=INT32)
        spots = random_ints(seed + 1, 0, 6, rows, width)
        tokens = torch.where(spots == 0, extremes[random_ints(seed + 2, 0, 4, rows, width)], tokens)
        request = random_ints(seed + 3, 0, requests, rows)
        context = random_ints(seed + 4, 0, 4 * blocks + 1, rows)
        table = random_ints(seed + 5, -1, 12, requests, blocks)
        live = torch.tensor([rows], dtype=INT32)

        def run(runtime):
            slots = torch.full((rows, width), -9, dtype=INT32)
            counts = torch.full((rows,), -9, dtype=INT32)
            flags = torch.zeros(1, dtype=INT32)
            convert(
                runtime, tokens, request, context, table, slots, counts, live, planned(), flags,
                layout=LAYOUT, rows=rows, num_blocks=11, block_size=4, block_stride_rows=6,
                index_topk=topk, index_kpool=kpool,
            )  # fmt: skip
            return slots, counts, flags

        want, got = both(run)
        for twin, kernel in zip(want, got, strict=True):
            assert torch.equal(twin, kernel)
        for row in range(rows):
            listed = []
            for token in tokens[row].tolist():
                if 0 <= token < int(context[row]) and token // 4 < blocks:
                    block = int(table[request[row], token // 4])
                    if 0 <= block < 11:
                        listed.append(block * 6 + token % 4)
            assert got[0][row].tolist() == listed + [-1] * (width - len(listed))
            assert int(got[1][row]) == len(listed)

    @pytest.mark.parametrize(("table", "longest"), [((3, 0), 9), ((0, 4), 0)])
    def test_convert_with_an_empty_block_table(table, longest):
        def run(runtime):
            slots = torch.full((4, 8), -9, dtype=INT32)
            counts = torch.full((4,), -9, dtype=INT32)
            flags = torch.zeros(1, dtype=INT32)
            convert(
                runtime, random_ints(1, -1, 9, 4, 8), torch.zeros(4, dtype=INT32),
                torch.full((4,), longest, dtype=INT32), torch.zeros(table, dtype=INT32), slots,
                counts, torch.zeros(1, dtype=INT32), planned(), flags, layout=LAYOUT, rows=4,
                num_blocks=11, block_size=4, block_stride_rows=6, index_topk=8, index_kpool=1,
            )  # fmt: skip
            return slots, counts, flags

        want, got = both(run)
        for twin, kernel in zip(want, got, strict=True):
            assert torch.equal(twin, kernel)
        assert bool((got[0] == -1).all()) and not got[1].any()
        assert int(got[2]) == (2 if longest else 0)

    HALF_STEP = 1.0 + 2.0**-25  # a float64 that is 1 as a float32

    @pytest.mark.parametrize("live", [0, 3, 4, 5])
    @pytest.mark.parametrize(
        ("scale", "device", "changed"),
        [
            (1.0, None, False), (0.3, 0.3, False), (HALF_STEP, 1.0, False), (1.0, 1.5, True),
            (2.0**-40, 0.0, True), (1.0, float("nan"), True), (0.3, 0.30000004, True),
        ],
    )  # fmt: skip
    def test_convert_flags_rows_it_does_not_cover_and_another_scale(live, scale, device, changed):
        def run(runtime):
            slots, counts = torch.zeros(4, 8, dtype=INT32), torch.zeros(4, dtype=INT32)
            flags, schedule = torch.zeros(1, dtype=INT32), planned()
            convert(
                runtime, torch.full((4, 8), -1, dtype=INT32), counts.clone(), counts.clone(),
                torch.zeros(1, 1, dtype=INT32), slots, counts,
                torch.tensor([live], dtype=INT32), schedule, flags, layout=LAYOUT, rows=4,
                num_blocks=1, block_size=4,
                block_stride_rows=4, index_topk=8, index_kpool=1, scale=scale,
                device_scale=None if device is None else torch.tensor([device]),
            )  # fmt: skip
            return Flag(int(flags)), schedule

        expected, stopped = Flag.SCALE_CHANGED if changed else Flag(0), planned()
        if live > 4:
            expected |= Flag.ROWS_BEYOND_FORWARD
            for name, count in (
                ("merge_packed_offset_start", 8), ("merge_packed_offset_end", 8), ("work_indptr", 9)
            ):  # fmt: skip
                stopped[LAYOUT.at(name) : LAYOUT.at(name) + count] = 0
        for flags, schedule in both(run):
            assert flags == expected
            assert torch.equal(schedule, stopped)

    @pytest.mark.parametrize("rows", [1, 4])
    @pytest.mark.parametrize("groups", [1, 3, 4])
    @pytest.mark.parametrize("value", [0.0, -3.0, 3.4e38, 1e-45, "nan", "inf", "-inf"])
    def test_convert_flags_a_group_scale_of_slot_0_that_is_not_finite(value, groups, rows):
        value = float(value)

        def run(runtime, group):
            scales = torch.ones(9, groups)
            scales[1:] = float("nan")  # of other slots: not looked at
            scales[0, group] = value
            slots, counts = torch.zeros(rows, 8, dtype=INT32), torch.zeros(rows, dtype=INT32)
            flags = torch.zeros(1, dtype=INT32)
            convert(
                runtime, torch.full((rows, 8), -1, dtype=INT32), counts.clone(), counts.clone(),
                torch.zeros(1, 1, dtype=INT32), slots, counts, torch.tensor([rows], dtype=INT32),
                planned(), flags, layout=LAYOUT, rows=rows, num_blocks=1, block_size=4,
                block_stride_rows=4, index_topk=8, index_kpool=1, group_scales=scales,
            )  # fmt: skip
            return Flag(int(flags))

        finite = abs(value) < float("inf")
        for group in range(groups):
            for flags in both(lambda runtime, at=group: run(runtime, at)):
                assert flags == (Flag(0) if finite else Flag.SLOT_ZERO_SCALE)

    @pytest.mark.parametrize("factor", [1.0, 1.5, 1.9999999, 2.0**-32, 2.0**33, 0.3])
    @pytest.mark.parametrize("padded", [0, 8], ids=["dense", "strided"])
    @pytest.mark.parametrize("heads,dim", [(1, 8), (5, 64), (9, 512)])
    @pytest.mark.parametrize("live", [3, 4, 5])
    def test_rescale(factor, padded, heads, dim, live):
        rows = 4
        context = torch.tensor([3, 0, 1, 0, 9], dtype=INT32)
        # Every FP16 there is, NaN apart: their payloads may differ.
        bits = torch.arange(rows * heads * (dim + padded)) * 7919 % 65536
        halves = bits.to(torch.int32).to(torch.uint16).view(torch.float16)
        halves = halves.nan_to_num(nan=1.0, posinf=torch.inf, neginf=-torch.inf)
        stored = halves.view(torch.bfloat16).view(rows, heads, dim + padded)

        def run(runtime):
            whole = stored.clone()
            rescale(runtime, whole[..., :dim], context, torch.tensor([live], dtype=INT32), factor)
            return whole.view(torch.int16)

        product = stored.view(torch.float16).float() * torch.tensor(factor)
        # Triton's interpreter cuts a float32 off where BF16 ends; a GPU and the twin round it.
        cut = (product.view(INT32) >> 16).to(torch.int16)
        for got, expected in zip(
            both(run), (product.bfloat16().view(torch.int16), cut), strict=True
        ):
            kept = stored.view(torch.int16)
            if live > rows:
                assert torch.equal(got, kept), "rewritten though nothing was computed"
                continue
            assert torch.equal(got[::2, :, :dim], expected[::2, :, :dim])
            assert torch.equal(got[1::2], kept[1::2]), "a row that sees nothing was written"
            assert torch.equal(got[..., dim:], kept[..., dim:]), "written behind the channels"

    @pytest.mark.parametrize("seed", range(10))
    def test_pack(seed):
        rows, width = 6, 300
        counts = random_ints(seed, 0, width + 1, rows)
        planned = random_ints(seed + 1, 0, width + 1, rows)
        planned[rows - 2 :] = 0
        slots = random_ints(seed + 2, 0, 999, rows, width)
        slots[torch.arange(width) >= counts[:, None]] = -1
        indptr = torch.zeros(rows + 1, dtype=INT32)
        indptr[1:] = planned.cumsum(0)

        def run(runtime):
            indices = torch.full((rows * width,), -5, dtype=INT32)
            pack(runtime, slots, counts, indptr, indices, rows=rows)
            return indices

        want, got = both(run)
        assert torch.equal(want, got)
        assert bool((got[: int(indptr[-1])] >= 0).all())
        assert bool((got[int(indptr[-1]) :] == -5).all())

    @pytest.mark.parametrize("seed", range(10))
    @pytest.mark.parametrize("fresh", [False, True])
    def test_clamp(seed, fresh):
        layout = LAYOUT
        works, rows = 37 if seed % 2 else 300, 9
        schedule = torch.zeros(layout.staged_bytes // 4, dtype=INT32)
        schedule[layout.num_works_at] = works
        starts = random_ints(seed, 0, 8, works) * 32
        for name, values in (
            ("q_indptr", random_ints(seed + 1, 0, rows, works)),
            ("kv_start", starts),
        ):
            schedule[layout.at(name) : layout.at(name) + works] = values
        kv_len, kv_end = (torch.zeros(layout.capacity, dtype=INT32) for _ in range(2))
        kv_end[:works] = starts + random_ints(seed + 2, 1, 33, works)
        kv_len[:works] = kv_end[:works] + random_ints(seed + 3, 0, 40, works)
        context = random_ints(seed + 4, 0, 330, rows)
        # A fresh schedule holds the planned values, a clamped one what some clamp before left.
        for name, values in (("kv_end", kv_end), ("kv_len", kv_len)):
            left = values[:works] if fresh else random_ints(seed + 5, 0, 9, works)
            schedule[layout.at(name) : layout.at(name) + works] = left

        # Whatever stood in the launch words was stopped, where the schedule is not fresh.
        spans = [range(layout.at(n), layout.at(n) + works) for n in ("kv_end", "kv_len")]
        stops = [*layout.launch_words[0], *layout.launch_words[1][:-1]]
        schedule[stops] = random_ints(seed + 6, 1, 99, len(stops))
        launch = schedule[[*layout.launch_words[0], *layout.launch_words[1]]].clone()
        if not fresh:
            schedule[[*layout.launch_words[0], *layout.launch_words[1]]] = 0

        def run(runtime):
            written, flags = schedule.clone(), torch.zeros(1, dtype=INT32)
            saved = torch.full_like(launch, -3) if fresh else launch.clone()
            ends, lens = (
                torch.full_like(kv, -3) if fresh else kv.clone() for kv in (kv_end, kv_len)
            )
            clamp(
                runtime, written, ends, lens, saved, context, flags, layout=layout,
                most_works=works + 8, index_topk=256, index_kpool=4, fresh=fresh,
            )  # fmt: skip
            return written, flags, ends, lens, saved

        want, got = both(run)
        for twin, kernel in zip(want, got, strict=True):
            assert torch.equal(twin, kernel)
        for saved, lengths in zip(got[2:4], (kv_end, kv_len), strict=True):
            assert torch.equal(saved[:works], lengths[:works]), "not the planned values"
            assert not fresh or bool((saved[works:] == -3).all()), "saved behind the last one"
        assert torch.equal(got[4], launch)
        running = [*layout.launch_words[0], *layout.launch_words[1]]
        assert torch.equal(got[0][running], launch), "the launch words are not the planned ones"
        seen = context[schedule[:works].long()]
        valid = seen.where(seen <= 256, 256 + seen % 4)
        ends = got[0][layout.at("kv_end") :][:works]
        assert torch.equal(ends, starts.maximum(kv_end[:works].minimum(valid)))
        assert torch.equal(got[0][layout.at("kv_len") :][:works], kv_len[:works].minimum(valid))
        assert int(got[1]) == Flag.VALID_ABOVE_PLAN * bool((valid > kv_len[:works]).any())
        changed = torch.nonzero(got[0] != schedule).flatten()
        spans += layout.launch_words
        assert all(any(int(i) in span for span in spans) for i in changed)
