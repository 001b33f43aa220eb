"""What captured graphs have baked in, compared at every later build.

A graph reads a block table at the address it was captured with. Launch grid, schedule layout and
the plan state's own buffers cannot change (see `smla.schedule` and `PlanState`); the caller's
tensors can.
"""

from dataclasses import dataclass

from torch import Tensor

from smla import errors


@dataclass(frozen=True)
class _Table:
    address: int
    row_stride: int
    width: int

    @classmethod
    def of(cls, table: Tensor) -> "_Table":
        return cls(table.data_ptr(), table.stride(0), table.shape[1])

    def serves(self, other: "_Table") -> bool:
        """Whether a graph that was captured with this table reads the other one."""
        same = (self.address, self.row_stride, self.width)
        return same == (other.address, other.row_stride, other.width)

    def __str__(self) -> str:
        return f"at {self.address:#x}, {self.width} blocks a row, row stride {self.row_stride}"


class Captures:
    """The captured forwards of one plan state. rows: padded rows of each, in order."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._table: _Table | None = None

    def note(self, rows: int, block_table: Tensor) -> None:
        """Remember a captured forward of `rows` rows; raise errors.GraphError unless it fits.

        All graphs of a plan state must read one block table: a build refreshes no other.
        """
        found = _Table.of(block_table)
        self._refuse_other(found)
        self._table = found
        if rows not in self.rows:
            self.rows.append(rows)

    def check(self, block_table: Tensor) -> None:
        """Raise errors.GraphError where captured graphs read another block table than this.

        One without rows is any table's: there is nothing to read in it.
        """
        if block_table.shape[0]:
            self._refuse_other(_Table.of(block_table))

    def _refuse_other(self, found: _Table) -> None:
        table = self._table
        if table is not None and not table.serves(found):
            raise errors.GraphError(
                "block_table",
                found=f"one {found}",
                allowed=f"the one that captured graphs read: {table}",
                remedy="refill that tensor in place; for a step without replays say eager=True; "
                "after dropping the graphs call state.captures.forget()",
            )

    def forget(self) -> None:
        """Forget all captures, once their graphs are gone; an aborted one is known as well."""
        self.rows.clear()
        self._table = None
