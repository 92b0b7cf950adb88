"""``manage.py deploy_gate``: is all that was ready before an upgrade ready after it, and answers?

    before   --remember FILE     which models are ready where
    after    --expect FILE       wait until they are ready again
                 └─▶ each of them is asked for one word ─▶ exit code

Through a server's own API: it looks at what clients see.
"""
