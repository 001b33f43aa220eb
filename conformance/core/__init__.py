"""What the suite is made of: requirements, cases, inputs, subjects, observations and records.

Nothing here knows a subject or the twin; both are handed in.
"""
