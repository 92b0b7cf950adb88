"""The fixed text that quality is measured on: prose, a dialogue, a list, numbers and code, so that
no one kind of text decides. Changing a letter changes every figure: all models are measured again.
"""

from __future__ import annotations

QUALITY_TEXT = """\
The harbour lies where the river meets the sea, and for most of the year the water is the colour of
wet slate. Ships used to wait here for a favourable wind; today they wait for a berth, for a customs
officer, or for somebody to repair a crane. On a clear morning you can count eleven islands from the
lighthouse. The smallest has a single house on it, with a red roof and no electricity, and the woman
who lives there rows to the market every Thursday to sell eggs, honey and wool.

"How long have you been out there?" asked the clerk, who was new to the town.
"Since the winter my father died," she said. "That makes it nineteen years."
"And you never wanted to leave?"
"I left twice. Both times I came back before the bread was stale."

To make the plain bread of the region you need four things: flour, water, salt and time.
1. Mix 500 grams of flour with 350 grams of water and let it rest for thirty minutes.
2. Add 10 grams of salt and a spoonful of the old dough, and knead until it no longer sticks.
3. Wait. In summer three hours are enough; in winter it may take the whole night.
4. Bake at 240 degrees for forty minutes, and do not cut it while it is hot.

The tide can be predicted, because the moon moves regularly around the earth. If high water is at
06:10 today, it will be at about 07:00 tomorrow, since the moon is then fifty minutes behind. A
simple program says as much:

def next_high_water(minutes):
    # The moon comes round again after 24 hours and 50 minutes.
    return (minutes + 24 * 60 + 50) % (24 * 60)

In 1874 the town had 3,200 inhabitants, in 1931 it had 9,750, and at the last count 6,418. Nobody is
quite sure why people left, although most explanations begin with the railway and end with the fish.
"""
