"""The requirements: a stable id, a sentence, and how many cases each tier must pass.

A tier's minimum of 0 means that the requirement is not judged there, and `unjudged` says why.
"""

from dataclasses import dataclass

ALIVE = "SMOKE"
"""The requirement whose cases run first: without them nothing else says anything."""

PLAN_SLACK = 32
"""Tokens by which the contract lets a planned length exceed its row bound."""


@dataclass(frozen=True)
class Requirement:
    """One line of the contract. twin, hopper: minimum of passing cases per tier.

    tool: what the twin tier's cases need beside Python; without it they are reported as not run.
    """

    id: str
    sentence: str
    twin: int
    hopper: int
    unjudged: str = ""
    tool: str = ""

    def minimum(self, tier: str) -> int:
        """Return the minimum of cases for a tier."""
        return {"twin": self.twin, "hopper": self.hopper}[tier]


def _same(id: str, count: int, sentence: str) -> Requirement:
    return Requirement(id, sentence, count, count)


_ALL = (
    _same(ALIVE, 8, "The subject is alive: it plans and runs the plain case. Says nothing more."),
    # What judges stands before what is judged.
    Requirement(
        "SUITE-3",
        "Golden and its bound agree with an independent derivation.",
        72,
        0,
        "it runs on the CPU alone",
    ),
    Requirement(
        "TWIN-2",
        "The twin replays schedules recorded on a GPU.",
        8,
        0,
        "the records are of this hardware",
    ),
    Requirement(
        "TWIN-1",
        "The planner twin writes every byte that FlashInfer's planner writes.",
        25,
        50,
        tool="planner",
    ),
    _same("LEN-1", 60, "A row sees its request's tokens up to and including its own."),
    _same("LEN-2", 80, "The valid count is the context, or topk plus the incomplete pool."),
    _same("LEN-3", 60, "Host, device and counted valid counts agree, or a flag says they do not."),
    _same("LEN-4", 80, "A planned length covers its row's bound, which is never the formula's."),
    _same("LEN-5", 60, "Where the device split the drafts anew, each row follows the device."),
    _same("LEN-6", 60, "A valid count above the plan is flagged; what the slack covers is not."),
    # What an output shows: special inputs first, any inputs last.
    _same("NUM-8", 40, "The same plan and inputs give the same bits, run after run."),
    _same("NUM-4", 140, "A rope part of 64 takes part with the scale it was written with."),
    _same("NUM-3", 48, "An FP8 cache's scale is applied exactly, and a changed one is flagged."),
    _same("NUM-5", 147, "Every head count from 1 to 128 is right."),
    _same("NUM-6", 100, "Split and unsplit rows are right."),
    _same("NUM-7", 100, "Splits that the clamp empties contribute nothing."),
    _same("NUM-9", 60, "Rows without valid entries are exactly zero."),
    _same("NUM-1", 240, "BF16 outputs equal golden within the error model."),
    _same("NUM-2", 240, "Per-tensor FP8 outputs equal golden within the error model."),
    _same("PLAN-1", 24, "Planning during graph capture is refused and changes nothing."),
    _same("PLAN-2", 40, "Exact lengths are planned as they are, and never reused."),
    _same("PLAN-3", 80, "A plan is reused exactly inside the window of bounds it covers."),
    _same("PLAN-4", 120, "After the clamp a row's work items tile [0, valid) exactly once."),
    _same("PLAN-5", 60, "kv_indptr is the running sum of planned lengths, flat behind live rows."),
    _same("PLAN-6", 40, "No plan changes the launch grid or the layout that a graph holds."),
    _same("PLAN-14", 60, "Each clamp starts from the saved plan, so lengths may grow again."),
    _same("PLAN-8", 24, "Building and running a step waits for nothing on the device."),
    _same("PLAN-9", 24, "A plan that is in flight is never overwritten by the next ones."),
    _same("PLAN-7", 6, "Any number of rows is served, beyond FlashInfer's work items too."),
    _same(
        "PLAN-10", 40, "A step without live rows leaves an empty schedule: a replay does nothing."
    ),
    _same("PLAN-11", 60, "No work item, read or write belongs to a row that is not live."),
    _same("PLAN-12", 32, "No address that a captured graph reads changes unnoticed."),
    _same("PLAN-13", 40, "The plan-info layout is FlashInfer's; any other is refused."),
    _same("IDX-1", 80, "Valid entries are compacted to the front in order, and nothing else is."),
    _same("IDX-2", 100, "-1, INT_MIN, huge and foreign ids select nothing."),
    _same("IDX-5", 60, "No negative stands inside a planned row; fillers are the row's own."),
    _same(
        "IDX-3",
        60,
        "Block numbers outside of the cache, and blocks outside of a table, select nothing.",
    ),
    _same(
        "IDX-4", 60, "Any block stride of whole rows is served; rows between blocks are foreign."
    ),
    _same("IDX-6", 40, "Pack writes its rows' planned entries and nothing else."),
    # On a GPU a case of READ-A, READ-C or CANARY-1 costs a process: it ends in a fault on purpose.
    Requirement(
        "READ-A",
        "No negative slot is dereferenced, in the cache or elsewhere.",
        60,
        8,
    ),
    _same("READ-B", 100, "Nothing behind a row's valid prefix contributes: the bits are the same."),
    Requirement(
        "READ-C",
        "Nothing behind the valid prefix is touched at all.",
        160,
        40,
    ),
    Requirement(
        "CANARY-1",
        "Unmapped memory faults exactly where the twin says a clamp of kv_end alone still reads.",
        42,
        42,
    ),
    _same("READ-D", 80, "Cache rows that nothing selects never influence an output, NaN included."),
    _same("GRAPH-1", 48, "A replay gives the bits of the eager forward."),
    _same("GRAPH-2", 24, "One capture serves many replays, after replans and after reuses."),
    _same("GRAPH-3", 32, "A padded capture serves every number of live rows."),
    _same("GRAPH-4", 16, "Graphs of several sizes share one plan state."),
    _same("GRAPH-5", 12, "A replay follows rows that leave for dense attention, and return."),
    _same("GRAPH-6", 30, "What changes before a replay changes its output; nothing else does."),
    _same("MHA-3", 12, "Up to topk tokens of context, dense and sparse attention are the same."),
    _same("MHA-1", 24, "Prefills go to dense MHA iff the longest bound is at most topk."),
    _same("MHA-2", 12, "Decode rows do not depend on where the prefill rows go."),
    _same("MHA-4", 24, "Every row is computed once: exactly the rows that the metadata names."),
    _same("ADMIT-1", 6, "Only compute capability 9.0 is admitted."),
    _same("ADMIT-2", 4, "Caches that are not BF16 or E4M3 are refused."),
    _same("ADMIT-3", 12, "Dimensions the kernel has no code for are refused, naming the limit."),
    _same("ADMIT-4", 8, "A FlashInfer that lacks or changes what is used is refused."),
    _same("ADMIT-5", 18, "What is admitted works: a module that computes wrongly is refused."),
    _same("ROB-1", 12, "A malformed batch layout is an error that changes nothing."),
    _same("ROB-2", 3, "Impossible lengths are an error that changes nothing."),
    _same("ROB-3", 6, "Malformed selections and tables are an error that changes nothing."),
    _same("ROB-4", 28, "Malformed caches and scales are an error that changes nothing."),
    _same("ROB-5", 8, "A configuration that cannot work is an error at construction."),
    _same("ROB-6", 4, "Calls out of order are an error that changes nothing."),
    _same("READ-E", 40, "Inputs are only read: no forward, captured or not, changes one."),
    _same("DRAFT-1", 32, "Draft steps share one state, their lengths moved on the device alone."),
    _same("DRAFT-2", 36, "Verification is right for any pattern of accepted drafts."),
    _same("DRAFT-3", 24, "Steps in a row may each have another split of the drafts on the device."),
    _same("DRAFT-4", 24, "A request that was preempted resumes with other blocks."),
    _same("DRAFT-5", 16, "Growing steps are planned anew exactly when the window is left."),
    # The suite itself.
    Requirement(
        "SUITE-1",
        "A run counts what went wrong: records, minima and exit code follow the outcomes.",
        30,
        0,
        "the suite judges alike on every tier",
    ),
    Requirement(
        "SUITE-2",
        "The ledger excuses exactly what it says.",
        30,
        0,
        "the suite judges alike on every tier",
    ),
    Requirement(
        "SUITE-4",
        "A report and a merge show exactly what the records say.",
        24,
        0,
        "records read the same on every machine",
    ),
    # What looks at most stands last: many steps, every check at once. Behind it, what is newer than
    # the rows of the kill matrix.
    _same("HIST-1", 20, "Histories that were findings once are played without one."),
    _same(
        "GRAPH-7",
        16,
        "A replay for more rows than were captured is flagged, and computes nothing.",
    ),
    Requirement(
        "SUITE-5",
        "The gate of an upgrade objects to what differs, and to nothing else.",
        30,
        0,
        "the gate weighs alike on every machine",
    ),
    _same(
        "NUM-10",
        182,
        "Group-scaled FP8 outputs equal golden within the error model, and its cache write "
        "quantizes as documented.",
    ),
    _same("NUM-11", 36, "Caches beyond 2^31 and 2^32 elements and bytes are addressed right."),
    Requirement(
        "TWIN-3",
        "The twin replays what a GPU computed.",
        17,
        0,
        "the records are of this hardware",
    ),
)

REQUIREMENTS = {requirement.id: requirement for requirement in _ALL}
"""By id, in the order they are reported.

A mutant belongs to the first one that notices it. So the specific stands before the general, and
what looks at less before what looks at more.
"""
