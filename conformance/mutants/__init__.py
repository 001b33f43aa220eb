"""Deliberate faults as data, and the machinery that plants each one and sees it found."""
