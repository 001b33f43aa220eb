"""Reading MLAPlanInfo out of an installed FlashInfer's headers."""

import re
from pathlib import Path


def plan_info_fields(package: Path) -> list[str]:
    """Return the fields that MLAPlanInfo::ToVector lists, without their `_offset` ending.

    package: the folder of the flashinfer package. Raises ValueError when the header no longer
    has such a function.
    """
    header = package / "data/include/flashinfer/attention/scheduler.cuh"
    text = header.read_text()
    match = re.search(
        r"struct MLAPlanInfo\b.*?ToVector\(\) const \{\s*return \{(.*?)\};", text, re.S
    )
    if match is None:
        raise ValueError(f"{header.name}: no MLAPlanInfo with a ToVector that lists its fields")
    return [re.sub(r"_offset$", "", name.strip()) for name in match.group(1).split(",")]
