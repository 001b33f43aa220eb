"""Tests of the twin: planner, kernel, access log and native surface."""
