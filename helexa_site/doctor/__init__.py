"""``manage.py doctor``: checks this host's installation. Each line is ok or names a remedy.

    settings ─▶ read? ─▶ database, Redis, disk, GPUs, clock, ports, versions of the fleet
                           each check alone: one that breaks is a finding, the others continue

Changes nothing. A host that only runs a neuron has no database, and a gateway no GPU: parts missing
by design are no fault.
"""
