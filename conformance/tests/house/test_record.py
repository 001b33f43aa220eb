"""Hardware records: recorded whole, replayed on the twin, and any byte that differs is named.

The records here are made on the twin. Faults are planted below the subject, as a GPU would have
them, and in what was recorded.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.core.bench import UNWRITTEN
from conformance.core.schedule import FIELDS, ScheduleReader
from conformance.core.worker import load_subject
from conformance.hardware import numbers, replay, scenes, schedule
from conformance.hardware.errors import HardwareError
from conformance.hardware.inputs import draw
from conformance.hardware.pieces import Piece, chosen, kept_places, pieces_of
from conformance.hardware.recording import SceneRecord, record
from conformance.hardware.rerun import rebuilt
from conformance.hardware.scenes import LSES, PAIRS, SCENES, Scene, digest, pairs, spread
from conformance.subjects import factory_of
from conformance.tiers import VERSIONS, tier
from conformance.twin.semantics import of_version
from conformance.twin.surface import NativeModule

BY_NAME = {scene.name: scene for scene in SCENES}
VERSION_OF = {scene.name: VERSIONS[at % len(VERSIONS)] for at, scene in enumerate(SCENES)}
FEW = ("mixed", "no-context", "grows-again", "padded")
"""Scenes that take little time: BF16 and FP8, with a rope part and without, split and not."""
INTEGERS = [
    *("plan.qo_indptr", "plan.kv_indptr", "kv_indptr", "kv_indices", "counts", "contexts"),
    *(f"{when}.{name}" for when in ("staged", "clamped") for name in FIELDS[2:16]),
]


@cache
def recorded(name: str) -> SceneRecord:
    """A scene recorded on the twin."""
    return record(BY_NAME[name], load_subject(factory_of("smla")), tier("twin", VERSION_OF[name]))


def replayed(name: str, found: SceneRecord) -> replay.Replayed:
    return replay.replay_scene(BY_NAME[name], found, of_version(VERSION_OF[name]))


def edited(found: SceneRecord, name: str, edit: Callable[[Tensor], Any]) -> SceneRecord:
    """The record with one tensor edited in place."""
    tensor = found.tensors[name].clone()
    edit(tensor)
    return replace(found, tensors={**found.tensors, name: tensor})


@pytest.mark.parametrize("name", BY_NAME)
def test_what_the_twin_recorded_replays(name: str) -> None:
    seen = replayed(name, recorded(name))
    assert [*map(str, seen.differences)] == []
    assert seen.ratio is not None and seen.ratio < 1


def test_between_them_the_scenes_have_what_a_kernel_can_meet() -> None:
    cases = [scene.case for scene in SCENES]
    assert {case["dtype"] for case in cases} == {"bf16", "fp8", "fp8g"}
    assert {case["kpe"] for case in cases} == {"0", "64"}
    heads = {int(case["heads"]) for case in cases}
    assert (min(heads), max(heads)) == (8, 128) and any(n % 8 for n in heads)
    assert len({scene.name for scene in SCENES}) == len({scene.id for scene in SCENES})
    met: set[str] = set()
    for name, scene in BY_NAME.items():
        found = recorded(name)
        reader = ScheduleReader(found.plan_info, rebuilt(found), found.call.num_sms)
        works = reader.works()
        split = {work.row for work in works if work.partial >= 0}
        rows = {work.row for work in works}
        met |= {"clusters of two"} if reader.info["num_blks_x"] == 2 else {"clusters of one"}
        met |= {"many whole rows"} if len(rows) > 8 and not split else set()
        met |= {"split rows"} if split else set()
        met |= {"split and whole rows"} if split and rows - split else set()
        met |= (
            {"an emptied piece"} if any(w.start > 0 and w.end <= w.start for w in works) else set()
        )
        met |= {"a row without tokens"} if 0 in schedule.valid_counts(scene) else set()
        met |= {"padding"} if scene.step.padded_rows > scene.step.rows else set()
        met |= {"a reused plan"} if len(scene.steps) > 2 else set()
        met |= {"drafts split anew"} if scene.step.device_q_lens else set()
        met |= {"foreign rows"} if scene.case.geometry.gap_rows else set()
        clamps = (found.tensors["staged.kv_len"] != found.tensors["clamped.kv_len"]).any()
        met |= {"a clamp"} if bool(clamps) else set()
    assert met == {
        *("clusters of two", "clusters of one", "many whole rows", "split rows"),
        *("split and whole rows", "an emptied piece", "a row without tokens", "padding"),
        *("a reused plan", "drafts split anew", "foreign rows", "a clamp"),
    }


def test_the_list_of_scenes_is_known_by_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = SCENES
    moved = replace(first, steps=(replace(first.step, seq_lens=(2,)),))
    narrow = replace(first, id=first.id.replace("heads=16", "heads=8"))
    several = [SCENES, others, [*others, first], [moved, *others], [narrow, *others]]
    assert len({digest(some) for some in several}) == len(several)
    assert digest(SCENES) == digest([*SCENES])
    known = digest(SCENES)
    monkeypatch.setattr(scenes, "pairs", lambda count, heads, most: [(0, 0)])
    assert digest(SCENES) != known, "other pairs are kept"


@pytest.mark.parametrize(("count", "most"), [(0, 3), (3, 3), (4, 3), (1000, 14), (15, 14), (9, 1)])
def test_what_is_kept_is_spread_evenly(count: int, most: int) -> None:
    kept = spread(count, most)
    assert len(kept) == min(count, most) == len(set(kept))
    assert kept == sorted(kept) and (
        not kept or (kept[0], kept[-1]) == (0, min(most - 1, 1) * (count - 1))
    )


def lacks(kept: list[tuple[int, int]], rows: set[int], heads: int, most: int) -> list[str]:
    """What kept (row, head) pairs do not show, of rows that each have that many heads."""
    found = {head for _, head in kept}
    lack = [] if len(found) >= min(heads, 8) else [f"heads: {sorted(found)}"]
    lack += [] if heads <= 64 or {head // 64 for head in found} == {0, 1} else ["a half"]
    missing = rows - {row for row, _ in kept}
    return lack + ([f"rows: {sorted(missing)}"] if missing and len(rows) <= most else [])


@pytest.mark.parametrize("most", [PAIRS, LSES])
def test_kept_pairs_never_fall_into_step_with_the_heads(most: int) -> None:
    for heads in (1, 4, 7, 8, 9, 16, 48, 65, 72, 100, 127, 128):
        for rows in (*range(1, 34), 64, 65, 128):
            kept = pairs(rows, heads, most)
            assert len(kept) == len(set(kept)) == min(most, rows * heads), (rows, heads)
            assert kept == sorted(kept)
            assert (kept[0], kept[-1]) == ((0, 0), (rows - 1, heads - 1)), (rows, heads)
            assert not lacks(kept, {*range(rows)}, heads, most), (rows, heads)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_what_a_scene_keeps_shows_heads_of_both_halves_and_all_rows(scene: Scene) -> None:
    heads, rows = int(scene.case["heads"]), scene.step.padded_rows
    assert not lacks(scene.pairs(), {*range(rows)}, heads, PAIRS)
    found = recorded(scene.name)
    reader = ScheduleReader(found.plan_info, rebuilt(found), found.call.num_sms)
    pieces = pieces_of(reader, heads)
    split = {piece.row for piece in pieces.values()}
    for kept, most in zip(kept_places(reader, heads), (PAIRS, LSES), strict=True):
        assert len(kept) == len(set(kept)) == min(most, len(pieces))
        met = [(pieces[place].row, pieces[place].head) for place in kept]
        assert not split or not lacks(met, split, heads, most)


def test_a_row_of_few_pieces_is_kept_beside_rows_of_many() -> None:
    counts = {0: 40, 3: 1, 4: 2, 9: 60}
    every = [
        Piece(row, head, 64 * at, 64 * at + 64)
        for row, count in counts.items()
        for at in range(count)
        for head in range(128)
    ]
    kept = [every[place] for place in chosen(dict(enumerate(every)), 128, PAIRS)]
    assert len(kept) == PAIRS and not lacks([(p.row, p.head) for p in kept], {*counts}, 128, PAIRS)
    for row, starts in {0: {0, 39 * 64}, 3: {0}, 4: {0, 64}, 9: {0, 59 * 64}}.items():
        assert starts <= {piece.start for piece in kept if piece.row == row}


@pytest.mark.parametrize("name", FEW)
def test_any_integer_that_differs_is_named_with_its_place(name: str) -> None:
    scene, found = BY_NAME[name], recorded(name)
    drawn = draw(scene)
    assert {*INTEGERS, "plan.kv_len"} == {
        n for n, t in found.tensors.items() if not t.is_floating_point()
    }
    for tensor in INTEGERS:
        for at in spread(found.tensors[tensor].numel(), 3):
            for change in (1, -(1 << 20)):

                def edit(values: Tensor, at: int = at, change: int = change) -> None:
                    values[at] += change

                changed = edited(found, tensor, edit)
                differing = schedule.judge(scene, drawn, changed)
                assert len(differing) == 1, (tensor, at, [*map(str, differing)])
                text = str(differing[0])
                assert text.startswith(f"{name}: {tensor}: entry {at}: the record holds "), text
                assert str(int(changed.tensors[tensor][at])) in text
                assert f"expected {int(found.tensors[tensor][at])} " in text


@pytest.mark.parametrize("name", FEW)
def test_planned_lengths_are_the_subject_s_to_choose_but_all_follows_from_them(name: str) -> None:
    scene, found = BY_NAME[name], recorded(name)
    drawn, width = draw(scene), scene.case.geometry.topk_width
    for at, length in enumerate(found.tensors["plan.kv_len"].tolist()):
        for value in {length - 1, length + 1, width + 1, -1, 1 << 30}:

            def edit(values: Tensor, at: int = at, value: int = value) -> None:
                values[at] = value

            differing = schedule.judge(scene, drawn, edited(found, "plan.kv_len", edit))
            assert differing and all(d.scene == name for d in differing), (at, value)
            if not 0 <= value <= width:
                assert f"plan.kv_len: entry {at}: the record holds {value}" in str(differing[0])


@pytest.mark.parametrize("at", range(len(FIELDS)))
def test_each_integer_of_plan_info_counts(at: int) -> None:
    found = recorded("padded")
    info = [*found.plan_info]
    info[at] += 16
    (first, *_) = replayed("padded", replace(found, plan_info=tuple(info))).differences
    assert str(first).startswith(f"padded: plan_info: entry {at}: ")


@pytest.mark.parametrize(
    ("change", "tensor"),
    [
        ({"num_sms": 131}, "plan_info"),
        ({"num_sms": 0}, "plan.kv_len"),
        ({"float_bytes": 1000}, "plan.kv_len"),
        ({"num_heads": 9}, "call"),
        ({"head_dim": 256}, "call"),
        ({"sm_scale": 0.05}, "call"),
        ({"ckv_scale": 1024.0}, "call"),
        ({"kpe_scale": 1024.0}, "call"),
        ({"scale_array": True}, "call"),
    ],
    ids=str,
)
def test_the_scalars_of_a_call_count(change: dict[str, Any], tensor: str) -> None:
    found = recorded("padded")
    assert {*change} <= {f.name for f in fields(found.call)}
    changed = replace(found, call=replace(found.call, **change))
    assert tensor in {d.tensor for d in replayed("padded", changed).differences}


def test_a_flag_is_a_difference() -> None:
    flagged = replace(recorded("mixed"), flags=("valid_above_plan",))
    assert "mixed: flags: the record holds valid_above_plan" in [
        str(d).split(", expected")[0] for d in replayed("mixed", flagged).differences
    ]


@pytest.mark.parametrize("what", ["cache", "block_table", "topk", "q_nope", "q_pe"])
def test_inputs_that_are_drawn_otherwise_are_refused(what: str) -> None:
    found = recorded("mixed")
    other = replace(found, inputs={**found.inputs, what: "0" * 64})
    with pytest.raises(HardwareError, match=rf"mixed: found {what} .*allowed.*to fix"):
        replayed("mixed", other)


def largest(values: Tensor) -> tuple[int, int]:
    """The place of the largest element of the pair with the largest one."""
    return divmod(int(values.float().abs().argmax()), values.shape[1])


def turned(values: Tensor) -> None:
    values[largest(values)] *= -1


def zeroed(values: Tensor) -> None:
    values[largest(values)] = 0


def not_a_number(values: Tensor) -> None:
    values[largest(values)] = float("nan")


def infinite(values: Tensor) -> None:
    values[largest(values)] = float("inf")


def exchanged(values: Tensor) -> None:
    first = largest(values)[0]
    other = next(at for at in range(len(values)) if not values[at].equal(values[first]))
    values[[first, other]] = values[[other, first]]


def scaled(values: Tensor) -> None:
    values[largest(values)[0]] *= 1.05


def unwritten(values: Tensor) -> None:
    values.view(torch.int16)[largest(values)[0]] = UNWRITTEN


EDITS = (turned, zeroed, not_a_number, infinite, exchanged, scaled, unwritten)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        *(("padded", tensor) for tensor in ("engine_out", "out", "partial_o")),
        *(("grows-again", tensor) for tensor in ("engine_out", "partial_o")),
    ],
)
def test_an_output_beyond_its_bound_is_named(
    name: str, tensor: str, edit: Callable[[Tensor], Any]
) -> None:
    scene = BY_NAME[name]
    pairs = len(recorded(name).tensors[tensor])
    if tensor != "partial_o":
        pairs = sum(row < scene.step.rows for row, _ in scene.pairs())
    found = edited(recorded(name), tensor, lambda values: edit(values[:pairs]))
    (first,) = replayed(name, found).differences
    assert first.tensor == tensor and " head " in first.text and " channel " in first.text
    assert "the record holds" in first.text and "allowed" in first.text


def test_a_last_bit_is_within_the_bound() -> None:
    """What two engines may differ by is no difference."""

    def nudge(values: Tensor) -> None:
        values.view(torch.int16)[largest(values)] += 1

    for tensor in ("engine_out", "partial_o"):
        assert not replayed(
            "grows-again", edited(recorded("grows-again"), tensor, nudge)
        ).differences


def test_a_padding_row_that_was_written_is_named() -> None:
    def write(values: Tensor) -> None:
        values.view(torch.int16)[-1, 3] = 0

    for tensor in ("engine_out", "out"):
        (first,) = replayed("padded", edited(recorded("padded"), tensor, write)).differences
        assert first.tensor == tensor and "padding row 11" in first.text


@pytest.mark.parametrize("change", [2.0**-10, -(2.0**-10), float("inf"), -torch.inf, float("nan")])
def test_a_partial_lse_that_differs_is_named(change: float) -> None:
    found = recorded("grows-again")
    finite = found.tensors["partial_lse"].isfinite().nonzero().flatten().tolist()

    def edit(values: Tensor) -> None:
        values[finite[len(finite) // 2]] += change

    (first,) = replayed("grows-again", edited(found, "partial_lse", edit)).differences
    assert first.tensor == "partial_lse" and "packed row" in first.text and "allowed" in first.text


def test_an_emptied_piece_that_contributes_is_named() -> None:
    found = recorded("emptied-splits")
    empty = (found.tensors["partial_lse"] == -torch.inf).nonzero().flatten().tolist()

    def edit(values: Tensor) -> None:
        values[empty[0]] = -20.0

    (first,) = replayed("emptied-splits", edited(found, "partial_lse", edit)).differences
    assert first.tensor == "partial_lse" and "-20" in first.text


@pytest.mark.parametrize("tensor", ["kv_indices", "engine_out", "partial_lse", "clamped.kv_end"])
def test_a_tensor_of_another_shape_or_type_is_a_difference(tensor: str) -> None:
    found = recorded("padded")
    whole = found.tensors[tensor]
    for other in (whole[:-1], whole.double()):
        changed = replace(found, tensors={**found.tensors, tensor: other})
        names = [d.tensor for d in replayed("padded", changed).differences]
        assert tensor in names, names


# Faults of the hardware: below the subject, which records what came of them.


class Faulty:
    """A native module that goes wrong where the scene's own rows are planned or run."""

    def __init__(self, native: Any, rows: int, fault: str) -> None:
        self._native, self._rows, self._fault = native, rows, fault

    def plan(self, *args: Any) -> Any:
        result = self._native.plan(*args)
        if len(args[5]) == self._rows and self._fault == "two work items change places":
            words = args[2].view(torch.int32)
            for name in (*FIELDS[2:5], *FIELDS[10:15]):
                at = dict(zip(FIELDS, result[0], strict=True))[name] // 4
                words[[at, at + 1]] = words[[at + 1, at]]
        if len(args[5]) == self._rows and self._fault == "a merge job ends early":
            words = args[2].view(torch.int32)
            words[dict(zip(FIELDS, result[0], strict=True))["merge_packed_offset_end"] // 4] -= 1
        return result

    def run(self, *args: Any) -> Any:
        given = [*args]
        if args[3].shape[0] != self._rows or "run" not in self._fault:
            return self._native.run(*given)
        if "another scale" in self._fault:
            given[13] *= 1.03
        if "another cache scale" in self._fault:
            given[15] = given[16] = given[15] * 2
        if "the last entry twice" in self._fault:
            given[7] = args[7].clone()
            given[7][1:] = args[7][:-1]
        if "one position short" in self._fault:
            given[1] = args[1].clone()
            at = dict(zip(FIELDS, args[2], strict=True))["kv_end"] // 4
            given[1].view(torch.int32)[at] -= 1
        if "merges all but the last pair" in self._fault:
            given[1] = args[1].clone()
            at = dict(zip(FIELDS, args[2], strict=True))["merge_packed_offset_end"] // 4
            ends = given[1].view(torch.int32)[at : at + self._native.num_sms]
            ends[int(ends.argmax())] -= 1
        if "masks with a small number" in self._fault:
            rules = replace(self._native.semantics, minus_inf=-1.0)
            return NativeModule(rules, self._native.num_sms).run(*given)
        self._native.run(*given)
        if "leaves a row" in self._fault:
            args[8].view(torch.int16)[self._rows - 1] = UNWRITTEN
        return None


@pytest.mark.parametrize(
    ("fault", "tensor"),
    [
        ("two work items change places", "staged."),
        ("a merge job ends early", "staged.merge_packed_offset_end"),
        ("a run with another scale", "partial"),
        ("a run with another cache scale", "partial"),
        ("a run that reads the last entry twice", "partial"),
        ("a run one position short", "partial"),
        ("a run that merges all but the last pair", "engine_out"),
        ("a run that masks with a small number", "partial"),
        ("a run that leaves a row", "engine_out"),
    ],
)
def test_a_fault_below_the_subject_is_caught(fault: str, tensor: str) -> None:
    scene = BY_NAME["prompt"]
    sound = tier("twin", VERSION_OF["prompt"])
    assert sound.native is not None
    make = sound.native
    broken = replace(sound, native=lambda enqueue=None: Faulty(make(enqueue), 10, fault))
    found = record(scene, load_subject(factory_of("smla")), broken)
    differing = replayed("prompt", found).differences
    assert differing, fault
    assert differing[0].tensor.startswith(tensor), [*map(str, differing)]


def test_the_twin_itself_is_held_against_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is right does not hide a twin that is wrong."""
    right = recorded("grows-again")
    rules = replace(of_version(VERSION_OF["grows-again"]), minus_inf=-1.0)
    seen = replay.replay_scene(BY_NAME["grows-again"], right, rules)
    assert {d.tensor for d in seen.differences} == {"engine_out", "partial_o", "partial_lse"}
    assert "the twin itself" in str(seen.differences[0])
    reach = numbers.AccessLog.reach
    monkeypatch.setattr(
        numbers.AccessLog, "reach", lambda log: {row: n - 1 for row, n in reach(log).items()}
    )
    seen = replayed("no-context", recorded("no-context"))
    assert seen.differences[0].tensor == "touched"


def test_scenes_have_the_inputs_that_were_recorded() -> None:
    for name in FEW:
        assert draw(BY_NAME[name]).digests() == recorded(name).inputs
