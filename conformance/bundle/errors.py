"""What making or starting a bundle raises: one class per kind of mistake."""


class BundleError(RuntimeError):
    """Base of all errors of the bundle; catches everything below."""


class VersionError(BundleError):
    """The version or Python tag asked for is not one that can be named."""


class FetchError(BundleError):
    """A package index does not have the wheel, or it cannot be reached."""


class ToolMissing(BundleError):
    """nvcc, ninja, a C++ compiler or a Python package needed for building is absent."""


class CompileError(BundleError):
    """FlashInfer's build of the modules failed or made something else than expected."""


class TooLarge(BundleError):
    """The bundle would have more bytes than one may have."""


class UnsafeArchive(BundleError):
    """An archive holds a name or an entry that could write outside the chosen folder."""


class ManifestError(BundleError):
    """A bundle does not hold exactly the files its manifest tells."""


class StartError(BundleError):
    """A bundle cannot start: asked wrongly, changed on its way, or the host lacks something."""
