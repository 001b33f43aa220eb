"""How a call was written, from the caller's source; names that it unpacks are looked up."""

import ast
import linecache
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass(frozen=True)
class Given:
    """How the arguments of one call were given."""

    positional: int = 0
    keywords: tuple[str, ...] = ()
    told: bool = False


def given_by(caller: FrameType) -> Given:
    """How the call that a frame is making was written; unpacked names are looked up in it."""
    call = _expression(caller)
    if call is None:
        return Given()
    positional, keywords = _count(caller, call.args), []
    if positional is None:
        return Given()
    for keyword in call.keywords:
        if keyword.arg is not None:
            keywords.append(keyword.arg)
            continue
        unpacked = _local(caller, keyword.value)
        if not isinstance(unpacked, Mapping):
            return Given()
        keywords += [str(name) for name in unpacked]
    return Given(positional, tuple(keywords), told=True)


def falls_back(caller: FrameType) -> bool:
    """Whether a frame asks for an attribute by `hasattr`, or by `getattr` with a default."""
    call = _expression(caller)
    if call is None or not isinstance(call.func, ast.Name):
        return False
    asked = (call.func.id, len(call.args))
    return asked in (("hasattr", 2), ("getattr", 3))


def _count(frame: FrameType, values: Sequence[ast.expr]) -> int | None:
    """How many values there are once what is starred is unpacked; None where that is not told."""
    count = 0
    for value in values:
        if not isinstance(value, ast.Starred):
            count += 1
        elif isinstance(value.value, ast.Tuple | ast.List):
            inner = _count(frame, value.value.elts)
            if inner is None:
                return None
            count += inner
        else:
            unpacked = _local(frame, value.value)
            if not isinstance(unpacked, tuple | list):
                return None
            count += len(unpacked)
    return count


def _local(frame: FrameType, value: ast.expr) -> Any:
    """The value of a name, or of an attribute of one, as it is stored: nothing is run for it."""
    if isinstance(value, ast.Name):
        return frame.f_locals.get(value.id)
    if isinstance(value, ast.Attribute):
        return getattr(_local(frame, value.value), "__dict__", {}).get(value.attr)
    return None


def _expression(frame: FrameType) -> ast.Call | None:
    """The call expression that a frame is at."""
    code = frame.f_code
    positions = list(code.co_positions())[frame.f_lasti // 2]
    line, end_line, column, end_column = positions
    if None in positions or line is None or end_line is None:
        return None
    lines = linecache.getlines(code.co_filename, frame.f_globals)[line - 1 : end_line]
    if not lines:
        return None
    encoded = [text.encode() for text in lines]
    encoded[-1] = encoded[-1][:end_column]
    encoded[0] = encoded[0][column:]
    try:
        tree = ast.parse(b"(" + b"".join(encoded) + b"\n)", mode="eval").body
    except SyntaxError:
        return None
    return tree if isinstance(tree, ast.Call) else None
