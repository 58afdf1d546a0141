"""Export: a policy as a file for programs without ddppo. Read command, portable (the network), files, check."""
