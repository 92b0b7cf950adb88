"""Opened weight files, whatever their format: named, cut for ranks, quantised while they load."""
