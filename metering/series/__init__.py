"""Time series of the fleet, its models, neurons, devices and accounts, for thirty days.

    gateways' record writers ─┐                        ┌─ store.series_points ─▶ REST, charts
    the control's samples ────┴─▶ metering_seriesrow ──┴─ rollup: 60 s ─▶ 15 min ─▶ 1 h ─▶ forgotten

All figures add up, percentiles too: they are computed from histograms.
"""
