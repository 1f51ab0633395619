"""Which run directories of a home may go, and how do they go so that each says so itself?"""
