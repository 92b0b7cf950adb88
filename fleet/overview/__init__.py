"""An overview of the fleet for the dashboard, the status command and the REST API.

database, Redis ─▶ selector.fleet_overview() ─▶ lines, and attention's findings by urgency

Live where Redis answers, else the last recorded state. A fixed number of queries for any size of
fleet.
"""
