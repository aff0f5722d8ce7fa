"""Figures and the report, drawn from logs alone.

Meets the other packages only through their runs. Leaves out torch, and every number that is not
computed from a log.
"""
