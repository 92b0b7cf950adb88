"""Tool calls as models write them: each format reads and constrains its own, and ``registry``
chooses one."""
