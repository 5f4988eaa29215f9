"""The same methods on a network: Flower carries the messages, our loop is the loop.

A *silo* is a node that holds the data of one to many clients: client c lives in silo c mod silos.
Nothing outside this package imports it, and it needs the extra `rescind[flower]`.
"""
