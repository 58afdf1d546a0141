"""Two processes that nobody launched as MPI's: can they join? `python join.py <0 or 1> <port>`, one of each."""

import socket
import sys
import time

from mpi4py import MPI

rank, port = int(sys.argv[1]), int(sys.argv[2])
print(rank, "is a world of", MPI.COMM_WORLD.size, flush=True)
if rank == 0:
    server = socket.create_server(("127.0.0.1", port))
    connection, _ = server.accept()
else:
    time.sleep(1.0)
    connection = socket.create_connection(("127.0.0.1", port))
both = MPI.Comm.Join(connection.fileno()).Merge(rank == 1)
print(rank, "is one of", both.size, flush=True)
