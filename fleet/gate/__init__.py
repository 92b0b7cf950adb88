"""Does an upgraded fleet earn its green? ``manage.py deploy_gate``, before and after an upgrade.

    before   --remember FILE     which models are ready where
    after    --expect FILE       wait until they are ready again
                 └─▶ each of them is asked for one word ─▶ exit code

Through a server's own API: it looks at what clients see.
"""
