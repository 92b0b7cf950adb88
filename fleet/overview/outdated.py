"""Reads which models serve by earlier settings, for the pages that show nothing else."""

from __future__ import annotations

from fleet import selectors
from fleet.models import Replica
from fleet.overview.jobs import job_lines
from fleet.overview.lines import OutdatedLine


def outdated_models() -> tuple[OutdatedLine, ...]:
    """Models with an outdated replica, by name. Two queries; one where nothing is outdated."""
    digests = {
        entry.name: entry.spec_digest()
        for entry in selectors.catalogue_list()
        if entry.base is None  # an adapter is reloaded with its base
    }
    loaded = list(
        Replica.objects.exclude(spec_digest="").values_list(
            "model_name", "spec_digest", "report__stages"
        )
    )
    names = {name for name, digest, _ in loaded if digests.get(name, digest) != digest}
    on_hosts = {
        name for name, _, stages in loaded if any(one.get("neuron") for one in stages or ())
    }
    if not names:
        return ()
    jobs = job_lines(models=names)
    return tuple(
        OutdatedLine(
            model=name,
            jobs=tuple(job for job in jobs if job.model == name),
            may_reload=name not in on_hosts,
        )
        for name in sorted(names)
    )
