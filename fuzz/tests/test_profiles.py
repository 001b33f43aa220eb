"""What the named profiles draw, as their sentences say."""

from collections import Counter

from fuzz.engine import Engine
from fuzz.history import History
from fuzz.profiles import PROFILES
from fuzz.serving import PLAIN, drawn


def test_every_profile_has_a_sentence_and_draws_histories_that_can_be() -> None:
    for named in PROFILES.values():
        assert named.sentence.endswith(".")
        for seed in range(3):
            history = drawn(seed, named.profile)
            history.check()
            assert History.loads(history.dumps()) == history


def test_plain_is_what_was_drawn_before_there_were_others() -> None:
    assert PROFILES["plain"].profile == PLAIN


def test_steps_are_those_of_a_busy_engine_at_the_kernels_width() -> None:
    """No narrow shape, no empty batch and no single kind of step makes the figure."""
    frames = rows = requests = 0
    met: Counter[str] = Counter()
    for seed in range(16):
        history = drawn(seed, PROFILES["steps"].profile)
        shape, engine = history.shape, Engine(history.shape)
        assert (shape.width, shape.heads, shape.drafts, shape.device) == ("full", 16, 3, "at once")
        assert shape.geo == "serve"
        met.update((shape.dtype, f"kpe {shape.kpe}"))
        for turn in history.turns:
            for frame in engine.take(turn):
                frames += 1
                rows += frame.step.rows
                requests += len(frame.requests)
                met["draft step" if frame.drafting else "graph" if turn.graph else "eager"] += 1
                met["above"] += any(context > 64 for context in frame.step.contexts())
            met["preempted"] += len(turn.preempt)
            met["fault"] += turn.fault is not None
            met["moved"] += bool(turn.device)
    assert requests / frames >= 4 and rows / frames >= 8
    assert met["above"] > frames / 2, "selections that leave tokens out"
    wanted = {"bf16", "fp8", "kpe 0", "kpe 64", "draft step", "graph", "eager", "preempted"}
    assert wanted | {"fault", "moved"} <= {name for name, count in met.items() if count}
