"""Preflight: is this host fit for a run?"""
