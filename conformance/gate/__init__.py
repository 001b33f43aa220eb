"""Says whether a FlashInfer upgrade may go onto a fleet, by comparing two packages of it.

`package` gets them, a room or module per tier finds what differs (`model.Finding`), `verdict` and
`policy` weigh it, `report` tells it. Nothing here knows a FlashInfer version: what differs is found
in the packages.
"""
