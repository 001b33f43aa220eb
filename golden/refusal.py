"""What is said of anything refused: what was found, what is allowed, what to do."""


def refusal(what: str, found: object, allowed: str, fix: str) -> str:
    """The text of an error."""
    return f"{what}: found {found}; allowed: {allowed}; to fix: {fix}"


class Refused(Exception):
    """An error of these four parts, which are kept for whoever says it in another place."""

    def __init__(self, what: str, found: str, allowed: str, fix: str) -> None:
        super().__init__(what, found, allowed, fix)
        self.what, self.found, self.allowed, self.fix = what, found, allowed, fix

    def __str__(self) -> str:
        return refusal(self.what, self.found, self.allowed, self.fix)


def missing_package(problem: ModuleNotFoundError) -> str:
    """What the command says where a package is not installed."""
    package = (problem.name or "of an unknown name").partition(".")[0]
    return refusal(
        "python -m golden", f"no package {package}", "torch, click and safetensors installed",
        f"python -m pip install {package}",
    )  # fmt: skip
