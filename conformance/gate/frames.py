"""Whose code a frame is: FlashInfer's, the subject's, or that of what stands between and around."""

import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType, TracebackType

_STDLIB = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_SITE = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_SUITE = f"{Path(__file__).parents[1]}/"
_SUBJECTS = (f"{_SUITE}subjects/", f"{_SUITE}tests/")


class Owner:
    """Tells owners by file. folder: holds `flashinfer/`; the package below it is FlashInfer's."""

    def __init__(self, folder: Path) -> None:
        self._root = f"{folder}/"
        self.package = f"{folder}/flashinfer/"

    def inside(self, code: CodeType) -> bool:
        """Whether it is FlashInfer's."""
        return code.co_filename.startswith(self.package)

    def subject(self, code: CodeType) -> bool:
        """Whether it is the subject's, or of an adapter around one."""
        file = code.co_filename
        if file.startswith(_SUBJECTS):
            return True
        if file.startswith((_SUITE, self.package, *_STDLIB)):
            return False
        if file.startswith("<") and ">/" not in file:
            return False  # frozen, or made from a string, as dataclasses do
        # Other installed packages stand between, unless one is what is judged.
        return not file.startswith(tuple(f"{site}/{name}/" for site in _SITE for name in _BETWEEN))

    def name(self, code: CodeType) -> str:
        """`FILE:QUALNAME`, FILE relative to the folder where it is FlashInfer's."""
        return f"{self._file(code)}:{code.co_qualname}"

    def place(self, code: CodeType) -> str:
        """The same for people."""
        return f"{self._file(code)}: {code.co_qualname}"

    def _file(self, code: CodeType) -> str:
        file = code.co_filename
        if file.startswith(self._root):
            return file.removeprefix(self._root)
        for entry in sys.path:
            if entry and file.startswith(f"{entry.rstrip('/')}/"):
                return file.removeprefix(f"{entry.rstrip('/')}/")
        return file.rpartition(">/")[2] if file.startswith("<") else Path(file).name

    def of_stack(self, frame: FrameType | None) -> str:
        """The place of the innermost frame that is FlashInfer's, else of the subject's."""
        fallback = ""
        while frame is not None:
            if self.inside(frame.f_code):
                return self.place(frame.f_code)
            if not fallback and self.subject(frame.f_code):
                fallback = self.place(frame.f_code)
            frame = frame.f_back
        return fallback

    def of_traceback(self, traceback: TracebackType | None) -> str:
        """The place where an exception was raised, told the same way."""
        inside = fallback = ""
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if self.inside(code):
                inside = self.place(code)
            elif self.subject(code):
                fallback = self.place(code)
            traceback = traceback.tb_next
        return inside or fallback


_BETWEEN = ("torch", "triton", "numpy", "tvm_ffi", "typing_extensions")


def first_line(problem: BaseException) -> str:
    """Type and first line of an exception."""
    text = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {text[0]}" if text else type(problem).__name__
