"""Arithmetic about what does not fit on one box: memory, speed limits, ways to split. Needs no torch and no weights.

Everything here is COMPUTED from a config and a data sheet (or from a short measurement of this machine), never
recorded; what it prints says so.
"""
