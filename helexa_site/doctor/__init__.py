"""``manage.py doctor``: is everything here as helexa needs it? A line is ok or says how to mend it.

    settings ─▶ read? ─▶ database, Redis, disk, GPUs, clock, ports, versions of the fleet
                            each check alone: one that breaks is a finding, and the others go on

Looks and changes nothing. A host that only runs a neuron has no database, and a gateway no GPU:
what is not there by design is no fault.
"""
