"""The operator's dashboard, which is the admin's index.

fleet_overview() ─▶ board_of() ─▶ Board ─▶ templates/fleet/board.html, asked for again by htmx
a button ─▶ act ─▶ services ─▶ the board, with the job's progress where it was started
"""
