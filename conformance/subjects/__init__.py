"""The only room that names a subject: adapters from a backend's API to the suite's protocol."""

DEFAULT = "smla"
"""The subject of a run that names none."""

SUBJECTS = {"smla": "conformance.subjects.smla:SmlaSubject"}
"""Known names and their factories."""
