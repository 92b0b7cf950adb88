"""Runs in worker processes what strangers write: JSON schemas, grammars and chat templates.

    neuron thread ── job ──▶ pool ── frame ──▶ worker: limits of time, memory and output
                  ◀─ result, or why there is none ─┘   may die; the next one is forked

A fork server has imported what workers need, so that a new one is there within milliseconds.
"""
