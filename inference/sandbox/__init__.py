"""Runs in worker processes what strangers write: JSON schemas, grammars and chat templates.

    neuron thread ── job ──▶ pool ── frame ──▶ worker: limits of time, memory and output
                  ◀─ result, or why there is none ─┘   may die; the next one is forked

The pool is the neuron's side. Workers are forked by a fork server, which has imported what they
need, so that a new one is there within milliseconds.
"""
