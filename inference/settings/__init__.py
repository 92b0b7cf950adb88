"""The settings: every environment variable that helexa reads, with its type, bounds and meaning.

    setting   what a setting is, and how it is read
    kinds     numbers, flags, words, URLs, hosts and networks
    gateway, storage, neuron, installation   the settings, by subject
    table     all of them; checks an environment; finds misspelt names; writes the operator's page

Processes without Django read settings too, some before anything is installed: this package uses the
standard library only.
"""
