"""The settings: every environment variable that helexa reads, with its kind and bounds.

    setting   what a setting is, how it is read, and its row of docs/operating/settings.md; kinds:
              numbers, flags, words, URLs, hosts and networks
    gateway, storage, neuron, installation   the settings, by subject
    table     all of them; checks an environment; finds misspelt names

Processes without Django read settings too, some before anything is installed: this package uses the
standard library only.
"""
