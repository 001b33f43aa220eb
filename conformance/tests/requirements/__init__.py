"""The requirements' judges: one test function per id, one file per family.

Covered: every id of the catalogue; among them what ties the twin to FlashInfer, and golden to a
second derivation (`plainly`). Each body is the same on every tier.
"""
