"""Comments and layout change no token and no part; any other edit changes the part it is in."""

from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conformance.twin.compiled import CompilerMissing, flashinfer_include
from conformance.twin.semantics import SOURCES, fingerprint
from conformance.twin.sources import ELSEWHERE, parts
from conformance.twin.tokens import END_OF_DIRECTIVE, text_digest, tokens

SAMPLE = """\
// a kernel and what launches it
#pragma once
#include <cuda_runtime.h>
#define PAGES (1 << 4)
#define TILE(x) ((x) / \\
                 PAGES)
namespace demo {
constexpr float log2e = 1.44f, *loge2 = nullptr; // of e
enum class Mode { kNone, kWide };
template <typename T, int N = 2>
struct Box {
  T values[N];
  __device__ __forceinline__ T first() const { return values[0]; }
  __host__ __device__ Box(T x) : values{x, x} {}
  struct Inner { int depth; };
};
template <> struct Box<float, 1> { __device__ float first() { return 0.f; } };
DEMO_INLINE int half(int x) { return x >> 1; }
__device__ float half(float x) { return x - -0.5f * x; }
template <typename T>
__global__ __launch_bounds__(128, (1 + 1)) void kernel(const __grid_constant__ T params) {
  extern __shared__ int smem[];
  asm volatile("mov.b32 %0, %1;" : "=r"(smem[0]) : "r"(params.x));
  auto put = [&](int i) { smem[i] = half(i) + 1'000; };
#ifdef WIDE
  put(7);
#endif
}
void launch(int* p, cudaStream_t s) {
  kernel<int><<<dim3(1, TILE(64)), 128, 0, s>>>(*p);
  log(R"(no // comment, "quoted")", '"');
}
}  // namespace demo
"""


def digests(text: str) -> dict[str, str]:
    return {name: part.digest for name, part in parts(text).items()}


def test_cuda_syntax_loses_no_function() -> None:
    assert set(parts(SAMPLE)) == {
        *(
            ELSEWHERE,
            "macro PAGES",
            "macro TILE",
            "variable log2e,loge2",
            "struct Box",
            "Box::first",
        ),
        *("Box::Box", "struct Box::Inner", "struct Box<float,1>", "Box<float,1>::first", "half"),
        *("kernel", "launch", "enum Mode"),
    }
    kernel = parts(SAMPLE)["kernel"].words
    assert kernel[:6] == ("template", "<", "typename", "T", ">", "__global__"), kernel
    assert kernel.count("{") == kernel.count("}") == 2, kernel


def test_overloads_of_one_name_are_one_part_whatever_their_order() -> None:
    lines = SAMPLE.splitlines()
    one, other = (next(i for i, x in enumerate(lines) if s in x) for s in (" half(int", " half(fl"))
    lines[one], lines[other] = lines[other], lines[one]
    assert digests("\n".join(lines)) == digests(SAMPLE)
    assert text_digest("\n".join(lines)) != text_digest(SAMPLE)


def test_names_lead_from_a_part_to_those_it_mentions() -> None:
    found = parts(SAMPLE)
    both = ("Box<float,1>::first", "Box::first")
    assert {found[name].known_as for name in both} == {("first",)}
    assert found["Box<float,1>::first"].owner == found["Box::first"].owner == "Box"
    assert found["struct Box<float,1>"].known_as == ("Box",)
    assert found["macro TILE"].known_as == ("TILE",)
    assert found["variable log2e,loge2"].known_as == ("log2e", "loge2")
    assert "kWide" in found["enum Mode"].known_as
    assert {"half", "smem"} <= found["kernel"].mentions
    assert {"kernel", "TILE"} <= found["launch"].mentions
    assert "comment" not in found["launch"].mentions, "a string's words are no names"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a - -b", "a --b"),
        ("#define F(x) x", "#define F (x) x"),
        ("#if A\nB\n#endif", "#if A B\n#endif"),
        ('f("a b")', 'f("a  b")'),
        ('f("//x")', 'f("//y")'),
        ('R"(a /* b */)"', 'R"(a  b )"'),
        ("'/*'; x = '*/'", "'/*'; y = '*/'"),
        ("1'000'000 + x", "1'000'001 + x"),
        ("a/b", "a//b"),
        ("ab", "a b"),
    ],
)
def test_texts_that_mean_different_things_have_different_tokens(one: str, other: str) -> None:
    assert text_digest(one) != text_digest(other), (list(tokens(one)), list(tokens(other)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a /* x\n y */ b", "a b"),
        ("a; // x \\\n still\nb;", "a;\nb;"),
        ("#define A b /* x\n */ c\nd", "#define A b c\n\n d"),
        ("#  define A \\\n  b\nc", "#define A b\r\nc"),
        ("f(a,b)", "f( a ,\n\t b )"),
    ],
)
def test_comments_and_layout_are_no_tokens(one: str, other: str) -> None:
    found = [[token.text for token in tokens(text)] for text in (one, other)]
    assert found[0] == found[1]


@lru_cache
def texts() -> tuple[str, ...]:
    """The sample, and the installed FlashInfer's sources where there is one."""
    try:
        data = flashinfer_include().parent
    except CompilerMissing:
        return (SAMPLE,)
    names = (*SOURCES[:4], "include/flashinfer/attention/state.cuh")
    return (SAMPLE, *((data / name).read_text() for name in names))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_drawn_comments_and_line_breaks_change_no_part(data: st.DataObject) -> None:
    text = edited = data.draw(st.sampled_from(texts()), label="text")
    found = list(tokens(text))
    closing = (END_OF_DIRECTIVE, "#", "(", " ")  # where layout in front means something, or may
    directive = False
    free: list[tuple[int, bool]] = []
    for token in found:
        directive = directive or token.text == "#"
        if token.text not in closing:
            free.append((token.start, directive))
        directive = directive and token.text != END_OF_DIRECTIVE
    places = data.draw(st.sets(st.integers(0, len(free) - 1), min_size=1, max_size=12))
    for at, directive in sorted((free[place] for place in places), reverse=True):
        loose = ["/* __device__ { */", "// } <<<\n\n\t", "\n", "/* a\n * b */", "\\\n"]
        inserted = data.draw(st.sampled_from(loose[::4] if directive else loose))
        edited = f"{edited[:at]} {inserted} {edited[at:]}"
    assert digests(edited) == digests(text)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_drawn_edit_of_one_token_changes_a_part(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(texts()), label="text")
    found = list(tokens(text))
    token = found[data.draw(st.integers(0, len(found) - 1), label="token")]
    assume(token.text not in (END_OF_DIRECTIVE, " "))
    new = data.draw(st.sampled_from(["", "zap", "{", "}", "<<<", "(", ";", "7"]), label="new")
    assume(new != token.text)
    edited = f"{text[: token.start]} {new} {text[token.start + len(token.text) :]}"
    assume([x.text for x in tokens(edited)] != [x.text for x in found])
    assert digests(edited) != digests(text), f"{token} -> {new!r} changed no part"


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_token_is_in_exactly_one_part_of_damaged_text_too(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(texts()), label="text")
    cut = data.draw(st.integers(0, len(text)), label="cut")
    size = data.draw(st.integers(0, 200), label="size")
    damaged = text[:cut] + text[cut + size :]
    whole = Counter(token.text for token in tokens(damaged))
    cuts = Counter(word for part in parts(damaged).values() for word in part.words)
    assert cuts == whole, f"lost {whole - cuts}, made up {cuts - whole}"


def test_the_fingerprint_ignores_comments_and_sees_each_source(tmp_path: Path) -> None:
    def write(name: str, text: str) -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return fingerprint(tmp_path)

    for name in reversed(SOURCES):  # the order of writing decides nothing
        write(name, SAMPLE)
    before = fingerprint(tmp_path)
    for name in SOURCES:
        assert write(name, SAMPLE.replace("// a kernel", "/* two */\n\n// kernels")) == before
        assert write(name, SAMPLE.replace("1.44f", "1.45f")) != before, name
        (tmp_path / name).unlink()
        assert fingerprint(tmp_path) != before, name
        assert write(name, SAMPLE) == before


def test_two_sources_that_change_places_change_the_fingerprint(tmp_path: Path) -> None:
    found = set()
    for here, there in (SOURCES[:2], SOURCES[1::-1]):
        for name, text in ((here, "int a;"), (there, "int b;")):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        found.add(fingerprint(tmp_path))
    assert len(found) == 2
