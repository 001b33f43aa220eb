"""Tests of the house itself: its arrows, its commands and what it ships, not the backend."""
