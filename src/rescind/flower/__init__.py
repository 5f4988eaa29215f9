"""Run the same methods over a network. Flower transports the messages; the training loop is ours.

A *silo* is a node with the data of one or more clients: client c is on silo c mod silos.
Only the command line imports this package. It needs the extra `rescind[flower]`.
"""
