"""The requirements' judges: one test function per id, one file per family.

Covered: LEN, PLAN, IDX, READ, NUM of the catalogue, and what ties the twin to FlashInfer. Each
body is the same on every tier.
"""
