"""The tests, as a package, so that each module is loaded once under one name.

A folder has the tests of the room of joinlab that it is named after; `backend` those of the facts
below it (cases, ops, Timelines, archives, proofs), too, and `project` those of the whole. What
stands beside the folders is what tests use, and commands for whoever works on joinlab.
"""
